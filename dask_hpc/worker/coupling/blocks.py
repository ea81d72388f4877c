"""What a worker has of one step: blocks of fields, and the data set that is made of them."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import get_worker

from dask_hpc.wire import TAKEN, VALUE
from dask_hpc.worker.coupling.taking import taken
from dask_hpc.worker.small import to_content
from dask_hpc_policies.coupling.contract import Field

if TYPE_CHECKING:
    import xarray as xr

    from dask_hpc.worker.coupling.ring import Ring

#: The most that goes with the word that it is there.
_ALONG_BYTES = 16384
#: What data sets load, some of it only once there is one; and whether it is loaded here.
_LOADED, _loaded = ("xarray", "dask.array"), False


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a field."""

    field: str
    at: tuple[int, ...]
    array: np.ndarray


@dataclass(frozen=True)
class Bundle:
    """All blocks of one step that one worker has; read-only."""

    #: As the producers number it.
    step: int
    blocks: tuple[Block, ...]

    def __sizeof__(self) -> int:
        return 200 + sum(200 + block.array.nbytes for block in self.blocks)


def came(message: Mapping[str, Any], ring: Ring | None) -> list[Block]:
    """The blocks of a message, read-only; raises `ValueError` for what no `Source` sends."""
    if message["slot"] is not None and ring is None:
        raise ValueError(f"slot is {message['slot']}; there is no ring")
    slot = None if message["slot"] is None or ring is None else ring.slot(message["slot"])
    found = []
    for at, told in enumerate(message["blocks"]):
        shape, dtype = tuple(told["shape"]), np.dtype(told["dtype"])
        if slot is not None:
            begin = told["offset"]
            nbytes = int(np.prod(shape)) * dtype.itemsize
            array = slot[begin : begin + nbytes].view(dtype).reshape(shape)
        else:
            array = np.asarray(message["data"][at]).view()
            array.flags.writeable = False
        found.append(Block(told["field"], tuple(told["at"]), array))
    return found


def block_of(bundle: Bundle, number: int) -> np.ndarray:
    """The array of one of its blocks."""
    return bundle.blocks[number].array


def field_of(field: Field, *bundles: Bundle) -> np.ndarray:
    """A whole field of one step."""
    found = np.empty(field.shape, field.dtype)
    _fill(field, bundles, found)
    return found


def dataset(fields: Sequence[Field], steps: Sequence[Sequence[Bundle]]) -> xr.Dataset:
    """The fields of several steps, along a first dimension ``step`` that has the producers' numbers.

    The arrays are read-only; that of a field that is one block of one step is not copied.
    """
    import xarray as xr  # not every worker has a use for it

    arrays = {}
    for field in fields:
        blocks = [
            one.array
            for bundles in steps
            for each in bundles
            for one in each.blocks
            if one.field == field.name
        ]
        if len(steps) == len(blocks) == 1:
            found = blocks[0][np.newaxis]
        else:
            found = np.empty((len(steps), *field.shape), field.dtype)
            for into, bundles in zip(found, steps, strict=True):
                _fill(field, bundles, into)
            found.flags.writeable = False
        arrays[field.name] = (("step", *field.dims), found)
    return xr.Dataset(arrays, coords={"step": [bundles[0].step for bundles in steps]})


async def _load() -> None:
    global _loaded
    for name in _LOADED:
        importlib.import_module(name)
    _loaded = True


def load(worker: Any) -> None:
    """Load what data sets need where a worker reads its messages, which may name parts of the same.

    Of two threads that load parts of one package at once, Python lets one find it unfinished. Where that is
    the one that reads a message, of a callback's arrays, the worker ends.
    """
    if not _loaded:
        asyncio.run_coroutine_threadsafe(_load(), worker.loop.asyncio_loop).result()


def _fill(field: Field, bundles: Sequence[Bundle], into: np.ndarray) -> None:
    for bundle in bundles:
        for block in bundle.blocks:
            if block.field == field.name:
                where = zip(block.at, block.array.shape, strict=True)
                into[tuple(slice(begin, begin + count) for begin, count in where)] = block.array


@contextmanager
def copied_first() -> Iterator[None]:
    """Say what to do instead where a function of the user's writes into an array that it may only read."""
    try:
        yield
    except ValueError as error:
        if "read-only" in str(error):
            error.add_note("Others read these arrays, too: change a copy of them (copy(deep=True)).")
        raise


def analysed(function: Callable[[xr.Dataset], Any], fields: Sequence[Field], *bundles: Bundle) -> Any:
    """What an analysis gives for a window; bundles of its steps lie one behind the other."""
    steps = [list(its) for _, its in itertools.groupby(bundles, lambda bundle: bundle.step)]
    worker: Any = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    needs = {each.key: each.get_nbytes() for each in task.dependencies}
    load(worker)
    try:
        with copied_first(), taken(worker, needs, task.metadata, TAKEN):
            value = function(dataset(fields, steps))
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        # `SystemExit` and `KeyboardInterrupt` would end the worker, and each one that tries it after that
        raise RuntimeError(f"the analysis has raised {error!r} at step {bundles[-1].step}") from error
    # a small value comes with the word that it is there: nobody has to fetch it
    if (content := to_content(value, _ALONG_BYTES // 4)) is not None:
        task.metadata[VALUE] = content
    return value
