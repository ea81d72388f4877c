"""Arrays that processes hold themselves, written as one version by all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.dtypes import to_json
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.errors import CheckpointTypeError, CheckpointValueError
from dask_hpc.session.ranks import Ranks
from dask_hpc.session.shares import Piece, Share, share_of, together
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.numeric import whole


@dataclass(frozen=True, slots=True)
class Held:
    """An array of this process, as it was added."""

    value: np.ndarray
    dims: tuple[str, ...] | None
    start: int | None


def held(name: str, value: Any, dims: Sequence[str] | None, start: int | None) -> Held:
    """A value as an array of this process, in the same memory where it is an array or buffer.

    Raises
    ------
    CheckpointTypeError
        When it is none, or of a dtype that cannot be stored without running code when it is read.
    CheckpointValueError
        When `dims` or `start` do not fit it.
    """
    from dask.base import is_dask_collection

    if is_dask_collection(value):
        raise CheckpointTypeError(
            f"{name!r} is of type {type(value).__name__}, whose values are not in this process; use "
            "dask_hpc.install(client).checkpoint(...) for it, or add what its compute() gives"
        )
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except Exception as error:  # types of users may raise anything
        raise CheckpointTypeError(
            f"{name!r} is of type {type(value).__name__}, of which NumPy says: {error}"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        raise CheckpointTypeError(f"{name!r} is a masked array; add its data and its mask, each by itself")
    objects = array.dtype.hasobject and array.dtype.kind != "T"
    if objects or to_json(array.dtype) is None or not array.dtype.itemsize:
        raise CheckpointTypeError(
            f"{name!r} is of type {type(value).__name__} and dtype {array.dtype}; allowed: numbers, truth "
            "values, times, text and records of them. Convert it with astype, or give small values to "
            "commit(...)"
        )
    named = None if dims is None else tuple(dims) if isinstance(dims, Iterable) else ()
    if named is not None and (
        isinstance(dims, str)
        or not isinstance(dims, Iterable)
        or len(named) != array.ndim
        or len(set(named)) != array.ndim
        or not all(metadata.is_text(dim) and dim for dim in named)
    ):
        raise CheckpointValueError(f"dims is {dims!r}; allowed: {array.ndim} different names for {name!r}")
    begin = whole(start)
    if start is not None and (begin is None or begin < 0 or not array.ndim):
        raise CheckpointValueError(
            f"start is {start!r}; allowed: where the block begins along the first dimension of {name!r}, "
            f"which has {array.ndim}, or None"
        )
    return Held(array, named, begin)


def copied(arrays: Mapping[str, Held], before: Mapping[str, Held]) -> dict[str, Held]:
    """Arrays as they are now, in the memory of copies that were made `before`, where it fits."""
    found = {}
    for name, each in arrays.items():
        value = each.value
        copy = before[name].value if name in before else None
        if copy is None or (copy.shape, copy.dtype) != (value.shape, value.dtype):
            copy = np.empty(value.shape, value.dtype)
        np.copyto(copy, value)
        found[name] = replace(each, value=copy)
    return found


def checked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a commit as JSON has them; raises CheckpointValueError when it has not."""
    try:
        return dict(json.loads(json.dumps(metadata.plain(values))))
    except (TypeError, RecursionError) as error:
        raise CheckpointValueError(
            f"a value of commit is {error}; allowed: numbers, text, and lists and dicts of them; arrays are "
            "given to add(name, array)"
        ) from None


def plan_of(
    name: str, ranks: Ranks, arrays: Mapping[str, Held], values: Mapping[str, Any]
) -> tuple[Plan, list[tuple[Piece, ...]]]:
    """What all processes hold as one object, and who writes which block of it.

    Raises
    ------
    CheckpointValueError
        When what the processes hold does not go together.
    """
    several = ranks.size > 1
    told = ranks.together(
        lambda: {
            "values": json.dumps(values, sort_keys=True),
            "shares": {
                path: encode(share_of(each.value, each.dims, each.start, several and each.start is None))
                for path, each in arrays.items()
            },
        }
    )
    if any(each["values"] != told[0]["values"] for each in told):
        raise CheckpointValueError("commit was given other values in some processes; give the same in all")
    shares = [{path: decode(Share, one) for path, one in each["shares"].items()} for each in told]
    return together(name, shares, values)


def blocks_of(
    plan: Plan, pieces: Sequence[Sequence[Piece]], arrays: Mapping[str, Held], rank: int
) -> dict[int, tuple[int, int, np.ndarray]]:
    """The blocks that a process writes, by number over all arrays: which array, number in it, and value."""
    found, first = {}, 0
    for place, (array, among) in enumerate(zip(plan.arrays, pieces, strict=True)):
        value = arrays[array.path].value
        for number, piece in enumerate(among):
            if piece.rank == rank:
                block = value[piece.start : piece.stop] if value.ndim else value
                found[first + number] = place, number, block
        first += array.count
    return found
