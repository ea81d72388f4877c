"""What processes hold of arrays, and the one object that their shares make up.

Arithmetic alone. An array is *whole*, the same in every process, or each process has a *block* of it: some
indices of its first dimension. Every process finds the same plan from the same shares, without a word more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dask_hpc.checkpoint.branch import SESSION
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.dtypes import from_json, to_json
from dask_hpc.checkpoint.labelled import describe_labelled
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.errors import CheckpointValueError
from dask_hpc_policies.layout import Layout, LayoutError, Part

#: Blocks on disk are not larger, unless one index of the first dimension is.
MOST_BYTES = 64 * 2**20
#: What Zarr can hold in one array may take so many times the blocks of what it cannot.
_MOST_PIECES = 16


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has of an array."""

    #: JSON form of its NumPy dtype.
    dtype: Any
    shape: tuple[int, ...]
    #: Names of the dimensions; None: names that no other array has.
    dims: tuple[str, ...] | None
    #: Where its block begins along the first dimension; None: it has all of the array.
    start: int | None
    #: Of the values of an array that several processes have; None: nobody compares.
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A block on disk: who writes it, and which indices of the share of that process it has."""

    rank: int
    start: int
    stop: int


def share_of(value: np.ndarray, dims: tuple[str, ...] | None, start: int | None, compared: bool) -> Share:
    """What a process has of an array; `compared`: others have it, too."""
    return Share(to_json(value.dtype), value.shape, dims, start, _checksum(value) if compared else None)


def _checksum(value: np.ndarray) -> int:
    if value.dtype.names is not None:  # between fields there may be anything
        return crc32c(repr([_checksum(value[field]) for field in value.dtype.names]).encode())
    if value.dtype.kind == "T":
        return crc32c(str(value.tolist()).encode())
    return crc32c(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def together(
    name: str, shares: Sequence[Mapping[str, Share]], values: Mapping[str, Any]
) -> tuple[Plan, list[tuple[Piece, ...]]]:
    """The plan of a version of what processes hold, an xarray Dataset, and the pieces of its arrays.

    Parameters
    ----------
    name
        Of the checkpoint.
    shares
        Of each process in order, by the name of the array.
    values
        Attributes of the Dataset, as JSON has them.

    Raises
    ------
    CheckpointValueError
        When the shares do not make one object up, or there is something in it that cannot be stored.
    """
    import xarray as xr

    variables, pieces = {}, {}
    for path in shares[0]:
        if any(set(each) != set(shares[0]) for each in shares):
            raise CheckpointValueError(
                "not all processes have added the same arrays: "
                + "; ".join(f"rank {rank} has {', '.join(each)}" for rank, each in enumerate(shares))
            )
        variables[path], pieces[path] = _variable(path, [each[path] for each in shares])
    dims = {dim for variable in variables.values() for dim in variable.dims}
    if clash := sorted(dims & set(variables)):
        raise CheckpointValueError(
            f"{clash[0]!r} is the name of an array and of a dimension; give the array another name, or the "
            "dimension with dims="
        )
    try:
        made = xr.Dataset(variables, attrs=dict(values))
    except ValueError as error:
        raise CheckpointValueError(
            f"the arrays do not go together: {error}; give what is of different lengths different names with "
            "dims="
        ) from None
    described = describe_labelled(made, name)
    assert described is not None
    plan = described[0]
    told = {"ranks": len(shares)}
    return replace(plan, extra={**plan.extra, SESSION: told}), [pieces[a.path] for a in plan.arrays]


def _variable(path: str, shares: Sequence[Share]) -> tuple[Any, tuple[Piece, ...]]:
    """An array without values, and its pieces."""
    import dask.array as da
    import xarray as xr

    first = shares[0]
    for rank, each in enumerate(shares):
        of_first, of_each = ((one.dtype, one.dims, one.shape[1:], one.start is None) for one in (first, each))
        if of_first != of_each or (first.start is None and first.shape != each.shape):
            raise CheckpointValueError(
                f"{path!r} of rank {rank} is {_told(each)}, that of rank 0 {_told(first)}; allowed: one "
                "dtype, the same dimensions, and all of them or none with start="
            )
        if first.start is None and each.crc32c != first.crc32c:
            raise CheckpointValueError(
                f"{path!r} has other values in rank {rank} than in rank 0; when each has a block of it, say "
                "where that begins along the first dimension with add(..., start=...)"
            )
    bounds, owners = _blocks(path, shares)
    dtype = from_json(first.dtype)
    lengths = cut(bounds, dtype.itemsize * math.prod(first.shape[1:]))
    pieces, at, place = [], 0, 0
    for n in lengths if first.shape else (1,):
        while at >= bounds[place + 1] and place + 2 < len(bounds):
            place += 1
        pieces.append(Piece(owners[place], at - bounds[place], at - bounds[place] + n))
        at += n
    chunks = ((lengths,) if first.shape else ()) + tuple((n,) for n in first.shape[1:])
    array = da.Array({}, f"share-{path}", chunks, dtype=dtype)
    dims = first.dims or [f"{path}.{axis}" for axis in range(len(first.shape))]
    return xr.Variable(dims, array), tuple(pieces)


def _told(share: Share) -> str:
    where = "" if share.start is None else f" from {share.start} on"
    return f"{from_json(share.dtype)} of the shape {share.shape}{where}"


def _blocks(path: str, shares: Sequence[Share]) -> tuple[list[int], list[int]]:
    """Bounds of the blocks along the first dimension, from 0 to its length, and who has each."""
    first = shares[0]
    if first.start is None:
        return [0, first.shape[0] if first.shape else 1], [0]
    parts = sorted(
        (
            Part(f"rank {rank}", each.start or 0, (each.start or 0) + each.shape[0])
            for rank, each in enumerate(shares)
        ),
        key=lambda part: (part.start, part.stop),
    )
    try:
        Layout(max(part.stop for part in parts), tuple(parts)).check([part.node for part in parts], 0)
    except LayoutError as error:
        raise CheckpointValueError(f"the blocks of {path!r} do not make it up: {error}") from None
    held = [part for part in parts if part.size] or parts[:1]
    return [held[0].start, *(part.stop for part in held)], [int(part.node.split()[1]) for part in held]


def cut(bounds: Sequence[int], index_bytes: int) -> tuple[int, ...]:
    """Lengths of blocks on disk along a dimension, none of them in two of the ranges between `bounds`.

    They are all equal, but for a smaller last one, if there is such a length that does not make far more
    of them; otherwise ranges are cut each for itself.

    Parameters
    ----------
    bounds
        From 0 to the length, rising.
    index_bytes
        Bytes of one index.
    """
    length = bounds[-1]
    if not length:
        return (0,)
    most = max(1, MOST_BYTES // max(1, index_bytes))
    each = tuple(n for start, stop in pairwise(bounds) for n in _equal(stop - start, most))
    common = math.gcd(*bounds[1:-1])
    unit = _divisor(common, most) if common else min(length, most)
    if -(-length // unit) <= _MOST_PIECES * len(each):
        return _equal(length, unit)
    return each


def _equal(length: int, unit: int) -> tuple[int, ...]:
    count, rest = divmod(length, unit)
    return (unit,) * count + ((rest,) if rest else ())


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`."""
    if number <= most:
        return number
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return max(n for n in (*small, *(number // n for n in small)) if n <= most)
