"""A checkpoint that the manager of a host reads out of its workers: the other way of a write to its memory.

Source: John (2024, section 6.2, figure 6.6). A *push* is written by who has the data: a worker writes to the
file that its manager has reserved. For a *pull* it says what there is, keeps it as it is, and the manager
asks for one piece after the other, several at once, when it likes to: a round trip more, one copy more, and
it needs no memory that both see.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from distributed.protocol import to_serialize

from dask_hpc.checkpoint.segments import open_segment, write_piece
from dask_hpc.worker.fetching import CHUNK, in_pieces

#: What a worker is asked for what it offers, by this name.
READ = "hpc_offered"
#: A piece has come by then, in seconds.
_COMES_S = 30.0


class Offers:
    """What one worker offers: the bytes of segments, by their names."""

    def __init__(self, worker: Any) -> None:
        self._offered: dict[str, _Offer] = {}
        self._worker = worker
        worker.handlers[READ] = self.read

    @contextmanager
    def of(self, segment: str, parts: Mapping[int, Sequence[memoryview]]) -> Iterator[int]:
        """Offer what is to lie at places of a segment, in order; gives the bytes up to its end."""
        offer = self._offered[segment] = _Offer(parts)
        try:
            yield offer.nbytes
        finally:
            del self._offered[segment]

    async def read(self, segment: str, offset: int, nbytes: int) -> dict[str, Any]:
        """Bytes that are offered, at most `CHUNK`; what a manager asks for."""
        offer = self._offered.get(segment)
        if offer is None or not (0 <= nbytes <= CHUNK and 0 <= offset <= offer.nbytes - nbytes):
            return {
                "error": f"{nbytes} bytes at {offset} of segment {segment!r:.80} are not offered (any more)"
            }
        return {"data": to_serialize(await asyncio.to_thread(offer.read, offset, nbytes))}

    def stop(self) -> None:
        """Offer nothing any more."""
        self._worker.handlers.pop(READ, None)


class _Offer:
    """Parts at places, as one range of bytes; what is between them is 0."""

    def __init__(self, parts: Mapping[int, Sequence[memoryview]]) -> None:
        self._starts: list[int] = []
        self._parts: list[memoryview] = []
        self.nbytes = 0
        for at, several in parts.items():
            self.nbytes = at
            for part in several:
                self._starts.append(self.nbytes)
                self._parts.append(part)
                self.nbytes += len(part)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        found = np.zeros(nbytes, np.uint8)
        for place in range(max(0, bisect_right(self._starts, offset) - 1), len(self._starts)):
            start, part = self._starts[place], self._parts[place]
            if start >= offset + nbytes:
                break
            first, last = max(start, offset), min(start + len(part), offset + nbytes)
            if first < last:
                found.data[first - offset : last - offset] = part[first - start : last - start]
        return found


async def pull(pool: Any, source: str, folder: str, segment: str, nbytes: int) -> None:
    """Read what a worker offers into a segment of a folder.

    Raises
    ------
    OSError, ValueError
        When it does not offer it (any more), or the segment is none, or shorter.
    """
    descriptor = open_segment(folder, segment, os.O_RDONLY)
    room = os.fstat(descriptor).st_size
    os.close(descriptor)
    if not 0 <= nbytes <= room:
        raise ValueError(f"{nbytes} bytes do not fit into segment {segment}, which has {room}")

    async def piece(start: int, stop: int) -> None:
        asked = getattr(pool(source), READ)(segment=segment, offset=start, nbytes=stop - start)
        answer = await asyncio.wait_for(asked, _COMES_S)
        if "error" in answer:
            raise ValueError(f"worker {source}: {answer['error']}")
        await asyncio.to_thread(write_piece, folder, segment, start, answer["data"])

    await in_pieces(nbytes, piece)
