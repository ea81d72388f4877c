"""The nodes of the machine: how many are free, held and down, and which, when that is wanted.

Rules of the file: counts always; identities (numbers from 0) only on request, for they cost time in
proportion to the sizes of jobs. A job gets the free nodes with the lowest numbers and gives up those with
the highest. Every node is in one of the states at every moment, which the engine makes sure of.
"""

from __future__ import annotations

from bisect import bisect_left

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.world import World


class NodePool:
    """Free, held and failed nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        nodes, failures = world.machine.nodes, world.machine.failures
        #: All nodes of the machine; each is free, held or down.
        self.total = nodes
        self.free = nodes
        self.held = 0
        self.down = 0
        #: Of the free nodes, those that rounds under way have set aside.
        self.reserved = 0
        #: Whether it is known which nodes a job holds.
        self.identities = identities = (
            world.options.node_ids or failures.node_mtbf_s is not None or bool(failures.listed)
        )
        self._free_ids = list(range(nodes)) if identities else []
        #: Job that holds each node; None when none does.
        self.holder: list[ActiveJob | None] = [None] * nodes if identities else []
        self.down_ids: set[int] = set()
        #: When each failed node comes back.
        self._returns: dict[int, float] = {}
        #: Who held which node when: (node, key of the job, from, to), as holders let go.
        self.log: list[tuple[int, int, float, float]] = []
        self._since_s = [0.0] * nodes if identities else []
        #: Grows with every change of a holder.
        self.moves = 0

    def __str__(self) -> str:
        return f"{self.free} free, {self.held} held and {self.down} failed nodes"

    @property
    def idle(self) -> int:
        """Nodes that a decision may hand out."""
        return self.free - self.reserved

    def returns_s(self) -> tuple[float, ...]:
        """When failed nodes come back, ascending."""
        return tuple(sorted(self._returns.values())) if self._returns else ()

    def take(self, active: ActiveJob, nodes: int) -> None:
        """Give the job `nodes` free nodes more."""
        if nodes > self.free:
            raise SimulationError(f"job {active.job.id!r} was given {nodes} nodes of {self.free} free ones")
        self.free -= nodes
        self.held += nodes
        if self.identities:
            ids = self._free_ids[:nodes]
            del self._free_ids[:nodes]
            active.node_ids += ids
            self._hold(ids, active)

    def give(self, active: ActiveJob) -> None:
        """Take all its nodes from the job; its `nodes` stay for the account."""
        self.free += active.nodes
        self.held -= active.nodes
        if self.identities:
            self._release(active.node_ids)
            active.node_ids = []

    def resize(self, active: ActiveJob, nodes: int) -> None:
        """Give the job nodes or take some until it has `nodes`."""
        if nodes > active.nodes:
            self.take(active, nodes - active.nodes)
            return
        leaving = active.nodes - nodes
        self.free += leaving
        self.held -= leaving
        if self.identities and leaving:
            active.node_ids.sort()
            ids = active.node_ids[-leaving:]
            del active.node_ids[-leaving:]
            self._release(ids)

    def fail(self, node: int, back_s: float) -> ActiveJob | None:
        """A node goes down until `back_s`; returns the job that held it, which no longer does."""
        self.down_ids.add(node)
        self._returns[node] = back_s
        self.down += 1
        active = self.holder[node]
        if active is None:
            self.free -= 1
            del self._free_ids[bisect_left(self._free_ids, node)]
            self._hold([node], None)
        else:
            self.held -= 1
            active.node_ids.remove(node)
            self._hold([node], None)
        return active

    def back(self, node: int) -> None:
        """A node is up again, and free."""
        self.down_ids.discard(node)
        del self._returns[node]
        self.down -= 1
        self.free += 1
        self._release([node])

    def _hold(self, ids: list[int], active: ActiveJob | None) -> None:
        world = self._world
        self.moves += 1
        for node in ids:
            before = self.holder[node]
            if before is not None and world.options.node_ids and world.now_s > self._since_s[node]:
                self.log.append((node, before.key, self._since_s[node], world.now_s))
            self.holder[node] = active
            self._since_s[node] = world.now_s
        if ids:
            world.listener.nodes(ids, active, "lost" if ids[0] in self.down_ids else "up")

    def _release(self, ids: list[int]) -> None:
        self._hold(ids, None)
        self._free_ids += ids
        self._free_ids.sort()
