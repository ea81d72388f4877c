"""Sharing: jobs that asked for no nodes of their own take turns on each other's slots.

There may be more jobs than nodes. Who declared nothing but a name then has a node as little as anybody else
has a right to one: a job without a node takes turns on the nodes of others that asked for none. Under a
policy that says so (``in_turn``: `fair`), jobs that have nodes do, too, with tasks that lending would take:
slots open more often than nodes change hands. Whose turn it is, is the rule of
`dask_hpc_policies.rules.fair.turns`: who would have ended first in equal shares. So a small question is
answered soon, and nobody starves.

Nodes of a producer, pinned ones (while there are others), those that take part in a round, and those of a job
that is ``exclusive`` or asked for nodes are not shared; those of plain work only with jobs that have no node,
while plain work takes its turns as a job of one user, wherever jobs do. ``hpc.lend: 0 s`` ends sharing, too.
What depends on other tasks keeps to the nodes of a job of which one is not shared: else it would never run on
that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dask_hpc.scheduler.internals import crowds, durations, reads
from dask_hpc.scheduler.placing.turns import Turns
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed.scheduler import TaskState, WorkerState

#: Longer tasks are sent when a thread is idle, not ahead: beside them a message to and fro is nothing (some
#: milliseconds on a busy machine), and the later one is sent the better it is known where.
_AHEAD_S = 1.0


class Sharing:
    """Says who takes turns on which node, and whose turn it is."""

    def __init__(self, state: State, parts: Parts, turns: Turns, takes: Callable[[TaskState], bool]) -> None:
        self.state = state
        self._parts = parts
        self._turns = turns
        #: Whether a task may run on a borrowed slot.
        self._takes = takes
        #: Jobs that take turns on nodes that are not theirs, since `look`, in turn; some may hold no task.
        self.waiting: list[JobRecord] = []
        #: Those that take turns where one of the jobs that have common nodes has the node, by that job.
        self._on: dict[JobRecord, list[JobRecord]] = {}
        #: Whether plain work is one of them.
        self.with_plain = False
        #: Whether time has passed that nobody was told of.
        self._swept = False

    def look(self, wants: Callable[[JobRecord], bool]) -> None:
        """See who takes turns now; `wants` says whether a job has held tasks that may run anywhere."""
        state = self.state
        jobs = state.jobs.active.values() if state.settings.lend_s > 0 else ()
        wanting = [job for job in jobs if job.undeclared and wants(job)]
        self.waiting = [job for job in wanting if not len(job.allotment)]
        # a producer's tasks belong where its blocks are, and plain work has nodes of its own
        common = [job for job in jobs if job.reach is state.common]
        # what a job has sent is in the way of what another holds
        sent = [job for job in common if job.processing and job not in wanting]
        turns = [job for job in wanting if job in common or job.is_default or not len(job.allotment)]
        if state.in_turn and (len(wanting) > 1 or (sent and turns)):
            self.waiting = turns + sent
        self.with_plain = any(job.is_default for job in self.waiting)
        if self.waiting or self._swept:
            self.pass_time()

    def pass_time(self) -> None:
        """See whose turn it is by now."""
        self._swept = False
        self._turns.advance()
        self.waiting.sort(key=self._turns.place)
        self._on.clear()

    def sweep(self) -> list[JobRecord]:
        """What no event tells of: time has passed, or jobs share nodes that did not, or do no more.

        A node is pinned or pinned no longer, a producer has ended, a setting has changed. Gives those jobs.
        Time passes in the next look, or by `pass_time`.
        """
        self._swept = True
        state, moved = self.state, []
        for job in state.jobs.named:
            together = self._turns.shares(job) and all(map(self._parts.lends, state.nodes_of(job)))
            if together is (job.reach is state.common):
                continue
            if together:
                self._turns.join(job)
            else:
                state.leave_common(job)
            moved.append(job)
        return moved

    def on(self, address: str) -> list[JobRecord]:
        """Whose held tasks take turns on the worker, in that order; nobody's where only its holder runs."""
        state = self.state
        holder = state.serving.get(address)
        if holder is not None and holder.reach is state.common:
            # on all that it has, since whoever has a node that is not lent leaves the common ones
            if holder not in self._on:
                own = [] if holder in self.waiting else [holder]
                self._on[holder] = sorted([*own, *self.waiting], key=self._turns.place)
            return self._on[holder]
        node = state.nodes.at.get(address)
        if node is None or not node.serves or not self._parts.lends(node):
            return []
        holders, plain, known = state.served_by(address), False, True
        for job in holders:
            if not job.undeclared:
                return []
            plain = plain or bool(job.is_default and job.unfinished)
            known = known and job in self.waiting
        if known and not plain:
            return self.waiting
        guests = [job for job in self.waiting if job not in holders and not (plain and len(job.allotment))]
        return sorted([*holders, *guests], key=self._turns.place)

    def on_plain(self) -> bool:
        """Whether jobs take turns on the nodes of plain work: those that have no node."""
        return any(not (job.is_default or len(job.allotment)) for job in self.waiting)

    def addresses(self, workers: Iterable[WorkerState]) -> set[str]:
        """Those of the workers where several jobs take turns, and have a slot or tasks to overtake."""
        scheduler = self.state.scheduler
        if not self.waiting:
            return set()
        # who would be first anywhere passes most
        first = min([own for job in self.waiting if (own := self._priority(job)) is not None], default=None)
        return {
            ws.address
            for ws in workers
            if (
                reads.free_slots(scheduler, ws) > 0
                or (
                    first is not None
                    and len(crowds.later(scheduler, ws, first)) > ws.nthreads
                )
            )
            and len(self.on(ws.address)) > 1
        }

    def overtaken(self, ws: WorkerState, job: JobRecord, ts: TaskState) -> int:
        """How many tasks on the worker would be done after the job's next one, `ts`, were it sent there.

        Those do not count whose job has its turn before by what is known now, though they were sent with a
        later one: they would be overtaken for ever.
        """
        turn = self._turns.turn(job)
        if turn is None or (priority := reads.priority_with(ts, turn)) is None:
            return 0
        count, owner, may_wait = 0, self.state.owner, {job: True}
        for later in crowds.later(self.state.scheduler, ws, priority):
            lane = owner.get(later.key)
            if lane is not None and lane.job not in may_wait:
                other = self._turns.turn(lane.job)
                may_wait[lane.job] = other is None or other >= turn
            count += lane is None or may_wait[lane.job]
        return count

    def before(self, ws: WorkerState, jobs: Sequence[JobRecord]) -> int:
        """How many tasks on the worker would be done before the next one that is dealt there."""
        next_one = self.turn(jobs, ws.address)
        later = 0 if next_one is None else self.overtaken(ws, *next_one)
        # of those that are overtaken as many execute already as there are threads
        return len(ws.processing) - max(0, later - ws.nthreads)

    def _priority(self, job: JobRecord) -> tuple[float, ...] | None:
        """What the job's next task would be sent with; None where its tasks are not ordered among others."""
        turn, ts = self._turns.turn(job), job.first()
        return None if turn is None or ts is None else reads.priority_with(ts, turn)

    def turn(self, jobs: Sequence[JobRecord], address: str) -> tuple[JobRecord, TaskState] | None:
        """Whose turn it is on the worker, of those that are `on` it, and its task; None: nobody has one."""
        for job in jobs:
            ts = job.first() if job.queue else None
            if ts is not None and (not len(job.allotment) or address in job.allotment or self._takes(ts)):
                return job, ts
        return None

    def ahead(self, ts: TaskState) -> bool:
        """Whether the task may be sent to wait behind what executes."""
        usual_s = durations.of_kind(ts.prefix)
        return usual_s is not None and usual_s < _AHEAD_S
