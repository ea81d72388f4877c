"""Turns: in which order jobs that share nodes are served, by the scheduler and by its workers.

The rule is that of `dask_hpc_policies.rules.fair.turns`: who would have ended first in equal shares. Free
slots are dealt in that order (`sharing`). Tasks that depend on others are sent as soon as they can run, as in
stock; for them the end of their job is part of their priority on their worker. On the virtual cluster it
does not move when others come, so that what was sent long ago and what is sent now can be compared.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dask_hpc.scheduler.internals import durations
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.rules.fair.turns import (
    Virtual,
    Work,
    advance,
    ahead_s,
    ends,
    in_turn,
    settled,
    taken_over,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed.scheduler import TaskPrefix, TaskState

    Usual: TypeAlias = Callable[[TaskPrefix], float]


def _usual_s(kind: TaskPrefix) -> float:
    """What a task of the kind takes, as far as Dask knows; 0 when not: then some are tried at once."""
    return durations.remembered_s(kind) or 0.0


class Turns:
    """The virtual cluster of the jobs that asked for no nodes of their own."""

    def __init__(self, state: State, order_by: Callable[[Callable[[TaskState], Any]], None]) -> None:
        self.state = state
        self._order_by = order_by
        self._virtual = Virtual()
        self._at_s = state.now_s()
        #: Place of each job in the order of service, by id.
        self._place: dict[str, int] = {}
        #: When each job that has something to do ends, on the virtual cluster's clock, by id.
        self._end: dict[str, float] = {}
        #: Dask's count of the first of their graphs: what was there before stays first.
        self._since = 0.0

    def advance(self) -> None:
        """Let the virtual cluster serve its jobs until now, and see in which order they end there."""
        works = self._works()
        now_s = self.state.now_s()
        threads = sum([ws.nthreads for ws in self.state.scheduler.running])
        self._virtual = advance(self._virtual, works, threads, now_s - self._at_s)
        self._at_s = now_s
        self._place = {id: place for place, id in enumerate(in_turn(self._virtual, works))}
        if not self._end:
            return
        end_s = ends(self._virtual, self._works(self._guess_s))
        self._end = {
            id: old_s for id, old_s in self._end.items() if end_s.get(id, 0.0) > self._virtual.clock_s
        }
        for id in self._end:
            self._note(id, end_s[id])

    def place(self, job: JobRecord) -> int:
        """Place of the job in the order of service when it was last looked at."""
        return self._place.get(job.id, len(self._place))

    def ahead_s(self) -> dict[str, float]:
        """Thread-seconds that each job had done ahead of its share when this was looked at last, by id."""
        return ahead_s(self._virtual)

    def ends_in_s(self) -> dict[str, float]:
        """In how long each job ends, on the virtual cluster's clock, as far as the order goes, by id."""
        return {id: end_s - self._virtual.clock_s for id, end_s in self._virtual.end_s.items()}

    def left(self, job: JobRecord) -> None:
        """Forget a job that has ended before its work was done."""
        self._virtual = without(self._virtual, job.id)

    def completed(self, job: JobRecord) -> None:
        """What a job is still to be served on the virtual cluster is what it has done, whatever was expected.

        Tasks that nobody wanted any more before they ran were not done.
        """
        work = self._virtual.works.get(job.id)
        if work is not None:
            done = replace(work, done_s=min(job.expected.done_s, work.done_s + work.left_s), left_s=0.0)
            self._virtual = replace(self._virtual, works={**self._virtual.works, job.id: done})

    def shares(self, job: JobRecord) -> bool:
        """Whether the job takes turns also where it has nodes: it asked for none, and the policy says so."""
        return self.state.in_turn and self.state.settings.lend_s > 0 and job.undeclared

    def join(self, job: JobRecord) -> None:
        """Let a job take turns, if it does."""
        if self.shares(job):
            self.state.join_common(job)
            self._order_by(self._turn_of)

    def inherit(self, job: JobRecord, heir: JobRecord) -> None:
        """Let one job of plain work answer for what another one, which it takes over, has done."""
        done_s, job.expected.done_s = job.expected.done_s, 0.0
        heir.expected.done_s += done_s
        self._virtual = taken_over(self._virtual, job.id, heir.id, done_s)

    def turn(self, job: JobRecord, since: float = math.inf) -> tuple[float, ...] | None:
        """What comes between the user's priority of the job's tasks and their order in it.

        None for a job whose tasks are not ordered among those of others. `since` is Dask's count of the graph
        of one of them.
        """
        if job.reach is not self.state.common and not (job.is_default and len(self.state.common)):
            return None
        if job.expected.grown or job.id not in self._end:
            job.expected.grown = False
            if not self._end:
                self._since = self._first_graph(since)
            self._note(job.id, ends(self._virtual, self._works(self._guess_s, grown=job)).get(job.id, 0.0))
        return (self._since, -job.request.priority, self._end[job.id])

    def _turn_of(self, ts: TaskState) -> tuple[float, ...] | None:
        """The turn of a task that is about to be placed."""
        lane = self.state.owner.get(ts.key)
        if lane is None:
            return None
        if lane.kind == "free" and lane.job.is_default and len(self.state.common):
            # plain work that has to run here comes before what jobs submit from now on
            return (self._since, 0, self._virtual.clock_s)
        return self.turn(lane.job) if ts.priority is None else self.turn(lane.job, ts.priority[-2])

    def _first_graph(self, since: float) -> float:
        """The first graph of which a task is held, or that one; what tasks submit is of none."""
        held = [job.first() for job in self.state.jobs.active.values() if job.undeclared]
        graphs = [since, *[ts.priority[-2] for ts in held if ts is not None and ts.priority is not None]]
        return min([graph for graph in graphs if 0 <= graph < math.inf], default=0.0)

    def _works(self, usual_s: Usual = _usual_s, grown: JobRecord | None = None) -> list[Work]:
        jobs = self.state.jobs.active.values()
        return [self._work(job, usual_s, job is grown) for job in jobs if job.undeclared]

    def _work(self, job: JobRecord, usual_s: Usual, grown: bool) -> Work:
        """What is known of a job; of one that has `grown`, not all tasks are counted as unfinished yet."""
        request = job.request
        if job.is_default:  # its tasks are not counted by kind
            ts = self._next(job)
            left_s = job.unfinished * usual_s(ts.prefix) if ts is not None else 0.0
        else:
            left_s = job.expected.left_s(usual_s, None if grown else job.unfinished)
        return Work(
            id=job.id,
            done_s=job.expected.done_s,
            left_s=left_s,
            width=job.processing + job.held,
            user=request.user,
            weight=request.weight,
            priority=request.priority,
            submit_s=request.submit_s,
        )

    def _next(self, job: JobRecord) -> TaskState | None:
        """The next task of plain work that waits, held or in stock's queue."""
        ts: TaskState | None = job.first()
        queued = self.state.scheduler.queued
        if ts is None and queued:
            lane = self.state.owner.get(queued.peek().key)
            ts = queued.peek() if lane is not None and lane.job is job else None
        return ts

    def _guess_s(self, kind: TaskPrefix) -> float:
        """What a task of the kind takes; what stock assumes when Dask does not know."""
        return durations.expected_s(self.state.scheduler, kind)

    def _note(self, id: str, end_s: float) -> None:
        """Keep the end of a job unless it has changed by much: the order within a job is Dask's."""
        self._end[id] = settled(self._end.get(id), end_s, self._virtual.clock_s)
