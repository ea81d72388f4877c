"""Lending: threads of a job's nodes that the job cannot fill run the held tasks of others, one at a time.

A job keeps its nodes also while it has less to do than they could: in a chain of tasks, at the end of a
reduction, before its first graph. What waits elsewhere need not wait for that: no thread is idle while any
held task could run on it (work conservation; Kleinrock 1976, section 3.4). A lent slot comes back when the
task on it ends, so only tasks that are known to be short are lent one (``hpc.lend``). The first of a name, of
which nothing is known, goes alone for as long as one that does next to nothing needs to come back. Then their
number doubles, and again after as long, since tasks may wait for each other: stock would run them all at
once. From eight on one more is lent a slot every hundredth of the limit, and their number doubles every
tenth. So a kind that turns out to be long has what was lent to it until those tasks end, but is lent no more.
What is lent none is passed over (`past`). The job itself always comes first: what it holds is served before.

Threads of a node that is drained for another job are lent, too: what runs there may take long to end. Not to
jobs that have to leave it.

Not lent are nodes of a producer (it has them between two steps, too), pinned ones (while there are others to
share), those that take part in a round, and those of a job with ``exclusive=True``, which borrows nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import crowds, durations, reads, writes
from dask_hpc.scheduler.placing.past import Pace, Past
from dask_hpc.scheduler.tables.jobs import JobRecord, is_parked
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.records import LENDING, Other
from dask_hpc_policies.rules.lending import turn

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

    from dask_hpc.scheduler.internals.allotment import Lane


#: Seconds after which the number of tasks of an unknown kind on borrowed slots doubles: messages to a worker
#: and back take as long. And up to how many.
ALONE_S, _QUICKLY = 0.01, 8
#: Why a job has borrowed.
_BUSY, _NODELESS = "borrowed: its threads are busy", "borrowed: no node yet"
_PAUSED = "borrowed: all its workers are paused"
#: From there on it grows by one, and doubles, so often before they count as long.
_STEPS, _DOUBLINGS = 100, 10


@dataclass(slots=True)
class Trial:
    """Tasks of a kind of which nothing is known yet, on borrowed slots."""

    name: str
    since_s: float
    count: int = 0


@dataclass(slots=True)
class Loan:
    """One task of a job on a node that is not the job's."""

    task: TaskState
    worker: WorkerState
    borrower: JobRecord
    #: None: the node is nobody's.
    lender: JobRecord | None
    #: The trial that it is a part of, while nothing is known of its kind.
    trial: Trial | None
    run_id: int | None
    since_s: float


class Lending:
    """Chooses the tasks that are lent a slot, and keeps account of them."""

    def __init__(self, state: State, parts: Parts) -> None:
        self.state = state
        self._parts = parts
        #: Called when more tasks may be lent a slot than when one was refused.
        self.grown: Callable[[], None] = lambda: None
        self._grows: asyncio.TimerHandle | None = None
        #: What stands behind tasks that may not be lent a slot.
        self.past = Past(self._look_again)
        #: How often what stock has queued is looked at for that.
        self.draws = Pace(self._look_again)
        #: Whether held tasks were left over when slots were last dealt out.
        self.wanted = False
        #: Tasks that run on borrowed slots, by worker and key.
        self.loans: dict[str, dict[Any, Loan]] = {}
        #: Kinds of which nothing is known, and of which tasks are on their way, by name.
        self._trials: dict[str, Trial] = {}
        #: Tasks of trials that are about to be sent, by key.
        self._tried: dict[Any, Trial] = {}

    def choose(
        self, addresses: Iterable[str], promised: Counter[str]
    ) -> list[tuple[TaskState, WorkerState, Lane]]:
        """Held tasks for idle threads of these workers; `promised` counts tasks about to be sent to each."""
        state = self.state
        jobs = state.jobs.active.values()
        # most passes find no idle thread: whether anybody waits is all that is to be seen then
        self.wanted = state.settings.lend_s > 0 and any(map(self.wants, jobs))
        if not self.wanted:
            return []
        workers, owner = state.scheduler.workers, state.owner
        offered = {
            address: idle
            for address in addresses
            if (worker := workers.get(address)) is not None
            and (idle := reads.idle_threads(state.scheduler, worker) - promised[address]) > 0
        }
        if not offered:
            return []
        borrowers = [job for job in jobs if self.wants(job)]
        count = Counter({job: job.processing for job in borrowers})
        batch = []
        past = self.past
        past.begin()
        for address, idle in offered.items():
            if not borrowers:
                break
            lends = self.lends(address) and not (past.over and self._holder(address) in past.over)
            there = borrowers if lends else self._changing(address, borrowers)
            worker = workers[address]
            while idle > 0 and (ts := self._next(there, count)) is not None:
                batch.append((ts, worker, owner[ts.key]))
                idle -= 1
        past.end()
        return batch

    def idle(self) -> dict[str, int]:
        """Threads that may be lent now, by worker."""
        scheduler = self.state.scheduler
        idle = {address: reads.idle_threads(scheduler, ws) for address, ws in dict.items(scheduler.workers)}
        return {address: threads for address, threads in idle.items() if threads > 0 and self.lends(address)}

    def takes(self, ts: TaskState) -> bool:
        """Whether a task of this kind would be lent an idle thread now."""
        name, usual_s = durations.usual(ts)
        limit_s = self.state.settings.lend_s
        if limit_s <= 0:
            return False
        return usual_s <= limit_s if usual_s is not None else self._has_trial(name, limit_s)

    def may_take(self, ts: TaskState) -> bool:
        """Whether a task of this kind would be lent an idle thread now, or soon."""
        name, usual_s = durations.usual(ts)
        limit_s, trial = self.state.settings.lend_s, self._trials.get(name)
        if usual_s is not None:
            return 0 < limit_s >= usual_s
        return trial is None or self.state.now_s() - trial.since_s <= limit_s

    def lent(self, batch: Iterable[tuple[TaskState, WorkerState, Lane]]) -> None:
        """These tasks were sent where `choose` said; what was refused is not on the worker."""
        state, now_s = self.state, self.state.now_s()
        for ts, worker, lane in batch:
            trial = self._tried.pop(ts.key, None) if self._tried else None
            if ts.processing_on is not worker:
                self._over(trial)
                continue
            address, job = worker.address, lane.job
            if ts.key in self.loans.get(address, ()):  # it was there before, and nobody told that it left
                self.ended(address, ts.key)
            lender = state.serving.get(address) or self._holder(address)
            loan = Loan(ts, worker, job, lender, trial, ts.run_id, now_s)
            self.loans.setdefault(address, {})[ts.key] = loan
            job.borrowed_tasks += 1
            job.lending = _BUSY if self._runs(job.reach) else _PAUSED if len(job.reach) else _NODELESS
            if lender is not None:
                lender.lent_tasks += 1
                lender.lending = "lent: it has no task for a thread"

    def _holder(self, address: str) -> JobRecord | None:
        """Who has the node of the worker, also while it is drained."""
        node = self.state.nodes.at.get(address)
        return self.state.jobs.active.get(node.job) if node is not None and node.job is not None else None

    def settle_all(self, whole: bool = False) -> None:
        """See `settle`, of all workers."""
        for address in list(self.loans):
            self.settle(address, whole)

    def settle(self, address: str, whole: bool = False) -> None:
        """Account for what is no longer on borrowed slots of the worker; `whole`: for what is, too."""
        over = [
            key
            for key, loan in self.loans.get(address, {}).items()
            if whole or loan.task.processing_on is not loan.worker or loan.task.run_id != loan.run_id
        ]
        for key in over:
            self.ended(address, key)

    def ended(self, address: str, key: Any) -> None:
        """Account for a task that is no longer on the worker, if it was on a borrowed slot there.

        Runs for most tasks of jobs that share nodes.
        """
        loans = self.loans.get(address)
        loan = loans.pop(key, None) if loans else None
        if loan is None:
            return
        if not loans:
            del self.loans[address]
        if loan.trial is not None:
            self._over(loan.trial)
        seconds = self.state.now_s() - loan.since_s
        loan.borrower.borrowed_s += seconds
        if loan.lender is not None:
            loan.lender.lent_s += seconds

    def tell(self, job: JobRecord) -> None:
        """Write into the trace what a job that ends has lent and borrowed, if it has."""
        if not (job.lent_tasks or job.borrowed_tasks):
            return
        self.settle_all()
        data = {
            "t_s": self.state.now_s(),
            "job": job.id,
            "lent_tasks": job.lent_tasks,
            "lent_s": job.lent_s,
            "borrowed_tasks": job.borrowed_tasks,
            "borrowed_s": job.borrowed_s,
            "lending": job.lending,
        }
        self.state.record(Other(kind=LENDING, data=data))

    def wants(self, job: JobRecord) -> bool:
        """Whether the job has held tasks; those that wait for a node that runs are held until one does."""
        if job.request.exclusive:
            return False
        if job.stranded:
            self._hold(job)
        return job.first() is not None

    def nowhere(self, job: JobRecord) -> bool:
        """Whether some of its tasks can run nowhere: those that keep to its own nodes, or all of them."""
        return not (self._runs(job.reach) and self._runs(job.allotment))

    def _runs(self, where: Collection[str]) -> bool:
        """Whether there is a worker that takes tasks: one whose memory is full is paused, however long."""
        return crowds.any_running(self.state.scheduler, where)

    def _hold(self, job: JobRecord) -> None:
        """Hold what would wait for a node to come, or to run again."""
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        # what may run on common nodes is there, but its actors (in a lane of `inherited`) are held
        own = [job.reach, *([job.allotment] if job.inherited else [])]
        closed = [where for where in own if not self._runs(where)]
        if not closed:
            return
        # this runs in most passes: what is not held is looked at no more
        stranded, job.stranded = job.stranded, {}
        for key in stranded:
            ts, lane = tasks.get(key), owner.get(key)
            if ts is None or lane is None or ts.state != "no-worker":
                continue
            # not what belongs on one node; an actor as well, which stays there, as results do: else it would
            # wait for as long as a job that has every node is idle. What ends a shuffle, too: its outputs are
            # where its first input was made
            where = lane.restriction
            if ts.worker_restrictions is not where or not any(where is each for each in own):
                job.bound[key] = None
            elif not any(where is each for each in closed):
                job.stranded[key] = None
            else:
                writes.hold(ts)
                job.park(ts)
                job.nodeless = True

    def unplaced(self, job: JobRecord) -> list[Any]:
        """Keys of the job's tasks that may find a worker now that its allotment has changed.

        Those that their user has restricted are none: whose a worker is does not matter to them.
        """
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        stranded, job.stranded, job.bound = {**job.bound, **job.stranded}, {}, {}
        found = []
        for key in stranded:
            ts, lane = tasks.get(key), owner.get(key)
            if ts is not None and lane is not None and ts.state == "no-worker":
                if lane.kind == "free" and reads.user_restricted(ts):
                    job.bound[key] = None
                else:
                    found.append(key)
        return [*found, *self.unheld(job)]

    def unheld(self, job: JobRecord) -> list[Any]:
        """Keys of tasks that the job holds for want of a node, which it has now: held no more from here on.

        As under stock they are all sent at once: one by one, short tasks take as long as messages do.
        """
        if not job.nodeless:
            return []
        job.nodeless = False
        found = []
        for _, _, ts in job.queue:
            lane = self.state.owner.get(ts.key)
            if lane is None or lane.job is not job or lane.kind == "root" or not is_parked(ts):
                continue
            writes.restrict(ts, lane)
            found.append(ts.key)
        return found

    def lends(self, address: str) -> bool:
        """Whether idle threads of the worker may be lent."""
        node = self.state.nodes.at.get(address)
        if node is None or not node.serves:
            return False
        if node.job is not None:
            job = self.state.jobs.active.get(node.job)
            if job is None or job.request.exclusive or job.first() is not None:
                return False
        return self._parts.lends(node)

    def _changing(self, address: str, borrowers: list[JobRecord]) -> list[JobRecord]:
        """Those of the borrowers that need not leave the node of the worker, where that changes hands."""
        node = self.state.nodes.at.get(address)
        if node is None or not node.reserved or node.leaves is None or not self._parts.lends(node):
            return []
        holder = self._holder(address)
        if holder is not None and holder.request.exclusive:
            return []
        return [job for job in borrowers if not node.leaves(job)]

    def _next(self, borrowers: list[JobRecord], count: Counter[JobRecord]) -> Any | None:
        """The next task that is lent a slot: of the larger priority, then of who has fewer on workers."""
        while borrowers:
            job = min(borrowers, key=lambda job: turn(job.request.priority, count[job], job.submit_s))
            if (ts := self.past.first(job, self.takes)) is not None:
                job.take()
                self.tried(ts)
                count[job] += 1
                return ts
            borrowers.remove(job)
        return None

    def tried(self, ts: TaskState) -> None:
        """Note a task that is about to be sent while nothing is known of its kind."""
        name, usual_s = durations.usual(ts)
        if usual_s is None:
            trial = self._trials.setdefault(name, Trial(name, self.state.now_s()))
            trial.count += 1
            self._tried[ts.key] = trial

    def _has_trial(self, name: str, limit_s: float) -> bool:
        """Whether one more task of a kind of which nothing is known may be lent a slot."""
        trial = self._trials.get(name)
        if trial is None:
            return True
        age_s = self.state.now_s() - trial.since_s
        if age_s > limit_s:
            return False
        most, next_s = _most(age_s, limit_s)
        if trial.count < most:
            return True
        self._look_again(next_s - age_s)
        return False

    def _look_again(self, in_s: float) -> None:
        """More may be lent a slot then than now."""
        loop = self.state.scheduler.loop.asyncio_loop  # type: ignore[attr-defined]
        at_s = loop.time() + max(0.001, in_s)
        if self._grows is not None:
            if self._grows.when() <= at_s:
                return
            self._grows.cancel()
        self._grows = loop.call_at(at_s, self._grow)

    def _grow(self) -> None:
        """The number of a trial has doubled since a task was refused, or others may be looked past."""
        self._grows = None
        self.grown()

    def _over(self, trial: Trial | None) -> None:
        """A task of a trial has left its borrowed slot."""
        if trial is None:
            return
        trial.count -= 1
        if not trial.count:
            self._trials.pop(trial.name, None)


def _most(age_s: float, limit_s: float) -> tuple[int, float]:
    """Tasks of an unknown kind that may be on borrowed slots, the first `age_s` old, and at which age more.

    A few soon: they may wait for each other. Many only when they are seen not to be done at once, so that a
    job that pauses between two graphs finds most of its threads on a large cluster.
    """
    quickly = 2 ** min(20, int(age_s / ALONE_S))
    age = age_s / limit_s
    slowly = max(1 + int(age * _STEPS), 2 ** int(age * _DOUBLINGS))
    if quickly < _QUICKLY:
        return max(quickly, slowly), (int(age_s / ALONE_S) + 1) * ALONE_S
    return max(_QUICKLY, slowly), (int(age * _STEPS) + 1) * limit_s / _STEPS
