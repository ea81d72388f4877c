"""Where blocks lie in a shard: arithmetic alone.

::

    | block 0: values, crc32c, zeros | block 1: ...  | ... | index: offset and length of each, crc32c |
    0                                slot            2 slot    count x slot

All chunks of a shard have the same size, those at an edge padded to it, so that every writer knows where to
write without a word to others. A slot is a multiple of 4096 bytes, for which a disk needs no copy of its own.
What is compressed has a slot for the most that it may take: how long it becomes nobody knows before. Behind
it the file has a hole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

#: Bytes that direct writing is aligned to.
ALIGNMENT = 4096
#: Bytes of a checksum.
CHECKSUM = 4


def is_regular(chunks: tuple[tuple[int, ...], ...]) -> bool:
    """Whether Zarr can hold such chunks in one array: all of a dimension equal, the last may be less."""
    for lengths in chunks:
        first, last = lengths[0], lengths[-1]
        if first < 0 or last > first or (last == 0 and first) or any(n != first for n in lengths[1:-1]):
            return False
        if first == 0 and len(lengths) > 1:
            return False
    return True


def chunk_shape(chunks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Shape of a whole chunk; Zarr has none without length."""
    return tuple(max(1, lengths[0]) for lengths in chunks)


def shard_shape(chunks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Shape of the one shard that holds all chunks."""
    return tuple(max(1, lengths[0]) * len(lengths) for lengths in chunks)


def slot_bytes(chunk_bytes: int) -> int:
    """Bytes that a chunk of so many takes in a shard."""
    return -(-(chunk_bytes + CHECKSUM) // ALIGNMENT) * ALIGNMENT


def index_bytes(count: int) -> int:
    """Bytes of the index of so many chunks."""
    return 16 * count + CHECKSUM


def shard_bytes(count: int, slot: int) -> int:
    """Bytes of a shard of so many chunks in slots of `slot` bytes, index included."""
    return count * slot + index_bytes(count)


def index(slot: int, lengths: Sequence[int]) -> bytes:
    """The index of a shard that holds all of its chunks, which have these bytes."""
    from dask_hpc.checkpoint.checksums import crc32c

    entries = np.empty((len(lengths), 2), "<u8")
    entries[:, 0] = np.arange(len(lengths), dtype="<u8") * slot
    entries[:, 1] = np.asarray(lengths, "<u8") + CHECKSUM
    content = entries.tobytes()
    return content + pack_checksum(crc32c(content))


def pack_checksum(crc: int) -> bytes:
    """A checksum as Zarr writes it."""
    return struct.pack("<I", crc)
