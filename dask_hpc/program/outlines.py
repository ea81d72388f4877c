"""The state of a program as one labelled object whose arrays stay on the workers, and blocks back from it.

The blocks of a program are xarray objects, each one part of the domain. A checkpoint is of arrays: those of
each block are taken out of it where it is, and what is left of it, its *outline*, is small and goes through
the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from dask_hpc.checkpoint.labelled import as_dataset
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.errors import CheckpointError
from dask_hpc.program import blocks
from dask_hpc.worker.in_memory import open_records
from dask_hpc_policies.layout import Part


class VersionLost(CheckpointError):
    """A block cannot be read from its version: it goes back to another one."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An array that was taken out of a block, without its values."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attrs: Mapping[str, Any]
    coordinate: bool


@dataclass(frozen=True, slots=True)
class Outline:
    """A block without the arrays that are split along the dimension of the program."""

    rest: xr.Dataset
    taken: Mapping[str, Taken]
    #: Of a DataArray the variable that it is in `rest`, and its own name; None: it is a Dataset.
    array: tuple[str, Any] | None


def outline(block: xr.DataArray | xr.Dataset, dim: str) -> Outline:
    """The outline of a block. Indexes stay in it: they are needed where the object is put together."""
    dataset, array = _dataset(block)
    taken = {
        str(name): Taken(
            tuple(map(str, variable.dims)),
            variable.shape,
            variable.dtype,
            variable.attrs,
            name in dataset.coords,
        )
        for name, variable in dataset.variables.items()
        if dim in variable.dims and name not in dataset.xindexes
    }
    return Outline(dataset.drop_vars(list(taken)), taken, array)


def values(block: xr.DataArray | xr.Dataset, name: str) -> np.ndarray:
    """The values of an array of a block; no copy."""
    found: np.ndarray = _dataset(block)[0].variables[name].values
    return found


def whole(outlines: Sequence[Outline], dim: str, size: int) -> tuple[Any, dict[str, list[tuple[int, str]]]]:
    """The object that blocks make up, with arrays that have no values yet.

    Returns
    -------
    tuple
        The object, a Dataset or a DataArray, and by the name of each of its dask arrays where the values of
        its blocks are, in order: number of the program's block, and name of the array in it.
    """
    import dask.array as da

    first = outlines[0]
    rests = [each.rest for each in outlines]
    made: Any = rests[0]
    if dim in made.sizes:
        made = blocks.put_together(rests, dim, Part("", 0, size))
    places = {}
    for name, taken in first.taken.items():
        axis = taken.dims.index(dim)
        lengths = tuple(each.taken[name].shape[axis] for each in outlines)
        chunks = tuple(lengths if i == axis else (n,) for i, n in enumerate(taken.shape))
        array = da.Array({}, f"field-{name}", chunks, meta=np.empty((0,) * len(chunks), taken.dtype))
        variable = xr.Variable(taken.dims, array, taken.attrs)
        made = made.assign_coords({name: variable}) if taken.coordinate else made.assign({name: variable})
        places[array.name] = [(i, name) for i in range(len(outlines))]
    if first.array is not None:
        made = made[first.array[0]].rename(first.array[1])
    return made, places


def read(path: str, dim: str, part: Part) -> Any:
    """The block of a part, read from a version of the whole.

    Raises
    ------
    VersionLost
        When the version is not there (any more), or not what was written.
    LayoutError
        When it is of another size.
    """
    return _read(lambda: open_checkpoint(path), path, dim, part)


def read_held(record: str, dim: str, part: Part) -> Any:
    """As `read`, of a version in the memory of hosts, which is known by its record."""
    return _read(lambda: open_records([record], allow_pickle=False), "the memory of hosts", dim, part)


def _read(opened: Callable[[], Any], where: str, dim: str, part: Part) -> Any:
    try:
        block = opened().isel({dim: slice(part.start, part.stop)}).compute(scheduler="synchronous")
    except CheckpointError as error:
        raise VersionLost(str(error)) from None
    return blocks.fits(block, dim, part, where)


def _dataset(block: xr.DataArray | xr.Dataset) -> tuple[xr.Dataset, tuple[str, Any] | None]:
    if isinstance(block, xr.Dataset):
        return block, None
    dataset, own = as_dataset(block)
    return dataset, (own, block.name)
