"""Versions that tasks of this cluster read: nobody else removes them meanwhile, which a lock says.

Who restores says so, and what was written here protects results here. Whoever collects old versions
(sessions, ``dask hpc checkpoint gc``, other clusters) leaves out those that are locked, where the file system
has locks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.opening import readers
from dask_hpc.checkpoint.store_threads import PATIENCE_S, begin, in_store
from dask_hpc.checkpoint.versions import is_folder_name
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointValueError
from dask_hpc.scheduler.internals import runs
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched

#: Who has said that it reads a version has sent its tasks by then; and how often is looked, in seconds.
_COMES_S, _LOOK_S = 60.0, 30.0
#: Who collects has a version locked for less than that; how often one tries, in seconds.
_HELD_S, _AGAIN_S = 1.0, 0.02


@dataclass(slots=True)
class _Read:
    """A version that is read."""

    lock: Lock
    #: Of the tasks that read it.
    names: Collection[str]
    #: They come by then, on the clock of the loop, whether or not those of another client are there.
    until_s: float


class Reading:
    """The versions in stores that tasks of one scheduler read."""

    def __init__(self, state: State, watched: Watched, protecting: Callable[[], Collection[str]]) -> None:
        self._scheduler = state.scheduler
        self._watched = watched
        #: Gives the versions that protected results may be read from.
        self._protecting = protecting
        self._read: dict[str, _Read] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._ended = False

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"version_is_read": self.version_is_read}

    async def version_is_read(self, path: str) -> dict[str, Any]:
        """A client is about to restore a version from a store, or has: it stays while its tasks are there.

        They have a minute to come. Gives whether it is locked: it may be out of sight, or no version.

        Raises
        ------
        CheckpointValueError
            For what is no path of a version.
        """
        if not isinstance(path, str) or "\0" in path or not is_folder_name(os.path.basename(path)):
            raise CheckpointValueError(f"path is {path!r:.200}; allowed: the folder of a version")
        if (one := await self._lock(path)) is None:
            return {"locked": False}
        one.until_s = asyncio.get_running_loop().time() + _COMES_S
        return {"locked": True}

    async def protects(self, path: str) -> None:
        """Results are protected by this version from now on."""
        await self._lock(path)

    async def _lock(self, path: str) -> _Read | None:
        if path not in self._read:
            found = await in_store(_locked, path)
            if found is None:
                return None
            if self._ended or path in self._read:
                # not waited for: what is there by now may be let go of meanwhile
                begin(found.lock.release)
            else:
                self._read[path] = found
            if self._ended:
                return None
        self._watched.listen(self)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)
        return self._read[path]

    def look(self) -> asyncio.Future[None]:
        """Let go of versions that nothing is read from any more; who waits for it knows that it is done."""
        now_s, protecting = asyncio.get_running_loop().time(), self._protecting()
        unwanted = []
        for path, one in list(self._read.items()):
            wanted = runs.in_use(self._scheduler, one.names) or path in protecting
            if not wanted and one.until_s <= now_s:
                unwanted.append(self._read.pop(path).lock)
        if not self._read:
            self._watched.leave(self)
        return _let_go(unwanted)

    async def closing(self) -> None:
        """The scheduler is closing: no task reads any more."""
        await asyncio.wait([self.end()], timeout=PATIENCE_S)

    def end(self) -> asyncio.Future[None]:
        """Let go of all of them, and take no more."""
        self._ended = True
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        unwanted, self._read = [one.lock for one in self._read.values()], {}
        self._watched.leave(self)
        return _let_go(unwanted)

    def _look_again(self) -> None:
        self._looking = None
        self.look()
        if self._read:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)


def _let_go(locks: Sequence[Lock]) -> asyncio.Future[None]:
    """Have locks released: the file system is asked for each, and may not answer."""
    if not locks:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done
    return asyncio.wrap_future(begin(_release, locks))


def _release(locks: Sequence[Lock]) -> None:
    for lock in locks:
        lock.release()


def _locked(path: str) -> _Read | None:
    """None: somebody is removing it, or it cannot be seen from here, or is no version."""
    end_s = stopwatch_s() + _HELD_S
    try:
        while (lock := Lock.shared(path)) is None:
            if stopwatch_s() >= end_s:
                return None
            time.sleep(_AGAIN_S)
    except OSError:
        return None
    if not (names := readers(path)):
        lock.release()
        return None
    return _Read(lock, names, 0.0)
