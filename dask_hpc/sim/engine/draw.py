"""What the jobs of a run draw, where they say so: beyond what a busy node draws, or less than that."""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.power.watts import mean_w, says_watts


class JobDraw:
    """Watts of the jobs that hold nodes, from moment to moment.

    Parameters
    ----------
    busy_w
        What a busy node draws whose job says nothing.
    """

    def __init__(self, world: World, busy_w: float) -> None:
        self._world = world
        self._busy_w = busy_w
        #: Whether any job says what it draws; else busy nodes draw `busy_w`.
        self.told = any(map(says_watts, world.workload.jobs))
        #: By (key of the job, nodes): a job has the same few sizes again and again.
        self._known: dict[tuple[int, int], float] = {}

    def extra_w(self) -> float:
        """What the jobs draw together beyond `busy_w` on each of their nodes."""
        if not self.told:
            return 0.0
        return sum(map(self._extra_w, self._world.active.values()))

    def _extra_w(self, active: ActiveJob) -> float:
        nodes = len(active.node_ids)
        if not nodes:
            return 0.0
        place = active.key, nodes
        watts = self._known.get(place)
        if watts is None:
            watts = nodes * (mean_w(active.job, nodes, self._busy_w) - self._busy_w)
            self._known[place] = watts
        return watts
