"""Blocks of programs that run on the workers themselves: nothing is copied."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import get_worker

from dask_hpc.errors import CouplingError
from dask_hpc.wire import TAKEN
from dask_hpc.worker.coupling.blocks import Block, Bundle, analysed
from dask_hpc_policies.coupling.contract import Field

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, slots=True)
class Raised:
    """What an analysis has raised: as a failed task it would end the program's job."""

    error: Exception
    text: str


def bundled(fields: Sequence[Field], dim: str, start: int, step: int, block: Any) -> Bundle:
    """What a block of a program is in a flow: read-only views.

    Parameters
    ----------
    dim, start
        What the program is split along, and where the block begins.
    block
        The result of a task here: a `DataArray`, which is the one field, or a `Dataset` that has all.

    Raises
    ------
    CouplingError
        For a block that is none of the fields': those of later steps will be none either.
    """
    try:
        found = tuple([_block(field, dim, start, block) for field in fields])
    except (KeyError, TypeError, ValueError) as error:
        raise CouplingError(f"step {step}: {error}") from error
    _note()
    return Bundle(step, found)


def _block(field: Field, dim: str, start: int, block: Any) -> Block:
    labelled: xr.DataArray = block[field.name] if hasattr(block, "data_vars") else block
    array = np.asarray(labelled.transpose(*field.dims).data).view()
    array.flags.writeable = False
    begin, shape = field.placed({dim: start}, array.shape, array.dtype.name)
    # along the program's dimension it was checked when it was computed
    for name, count, whole in zip(field.dims, shape, field.shape, strict=True):
        if name != dim and count != whole:
            raise ValueError(f"block of {field.name!r} has {count} indices along {name!r}; allowed: {whole}")
    return Block(field.name, begin, array)


def _note() -> None:
    """With the word that it is there goes how long its block was computed, in seconds."""
    worker: Any = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    took = [one for block in task.dependencies for one in block.startstops if one["action"] == "compute"]
    if took:
        task.metadata[TAKEN] = took[-1]["stop"] - took[-1]["start"]


def analysed_inside(function: Callable[[Any], Any], fields: Sequence[Field], *bundles: Bundle) -> Any:
    """What an analysis gives for a window, or what it has raised."""
    try:
        return analysed(function, fields, *bundles)
    except Exception as error:  # whatever a user's function raises
        return Raised(error, traceback.format_exc())
