"""Looking past tasks that may not be lent a slot, at those behind them.

Everybody without a job is in one queue, as are the tasks of all kinds of one job: a long one that stands
first must not keep a quick one behind it from an idle thread. What is passed over is taken out of its job's
queue while slots are dealt out, and put back in its place then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.tables.jobs import JobRecord

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: Tasks that are looked at one by one in one look; after how many of these all others of their kinds are
#: passed over at once; and among how many these are looked for: ten or twenty milliseconds.
LOOKED_AT, _ALIKE, MOST = 2000, 100, 50_000
#: How many times longer than a look takes the pause after it is.
_PAUSE = 50
#: Stands in a queue in the place of a task that was taken out of its middle.
_GONE = SimpleNamespace(key="", state="released", prefix=SimpleNamespace(name=""))


class Pace:
    """Has looks of one kind take no more than a fiftieth of the time.

    Parameters
    ----------
    again
        Called with the seconds until the next look, when one would have been due before.
    """

    def __init__(self, again: Callable[[float], None]) -> None:
        self._again = again
        self._began_s = self._next_s = 0.0

    def due(self) -> bool:
        """Whether it is time for a look, which begins then."""
        self._began_s = stopwatch_s()
        left_s = self._next_s - self._began_s
        if left_s > 0:
            self._again(left_s)
        return left_s <= 0

    def done(self) -> None:
        """The look has ended."""
        ended_s = stopwatch_s()
        self._next_s = ended_s + _PAUSE * (ended_s - self._began_s)


class Past:
    """Finds held tasks behind those that may not be lent a slot, while slots are dealt out."""

    def __init__(self, again: Callable[[float], None]) -> None:
        self._pace = Pace(again)
        #: What has been passed over, as it was queued, by job.
        self.over: dict[JobRecord, list[Any]] = {}
        #: Queues of which whole kinds were, the places of the others, which the job's queue has meanwhile,
        #: and how many were passed over before, by job. Nothing else of a long queue is moved: it takes long.
        self._whole: dict[JobRecord, tuple[list[Any], list[int], int]] = {}
        #: Jobs of which no held task would have been lent a slot, when slots were last dealt out.
        self.spent: set[JobRecord] = set()
        self._count = 0

    def begin(self) -> None:
        """Slots are about to be dealt out."""
        self.spent.clear()

    def first(self, job: JobRecord, takes: Callable[[TaskState], bool]) -> TaskState | None:
        """The job's first held task that `takes` says may be lent a slot; it is the first of its queue then.

        None: there is none among those that are looked at.
        """
        while (ts := job.first()) is not None and self._count < LOOKED_AT:
            if takes(ts):
                found: TaskState = ts
                return found
            if not self._count and not self._pace.due():
                return None
            self._count += 1
            self.over.setdefault(job, []).append(heapq.heappop(job.queue))
            if self._count % _ALIKE == 0:
                self._pass_alike(job)
        self.spent.add(job)
        return None

    def _pass_alike(self, job: JobRecord) -> None:
        """Pass over all tasks of the kinds that were: which are taken is a matter of their kind."""
        over, queue = self.over[job], job.queue
        kinds = {entry[2].prefix.name for entry in over[-_ALIKE:]}
        if job in self._whole:
            over += [entry for entry in queue if entry[2].prefix.name in kinds]
            job.queue = [entry for entry in queue if entry[2].prefix.name not in kinds]
        else:
            first = enumerate(islice(queue, MOST))
            places = [place for place, entry in first if entry[2].prefix.name not in kinds]
            self._whole[job] = queue, places, len(over)
            job.queue = [queue[place] for place in places]
        heapq.heapify(job.queue)

    def end(self) -> None:
        """Slots have been dealt out: put back what was passed over."""
        if not self._count:
            return
        for job, entries in self.over.items():
            if job in self._whole:
                left = {id(entry) for entry in (*job.queue, *entries)}
                job.queue, places, before = self._whole.pop(job)
                for place in places:
                    if id(entry := job.queue[place]) not in left:
                        job.queue[place] = (*entry[:2], _GONE)
                entries = entries[:before]
            for entry in entries:
                heapq.heappush(job.queue, entry)
        self.over.clear()
        self._count = 0
        self._pace.done()
