"""Stock's queue, which root tasks of plain work wait in as if we were not there.

Holding each of them costs several times what stock's queue does, and buys nothing while nobody contends for
the nodes of plain work: stock sends what it has queued to those nodes, and to no others. Somebody contends
when jobs take turns on these nodes, or when plain tasks are held: then the queue is closed, and admission
deals every slot. What is to be lent a slot, or takes part in turns, is drawn from the queue and held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.placing.past import MOST
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

    from dask_hpc.scheduler.placing.lending import Lending


class PlainQueue:
    """Opens and closes stock's queue, and takes tasks out of it."""

    def __init__(self, state: State, look_at: Callable[[Collection[str]], None]) -> None:
        self.state = state
        #: Whether stock sends nothing from its queue.
        self.closed = False
        self._look_at = look_at

    def open(self) -> Collection[str]:
        """Addresses of the workers that stock may send what it has queued to, as they are from now on."""
        plain = self.state.plain
        return plain[0].allotment if plain and not self.closed else ()

    def close(self, closed: bool) -> None:
        """Close the queue, or leave it to stock again."""
        if closed is not self.closed:
            self.closed = closed
            self._look_at(self.state.scheduler.workers)

    def first(self) -> TaskState | None:
        """The task that stock would send next; None when it has queued none."""
        queued = self.state.scheduler.queued
        return queued.peek() if queued and self.state.plain else None

    def held(self, spent: Collection[JobRecord] = ()) -> bool:
        """Whether tasks of running plain work are held, but for that of `spent` jobs."""
        return any(job.queue and job not in spent and job.first() is not None for job in self.state.plain)

    def waits(self) -> bool:
        """Whether plain work has tasks in the queue and holds none."""
        return self.first() is not None and not self.held()

    def is_for(self, job: JobRecord) -> bool:
        """Whether the task that stock would send next is the job's."""
        ts = self.first()
        lane = self.state.owner.get(ts.key) if ts is not None else None
        return lane is not None and lane.job is job

    def draw(self, count: int, stimulus_id: str) -> None:
        """Hold the next tasks of the queue in place of stock's queuing them."""
        owner, queued = self.state.owner, self.state.scheduler.queued
        for left in range(min(count, len(queued)), 0, -1):
            ts = queued.peek()  # a look at several sorts the whole queue
            if (lane := owner.get(ts.key)) is None or lane.kind != "queue":
                self._hold(list(queued.peekn(left)), stimulus_id)
                return
            self._hold([ts], stimulus_id)

    def draw_lendable(self, count: int, lending: Lending, stimulus_id: str) -> None:
        """Hold the next tasks of the queue to be lent slots, past those that may not be."""
        if (ts := self.first()) is None or self.state.settings.lend_s <= 0:
            return
        if lending.takes(ts):
            self.draw(count, stimulus_id)
        elif lending.draws.due():
            # to look at them in order would sort the whole queue
            queued = reads.first_queued(self.state.scheduler, MOST)
            # which are lent a slot is a matter of their kind
            quick = {kind for kind, ts in {ts.prefix: ts for ts in queued}.items() if lending.takes(ts)}
            found = [ts for ts in queued if ts.prefix in quick] if quick else []
            self._hold(nsmallest(count, found, key=attrgetter("priority")), stimulus_id)
            lending.draws.done()

    def _hold(self, tasks: Iterable[TaskState], stimulus_id: str) -> None:
        owner, drawn = self.state.owner, []
        for ts in tasks:
            lane = owner.get(ts.key)
            if lane is not None and lane.kind == "queue":
                owner[ts.key] = lane.job.lanes["root"]
                drawn.append(ts)
        writes.hold_queued(self.state.scheduler, drawn, stimulus_id)
