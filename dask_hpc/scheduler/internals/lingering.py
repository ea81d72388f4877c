"""Threads that execute what was cancelled: to the scheduler they are idle. Changes nothing.

A task that executes cannot be interrupted, and a scheduler forgets it as it is cancelled. The heartbeats of
its worker say that it is still there; until the first one after a cancel what was cut off is remembered here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed.metrics import time

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: States on a worker of tasks that it has to do with, and that are not on it to the scheduler. Data that is
#: fetched for nobody any more is among them, for the moment that takes.
_STATES = ("cancelled", "resumed")
#: A heartbeat that comes within so many seconds of a cancel may have been sent before the worker knew of it.
_KNOWN_S = 1.0


class Lingering:
    """How many threads of each worker are busy with cancelled tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        #: By address, threads that were cut off and when (`distributed.metrics.time`), until heartbeats tell.
        self._cut: dict[str, tuple[int, float]] = {}

    @contextmanager
    def cancelling(self, keys: Iterable[Any]) -> Iterator[None]:
        """Some of these tasks are cancelled within the block: those on workers go on to have threads."""
        known = self._scheduler.tasks
        tasks = [ts for key in keys if (ts := known.get(key)) is not None]
        at_work = [
            (ts, ws) for ts in tasks if (ws := ts.processing_on) is not None and ts not in ws.long_running
        ]
        yield
        workers = self._scheduler.workers
        self._cut = {address: cut for address, cut in self._cut.items() if address in workers}
        left = Counter(ws for ts, ws in at_work if ts.processing_on is not ws)
        for ws, count in left.items():
            self._cut[ws.address] = self.threads(ws) + count, time()

    def threads(self, ws: WorkerState) -> int:
        """Threads of the worker that are busy with tasks which were cancelled."""
        if (cut := self._cut.get(ws.address)) is not None:
            count, at_s = cut
            if ws.last_seen < at_s + _KNOWN_S:
                # some may have waited for a thread
                return min(count, ws.nthreads)
            del self._cut[ws.address]
        counts = ws.metrics.get("task_counts")
        if not isinstance(counts, Mapping):
            return 0
        return min(sum(counts.get(state, 0) for state in _STATES), ws.nthreads)
