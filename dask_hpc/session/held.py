"""Arrays that processes hold themselves, written as one version by all of them."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.dtypes import to_json
from dask_hpc.checkpoint.plan import Plan, Written
from dask_hpc.checkpoint.services import served
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.versions import Version, numbers
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError, CheckpointTypeError, CheckpointValueError
from dask_hpc.session.ranks import Ranks
from dask_hpc.session.shares import Piece, Share, share_of, together
from dask_hpc_policies.codec import decode, encode

logger = logging.getLogger(__name__)


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
            f"{name!r} is a {type(value).__name__}, whose values are not in this process; use "
            "dask_hpc.install(client).checkpoint(...) for it, or add what its compute() gives"
        )
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except Exception as error:  # types of users may raise anything
        raise CheckpointTypeError(
            f"{name!r} is a {type(value).__name__}, of which NumPy says: {error}"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        raise CheckpointTypeError(f"{name!r} is a masked array; add its data and its mask, each by itself")
    objects = array.dtype.hasobject and array.dtype.kind != "T"
    if objects or to_json(array.dtype) is None or not array.dtype.itemsize:
        raise CheckpointTypeError(
            f"{name!r} is a {type(value).__name__} of dtype {array.dtype}; allowed: numbers, truth values, "
            "times, text and records of them. Convert it with astype, or give small values to commit(...)"
        )
    named = None if dims is None else tuple(dims)
    if named is not None and (
        isinstance(dims, str)
        or len(named) != array.ndim
        or len(set(named)) != array.ndim
        or not all(isinstance(dim, str) and dim for dim in named)
    ):
        raise CheckpointValueError(f"dims is {dims!r}; allowed: {array.ndim} different names for {name!r}")
    if start is not None and (not isinstance(start, Integral) or start < 0 or not array.ndim):
        raise CheckpointValueError(
            f"start is {start!r}; allowed: where the block begins along the first dimension of {name!r}, "
            f"which has {array.ndim}, or None"
        )
    return Held(array, named, None if start is None else int(start))


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
    except TypeError as error:
        raise CheckpointValueError(
            f"a value of commit is {error}; allowed: numbers, text, and lists and dicts of them; arrays are "
            "given to add(name, array)"
        ) from None


@dataclass(frozen=True, slots=True)
class Done:
    """A version that was written, and what that took."""

    version: Version
    blocks: int
    writing_s: float
    finishing_s: float


def write_version(
    store: Store,
    name: str,
    ranks: Ranks,
    arrays: Mapping[str, Held],
    values: Mapping[str, Any],
    newest: int,
    services: str = "plain",
) -> Done:
    """Write what all processes hold as the version after `newest`; the last two stay.

    What is done to its blocks the first process says.

    Raises
    ------
    CheckpointError
        When it cannot be written, or another run has written one meanwhile. The store is as it was.
    CheckpointValueError
        When what the processes hold does not go together.
    """
    began_s = stopwatch_s()
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
    plan, pieces = together(name, shares, values)
    # all processes do the same, and encrypt for the same version
    plan = served(plan, *ranks.first(lambda: [services, uuid.uuid4().hex]))
    draft: Draft | None = None

    def begin() -> str:
        nonlocal draft
        draft = _begin(store, plan, newest)
        return os.path.basename(draft.path)

    def finish() -> Any:
        assert draft is not None
        blocks = {number: Written(*row) for each in written for number, row in each}
        return encode(draft.finish(blocks))

    try:
        folder = str(store.folder / name / ranks.first(begin))
        written = ranks.together(lambda: _write(folder, plan, pieces, arrays, ranks.rank))
        written_s = stopwatch_s()
        version = decode(Version, ranks.first(finish))
    except BaseException:
        if draft is not None:
            draft.abandon()
        raise
    if ranks.rank == 0:
        try:
            store.collect(keep=2, name=name)
        except CheckpointError as error:
            logger.warning("Old versions of %s stay: %s", name, error)
    return Done(version, plan.count, written_s - began_s, stopwatch_s() - written_s)


def _begin(store: Store, plan: Plan, newest: int) -> Draft:
    there = max(numbers(store.folder / plan.name), default=0)
    if there > newest:
        raise CheckpointError(
            f"{store.folder} has version {there} of {plan.name!r}, which this session has neither written "
            "nor gone on from: call restart() or restart_all() before the first commit(), or give the "
            "session another name"
        )
    return store.begin(plan)


def _write(
    folder: str, plan: Plan, pieces: Sequence[Sequence[Piece]], arrays: Mapping[str, Held], rank: int
) -> list[tuple[int, tuple[Any, ...]]]:
    """Write the blocks of this process; gives what is known of each, by number."""
    found, first = [], 0
    for array, among in zip(plan.arrays, pieces, strict=True):
        value = arrays[array.path].value
        mine = {number: piece for number, piece in enumerate(among) if piece.rank == rank}
        blocks = [value[each.start : each.stop] if value.ndim else value for each in mine.values()]
        for number, written in zip(mine, write_blocks(folder, array, list(mine), blocks), strict=True):
            if isinstance(written, str):
                raise CheckpointError(
                    f"block {number} of {array.path} cannot be written to {folder}: {written}; look at the "
                    "space and the permissions there"
                )
            found.append((first + number, astuple(written)))
        first += array.count
    return found
