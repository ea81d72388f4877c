"""Losses of a run: how often what has failed, over how many node-seconds.

Rules of the file: the class of a loss is found as on a live cluster, by the same function, from where the
processes were that were lost and where there are some still. On every node there is one that computes, and on
every host one that starts them again when they are lost, as its manager does. A domain of which one node
alone was up is a host then.
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
        lost = [self._place(node) for node in nodes]
        hosts, domains = {place.host for place in lost}, {place.domain for place in lost}
        # what was lost whole is so with all that has its name; what else there is does not matter
        left = [
            place
            for node in range(self._nodes.total)
            if self._nodes.state(node) in ("idle", "busy")
            for place in [self._place(node)]
            if place.host in hosts or place.domain in domains
        ]
        if what != "process":
            # with the last node of a host its manager goes
            there = {place.host for place in left}
            managers = {place.host: place for place in lost if place.host not in there}
            lost += managers.values()
        found = severity(lost, left)
        self.counts[found] += 1
        self._world.listener.lost(found, nodes, self.exposure_node_s)

    def _place(self, node: int) -> Place:
        name, hosts, domains = f"n{node}", self._nodes.hosts, self._nodes.domains
        host = (hosts[node] if hosts is not None else None) or f"host of {name}"
        return Place(node=name, host=host, domain=None if domains is None else domains[node])

    def by_class(self) -> dict[str, int]:
        """How often what was lost, every class named."""
        return {what: self.counts[what] for what in SEVERITIES}
