"""How a run keeps its power corridor: watts outside over time, and whether that could have been avoided.

Rules of the file: an account of moments, as `energy`; it changes nothing. Between two moments the draw does
not change, so that each stretch is inside or outside as a whole. Whether a stretch outside was avoidable is
asked of the corridor's program: is some allocation inside, of the jobs that run and any of those that wait?
"""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.energy import Meter
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.corridor import DEPARTURE_S, Corridor, CorridorRun
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.power.checks import slack_w
from dask_hpc_policies.power.possible import some_inside
from dask_hpc_policies.power.problem import PowerJob, Problem, Rigid
from dask_hpc_policies.power.question import power_job
from dask_hpc_policies.power.watts import node_w


class Outside:
    """The account of one run.

    Parameters
    ----------
    meter
        Knows the draw since the last moment; it is advanced first.
    """

    def __init__(
        self, corridor: Corridor, power: NodePower, world: World, nodes: NodePool, meter: Meter
    ) -> None:
        self._corridor = corridor
        self._power = power
        self._world = world
        self._nodes = nodes
        self._meter = meter
        self.violation_ws = self.outside_s = self._avoidable_s = 0.0
        self._departures = 0
        #: Since when it is outside without a break; None: it is inside. Whether that is counted.
        self._since_s: float | None = None
        self._counted = False
        self._draw: list[tuple[float, float]] = []
        self._possible: dict[Problem, bool] = {}

    def advance(self, to_s: float) -> None:
        """Nothing changes until `to_s`."""
        from_s, draw_w = self._world.now_s, self._meter.power_w
        if not self._draw or self._draw[-1][1] != draw_w:
            self._draw.append((from_s, draw_w))
        step = self._corridor.at(from_s)
        outside_w = 0.0 if step is None else max(step[1] - draw_w, draw_w - step[2])
        if step is None or outside_w <= slack_w(*step[1:]):
            if to_s > from_s:
                self._since_s = None
            return
        length_s = to_s - from_s
        self.violation_ws += outside_w * length_s
        self.outside_s += length_s
        if self._since_s is None:
            self._since_s, self._counted = from_s, False
        if not self._counted and to_s - self._since_s > DEPARTURE_S:
            self._departures, self._counted = self._departures + 1, True
        if length_s and self._avoidable(step[1], step[2]):
            self._avoidable_s += length_s

    def close(self) -> CorridorRun:
        """What the run came to."""
        return CorridorRun(
            violation_ws=self.violation_ws,
            outside_s=self.outside_s,
            avoidable_s=self._avoidable_s,
            departures=self._departures,
            draw=tuple(self._draw),
        )

    def _avoidable(self, lower_w: float, upper_w: float) -> bool:
        problem = self._problem(lower_w, upper_w)
        found = self._possible.get(problem)
        if found is None:
            found = self._possible[problem] = some_inside(problem)
        return found

    def _problem(self, lower_w: float, upper_w: float) -> Problem:
        """All that could be: who can be resized at any size, who waits at any size or not at all."""
        power, total = self._power, self._nodes.free + self._nodes.held
        jobs: list[PowerJob] = []
        waiting: list[PowerJob] = []
        counts, idle_w, busy_w = self._nodes.counts(), power.watts("idle"), power.watts("busy")
        low = high = self._nodes.aside * idle_w + sum(
            counts[state] * power.watts(state) for state in ("booting", "off", "down")
        )
        fixed = 0
        for active in self._world.active.values():
            nodes = len(active.node_ids)
            if nodes and not _changeable(active):
                watts = node_w(active.job, nodes, busy_w)
                fixed, low, high = fixed + nodes, low + nodes * watts[0], high + nodes * watts[1]
            else:
                place = jobs if nodes else waiting
                place.append(power_job(active.job, active.job.id, nodes, busy_w, total))
        return Problem(
            nodes=max(1, total),
            lower_w=lower_w,
            upper_w=upper_w,
            idle_w=idle_w,
            rigid=Rigid(nodes=fixed, min_w=low, max_w=high),
            jobs=tuple(jobs),
            waiting=tuple(waiting),
        )


def outside_of(world: World, nodes: NodePool, meter: Meter | None) -> Outside | None:
    """The account of a run whose machine has a corridor."""
    corridor, power = world.machine.corridor, world.machine.power
    if corridor is None or power is None or meter is None:
        return None
    return Outside(corridor, power, world, nodes, meter)


def _changeable(active: ActiveJob) -> bool:
    return active.job.kind == "malleable"
