"""Small results of jobs: those that have come a moment ago, and those whose bytes the scheduler holds.

A copy on another worker would not last: stock drops what several workers hold. Bytes are held as long as
their result is in memory. When it is lost and somebody needs it, they are what comes back; when it is let go,
they go, too. A result is one run of its task: bytes of one run never stand for the result of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_hpc.scheduler.internals import runs
from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker.small import SmallCopy

#: What all may take, in bytes, and what each takes besides its own, about.
MOST_BYTES, EACH_BYTES = 64 << 20, 250


class SmallResults:
    """The small results of the jobs on one scheduler, while the runtime is awake."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Keys of those that have come since one last looked.
        self.fresh: list[Any] = []
        #: Those that workers are still to be asked for, with the number of their run, by worker.
        self.waiting: dict[str, dict[Any, int]] = {}
        #: What is held, by key, the oldest first. Always this very object.
        self.held: dict[Any, SmallCopy] = {}
        #: Whether stock could not make again what belongs to these keys, as far as one has looked. Always
        #: this very object.
        self.doubtful: dict[Any, bool] = {}
        #: Whether some of what stock could make again then it cannot now.
        self.outdated = False
        #: What is held takes so much.
        self.nbytes = 0
        #: Told of results that are lost and needed, and of the copy that there is.
        self.lost: Callable[[Any, SmallCopy], None] = _nobody

    def came(self, key: Any, nbytes: int) -> None:
        """A task of a job has a result, of so many bytes. Runs for every task."""
        if nbytes < self._state.settings.checkpoint_small_bytes:
            self.fresh.append(key)

    def hold(self, key: Any, copy: SmallCopy, besides_bytes: int = 0) -> None:
        """Hold a copy of a result; the oldest ones go when all, and what others hold, takes too much."""
        if key in self.held:
            self.drop(key)
        self.held[key] = copy
        self.nbytes += size(copy)
        while self.held and self.nbytes + besides_bytes > MOST_BYTES:
            self.drop(next(iter(self.held)))

    def left_memory(self, key: Any) -> None:
        """A result that is held is in memory nowhere any more."""
        copy = self.drop(key)
        if runs.is_asked_for(self._state.scheduler, key, copy.run):
            self.lost(key, copy)

    def forget(self, key: Any) -> None:
        """A task is not known any more."""
        self.doubtful.pop(key, None)
        if key in self.held:
            self.drop(key)

    def drop(self, key: Any) -> SmallCopy:
        """Hold a result no more; gives what there was."""
        copy = self.held.pop(key)
        self.nbytes -= size(copy)
        return copy

    def look_again(self) -> None:
        """Some result was made plain data, or is lost: what was found out of others may hold no more."""
        self.doubtful.clear()
        self.outdated = True
        self._state.made_plain += 1

    def clear(self) -> None:
        """Hold nothing any more."""
        self.fresh.clear()
        self.waiting.clear()
        self.held.clear()
        self.doubtful.clear()
        self.nbytes = 0


def size(copy: SmallCopy) -> int:
    """What holding a copy takes, in bytes."""
    return len(copy.content) + EACH_BYTES


def _nobody(key: Any, copy: SmallCopy) -> None:
    """Nobody is told."""
