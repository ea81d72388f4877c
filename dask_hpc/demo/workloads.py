"""The demo's workloads in one table, and the digest that compares results bit for bit.

Every workload gives the same bits wherever its tasks run: random streams belong to blocks, not to
workers, and partial results are reduced in a fixed order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from distributed import Client, Future

from dask_hpc.demo import bootstrap, monte_carlo, primes
from dask_hpc.demo.paced import paced


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkload:
    """Something to compute in many short tasks."""

    title: str
    #: Gives what one task computes, by its number, and what is made of the list of their results.
    functions: Callable[[], tuple[Callable[[int], Any], Callable[[list[Any]], Any]]]
    #: One line about a result.
    describe: Callable[[Any], str]

    def prepare(self, first: int, tasks: int, seconds: float) -> Callable[[Client], Future]:
        """What submits `tasks` tasks with the numbers from `first`, each of which takes `seconds`."""
        block, summarize = self.functions()

        def submit(client: Client) -> Future:
            blocks = client.map(partial(paced, seconds, block), range(first, first + tasks), pure=False)
            return client.submit(summarize, blocks, pure=False)

        return submit


#: By what a user would call them.
WORKLOADS: Mapping[str, DemoWorkload] = {
    "option": DemoWorkload(
        title="Asian option by Monte Carlo",
        functions=monte_carlo.functions,
        describe=monte_carlo.describe,
    ),
    "el-nino": DemoWorkload(
        title="El Nino trend by bootstrap",
        functions=bootstrap.functions,
        describe=bootstrap.describe,
    ),
    "primes": DemoWorkload(
        title="Primes by a sieve",
        functions=primes.functions,
        describe=primes.describe,
    ),
}


def warm_up() -> None:
    """Called on each worker: unpickling this function imports what the workloads need."""


def digest(result: Any) -> str:
    """Hexadecimal SHA-256 of `result`, equal exactly when every bit, shape, type and label is.

    Parameters
    ----------
    result
        Numbers, strings, numpy arrays, xarray datasets, and mappings and sequences of them.

    Raises
    ------
    TypeError
        For any other type.
    """
    state = hashlib.sha256()
    for part in _parts(result):
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()


def _parts(value: Any) -> list[bytes]:
    # Imported here: the workers import this package, and most tasks need no xarray.
    import xarray as xr

    if isinstance(value, (bool, int, float, str)):
        # `hex` of a float shows every bit, also the sign of zero.
        text = value.hex() if isinstance(value, float) else repr(value)
        return [type(value).__name__.encode(), text.encode()]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [b"array", value.dtype.str.encode(), repr(value.shape).encode(), value.tobytes()]
    if isinstance(value, xr.DataArray):
        return [b"dataarray", repr(value.dims).encode(), *_parts(value.values)]
    if isinstance(value, xr.Dataset):
        return [b"dataset", *_parts({str(name): value[name] for name in value.variables})]
    if isinstance(value, Mapping):
        pairs = [part for key in sorted(value) for part in (key.encode(), *_parts(value[key]))]
        return [b"mapping", str(len(value)).encode(), *pairs]
    if isinstance(value, (list, tuple)):
        return [b"list", str(len(value)).encode(), *(part for item in value for part in _parts(item))]
    raise TypeError(f"cannot compare bit for bit what is of type {type(value).__name__}: {value!r:.80}")
