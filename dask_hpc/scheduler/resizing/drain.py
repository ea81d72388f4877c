"""Draining a node: no new tasks, what has not started asked back, what executes waited for.

A task is asked back by the same request that work stealing uses: the worker gives it up only when it
has not started. Placing a task anew without that answer would run it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.resizing.round import Reduction, Run
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

    from dask_hpc.scheduler.internals.allotment import Lane

#: Stimulus ids of our requests to give a task back start with this.
RECALL = "hpc-recall-"


class Drain:
    """Asks workers to give tasks back, and knows what still keeps a node busy."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._requests: dict[int, Run] = {}
        self._next = 1

    @property
    def waiting(self) -> bool:
        """Whether a worker still owes an answer."""
        return bool(self._requests)

    def busy(self, reduction: Reduction, node: Node) -> list[Any]:
        """Keys of what keeps a leaving node from falling quiet; asks back what has not started.

        Tasks that a shuffle has pinned there and actors that are being made are waited for: they
        would come back to the same place. So is what belongs on this node and was sent there: its data
        is there. Tasks that the user restricted are the user's affair, unless the node leaves the pool: then
        they are waited for, too.
        """
        state = self.state
        scheduler = state.scheduler
        busy: list[Any] = []
        for address in node.workers:
            for ts in reads.tasks_on(scheduler.workers[address]):
                lane = state.owner.get(ts.key)
                if not self._matters(reduction, lane):
                    continue
                busy.append(ts.key)
                if lane is None or lane.kind not in ("root", "queue", "rest") or ts.actor:
                    continue
                if lane is not state.pins.get(lane.job, {}).get(node.id):
                    self._ask_back(reduction, ts, address)
            shuffles = reads.shuffles_on(scheduler, address)
            busy += [key for key in shuffles if self._matters(reduction, state.owner.get(key))]
            if reads.stealing_towards(scheduler, address):
                busy.append("a task on its way there")
        return busy

    def _matters(self, reduction: Reduction, lane: Lane | None) -> bool:
        if reduction.for_good:
            return True
        return lane is not None and lane.kind != "free" and reduction.concerns(lane.job)

    def _ask_back(self, reduction: Reduction, ts: TaskState, address: str) -> None:
        run = (ts.key, address, ts.run_id)
        if run in reduction.asked:
            return
        reduction.asked.add(run)
        number, self._next = self._next, self._next + 1
        self._requests[number] = run
        writes.ask_back(self.state.scheduler, address, ts.key, f"{RECALL}{number}")

    def answered(self, worker_state: str | None, stimulus_id: str) -> None:
        """A worker has answered a request to give a task back.

        The answer counts for the run that was asked for only: a task that has been released and sent
        again meanwhile is none of its business.
        """
        run = self._requests.pop(int(stimulus_id.removeprefix(RECALL)), None)
        if run is None:
            return
        key, address, run_id = run
        scheduler = self.state.scheduler
        ts = scheduler.tasks.get(key)
        given_up = worker_state in writes.GIVEN_UP or worker_state in writes.NOT_THERE
        if given_up and ts is not None and reads.runs_on(ts, address, run_id):
            writes.take_back(scheduler, key, address, stimulus_id)

    def lost(self, address: str) -> None:
        """A worker has gone: it answers no request any more."""
        self._requests = {n: run for n, run in self._requests.items() if run[1] != address}
