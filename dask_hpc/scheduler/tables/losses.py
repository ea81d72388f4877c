"""Workers that were lost: what failed, what was lost with it, and what of that was computed again.

A worker that leaves as planned (retired, released, drained) is counted apart: it tells nothing of how
often things fail. All of it is counted from `wrap` to `unwrap`, whether a job is active or not: stock logs an
event for each worker that comes or goes, which costs no task anything, and keys are watched only from when
they were lost until they are there again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.internals.worker_events import WorkerEvents
from dask_hpc.scheduler.tables.heard import labels
from dask_hpc.scheduler.tables.nodes import node_id
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.trace.records import LossEvent
from dask_hpc_policies.rules.losses import SEVERITIES, Place, severity

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Workers that are lost within this of the first one were lost together: connections break one by one.
TOGETHER_S = 5.0
#: Severity of an exit that was planned.
PLANNED = "planned"


class Losses:
    """Counts what goes.

    Parameters
    ----------
    noted
        Called when something was recorded, which may be while nobody else looks.
    """

    def __init__(self, state: State, watched: Watched, noted: Callable[[], None]) -> None:
        self._state = state
        self._watched = watched
        self._noted = noted
        self._events = WorkerEvents(state.scheduler, self._joined, self._removed)
        #: Losses by severity, planned exits among them.
        self.count: Counter[str] = Counter()
        #: Computed results, scattered data and executing tasks that went with workers; results made again,
        #: and those that were read back.
        self.results = self.scattered = self.interrupted = self.recomputed = self.restored = 0
        #: Node-seconds that were watched.
        self.exposure_node_s = 0.0
        self._missing = state.missing
        #: Workers that are there; stock tells of one that has gone when it does not know it any more.
        self._workers: dict[str, WorkerState] = {}
        #: Node of each of them, what a node was when that was found, and how many there are.
        self._node_of: dict[str, str] = {}
        self._by = state.nodes.by
        self._nodes = 0
        self._seen_s = 0.0
        #: What was lost together: where it was, since when, and how much went with it.
        self._open: list[Place] = []
        #: By address, workers that were there when the first of it was lost, and have not been lost since.
        #: What comes later, as a worker that its nanny starts again, does not tell what has failed.
        self._left: dict[str, Place] = {}
        self._since_s = 0.0
        self._with_it: Counter[str] = Counter()

    def scheduler_lost(self) -> None:
        """The scheduler before this one was lost, and all of its workers with it."""
        self.count["several"] += 1
        self._record(self._state.now_s(), "several", (), Counter(), 0)

    def wrap(self) -> None:
        """Count from now on."""
        self._seen_s = self._state.now_s()
        self._workers = dict(self._state.scheduler.workers)
        self._count()
        self._events.wrap()

    def unwrap(self) -> None:
        """Count no more."""
        self._events.unwrap()
        self._look(self._state.now_s())
        if self._open:
            self._close()
        for key in list(self._missing):
            self._found(key)

    def _joined(self, address: str) -> None:
        """A worker has come."""
        self._expose(self._state.now_s())
        ws = self._state.scheduler.workers.get(address)
        if ws is not None:
            self._workers[address] = ws
            self._count()

    def _removed(self, message: Mapping[str, Any]) -> None:
        """A worker has gone; `message` is what the scheduler has logged of it."""
        now_s, address = self._state.now_s(), message["worker"]
        self._expose(now_s)
        ws = self._workers.pop(address, None)
        if ws is None:
            return
        self._count()
        if message["expected"]:
            self.count[PLANNED] += 1
            self._record(now_s, PLANNED, (self._place(ws).node,), Counter(), 1)
            return
        if self._open and now_s - self._since_s >= TOGETHER_S:
            self._close()
        if not self._open:
            self._since_s = now_s
            self._left = {address: self._place(one) for address, one in self._workers.items()}
            asyncio.get_running_loop().call_later(TOGETHER_S, self._over, now_s)
        self._open.append(self._place(ws))
        self._left.pop(address, None)
        results, scattered = message["lost-computed-tasks"], message["lost-scattered-tasks"]
        self._with_it.update(
            results=len(results), scattered=len(scattered), interrupted=len(message["processing-tasks"])
        )
        for key in results:
            if key not in self._missing:
                self._missing.add(key)
                self._watched.watch(key, self._moved)

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """A lost result is there again, or nobody wants it any more."""
        if finish not in ("memory", "forgotten"):
            return
        self._found(key)
        if start != "processing" or finish != "memory":
            return
        if key in self._state.read_back:
            self.restored += 1
        else:
            self.recomputed += 1

    def _found(self, key: Any) -> None:
        self._missing.discard(key)
        self._watched.unwatch(key, self._moved)

    def tick(self, now_s: float) -> None:
        """Tell what was lost together, once no more of it can come; count the time that was watched."""
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        self._expose(now_s)
        if self._open and now_s - self._since_s >= TOGETHER_S:
            self._close()
        known = self._state.scheduler.tasks
        for key in [key for key in self._missing if key not in known]:
            self._found(key)  # stock has forgotten all tasks at once

    def _expose(self, now_s: float) -> None:
        self.exposure_node_s += self._nodes * (now_s - self._seen_s)
        self._seen_s = now_s

    def _count(self) -> None:
        """See how many nodes there are."""
        by = self._state.nodes.by
        of = self._node_of if by == self._by else {}
        self._by = by
        self._node_of = {address: of.get(address) or self._node(ws) for address, ws in self._workers.items()}
        self._nodes = len(set(self._node_of.values()))

    def _over(self, since_s: float) -> None:
        """No more can come of what was lost from then on; nobody else may look while no job is active."""
        if self._open and self._since_s == since_s:
            self._close()

    def _place(self, ws: WorkerState) -> Place:
        host, domain = labels(ws)
        return Place(node=self._node(ws), host=host, domain=domain)

    def _node(self, ws: WorkerState) -> str:
        facts = reads.worker_facts(ws)
        return node_id(self._state.nodes.by, facts["name"], facts["host"])

    def _close(self) -> None:
        lost = self._open
        what = severity(lost, self._left.values())
        self.count[what] += 1
        self.results += self._with_it["results"]
        self.scattered += self._with_it["scattered"]
        self.interrupted += self._with_it["interrupted"]
        nodes = tuple(sorted({place.node for place in lost}))
        self._record(self._since_s, what, nodes, self._with_it, len(lost))
        self._open, self._left, self._with_it = [], {}, Counter()

    def _record(
        self, t_s: float, what: str, nodes: tuple[str, ...], lost: Counter[str], workers: int
    ) -> None:
        self._state.record(
            LossEvent(
                t_s=t_s,
                severity=what,
                nodes=nodes,
                workers=workers,
                results=lost["results"],
                scattered=lost["scattered"],
                interrupted=lost["interrupted"],
                exposure_node_s=self.exposure_node_s,
            )
        )
        self._noted()

    def status(self) -> Mapping[str, Any]:
        """How often what was lost, and over how many node-seconds."""
        self._look(self._state.now_s())
        return {
            "losses": {
                **{what: self.count[what] for what in (*SEVERITIES, PLANNED)},
                "lost_results": self.results,
                "lost_scattered": self.scattered,
                "interrupted_tasks": self.interrupted,
                "recomputed_results": self.recomputed,
                "restored_results": self.restored,
                "exposure_node_s": round(self.exposure_node_s, 3),
            }
        }
