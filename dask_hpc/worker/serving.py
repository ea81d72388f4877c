"""Services in the memory of a host: its manager compresses and encrypts what workers have written there.

A worker writes blocks as they are, at the speed of memory, and goes on. The manager holds each against its
checksum, does the services to it and writes it to the same segment again, where nobody reads yet. What they
make is at most so much longer than the block (`services.most_added`), and the worker leaves as much room
behind each: so nothing is written over that was not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
import numpy as np

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.sealing import SETTING, read_key
from dask_hpc.checkpoint.segments import opened, read_segment, write_segment
from dask_hpc.checkpoint.services import most_added, wrapped
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import ask
from dask_hpc_policies.codec import encode

#: A manager has done services to a segment by then, at least and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 60.0, 50e6

#: Offset, length and checksum of a block in its segment.
Place = tuple[int, int, int]


def serve(
    folder: str, segment: str, arrays: Sequence[Array], blocks: Sequence[Sequence[Any]], key_file: str | None
) -> list[Place]:
    """Do the services of arrays to their blocks in a segment, in place.

    Parameters
    ----------
    blocks
        Which array, number in it, offset, length, CRC-32C and digest of each, by offset.
    key_file
        File with the key, as the worker is configured.

    Returns
    -------
    list
        Where each is from now on.

    Raises
    ------
    CheckpointError
        When there is no key, or a block is not what was to be written.
    OSError, ValueError
        When the segment cannot be read or written, or blocks are longer than services take.
    """
    key = read_key(key_file) if any(array.sealed is not None for array in arrays) else None
    end, found = 0, []
    with opened(folder, segment) as window:
        for which, number, offset, nbytes, crc, digest in blocks:
            array = arrays[which]
            if not end <= offset:
                raise ValueError(f"block {number} at {offset} begins before {end}, where the last one ends")
            raw = np.empty(nbytes, np.uint8)
            read_segment(folder, segment, offset, raw)
            if crc32c(raw) != crc:
                raise CheckpointError(
                    f"block {number} of {array.path} is not what was to be written: the checksum of {nbytes} "
                    f"bytes at {offset} of segment {segment} differs"
                )
            parts = wrapped(array, [raw.data] if nbytes else [], digest, array.place(number), key)
            length = sum(map(len, parts))
            crc = write_segment(window, end, parts)
            # of what is encrypted nothing stays beside it
            write_segment(window, end + length, [memoryview(bytes(slot_bytes(length) - length))])
            found.append((end, length, crc))
            end += slot_bytes(length)
    return found


async def served(
    pool: Any,
    home: Home,
    segment: str,
    arrays: Sequence[Array],
    blocks: Mapping[int, tuple[int, int]],
    places: Mapping[int, Place],
    digests: Mapping[int, str | None],
) -> dict[int, Place]:
    """Have a manager do the services of arrays to blocks that were written to a segment.

    Parameters
    ----------
    blocks
        Which array each is of, and its number in that.
    places, digests
        Of each block; `most_added` bytes are free behind each.

    Raises
    ------
    OSError, CheckpointError
        When it does not answer, or cannot; the segment is given up then.
    """
    if not any(map(most_added, arrays)):
        return dict(places)
    order = sorted(places, key=lambda at: places[at])
    answer = await ask(
        pool,
        home.address,
        "serve",
        _LEAST_S + sum(nbytes for _, nbytes, _ in places.values()) / _SLOWEST,
        segment=segment,
        # chunks may be many, and say nothing of the bytes of one
        arrays=[encode(replace(array, shape=(), chunks=())) for array in arrays],
        blocks=[(*blocks[at], *places[at], digests[at]) for at in order],
        key_file=dask.config.get(SETTING, None),
    )
    return {at: tuple(place) for at, place in zip(order, answer["places"], strict=True)}
