"""The demo's workloads in one table, and the digest that compares their results bit for bit.

Every workload gives the same bits wherever its tasks run: random streams belong to blocks, not to
workers, and partial results are reduced in a fixed order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_hpc.demo import bootstrap, field, monte_carlo, primes


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkload:
    """Something to compute."""

    name: str
    title: str
    #: What it computes, in one sentence.
    sentence: str
    #: Makes the dask collection; the argument multiplies the amount of work (1 is the full demo).
    build: Callable[[float], Any]
    #: One line about a result.
    describe: Callable[[Any], str]


WORKLOADS: Mapping[str, DemoWorkload] = {
    workload.name: workload
    for workload in (
        DemoWorkload(
            name="monte-carlo",
            title="Asian option by Monte Carlo",
            sentence="Prices an option on a mean with antithetic paths and a control variate.",
            build=monte_carlo.build,
            describe=monte_carlo.describe,
        ),
        DemoWorkload(
            name="el-nino",
            title="El Nino trend by bootstrap",
            sentence="Confidence interval of the trend of measured sea-surface temperatures, 1950 to 2010.",
            build=bootstrap.build,
            describe=bootstrap.describe,
        ),
        DemoWorkload(
            name="climate-field",
            title="Climate field statistics",
            sentence="Variance and means of the anomaly of a chunked xarray field of a few hundred MB.",
            build=field.build,
            describe=field.describe,
        ),
        DemoWorkload(
            name="primes",
            title="Primes, as plain Dask code",
            sentence="Counts primes with a bag and declares no job.",
            build=primes.build,
            describe=primes.describe,
        ),
    )
}


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
    raise TypeError(f"cannot compare a {type(value).__name__} bit for bit: {value!r:.80}")
