"""Coupled runs: when their pipelines go on, what a policy sees of them, and what becomes of what it says.

Rules of the file: the pipelines (`pipeline`) are jobs' stages. Whenever a step is handed over or done the
policy is asked, before the next one begins, as at a scheduling point. What it says of a split is staged, and
done with the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dask_hpc.sim.engine import twins
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import FLOW, Calendar
from dask_hpc.sim.engine.pipeline import Pipeline
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Outcome, Place, Reason, ReasonCode
from dask_hpc_policies.placement.replan import known, plan_of
from dask_hpc_policies.placement.view import SECTION, FlowView, PlanView
from dask_hpc_policies.rules.placing import refusal


class CoupledRuns:
    """The coupled runs of one run."""

    def __init__(self, world: World, calendar: Calendar) -> None:
        self._world = world
        self._calendar = calendar
        #: Names of the flows of jobs, by the keys of these.
        self._flows: dict[int, str] = {}
        #: Numbers of the latest entries of their flows: those before are stale.
        self._entries: dict[int, int] = {}

    def begin(self, active: ActiveJob, spec: Coupled) -> None:
        """A job has come to its coupled run, whose first step begins when the policy has been asked."""
        world = self._world
        seed, moving = world.options.seed, active.job.adaptation or world.machine.adaptation
        pipeline = world.flows[spec.flow] = Pipeline(spec, world.now_s, seed, moving, active.job.id)
        # it may begin anew with others than it began with
        pipeline.resized(active.nodes, world.now_s)
        self._flows[active.key] = spec.flow
        active.length_s, active.left = 0.0, 1.0
        self._ask(active)

    def happened(self, active: ActiveJob, number: int) -> bool:
        """The entry of this number says that something of a job's run is over; whether the run is."""
        if self._entries.get(active.key) != number:
            # it went on since that was entered: the latest entry tells what ends next
            return False
        pipeline, now_s = self._world.flows[self._flows[active.key]], self._world.now_s
        told = pipeline.ended(now_s)
        self._world.listener.stepped(pipeline)
        if pipeline.over:
            self._world.flow_reports.append(pipeline.report())
            self.drop(active)
            return True
        if told:
            self._ask(active)
        else:
            self.go(active)
        return False

    def go(self, active: ActiveJob) -> None:
        """Go on, now that the policy has been asked."""
        name = self._flows.get(active.key)
        if name is None:
            return
        pipeline, now_s = self._world.flows[name], self._world.now_s
        pipeline.go(now_s)
        at_s = pipeline.next_s()
        if at_s is not None:
            self._entries[active.key] = self._calendar.enter(at_s, FLOW, active, active.version)

    def between_steps(self, active: ActiveJob) -> bool:
        """Whether the simulation of a job's run computes no step now."""
        return self._world.flows[self._flows[active.key]].between_steps

    def hold(self, active: ActiveJob) -> None:
        """The simulation of a job's run, if that goes on, begins no step until the job has been resized."""
        name = self._flows.get(active.key)
        if name is not None:
            self._world.flows[name].resizing = True

    def resized(self, active: ActiveJob) -> None:
        """A job's run goes on with the nodes that the job has now."""
        self._world.flows[self._flows[active.key]].resized(active.nodes, self._world.now_s)
        self.go(active)

    def drop(self, active: ActiveJob) -> None:
        """The run of a job is over, or cut off: a job that starts anew begins it anew."""
        name = self._flows.pop(active.key, None)
        if name is not None:
            del self._world.flows[name]
            self._entries.pop(active.key, None)
            # nobody has to be asked about it any more
            news = self._world.news
            news.points = [one for one in news.points if one is not active]

    def _ask(self, active: ActiveJob) -> None:
        self._world.news.points.append(active)
        self._world.news.changed("tick", active)


class CouplingTwin:
    """What coupled runs add to a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Plans of flows that a policy does not plan by itself.
        self._plans: dict[str, PlanView] = {}

    def section(self) -> Mapping[str, Any]:
        """What is known of the flows."""
        flows = {name: self._planned(name, one.view()) for name, one in self._world.flows.items()}
        return {SECTION: {name: encode(view) for name, view in flows.items()}}

    def _planned(self, name: str, view: FlowView) -> FlowView:
        plan = self._plans.get(name)
        if plan is None or plan.found_for != known(view):
            plan = plan_of(view)
            if plan is None:
                return view
            self._plans[name] = plan
        return replace(view, plan=plan)

    def enactors(self) -> Mapping[type[Place], Any]:
        """What carries out places."""
        return {Place: self._place}

    def _place(self, action: Place) -> Outcome:
        pipeline, now_s = self._world.flows.get(action.flow), self._world.now_s
        view = None
        if pipeline is not None:
            # what this very decision has said of other analyses is no change under way
            own = bool(pipeline.staged) and pipeline.staged_s == now_s
            view = pipeline.view()
            view = replace(view, changing=view.changing and not own)
        why = refusal(action, view)
        if why is not None or pipeline is None:
            assert why is not None
            return Outcome(action=action, result="refused", reason=why)
        pipeline.staged.append(action)
        pipeline.staged_s = now_s
        text = f"{action.analysis} of flow {action.flow} runs {action.where} from the next step on"
        return Outcome(action=action, result="done", reason=Reason(ReasonCode.DONE, text))


def make_twin(world: World) -> CouplingTwin | None:
    """The twin of a run that has a job with a coupled run."""
    programs = (job.program for job in world.workload.jobs if job.program is not None)
    coupled = any(isinstance(stage, Coupled) for program in programs for stage in program.stages)
    return CouplingTwin(world) if coupled else None


twins.register(make_twin)
