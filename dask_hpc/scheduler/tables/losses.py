"""Workers that were lost: what failed, what was lost with it, and what of that was computed again.

A worker that leaves as planned (retired, released, drained) is counted apart: it tells nothing of how
often things fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.records import LossEvent
from dask_hpc_policies.rules.losses import SEVERITIES, Place, severity

#: Workers that are lost within this of the first one were lost together: connections break one by one.
TOGETHER_S = 5.0
#: Severity of an exit that was planned.
PLANNED = "planned"


def _place(node: Node) -> Place:
    return Place(node=node.id, host=node.facts.host, domain=node.facts.domain)


class Losses:
    """Counts what goes, while the runtime is awake."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Losses by severity, planned exits among them.
        self.count: Counter[str] = Counter()
        #: Computed results, scattered data and executing tasks that went with workers; results made again,
        #: and those that were read back.
        self.results = self.scattered = self.interrupted = self.recomputed = self.restored = 0
        #: Node-seconds that were watched.
        self.exposure_node_s = 0.0
        #: Keys of lost results that are not there again yet.
        self.missing: dict[Any, None] = {}
        self._seen_s: float | None = None
        #: What was lost together: where it was, since when, and how much went with it.
        self._open: list[Place] = []
        #: By address, workers that were there when the first of it was lost, and have not been lost since.
        #: What comes later, as a worker that its nanny starts again, does not tell what has failed.
        self._left: dict[str, Place] = {}
        self._since_s = 0.0
        self._with_it: Counter[str] = Counter()

    def removed(self, message: Mapping[str, Any]) -> None:
        """A worker has gone; `message` is what the scheduler has logged of it.

        The node table still has the worker.
        """
        now_s, node = self._state.now_s(), self._state.nodes.at.get(message["worker"])
        if node is None:
            return
        if message["expected"]:
            self.count[PLANNED] += 1
            self._record(now_s, PLANNED, (node.id,), Counter(), 1)
            return
        if self._open and now_s - self._since_s >= TOGETHER_S:
            self._close()
        if not self._open:
            self._since_s = now_s
            self._left = self._places()
        self._open.append(_place(node))
        self._left.pop(message["worker"], None)
        results, scattered = message["lost-computed-tasks"], message["lost-scattered-tasks"]
        self._with_it.update(
            results=len(results), scattered=len(scattered), interrupted=len(message["processing-tasks"])
        )
        self.missing.update(dict.fromkeys(results))

    def again(self, key: Any) -> None:
        """A lost result is there again."""
        del self.missing[key]
        if key in self._state.read_back:
            self.restored += 1
        else:
            self.recomputed += 1

    def tick(self, now_s: float) -> None:
        """Tell what was lost together, once no more of it can come; count the time that was watched."""
        if self._seen_s is not None:
            self.exposure_node_s += self._state.nodes.up() * (now_s - self._seen_s)
        self._seen_s = now_s
        if self._open and now_s - self._since_s >= TOGETHER_S:
            self._close()
        known = self._state.scheduler.tasks
        for key in [key for key in self.missing if key not in known]:
            del self.missing[key]  # nobody wants it any more

    def sleep(self) -> None:
        """Nothing is watched from now on."""
        self._seen_s = None
        self.missing.clear()
        if self._open:
            self._close()

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

    def _places(self) -> dict[str, Place]:
        """Where the workers are, by address."""
        return {
            address: place
            for node in self._state.nodes.nodes.values()
            for place in [_place(node)]
            for address in node.workers
        }

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

    def status(self) -> Mapping[str, Any]:
        """How often what was lost, and over how many node-seconds."""
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
