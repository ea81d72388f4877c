"""Losses of a run: how often what has failed, over how many node-seconds.

Rules of the file: the class of a loss is found as on a live cluster, by the same function, from where the
processes were that were lost and where there are some still. On every node there are two: what computes, and
what starts it again when it is lost, as the manager of a host does. A domain of which one node alone was up
is a host then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.rules.losses import SEVERITIES, Place, Severity, severity


class Losses:
    """Counts losses, in one run."""

    def __init__(self, world: World, nodes: NodePool) -> None:
        self._world = world
        self._nodes = nodes
        self.counts: Counter[Severity] = Counter()
        #: Node-seconds of nodes that were up, from the first moment of the run to the end of its last job.
        self.exposure_node_s = 0.0

    def advance(self, to_s: float) -> None:
        """Nothing changes until `to_s`."""
        nodes = self._nodes
        self.exposure_node_s += (nodes.free + nodes.held + nodes.aside) * (to_s - self._world.now_s)

    def note(self, what: Severity, nodes: Sequence[int]) -> None:
        """A process of the first of these nodes has failed, or they all have, which are down already."""
        lost = [self._place(node) for node in nodes for _ in range(1 if what == "process" else 2)]
        own = {self._domain(node) for node in nodes}
        # a domain is lost with all that has its name; what else there is does not matter
        left = [
            self._place(node)
            for node in range(self._nodes.total)
            if self._domain(node) in own and self._nodes.state(node) in ("idle", "busy")
        ]
        found = severity(lost, left)
        self.counts[found] += 1
        self._world.listener.lost(found, nodes, self.exposure_node_s)

    def _domain(self, node: int) -> str | None:
        return None if self._nodes.domains is None else self._nodes.domains[node]

    def _place(self, node: int) -> Place:
        name = f"n{node}"
        return Place(node=name, host=name, domain=self._domain(node))

    def by_class(self) -> dict[str, int]:
        """How often what was lost, every class named."""
        return {what: self.counts[what] for what in SEVERITIES}
