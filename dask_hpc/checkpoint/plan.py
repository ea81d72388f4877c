"""What a version of a checkpoint is made of: pure data that goes over the network and into the manifest.

Blocks of an array are numbered in C order, those of a plan array by array. A plan is small whatever the
number of its blocks: it has no entry for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, groupby
from typing import Any, Literal

#: shard: regular chunks in one file. grid: regular chunks, a file each, of what Zarr has no shards for.
#: apart: a Zarr array a block, for chunks that differ and types that Zarr does not have. opaque: any value
#: as Dask serialises it, in packs: Zarr arrays of bytes, one for all that a worker wrote at once.
Kind = Literal["shard", "grid", "apart", "opaque"]


class _Packed:
    """Keeps how it is pickled."""

    __slots__ = ("_packed",)

    _packed: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Array(_Packed):
    """One array of a checkpoint: a variable, or a row of opaque blocks."""

    #: Of the Zarr array, or of the Zarr group with an array a block, in the group of the version.
    path: str
    kind: Kind
    #: JSON form of a NumPy dtype (see `dtypes.to_json`); None: any Python values.
    dtype: Any
    shape: tuple[int, ...]
    #: Lengths of the chunks of each dimension, as Dask has them; -1: unknown.
    chunks: tuple[tuple[int, ...], ...]
    #: How values are turned before they are written (see `dtypes.Encoding`); None: as they are.
    encoding: str | None = None
    #: Whether blocks are compressed; those of a pack are what its name says.
    compressed: bool = False
    #: What they are encrypted for, the name and a number that was drawn; None: they are not. The same.
    sealed: str | None = None

    @property
    def count(self) -> int:
        """Number of blocks."""
        return math.prod(map(len, self.chunks))

    def __reduce__(self) -> tuple[Any, ...]:
        # each task that reads a block has it, and of many blocks chunks are long
        if not hasattr(self, "_packed"):
            values = {each.name: getattr(self, each.name) for each in fields(self)}
            values["chunks"] = tuple(map(_runs, self.chunks))
            object.__setattr__(self, "_packed", tuple(values.values()))
        return _unpacked, self._packed

    def block_index(self, number: int) -> tuple[int, ...]:
        """Place of a block along each dimension.

        Raises
        ------
        ValueError
            When there is no block of that number.
        """
        if not 0 <= number < self.count:
            raise ValueError(f"{self.path} has no block {number}; allowed: 0 to {self.count - 1}")
        index = []
        for lengths in reversed(self.chunks):
            number, place = divmod(number, len(lengths))
            index.append(place)
        return tuple(reversed(index))

    def block_shape(self, number: int) -> tuple[int, ...]:
        """Shape of a block; raises ValueError when there is none of that number."""
        return tuple(
            lengths[place] for lengths, place in zip(self.chunks, self.block_index(number), strict=True)
        )

    def place(self, number: int) -> str | None:
        """What a block that is in no pack is encrypted for; None: it is not."""
        return None if self.sealed is None else f"{self.sealed}/{self.path}/{number}"

    def nbytes(self, number: int) -> int:
        """Bytes of the values of a block, 0 when they are not known before they are written."""
        from dask_hpc.checkpoint.dtypes import from_json

        if self.kind == "opaque" or self.encoding in ("text", "object"):
            return 0
        return math.prod(self.block_shape(number)) * from_json(self.dtype).itemsize


_Runs = tuple[tuple[tuple[int, ...], int], ...]


def _runs(lengths: tuple[int, ...]) -> _Runs:
    """Lengths that follow each other, and how often they do in a row."""
    runs = tuple(((length,), sum(1 for _ in each)) for length, each in groupby(lengths))
    return runs if 2 * len(runs) < len(lengths) else ((lengths, 1),)


def _unpacked(
    path: str, kind: Kind, dtype: Any, shape: tuple[int, ...], runs: Sequence[_Runs], *more: Any
) -> Array:
    chunks = (tuple(chain.from_iterable(lengths * times for lengths, times in each)) for each in runs)
    return Array(path, kind, dtype, shape, tuple(chunks), *more)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a version is made of."""

    name: str
    #: What is given back: "dask.array", "xarray.Dataset", "xarray.DataArray", "dataframe", "bag", "delayed",
    #: "future", "futures", "dict", "results".
    kind: str
    arrays: tuple[Array, ...]
    #: Contents by relative path: metadata and what is not in blocks.
    files: Mapping[str, bytes]
    #: JSON: what else giving it back needs.
    extra: Mapping[str, Any]

    @property
    def sealed(self) -> str | None:
        """What its blocks are encrypted for; None: they are not."""
        return next((array.sealed for array in self.arrays if array.sealed is not None), None)

    @property
    def count(self) -> int:
        """Number of blocks of all arrays."""
        return sum(array.count for array in self.arrays)


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of a block that is on disk."""

    #: Where it begins in its file, in bytes.
    offset: int
    #: Bytes of its values in the file, padding of an edge included and the checksum behind them not.
    nbytes: int
    #: Checksum of those bytes.
    crc32c: int
    #: blake2b of them, of what was pickled; None: of known type, or an array in the format of NumPy.
    digest: str | None = None
    #: Name of the pack that has it, of what is opaque.
    pack: str | None = None
