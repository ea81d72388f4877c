"""Overflow: tasks that wait behind others on their job's workers are asked back while other threads are idle.

Stock places tasks that depend on others as soon as they can run, one behind the other when its workers are
busy, and sends each worker a little more than it has threads for. A job's tasks stay on the job's nodes, so
neither stock's choice of a worker nor its work stealing reaches an idle thread next door. Here such a task is
asked back, as work stealing asks, and held: then it is lent a slot like any other (`lending`). One is asked
back only if lending would take it now, and if it would be done sooner with its data moved.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import crowds, reads, writes
from dask_hpc.scheduler.placing.lending import Lending
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

#: Stimulus ids of our requests to give a task back start with this.
OVERFLOW = "hpc-overflow-"
#: Tasks that are looked at in one sweep, on each worker and together: a few milliseconds.
_LOOKED_AT, _TOGETHER = 500, 2000
#: Runs that are not asked for again.
_REMEMBERED = 10_000


class Overflow:
    """Chooses the tasks that are asked back, and holds those that are given back."""

    def __init__(self, state: State, lending: Lending, offer: Callable[[JobRecord], None]) -> None:
        self.state = state
        self._lending = lending
        #: Called with a job that holds one task more.
        self._offer = offer
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
        """Whether a task on a worker is its job's own, and would be done sooner where a thread is idle."""
        scheduler, lane = self.state.scheduler, self.state.owner.get(ts.key)
        if (
            lane is None
            or lane.kind not in ("root", "queue", "rest")
            or lane.job.lanes.get(lane.kind) is not lane
        ):
            return False
        node = self.state.nodes.at.get(worker.address)
        if ts.actor or ts in worker.long_running or node is None or node.reserved:
            return False
        job = lane.job
        thief = thieves.get(job)
        if thief is None or job.request.exclusive or worker.address not in job.reach:
            return False
        return self._lending.takes(ts) and crowds.moving_pays(scheduler, ts, scheduler.workers[thief])

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
        if not given_up or ts is None or lane is None or not reads.runs_on(ts, address, run_id):
            return
        if lane.job.lanes.get(lane.kind) is lane:
            state.owner[key] = lane.job.lanes["root"]
        writes.take_back(state.scheduler, key, address, stimulus_id)
        self._offer(lane.job)

    def lost(self, address: str) -> None:
        """A worker has gone: it answers no request any more."""
        self._requests = {n: run for n, run in self._requests.items() if run[1] != address}
