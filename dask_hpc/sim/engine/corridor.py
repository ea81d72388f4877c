"""The power corridor of a run: what the policy is shown of it, and what its decisions are held to.

Rules of the file: it is a twin (`twins`), so that a run without a corridor is as without this file. The plan
is asked for here, before the policy is, and comes with the picture: `decide` stays pure, and a trace of the
run replays without a solver. How the mode is chosen: ``Options.extra["corridor"]["mode"]``, ``monitor`` or
``enforce``; without one, only a policy that keeps the corridor by itself does. ``["corridor"]["levers"]`` are
those that may be pulled, ``["corridor"]["horizon_s"]`` is how far ahead announced bounds count for a job of
which nobody knows how long it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from dask_hpc.errors import SimulationError
from dask_hpc.processes import load_solver
from dask_hpc.sim.engine import twins
from dask_hpc.sim.engine.draw import doing
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.corridor import Corridor
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.combine import corridor as rules
from dask_hpc_policies.combine.limits import SumGuard, VetoGuard
from dask_hpc_policies.decision import Decision, ReleaseNodes, RequestNodes
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.problem import Problem
from dask_hpc_policies.power.program import Plan, solve
from dask_hpc_policies.power.question import asked_by, drawn_w, mode_of, planned
from dask_hpc_policies.power.states import NETWORKED
from dask_hpc_policies.power.unexplained import Unexplained, counted, noted
from dask_hpc_policies.power.view import Mode, PowerView, seen
from dask_hpc_policies.power.watts import mean_w
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.ranges import DEFAULT_LEVERS, HORIZON_S, LEVERS
from dask_hpc_policies.rules.pool_range import PoolRange, pool_range, pool_step

#: The key in `Options.extra`, and its setting.
EXTRA, MODE, LEVERS_GIVEN, HORIZON = "corridor", "mode", "levers", "horizon_s"
#: Answers of the program that are kept.
_KEPT = 1000


class CorridorTwin:
    """What a run's corridor adds to it."""

    def __init__(self, world: World, corridor: Corridor, power: NodePower) -> None:
        self._world = world
        self._corridor = corridor
        self._power = power
        given = world.options.extra.get(EXTRA, {})
        mode = given.get(MODE)
        if mode not in (None, "monitor", "enforce"):
            raise SimulationError(f"corridor: mode is {mode!r}; allowed: monitor, enforce")
        self._mode: Mode | None = mode
        self._levers = tuple(given.get(LEVERS_GIVEN, DEFAULT_LEVERS))
        if unknown := [lever for lever in self._levers if lever not in LEVERS]:
            raise SimulationError(f"corridor: lever {unknown[0]!r}; allowed: {', '.join(LEVERS)}")
        self._horizon_s = float(given.get(HORIZON, HORIZON_S))
        if not 0 <= self._horizon_s < inf:
            raise SimulationError(f"corridor: horizon_s is {self._horizon_s:g}; allowed: at least 0 s")
        #: What was asked of the pool last: from how many nodes to how many.
        self._asked: tuple[int, int] | None = None
        #: What was said of the pool last.
        self._range: PoolRange | None = None
        self._guards: tuple[SumGuard | VetoGuard, ...] = ()
        #: What is drawn beyond all that is known.
        self._unexplained = Unexplained()
        #: Answers by question: the policy is asked several times about one state of things.
        self._answers: dict[Problem, Plan] = {}

    def moments(self) -> Sequence[float]:
        """When the bounds change."""
        return [step[0] for step in self._corridor.steps]

    def minds(self, policy: Policy) -> bool:
        """Whether the policy is asked then: not where the draw is only looked at."""
        return mode_of(policy, self._mode) != "monitor"

    def completed(self, view: ClusterSnapshot, policy: Policy) -> ClusterSnapshot:
        """The picture with the section ``power``, and in it the plan where there is something to plan."""
        now = self._corridor.at(view.now_s)
        power = PowerView(
            mode=mode_of(policy, self._mode),
            lower_w=None if now is None else now[1],
            upper_w=None if now is None else now[2],
            announced=self._corridor.announced(view.now_s),
            horizon_s=self._horizon_s,
            idle_w=self._power.watts("idle"),
            busy_w=self._power.watts("busy"),
            off_w=self._power.off_w,
            boot_w=self._power.watts("booting"),
            boot_nodes=self._world.absent["booting"],
            base_w=self._beside_w(view),
            max_off_nodes=max(0, view.pool_nodes - 1) if self._lets_go else 0,
            levers=self._levers,
        )
        low_w, high_w = drawn_w(view, power)
        # as the run draws it: where a job has a table, by that
        held = [job for job in view.jobs if job.nodes and not job.is_default]
        draw_w = power.base_w + view.idle_nodes * power.idle_w
        draw_w += sum(job.nodes * mean_w(job, job.nodes, power.busy_w) for job in held)
        if nic_w := self._power.nic_w:
            jobs = self._world.active.values()
            draw_w += nic_w * sum([len(one.node_ids) for one in jobs if doing(one) in NETWORKED])
        power = replace(power, draw_w=draw_w, min_w=low_w, max_w=high_w)
        self._unexplained = noted(self._unexplained, view, power, draw_w)
        power = counted(power, self._unexplained)
        seen = planned(view, power, asked_by(policy, power.mode), self._solve)
        self._guards = rules.guards(seen)
        return seen

    def guards(self) -> Sequence[SumGuard | VetoGuard]:
        """What the decision about the last picture is held to."""
        return self._guards

    def amended(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What is done in place of the decision where the draw is outside."""
        decision = rules.amended(view, decision)
        step = self._pool_step(view)
        return decision if step is None else replace(decision, actions=(*decision.actions, step))

    def _pool_step(self, view: ClusterSnapshot) -> RequestNodes | ReleaseNodes | None:
        """What is asked of a pool whose nodes come and go: once until something else is to be."""
        power = seen(view)
        if power is None or not self._lets_go:
            return None
        self._range = allowed = pool_range(view, power, self._range)
        step = None if allowed is None else pool_step(view, allowed)
        if step is None or self._asked == (view.pool_nodes, step.nodes):
            return None
        self._asked = view.pool_nodes, step.nodes
        return step

    @property
    def _lets_go(self) -> bool:
        """Whether nodes of the machine go and come when that is asked for."""
        pool = self._world.machine.pool
        return pool is not None and pool.wait_s is not None

    def _beside_w(self, view: ClusterSnapshot) -> float:
        """What nodes draw that no job has and that are not idle: of other roles, lost, absent, set aside."""
        watts, absent = self._power.watts, self._world.absent
        lost = sum([node.state == "lost" for node in view.nodes])
        other = len(view.nodes) - lost - view.idle_nodes - sum([job.nodes for job in view.jobs])
        away_w = sum(absent[state] * watts(state) for state in absent)
        return lost * watts("down") + away_w + other * watts("idle")

    def _solve(self, problem: Problem) -> Plan:
        found = self._answers.get(problem)
        if found is None:
            if len(self._answers) >= _KEPT:
                self._answers.clear()
            found = self._answers[problem] = solve(problem)
        return found


def make_twin(world: World) -> CorridorTwin | None:
    """The twin of a run whose machine has a corridor."""
    corridor, power = world.machine.corridor, world.machine.power
    if corridor is None or power is None:
        return None
    load_solver()
    return CorridorTwin(world, corridor, power)


twins.register(make_twin)
