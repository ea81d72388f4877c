"""The nodes of the machine: how many are free, held, down, aside and away, and which, when that is wanted.

Rules of the file: counts always; identities (numbers from 0) only on request, for they cost time in
proportion to the sizes of jobs. A job gets the free nodes with the lowest numbers and gives up those with
the highest. A node that plays another role than to compute is aside: it is up, and no job gets it. One that
is off, waited for or booting is away. Every node is in one of the states at every moment, which the engine
makes sure of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.power import State
from dask_hpc_policies.model import COMPUTE, NodeState


class Watch(Protocol):
    """Is told of every single node that is in another state."""

    def turned(self, node: int, state: State) -> None:
        """The node is in `state` from now on."""


class NodePool:
    """Free, held, failed, other and absent nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        machine, nodes = world.machine, world.machine.nodes
        machine.check()
        #: All nodes of the machine; each is free, held, down, aside or away.
        self.total = nodes
        #: Roles of the nodes that are not for computing.
        self.roles = _roles(machine)
        self.aside = len(self.roles)
        #: Failure domain and host of each node; None: they have none, and each is a host of its own.
        self.domains = None if machine.domains is None else machine.domains.labels(nodes)
        self.hosts = None if machine.hosts is None else machine.hosts.labels(nodes, "host")
        #: Nodes that are not there, by what they are (off, waiting, booting), and how many are which.
        self.absent: dict[int, State] = dict.fromkeys(range(machine.initial_nodes, nodes), "off")
        self.absent_counts = world.absent = Counter(self.absent.values())
        self.away = len(self.absent)
        self.free = machine.initial_nodes - self.aside
        self.held = 0
        self.down = 0
        #: Of the free nodes, those that rounds under way have set aside.
        self.reserved = 0
        #: Whether it is known which nodes a job holds.
        self.identities = identities = world.options.node_ids or _followed(machine)
        self._free_ids = list(range(self.free)) if identities else []
        #: Job that holds each node; None when none does.
        self.holder: list[ActiveJob | None] = [None] * nodes if identities else []
        self.down_ids: set[int] = set()
        #: When each failed node comes back.
        self._returns: dict[int, float] = {}
        #: Who held which node when: (node, key of the job, from, to), as holders let go.
        self.log: list[tuple[int, int, float, float]] = []
        self._since_s = [0.0] * nodes if identities else []
        #: Grows with every change of a holder, a state or a role.
        self.moves = 0
        #: When the walltimes of nodes end; of those alone whose walltime does.
        self.ends_s: dict[int, float] = {}
        self.watch: Watch | None = None

    def __str__(self) -> str:
        return (
            f"{self.free} free, {self.held} held, {self.down} failed, {self.aside} other and {self.away} "
            "absent nodes"
        )

    @property
    def idle(self) -> int:
        """Nodes that a decision may hand out."""
        # of those set aside for a round under way, one may have gone
        return max(0, self.free - self.reserved)

    @property
    def computing(self) -> int:
        """Compute nodes that are up."""
        return self.free + self.held

    def counts(self) -> Mapping[State, int]:
        """How many nodes are in which state."""
        absent = self.absent_counts
        return {
            "off": absent["off"], "waiting": absent["waiting"], "booting": absent["booting"],
            "idle": self.free + self.aside, "busy": self.held, "down": self.down,
        }  # fmt: skip

    def state(self, node: int) -> State:
        """What one node is doing."""
        if node in self.absent:
            return self.absent[node]
        if node in self.down_ids:
            return "down"
        return "idle" if self.holder[node] is None else "busy"

    def free_ids(self) -> Iterable[int]:
        """Nodes that a job may get, ascending."""
        return self._free_ids

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
        active = self._withdraw(node)
        self.down_ids.add(node)
        self._returns[node] = back_s
        self.down += 1
        self._hold([node], None)
        return active

    def back(self, node: int) -> bool:
        """A node is up again; False when it has gone, or failed anew, since that was foreseen."""
        if self._returns.get(node) != self._world.now_s:
            return False
        self._forgive(node)
        self._up(node)
        return True

    # ------------------------------------------------------------- nodes that come and go

    def become(self, node: int, state: State) -> None:
        """A node that is away is off, waited for or booting from now on."""
        self.absent_counts[self.absent[node]] -= 1
        self.absent_counts[state] += 1
        self.absent[node] = state
        if self.watch is not None:
            self.watch.turned(node, state)

    def come(self, node: int) -> None:
        """A node that was away is there, and free."""
        self.absent_counts[self.absent.pop(node)] -= 1
        self.away -= 1
        self._up(node)

    def leave(self, node: int) -> ActiveJob | None:
        """A node that is there is off; returns the job that held it, which no longer does."""
        active = None
        if node in self.down_ids:
            self._forgive(node)
        else:
            active = self._withdraw(node)
        self.roles.pop(node, None)  # what comes in its place computes
        self.ends_s.pop(node, None)
        self.absent[node] = "off"
        self.absent_counts["off"] += 1
        self.away += 1
        self._hold([node], None)
        return active

    def play(self, node: int, role: str) -> None:
        """A node that is up and that nobody holds has another role from now on."""
        self._withdraw(node)
        self.roles.pop(node, None)
        if role != COMPUTE:
            self.roles[node] = role
        self.moves += 1
        self._put(node)

    # ------------------------------------------------------------------------------- parts

    def _withdraw(self, node: int) -> ActiveJob | None:
        """Take a node that is up from its count, and from the job that holds it, which is returned."""
        active = self.holder[node]
        if active is not None:
            self.held -= 1
            active.node_ids.remove(node)
        elif node in self.roles:
            self.aside -= 1
        else:
            self.free -= 1
            del self._free_ids[bisect_left(self._free_ids, node)]
        return active

    def _forgive(self, node: int) -> None:
        """A node is down no longer."""
        self.down_ids.discard(node)
        del self._returns[node]
        self.down -= 1

    def _up(self, node: int) -> None:
        """A node that was in no count is up from now on."""
        self._hold([node], None)
        self._put(node)

    def _put(self, node: int) -> None:
        """Count a node that is up and that nobody holds."""
        if node in self.roles:
            self.aside += 1
        else:
            self.free += 1
            insort(self._free_ids, node)

    def _hold(self, ids: list[int], active: ActiveJob | None) -> None:
        world, watch = self._world, self.watch
        self.moves += 1
        for node in ids:
            before = self.holder[node]
            if before is not None and world.options.node_ids and world.now_s > self._since_s[node]:
                self.log.append((node, before.key, self._since_s[node], world.now_s))
            self.holder[node] = active
            self._since_s[node] = world.now_s
            if watch is not None:
                watch.turned(node, self.state(node))
        if ids:
            world.listener.nodes(ids, active, self._told(ids[0]))

    def _told(self, node: int) -> NodeState | Literal["removed"]:
        if node in self.absent:
            return "removed"
        return "lost" if node in self.down_ids else "up"

    def _release(self, ids: list[int]) -> None:
        self._hold(ids, None)
        self._free_ids += ids
        self._free_ids.sort()


def _followed(machine: Machine) -> bool:
    """Whether what happens to the machine depends on which node is which."""
    parts = (machine.pool, machine.roles, machine.power)
    return machine.failures.occur or any(part is not None for part in parts)


def _roles(machine: Machine) -> dict[int, str]:
    """Roles other than to compute by node: the highest numbers of those that are there at the start."""
    found: dict[int, str] = {}
    node = machine.initial_nodes
    for role, count in (machine.roles or {}).items():
        for _ in range(count if role != COMPUTE else 0):
            node -= 1
            found[node] = role
    return found
