"""What runs on the workers of an elastic program: blocks are cut, put together, and advanced there.

A block is an xarray object, a `DataArray` or a `Dataset`, that holds one part of the domain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from dask_hpc.worker.coupling.blocks import copied_first
from dask_hpc_policies.layout import LayoutError, Part


def cut(block: Any, dim: str, start: int, stop: int) -> Any:
    """The indices ``start`` up to ``stop`` of a block, on their own (no view that keeps the whole alive)."""
    return block.isel({dim: slice(start, stop)}).copy(deep=True)


def put_together(pieces: list[Any], dim: str, part: Part) -> Any:
    """A new block from pieces in order.

    Raises
    ------
    LayoutError
        When the pieces do not make up the part.
    """
    if len(pieces) == 1:
        return fits(pieces[0], dim, part, "the pieces")
    options: dict[str, Any] = {"coords": "minimal", "compat": "override", "join": "override"}
    if isinstance(pieces[0], xr.Dataset):
        options["data_vars"] = "minimal"
    return fits(xr.concat(pieces, dim=dim, **options), dim, part, "the pieces")


def same(block: Any) -> Any:
    """The block itself: as a task on another node it is a copy."""
    return block


def create(function: Callable[..., Any], dim: str, part: Part, status: str) -> Any:
    """The block that `function` makes for a part; raises `LayoutError` when it is of another size."""
    return fits(function(part, status), dim, part, getattr(function, "__name__", "init"))


def prepare(function: Callable[..., Any], dim: str, part: Part, status: str) -> str:
    """Run init on a node that joins; returns what went wrong, in words, or nothing.

    A failure here ends a window; as a failed task it would fail the job, too.
    """
    try:
        create(function, dim, part, status)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def advance(function: Callable[..., Any], dim: str, part: Part, halo: int, *blocks: Any) -> Any:
    """The block one step later; the one before stays as it is, for who analyses it, or goes back.

    Raises
    ------
    LayoutError
        When `function` returns a block of another size.
    ValueError
        When it writes into an array of the block that it gets: NumPy says so, with a note to copy it.
    """
    block, *edges = blocks
    for variable in block.data_vars.values() if isinstance(block, xr.Dataset) else [block]:
        if isinstance(variable.data, np.ndarray):
            variable.data.flags.writeable = False
    mine = block.copy(deep=False)
    with copied_first():
        result = function(mine, *edges) if halo else function(mine)
    return fits(result, dim, part, getattr(function, "__name__", "the step"))


def fits(block: Any, dim: str, part: Part, who: str) -> Any:
    """The block itself; raises `LayoutError`, naming `who` has made it, when it is none of the part."""
    sizes = getattr(block, "sizes", None)
    if not isinstance(block, (xr.DataArray, xr.Dataset)) or dim not in sizes:  # type: ignore[operator]
        raise LayoutError(
            f"{who} gave one of type {type(block).__name__} for the part {part.start}:{part.stop}; needed: "
            f"an xarray DataArray or Dataset with the dimension {dim!r}"
        )
    if block.sizes[dim] != part.size:
        raise LayoutError(
            f"{who} gave a block of {block.sizes[dim]} indices of {dim!r} for the part "
            f"{part.start}:{part.stop}; needed: {part.size}"
        )
    return block
