"""A file system that is saturated by few, for stores of Zarr: several processes share its bandwidth.

Who has an operation under way has one byte of a file that all map into memory; each gets an equal share of
what the number of them gets together.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore, WrapperStore

_PLACES = 256
#: How often an operation looks how many it shares with.
_STEP_S = 0.005


class ThrottledStore(WrapperStore):
    """A folder behind a file system that is no faster than so.

    Parameters
    ----------
    folder
        Where the values are; the count is in a file beside it.
    bytes_s
        What `knee` operations get together; one gets a share of it.
    fall
        What each further one takes away from that, as a share.
    """

    def __init__(self, folder: Any, bytes_s: float, knee: int = 1, fall: float = 0.1) -> None:
        super().__init__(LocalStore(Path(folder)))
        self.folder, self.bytes_s, self.knee, self.fall = Path(folder), bytes_s, knee, fall
        self._map: mmap.mmap | None = None
        self._file = -1

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self.bytes_s, self.knee, self.fall)

    def _with_store(self, store: Any) -> ThrottledStore:
        # the values are read and written by the folder: read-only views are the same
        return ThrottledStore(self.folder, self.bytes_s, self.knee, self.fall)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThrottledStore) and other.folder == self.folder

    __hash__ = None  # type: ignore[assignment]

    def together(self, count: int) -> float:
        """Bytes a second of so many operations at once."""
        saturated = min(count, self.knee) / self.knee
        return float(self.bytes_s * saturated * (1 - self.fall) ** max(0, count - self.knee))

    @property
    def most(self) -> int:
        """The most operations that there have been at once since it was reset."""
        return int(self._places()[_PLACES])

    def reset(self) -> None:
        """Forget `most`."""
        self._places()[_PLACES] = 0

    async def _take(self, nbytes: int) -> None:
        places = self._places()
        place = self._enter(places)
        try:
            left, seen_s = float(nbytes), time.perf_counter()
            while left > 0:
                await asyncio.sleep(_STEP_S)
                now_s = time.perf_counter()
                count = _PLACES - places[:_PLACES].count(0)
                left -= self.together(count) / count * (now_s - seen_s)
                seen_s = now_s
        finally:
            places[place] = 0

    def _enter(self, places: mmap.mmap) -> int:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            place = places.find(b"\0", 0, _PLACES)
            places[place] = 1
            places[_PLACES] = max(places[_PLACES], _PLACES - places[:_PLACES].count(0))
            return place
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _places(self) -> mmap.mmap:
        if self._map is None:
            self._file = os.open(self.folder.with_suffix(".at-it"), os.O_RDWR | os.O_CREAT)
            if os.fstat(self._file).st_size <= _PLACES:
                os.truncate(self._file, _PLACES + 1)
            self._map = mmap.mmap(self._file, _PLACES + 1)
        return self._map

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        value = await self._store.get(key, prototype, byte_range)
        if value is not None and not key.endswith("zarr.json"):
            await self._take(len(value))
        return value

    async def set(self, key: str, value: Any) -> None:
        if not key.endswith("zarr.json"):
            await self._take(len(value))
        await self._store.set(key, value)
