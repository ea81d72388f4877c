"""Overflow: no task waits behind others on its job's workers while other threads are idle that may be lent.

Stock places tasks that depend on others as soon as they can run, one behind the other when its workers are
busy, and sends each worker a little more than it has threads for. A job's tasks stay on the job's nodes, so
neither stock's choice of a worker nor its work stealing reaches an idle thread next door. Here such a task is
held before it is sent, if a thread is idle then; one that was sent is asked back, as work stealing asks, when
a thread is idle a moment later, or at a sweep, and held. Then it is lent a slot like any other (`lending`).
Only what lending would take is held, and what would be done sooner with its data moved.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.internals import crowds, reads, writes
from dask_hpc.scheduler.placing.lending import Lending
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

    from dask_hpc.scheduler.internals.allotment import Lane

#: Stimulus ids of our requests to give a task back start with this.
OVERFLOW = "hpc-overflow-"
#: Tasks that are looked at in one sweep, on each worker and together: a few milliseconds.
_LOOKED_AT, _TOGETHER = 500, 2000
#: Seconds until a look for what was sent behind others; and how many times longer than it takes the pause is.
_SOON_S, _PAUSE = 0.01, 50
#: Runs that are not asked for again.
_REMEMBERED = 10_000


class Overflow:
    """Chooses the tasks that are asked back, and holds those that are given back."""

    def __init__(self, state: State, lending: Lending, offer: Callable[..., None]) -> None:
        self.state = state
        self._lending = lending
        lending.grown = self._grown
        #: Called with jobs that hold tasks for which there may be a slot.
        self._offer = offer
        #: Idle threads by worker, less those that tasks are held for in this turn of the loop; None: look.
        self._idle: dict[str, int] | None = None
        #: Jobs that reach all of those by themselves.
        self._without: set[JobRecord] = set()
        self._next_look_s = 0.0
        #: Whether a look is under way.
        self._soon = False
        #: Runs that were asked for, by number of the request: key, address, run.
        self._requests: dict[int, tuple[Any, str, int | None]] = {}
        self._next = 1
        #: Runs that were asked for already; a worker that has begun one does not give it back.
        self._asked: set[tuple[Any, int | None]] = set()
        #: How many crowded workers have been looked at: the next sweep begins with the one after them.
        self._looked = 0

    @property
    def waiting(self) -> bool:
        """Whether a worker still owes an answer."""
        return bool(self._requests)

    def elsewhere(self, ts: TaskState, worker: WorkerState) -> bool:
        """Hold a task that is about to be sent to a worker whose threads are busy, if others are idle.

        Returns whether it is held: it may be sent to no worker then. Runs for many tasks.
        """
        if len(ts.worker_restrictions or ()) >= len(self.state.scheduler.workers):
            return False  # whatever thread is idle, stock might have chosen it
        if self._idle is None:
            began_s = stopwatch_s()
            if began_s < self._next_look_s or self.state.settings.lend_s <= 0:
                self._look_soon()
                return False
            self._idle = self._lending.idle()
            self.state.scheduler.loop.asyncio_loop.call_soon(self._forget)  # type: ignore[attr-defined]
            self._rest(began_s)
        if not self._idle or ts.state != "waiting":
            self._look_soon()
            return False
        lane, scheduler = self._lane(ts, worker), self.state.scheduler
        if lane is None or not self._lending.may_take(ts) or lane.job in self._without:
            return False
        job = lane.job
        # one may have gone in this turn of the loop
        thief = next((at for at in self._idle if at not in job.reach and at in scheduler.workers), None)
        if thief is None:
            self._without.add(job)
            return False
        if not crowds.moving_pays(scheduler, ts, worker, scheduler.workers[thief]):
            return False
        self._idle[thief] -= 1
        if not self._idle[thief]:
            del self._idle[thief]
        self.state.owner[ts.key] = job.lanes["root"]
        writes.hold(ts)
        self._offer(job)
        return True

    def _forget(self) -> None:
        self._idle = None
        self._without.clear()

    def _rest(self, began_s: float) -> None:
        """With many workers a look takes long: they need no more than a fiftieth of the time."""
        ended_s = stopwatch_s()
        self._next_look_s = ended_s + _PAUSE * (ended_s - began_s)

    def _look_soon(self) -> None:
        """What executes is not known yet, and threads become idle at any time."""
        if not self._soon:
            self._soon = True
            loop = self.state.scheduler.loop.asyncio_loop  # type: ignore[attr-defined]
            loop.call_later(max(_SOON_S, self._next_look_s - stopwatch_s()), self._look_now)

    def _look_now(self) -> None:
        self._soon = False
        began_s = stopwatch_s()
        self.look()
        self._rest(began_s)

    def _grown(self) -> None:
        """More tasks of a kind of which nothing is known may be lent a slot."""
        self.look()
        self._offer(*self.state.plain[:1], *[job for job in self.state.jobs.active.values() if job.queue])

    def look(self) -> None:
        """Ask back as many tasks as threads are idle that may be lent."""
        scheduler = self.state.scheduler
        crowded = [ws for ws in dict.values(scheduler.workers) if crowds.crowd(ws) > 0]
        if not crowded or self.state.settings.lend_s <= 0 or len(self._asked) > _REMEMBERED:
            self._asked.clear()
        if not crowded or self.state.settings.lend_s <= 0:
            return
        idle = self._lending.idle()
        # who has every worker with an idle thread within reach gets there by itself (work stealing)
        thieves: dict[JobRecord, str] = {}
        for job in self.state.jobs.active.values() if idle else ():
            thief = next((address for address in idle if address not in job.reach), None)
            if thief is not None:
                thieves[job] = thief
        if not thieves:
            return
        room = sum(idle.values()) - len(self._requests)
        first = self._looked % len(crowded)
        looked = 0
        for worker in crowded[first:] + crowded[:first]:
            if room <= 0 or looked >= _TOGETHER:
                break
            self._looked += 1
            tasks = sorted(
                islice(worker.processing, _LOOKED_AT), key=lambda ts: ts.priority or (), reverse=True
            )
            looked += len(tasks)
            count = min(room, crowds.crowd(worker))
            for ts in tasks:
                run = (ts.key, ts.run_id)
                if count > 0 and run not in self._asked and self._may_go(ts, worker, thieves):
                    self._asked.add(run)
                    count -= 1
                    room -= self._ask(ts, worker)

    def _may_go(self, ts: TaskState, worker: WorkerState, thieves: dict[JobRecord, str]) -> bool:
        """Whether a task on a worker would be done sooner where a thread is idle."""
        lane = self._lane(ts, worker)
        thief = thieves.get(lane.job) if lane is not None and ts not in worker.long_running else None
        if thief is None or not self._lending.takes(ts):
            return False
        scheduler = self.state.scheduler
        return crowds.moving_pays(scheduler, ts, worker, scheduler.workers[thief])

    def _lane(self, ts: TaskState, worker: WorkerState) -> Lane | None:
        """The lane of a task for that worker if it is its job's own, and may run elsewhere."""
        lane = self.state.owner.get(ts.key)
        if (
            lane is None
            or lane.kind not in ("root", "queue", "rest")
            or lane.job.lanes.get(lane.kind) is not lane
        ):
            return None
        node, job = self.state.nodes.at.get(worker.address), lane.job
        if ts.actor or node is None or node.reserved:
            return None
        return None if job.request.exclusive or worker.address not in job.reach else lane

    def _ask(self, ts: TaskState, worker: WorkerState) -> bool:
        number, self._next = self._next, self._next + 1
        self._requests[number] = (ts.key, worker.address, ts.run_id)
        asked = writes.ask_back(self.state.scheduler, worker.address, ts.key, f"{OVERFLOW}{number}")
        if not asked:
            del self._requests[number]
        return asked

    def answered(self, worker_state: str | None, stimulus_id: str) -> None:
        """A worker has answered: what it has given up is held.

        The answer counts for the run that was asked for only.
        """
        run = self._requests.pop(int(stimulus_id.removeprefix(OVERFLOW)), None)
        if run is None:
            return
        key, address, run_id = run
        state = self.state
        ts, lane = state.scheduler.tasks.get(key), state.owner.get(key)
        given_up = worker_state in writes.GIVEN_UP or worker_state in writes.NOT_THERE
        if given_up:
            self._asked.discard((key, run_id))
        else:
            self._look_soon()
        if not given_up or ts is None or lane is None or not reads.runs_on(ts, address, run_id):
            return
        if lane.job.lanes.get(lane.kind) is lane:
            state.owner[key] = lane.job.lanes["root"]
        writes.take_back(state.scheduler, key, address, stimulus_id)
        self._offer(lane.job)

    def lost(self, address: str) -> None:
        """A worker has gone: it answers no request any more."""
        self._requests = {n: run for n, run in self._requests.items() if run[1] != address}
