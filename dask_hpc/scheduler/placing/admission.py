"""Admission: sends held tasks to workers as slots open, never more than stock queuing would.

Each worker serves its holder first; what it has left over is lent (`lending`). Slots of jobs that asked
for no nodes are dealt in turn (`sharing`).

Every source of free slots ends in `wake` (one pass per turn of the event loop) or is found by the
sweep, which looks at everything while any task is held.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.internals.allotment import AllotmentSet
from dask_hpc.scheduler.placing.gate import Gate
from dask_hpc.scheduler.placing.lending import Lending
from dask_hpc.scheduler.placing.queue import PlainQueue
from dask_hpc.scheduler.placing.sharing import Sharing
from dask_hpc.scheduler.placing.turns import Turns
from dask_hpc.scheduler.tables.events import AdmissionPassed, Event
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

    from dask_hpc.scheduler.internals.allotment import Lane

    Batch = list[tuple[TaskState, WorkerState, Lane]]
    #: A worker, whose turns there are, and its room (`reads.room`).
    Shared = tuple[WorkerState, list[JobRecord], int, int]

_PASSED = AdmissionPassed()
#: Tasks that plain work without a node, or that takes turns, has drawn from stock's queue at a time.
_DRAWN = 20


class Admission:
    """Matches free slots with held tasks.

    Parameters
    ----------
    watched
        Any of these holds something while somebody waits for the end of passes: a drain may have come to its
        end. Always the same objects.
    """

    def __init__(
        self,
        state: State,
        parts: Parts,
        queue: PlainQueue,
        turns: Turns,
        handle: Callable[[Event], None],
        watched: tuple[Collection[Any], ...],
    ) -> None:
        self.state = state
        self.queue = queue
        #: Addresses of workers whose slots may have changed since the last pass.
        self.dirty: set[str] = set()
        #: Jobs whose whole allotment is looked at in the next pass, and those where it has changed.
        self.offered: set[JobRecord] = set()
        self.grown: set[JobRecord] = set()
        #: Tokens of those jobs whose tasks need some.
        self.gate = Gate()
        self._aside, self._tokens = self.gate.waiting, self.gate.tokens
        self.lending = Lending(state, parts)
        self.sharing = Sharing(state, parts, turns, self.lending.takes)
        #: Parts that limit how many tasks a worker takes.
        self._limits, self._note = parts.slots, parts.note
        self._serving = state.serving
        self._handle = handle
        self.watched = watched
        self._scheduled = False
        self._call_soon = state.scheduler.loop.asyncio_loop.call_soon  # type: ignore[attr-defined]
        self._counter = 0
        #: The common nodes that stranded tasks have last been looked for a place on.
        self._common = 0
        #: A set of one address for each worker that tasks were sent to.
        self._only: dict[str, AllotmentSet] = {}

    def wake(self) -> None:
        """Have a pass run in this turn of the loop, after the transitions under way."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._pass)

    def freed(self, address: str | None, lane: Lane | None, key: Any = None) -> None:
        """A task has left a worker (None: an unknown one), or its thread (no key). Runs for every task."""
        if self._tokens:
            self.gate.ended(key)
        if address is not None:
            holder = self._serving.get(address)
            # most tasks of jobs that have more to do, or share nodes with those that have; who waits for a
            # token of it has a thread there, too
            if holder is not None and (holder.queue or self.lending.wanted or self._aside):
                self.dirty.add(address)
                if not self._scheduled:  # `wake`, written out
                    self._scheduled = True
                    self._call_soon(self._pass)
                return
        lending, watched = self.lending, any(self.watched)
        if self._aside and not self._scheduled:
            self.wake()
        queued = lane is not None and lane.kind == "queue"
        if queued and not (watched or lending.wanted or address in lending.loans or self.queue.closed):
            return  # stock fills the slot
        if address is not None:
            jobs = self.state.served_by(address)
            for job in jobs:
                if job.queue:
                    self.dirty.add(address)
                    break
            else:  # its holder holds nothing for its slots
                plain = jobs is self.state.plain and not self.queue.closed
                waiting = lending.wanted or (not plain and self.queue.first() is not None)
                if waiting or address in lending.loans:
                    self.dirty.add(address)
                elif not watched:
                    return
        elif lane is not None:
            self.offered.add(lane.job)
        self.wake()

    def waits(self, ts: TaskState, worker: WorkerState) -> bool:
        """Hold a task that is about to be sent to a worker if it finds no token; whether it is held."""
        if not (self.gate.needs and self.gate.holds(self.state, ts)):
            return False
        self.dirty.add(worker.address)
        self.wake()
        return True

    def scan(self, *jobs: JobRecord) -> None:
        """The allotment of `jobs` has changed: tasks that found no worker may find one now."""
        self.grown.update(jobs)
        self.wake()

    def offer(self, *jobs: JobRecord) -> None:
        """Look for free slots in the whole allotment of `jobs`."""
        self.offered.update(jobs)
        self.wake()

    def worker_left(self, address: str) -> None:
        """A worker has gone."""
        self._only.pop(address, None)
        self.lending.settle(address)

    def clear(self) -> None:
        """Forget workers and jobs: of those that go from now on nobody tells."""
        self.lending.settle_all(whole=True)
        self.gate.ended()
        self._only.clear()
        self.dirty.clear()
        self.offered.clear()
        self.grown.clear()

    def sweep(self) -> None:
        """Look at every job that has held tasks, and at what no event told to have left a borrowed slot."""
        self.lending.settle_all()
        moved = self.sharing.sweep()
        if moved:
            self.scan(*moved)
        self.gate.ended()  # one was not sent, or has left while nobody was told
        if self._aside:
            self.wake()
        jobs = self.state.jobs.active.values()
        waiting = [job for job in jobs if job.queue or (job.stranded and self.lending.nowhere(job))]
        if self.queue.first() is not None:
            waiting += self.state.plain[:1]
        if waiting:
            self.offer(*waiting)
        elif not moved:
            self.sharing.pass_time()

    def _pass(self) -> None:
        self._scheduled = False
        scheduler = self.state.scheduler
        self._counter += 1
        stimulus_id = f"hpc-admit-{self._counter}"
        batch: Batch = []
        if self._aside or self.gate.over:
            self.offered |= self.gate.reopen(self._left)
        lent = self._look_everywhere(batch, stimulus_id) if self.grown or self.offered else []
        if self.sharing.with_plain and self.queue.waits():
            self.queue.draw(_DRAWN, stimulus_id)
        promised = Counter([ws.address for _, ws, _ in batch]) if batch else None
        dirty, self.dirty = self.dirty, set()
        owner, serving = self.state.owner, self._serving
        left: list[str] = []
        shared: list[Shared] = []
        for address in dirty:
            worker = scheduler.workers.get(address)
            if worker is None:
                continue
            slots, idle = reads.room(scheduler, worker)
            sharing = self.sharing.waiting
            if slots <= 0 and not idle and (sharing or not self.lending.wanted):
                continue  # what has left was followed at once, as roots are by what depends on them
            if sharing and len(jobs := self.sharing.on(address)) > 1:
                shared.append((worker, jobs, slots, idle))
                continue
            if promised:
                slots -= promised[address]
            served = False
            # `served_by`, written out: this runs for most tasks of jobs
            holder = serving.get(address)
            for job in (holder,) if holder is not None else self.state.served_by(address):
                if not job.queue:
                    continue
                served = True
                room = self._room(slots, job, worker) if self._limits else slots
                while room > 0 and (ts := job.next_held()) is not None:
                    batch.append((ts, worker, owner[ts.key]))
                    slots -= 1
                    room -= 1
            if slots != 0 or not served:  # its holders leave something over
                left.append(address)
        if len(shared) == 1 and not batch:  # mostly
            lent += self._deal(shared[0], left, batch, defaultdict(int), stimulus_id)
        elif shared:
            lent += self._deal_all(shared, batch, left, stimulus_id)
        if left and scheduler.queued:
            self._draw(left, stimulus_id)
        if left and self.lending.wanted:
            more = self.lending.choose(left, Counter([ws.address for _, ws, _ in batch]))
            batch += more
            lent += more
        if batch:
            for ts, lane in writes.admit(scheduler, batch, self._only, stimulus_id):
                lane.job.park(ts, first=lane.guest)
        if lent:
            self.lending.lent(lent)
        if scheduler.queued or self.queue.closed:
            self.queue.close(self.sharing.on_plain() or self.queue.held())
            if not self.queue.closed:
                writes.fill_from_queue(scheduler, stimulus_id)
        if any(self.watched):
            self._handle(_PASSED)

    def _left(self, job: JobRecord) -> int:
        """Idle threads of the job's own workers that tasks have left since the last pass."""
        idle, serving, scheduler = 0, self._serving, self.state.scheduler
        for address in self.dirty:
            if serving.get(address) is job and (ws := scheduler.workers.get(address)) is not None:
                idle += max(0, self._room(reads.idle_threads(scheduler, ws), job, ws))
        return idle

    def _room(self, slots: int, job: JobRecord, worker: WorkerState) -> int:
        """How many of the free slots of a worker the job may use now."""
        for limit in self._limits:
            try:
                slots = min(slots, limit(job, worker))
                self._note("slots", limit, None)
            except Exception as error:
                self._note("slots", limit, error)
        return slots

    def _look_everywhere(self, batch: Batch, stimulus_id: str) -> Batch:
        """Serve the jobs whose whole allotment is to be looked at, first come first; returns what is lent.

        Idle threads come first, wherever they are; what is left waits behind what executes.
        """
        grown, offered, self.grown, self.offered = self.grown, self.offered, set(), set()
        common = self.state.common
        if any(job.reach is common for job in grown) or self._common != common.version:
            self._common = common.version
            grown |= {job for job in self.state.jobs.named if job.reach is common}
        for job in grown:
            if (job.stranded or job.bound or job.nodeless) and len(job.reach):
                # those that find none now either, since all are paused, the plugin hears of and puts back
                writes.retry_unplaced(self.state.scheduler, self.lending.unplaced(job), stimulus_id)
        jobs = sorted(grown | offered, key=lambda job: job.submit_s)
        if not any(len(job.allotment) for job in self.state.plain) and self.queue.waits():
            self.queue.draw(_DRAWN, stimulus_id)
        self.sharing.look(lambda job: self.lending.wants(job) or self.queue.is_for(job))
        workers = self.state.scheduler.workers
        shared = self.sharing.addresses(dict.values(workers))
        self.dirty.update(shared)
        for job in jobs:
            if job.queue:
                self._fill(job, batch, reads.idle_threads, shared)
        self._draw(workers, stimulus_id)
        others = [address for address in workers if address not in shared] if shared else workers
        lent = self.lending.choose(others, Counter([ws.address for _, ws, _ in batch]))
        batch += lent
        for job in jobs:
            if job.queue:
                self._fill(job, batch, reads.free_slots, shared)
        return lent

    def _draw(self, addresses: Iterable[str], stimulus_id: str) -> None:
        """Hold tasks of plain work that stock has queued, for idle threads on nodes that are not its own."""
        if self.queue.first() is None or self.queue.held(self.lending.past.spent):
            return
        workers, plain = self.state.scheduler.workers, self.state.plain_allotment() or ()
        others = [a for a in addresses if a in workers and a not in plain and self.lending.lends(a)]
        idle = sum([max(0, reads.idle_threads(self.state.scheduler, workers[a])) for a in others])
        if idle:
            self.queue.draw_lendable(idle, self.lending, stimulus_id)

    def _deal_all(self, shared: list[Shared], batch: Batch, left: list[str], stimulus_id: str) -> Batch:
        """Deal the free slots of workers to jobs in turn; returns what those get that do not hold them.

        Threads come first, on all workers; then slots of tasks that wait behind what executes. Workers that
        have threads left over are added to `left`.
        """
        lent: Batch = []
        sent: dict[str, int] = defaultdict(int)
        for _, ws, _ in batch:
            sent[ws.address] += 1
        if len(shared) > 1:
            for each in shared:
                lent += self._deal(each, None, batch, sent, stimulus_id)
            shared.sort(key=lambda each: sent[each[0].address] + self.sharing.before(*each[:2]))
        for each in shared:
            lent += self._deal(each, left, batch, sent, stimulus_id)
        return lent

    def _deal(
        self, shared: Shared, left: list[str] | None, batch: Batch, sent: dict[str, int], stimulus_id: str
    ) -> Batch:
        """Deal the free slots of a worker to jobs in turn; returns what those get that do not hold it.

        Slots of tasks that wait behind what executes are dealt when there is a `left`, to which the worker is
        added when threads are left over, and only while the holders have something to send: they come first.
        `sent` counts what is about to be sent.
        """
        worker, jobs, slots, idle = shared
        owner, address = self.state.owner, worker.address
        # `served_by`, written out: this runs for most tasks of jobs that share nodes
        holder = self._serving.get(address)
        holders = (holder,) if holder is not None else self.state.served_by(address)
        open_slots, open_threads = slots - sent[address], idle - sent[address]
        waits = open_slots > 0 and self.state.scheduler.queued and self.queue.waits()
        if waits and any(job.is_default for job in jobs):
            self.queue.draw(open_slots, stimulus_id)
        lent: Batch = []
        crowded, ahead = idle < 0, left is not None
        while crowded or open_threads > 0 or (ahead and open_slots > 0):  # else there is nothing to deal
            if (turn := self.sharing.turn(jobs, address)) is None:
                break
            job, ts = turn
            # what waits there and would be done later takes no slot from it
            later = self.sharing.overtaken(worker, job, ts) if crowded else 0
            slots, room = open_slots + later, open_threads + later
            if slots <= 0:
                break
            if room <= 0:  # it would wait there
                if not (ahead and self.sharing.ahead(ts)):
                    break
                if job not in holders and not any(each.first() for each in holders):
                    break
                room = slots
            if self._limits and self._room(room, job, worker) <= 0:
                jobs = [other for other in jobs if other is not job]
                continue
            job.take()
            row = (ts, worker, owner[ts.key])
            batch.append(row)
            sent[address] += 1
            if job not in holders:
                lent.append(row)
                if len(job.allotment):
                    self.lending.tried(ts)
            open_slots -= 1
            open_threads -= 1
        if left is not None and open_threads > 0:
            left.append(address)
        return lent

    def _fill(self, job: JobRecord, batch: Batch, free: Callable[..., int], shared: Collection[str]) -> None:
        """Fill the slots of a job's workers that are free and not shared, the least busy first."""
        scheduler = self.state.scheduler
        taken = Counter([ws.address for _, ws, _ in batch])
        open_workers: list[tuple[float, str, int, Any]] = []
        for address in job.allotment:
            worker = scheduler.workers.get(address)
            if worker is None or address in shared:
                continue
            used = taken[address]
            slots = self._room(free(scheduler, worker) - used, job, worker)
            if slots > 0:
                load = reads.load(worker) + used / worker.nthreads
                open_workers.append((load, address, slots, worker))
        heapq.heapify(open_workers)
        owner = self.state.owner
        while open_workers:
            if (ts := job.next_held()) is None:
                return
            load, address, slots, ws = open_workers[0]
            batch.append((ts, ws, owner[ts.key]))
            if slots > 1:
                heapq.heapreplace(open_workers, (load + 1 / ws.nthreads, address, slots - 1, ws))
            else:
                heapq.heappop(open_workers)
