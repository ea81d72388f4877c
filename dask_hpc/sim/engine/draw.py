"""What the jobs of a run draw, beyond what a busy node draws or less than that, and what they do."""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.job import Transfer
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.power.states import NETWORKED, NodeState
from dask_hpc_policies.power.watts import mean_w, says_watts


class JobDraw:
    """Watts of the jobs that hold nodes, from moment to moment.

    Parameters
    ----------
    power
        What a busy node draws whose job says nothing, and its network card.
    """

    def __init__(self, world: World, power: NodePower) -> None:
        self._world = world
        self._busy_w, self._nic_w = power.watts("busy"), power.nic_w
        self._says = any(map(says_watts, world.workload.jobs))
        #: Whether any busy node may draw something else than `busy_w`.
        self.told = self._says or bool(self._nic_w)
        #: By (key of the job, nodes): a job has the same few sizes again and again.
        self._known: dict[tuple[int, int], float] = {}

    def extra_w(self) -> float:
        """What the jobs draw together beyond `busy_w` on each of their nodes."""
        if not self.told:
            return 0.0
        return sum(len(active.node_ids) * self.node_extra_w(active) for active in self._world.active.values())

    def node_extra_w(self, active: ActiveJob) -> float:
        """What each node of a job draws beyond `busy_w`."""
        return self._said_w(active) + (self._nic_w if self._nic_w and doing(active) in NETWORKED else 0.0)

    def _said_w(self, active: ActiveJob) -> float:
        nodes = len(active.node_ids)
        if not nodes or not self._says:
            return 0.0
        place = active.key, nodes
        watts = self._known.get(place)
        if watts is None:
            watts = self._known[place] = mean_w(active.job, nodes, self._busy_w) - self._busy_w
        return watts


def doing(active: ActiveJob) -> NodeState:
    """What the nodes of a job do now; what a failure will take of it is not known yet."""
    saving, stage = active.saving, active.stage
    if saving is not None and saving.held is not None:
        return "checkpoint" if saving.held == "commit" else "restart"
    if active.window_s is not None:
        return "communicate"
    if isinstance(stage, Transfer) and not active.paused:
        return "checkpoint" if stage.purpose == "checkpoint" else "communicate"
    return "compute"
