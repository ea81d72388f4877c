"""What the nodes of a run draw, counted twice: as power over time, and node by node.

Rules of the file: from moment to moment the power of all nodes is what the counts of nodes by state say, and
its integral is the energy. Apart from that each node has an account of how long it was in which state, from
what is told of it (`NodePool.watch`). Both must be the same at the end, and at every moment the nodes in each
state must be as many as the counts say; else it is a `SimulationError`. Who drew what is added up as on a
live cluster (`bill.Uses`), from the watts of every node. The account is open from the first moment of a run
to the end of its last job: what nodes draw when nothing is left to do belongs to no run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.draw import JobDraw, doing
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.power import STATES, Energy, NodePower, State
from dask_hpc_policies.power.bill import Uses
from dask_hpc_policies.power.states import NETWORKED, NodeState

#: Rounding that sums may differ by, as a share.
_TOLERANCE = 1e-9
_SUMMED = 1e-6
#: What nodes without a job do, as bills call it; one that has failed is as one that is off.
_DOES: Mapping[State, NodeState] = {"off": "off", "booting": "boot", "idle": "idle", "down": "off"}


class Meter:
    """The energy of one run.

    Parameters
    ----------
    power
        Watts by state.
    nodes
        What is watched.
    world
        Its jobs may say what they draw, beyond what a busy node does: that is theirs, whichever nodes they
        hold.
    """

    def __init__(self, power: NodePower, nodes: NodePool, world: World) -> None:
        self._world, self._jobs, self._nic_w = world, JobDraw(world, power), power.nic_w
        #: What all nodes have drawn since the last moment, and the integral of what jobs add to busy nodes.
        self.power_w = 0.0
        self._extra_j = 0.0
        #: Of which network cards, by what they were in use for.
        self._nic_j: dict[NodeState, float] = {}
        #: Who has drawn what; names of the nodes, and what their states alone have them draw.
        self.uses = Uses()
        self._names: list[str] = []
        self._node_w = np.zeros(0)
        self._watts = {state: power.watts(state) for state in STATES}
        self._nodes = nodes
        #: The account is as of this time, which stands still when the account is closed.
        self.now_s = self._from_s = 0.0
        #: State of each node, since when, and how many are in each.
        self._states: list[State] = []
        self._since_s: list[float] = []
        self._counts: Counter[State] = Counter()
        #: Seconds of each node by state.
        self._spent_s: list[dict[State, float]] = []
        #: The integral of the power.
        self._energy_j = 0.0

    def begin(self, now_s: float) -> None:
        """The run begins: from here on nodes draw power."""
        self.now_s = self._from_s = now_s
        self._states = [self._nodes.state(node) for node in range(self._nodes.total)]
        self._since_s = [now_s] * self._nodes.total
        self._counts = Counter(self._states)
        self._names = [f"n{node}" for node in range(self._nodes.total)]
        self._node_w = np.array([self._watts[state] for state in self._states])
        self._spent_s = [{} for _ in self._states]
        self._nodes.watch = self

    def advance(self, to_s: float) -> None:
        """Nothing changes until `to_s`.

        Raises
        ------
        SimulationError
            When the states of the nodes, one by one, are not what the counts say.
        """
        counts = self._nodes.counts()
        power_w = 0.0
        for state in STATES:
            if counts[state] != self._counts[state]:
                raise SimulationError(
                    f"at {self.now_s:g} s {counts[state]} nodes are {state} by their count, "
                    f"{self._counts[state]} one by one"
                )
            power_w += counts[state] * self._watts[state]
        length_s = to_s - self.now_s
        self._energy_j += power_w * length_s
        extra_w = self._jobs.extra_w()
        self.power_w = power_w + extra_w
        self._extra_j += extra_w * length_s
        if length_s > 0:
            self._share_out(length_s)
        self.now_s = to_s

    def _share_out(self, length_s: float) -> None:
        """Add up who has drawn it."""
        nodes_w, states_w, jobs_w = self._node_w.copy(), dict[NodeState, float](), dict[str, float]()
        for state, does in _DOES.items():
            if self._counts[state]:
                states_w[does] = states_w.get(does, 0.0) + self._counts[state] * self._watts[state]
        # those alone that hold nodes: there may be thousands that wait
        for active in dict.fromkeys(self._nodes.holder):
            if active is None:
                continue
            nodes = len(active.node_ids)
            extra_w, does = self._jobs.node_extra_w(active), doing(active)
            if extra_w:
                nodes_w[active.node_ids] += extra_w
            watts = jobs_w[active.job.id] = nodes * (self._watts["busy"] + extra_w)
            states_w[does] = states_w.get(does, 0.0) + watts
            if does in NETWORKED:
                self._nic_j[does] = self._nic_j.get(does, 0.0) + nodes * self._nic_w * length_s
        idle_w = self.power_w - sum(jobs_w.values())
        self.uses.add(
            length_s, self.power_w, jobs_w, 0.0, idle_w, False,
            states_w=states_w, nodes=self._names, nodes_w=nodes_w,
        )  # fmt: skip

    def turned(self, node: int, state: State) -> None:
        """See `nodes.Watch`."""
        before = self._states[node]
        if before != state:
            self._note(node)
            self._states[node] = state
            self._node_w[node] = self._watts[state]
            self._counts[before] -= 1
            self._counts[state] += 1

    def _note(self, node: int) -> None:
        spent_s, state = self._spent_s[node], self._states[node]
        spent_s[state] = spent_s.get(state, 0.0) + self.now_s - self._since_s[node]
        self._since_s[node] = self.now_s

    def close(self, spent_node_s: Mapping[NodeState, float], lost_node_s: float) -> Energy:
        """What the run used; this ends it.

        Parameters
        ----------
        spent_node_s
            Node-seconds of jobs in which they did something else than to get on, by what they did.
        lost_node_s
            Those of work that failures took.

        Raises
        ------
        SimulationError
            When the accounts of the nodes and the integral of the power are not the same, or the nodes were
            not in some state all the time.
        """
        for node in range(len(self._states)):
            self._note(node)
        node_s = {state: sum(spent.get(state, 0.0) for spent in self._spent_s) for state in STATES}
        by_state_j = {state: node_s[state] * self._watts[state] for state in STATES}
        by_node_j, length_s = sum(by_state_j.values()), self.now_s - self._from_s
        if abs(by_node_j - self._energy_j) > _TOLERANCE * max(by_node_j, self._energy_j, 1.0):
            raise SimulationError(f"nodes drew {by_node_j!r} J one by one, {self._energy_j!r} J together")
        spent_s, expected_s = sum(node_s.values()), length_s * len(self._states)
        if abs(spent_s - expected_s) > _TOLERANCE * max(spent_s, expected_s, 1.0):
            raise SimulationError(
                f"nodes were in some state for {spent_s!r} s, the run took {expected_s!r} s"
            )
        energy_j, uses = self._energy_j + self._extra_j, self.uses.nodes.uses()
        by_node = tuple(uses[name].energy_j if name in uses else 0.0 for name in self._names)
        if abs(sum(by_node) - energy_j) > _SUMMED * max(energy_j, 1.0):
            raise SimulationError(f"nodes drew {sum(by_node)!r} J by their watts, {energy_j!r} J together")
        return Energy(
            energy_j=energy_j,
            by_state_j={**by_state_j, "busy": by_state_j["busy"] + self._extra_j},
            of_busy_j=_of_busy(
                by_state_j["busy"] + self._extra_j,
                node_s["busy"],
                {**spent_node_s, "recovery": lost_node_s},
                self._nic_j,
            ),
            by_node_j=by_node,
            by_state_node_s=node_s,
            from_s=self._from_s,
            to_s=self.now_s,
        )


def _of_busy(
    busy_j: float,
    busy_node_s: float,
    spent_node_s: Mapping[NodeState, float],
    nic_j: Mapping[NodeState, float],
) -> dict[NodeState, float]:
    """Energy of busy nodes by what their jobs did with it; all of it together is that of busy nodes."""
    per_node_s = (busy_j - sum(nic_j.values())) / busy_node_s if busy_node_s else 0.0
    found: dict[NodeState, float] = {
        state: spent * per_node_s + nic_j.get(state, 0.0)
        for state, spent in spent_node_s.items()
        if spent or nic_j.get(state)
    }
    return {"compute": busy_j - sum(found.values()), **found}


def meter_of(world: World, nodes: NodePool) -> Meter | None:
    """The meter of a run whose machine says what its nodes draw."""
    power = world.machine.power
    return None if power is None else Meter(power, nodes, world)
