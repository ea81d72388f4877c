"""Programs that hand over their steps get idle nodes that make these shorter, and give up what others need.

Rules of the file: pure; with each size a step takes as long as the planner's models say of the best split
then (`placement.size`), from what was measured; of a flow that takes long to plan, with the split that is
planned for its present size. A program is judged when a number that this depends on, or
what is idle, has left what it was when it was judged last, and not in the decision that changes its split.

It grows while no job waits and no plain work is there, onto the fewest nodes with which a step is as short
as on all that are idle but for the margin: when that makes it shorter by more than the margin, and saves in
as many steps as it has done so far more than moving its data takes. It shrinks for the first job that waits,
with others enough or not at all, down to the fewest nodes with which its step is no longer, or to those that
it had before it grew. Between two changes lie some steps, and twice as many each time a size that was left is
taken again; who waits for nodes does not wait for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import ceil, inf, isfinite
from typing import Any, NamedTuple

from dask_hpc_policies.decision import Expand, Reason, ReasonCode
from dask_hpc_policies.jobs.constraints import legal_sizes
from dask_hpc_policies.model import JobView
from dask_hpc_policies.placement.learner import SCALED
from dask_hpc_policies.placement.replan import application_of, drift, is_quick, known, outside_plan
from dask_hpc_policies.placement.size import best_size, size_step_s
from dask_hpc_policies.placement.view import FlowView, Split, seen
from dask_hpc_policies.rules import sizing
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.replanning import PlacementState, Sized, wait_steps
from dask_hpc_policies.rules.sizing import Limits, Resizes
from dask_hpc_policies.wording import counted

#: Steps of a simulation that are measured at a size before another is taken for it.
_MEASURED = SCALED + 2


class _Program(NamedTuple):
    """A flow whose simulation may be resized now, its job, and what is remembered."""

    name: str
    flow: FlowView
    job: JobView
    past: Sized
    #: What runs where with each size; None: as with the best split of each.
    split: Split | None

    @property
    def measured(self) -> bool:
        """Whether it is known well how long things take at its present size."""
        new = self.flow.simulation.samples - self.past.samples
        return new >= _MEASURED and all(one.samples for one in self.flow.analyses)

    def of_simulation(self, least: int, most: int) -> list[int]:
        """The legal sizes of its job from `least` to `most`, as nodes of the simulation."""
        others = self.flow.job_nodes - self.flow.nodes
        sizes = legal_sizes(self.job.constraint, max(least, others + 1), most)
        return [size - others for size in sizes]

    def of_job(self, nodes: int) -> int:
        """Nodes of its job when the simulation has `nodes`."""
        return self.flow.job_nodes - self.flow.nodes + nodes

    def resized(self, target: int, own: int | None, cooldown: int) -> Sized:
        """What is remembered when its job is brought to `target` nodes."""
        wait = wait_steps(self.past, target == self.past.left, cooldown)
        return Sized(
            changed=self.flow.steps,
            next_change=self.flow.steps + wait,
            samples=self.flow.simulation.samples,
            nodes=target,
            left=self.job.nodes,
            own=own,
        )


def resize(
    plan: Pass, state: PlacementState, params: Mapping[str, Any], placed: Collection[str]
) -> PlacementState:
    """Resize the programs of flows in a pass; the next state.

    Parameters
    ----------
    placed
        Flows whose split is changed in this very pass.
    """
    flows = seen(plan.view)
    sizes = {name: past for name, past in state.sizes.items() if name in flows}
    if not plan.locked:
        found = _programs(plan, flows, sizes, params["noise"])
        programs = [one for one in found if one.name not in placed]
        # not both: what was given up is somebody else's
        sizes |= (_grown if plan.head is None else _given_up)(plan, programs, params)
    return replace(state, sizes=sizes)


def _programs(
    plan: Pass, flows: Mapping[str, FlowView], sizes: Mapping[str, Sized], noise: float
) -> Iterator[_Program]:
    jobs = {job.id: job for job in plan.running if sizing.resizable(job) and job.at_scheduling_point}
    for name, flow in flows.items():
        job = jobs.get(flow.job or "")
        # what is measured may be about another size until the flow has heard of this one
        if job is None or job.nodes != flow.job_nodes or flow.changing or not flow.analyses:
            continue
        application, split = application_of(flow), None
        if application is None:
            continue
        if not is_quick(application):
            there = outside_plan(flow, noise)
            if there is None or there.split is None:
                continue
            split = there.split
        past = sizes.get(name, Sized())
        if past.changed is not None and flow.steps < past.changed:
            past = Sized()  # it has begun anew
        del jobs[job.id]
        yield _Program(name, flow, job, past, split)


def _given_up(plan: Pass, programs: Collection[_Program], params: Mapping[str, Any]) -> dict[str, Sized]:
    """Shrink programs for the head, when what they can do without is enough."""
    head, lacking = plan.head, plan.shortage_nodes()
    assert head is not None
    jobs = [one.job for one in programs]
    if sizing.reclaimable_nodes(jobs, Limits()) < lacking:
        return {}
    least = [replace(one.job, min_nodes=_least(one)) for one in programs]
    shrinks = sizing.shrink_in_order(sizing.oldest_first(least)[::-1], lacking, Limits(), head.id)
    if shrinks is None:
        return {}
    plan.resize(shrinks)
    plan.admit()
    targets = {shrink.job: shrink.nodes for shrink in shrinks.shrinks}
    return {
        one.name: one.resized(targets[one.job.id], _own(one), params["cooldown_steps"])
        for one in programs
        if one.job.id in targets
    }


def _least(one: _Program) -> int:
    """The fewest nodes that its job needs."""
    job, own, found = one.job, _own(one), None
    if one.measured:
        found = best_size(one.flow, one.of_simulation(job.min_nodes, job.nodes), split=one.split)
    fewest = job.nodes if found is None else one.of_job(found[0])
    return fewest if own is None else min(fewest, own)


def _own(one: _Program) -> int | None:
    """Nodes that its job had before it grew; None: it has not, or somebody else has sized it since."""
    own = one.past.own
    return own if own is not None and one.job.nodes == one.past.nodes and own < one.job.nodes else None


def _grown(plan: Pass, programs: Collection[_Program], params: Mapping[str, Any]) -> dict[str, Sized]:
    """Let programs grow into what is idle."""
    plain = any(job.is_default and job.unfinished_tasks for job in plan.view.jobs)
    sizes = {}
    for one in programs:
        idle = 0 if plain else plan.idle_nodes - one.flow.lent_nodes
        most = min(one.job.max_nodes, one.job.nodes + max(0, idle))
        now = {**known(one.flow), "most nodes": float(most)}
        if one.measured and any(drift(one.flow, one.past.judged, now, params["noise"])):
            judged = replace(one.past, judged=now)
            sizes[one.name] = _judged(plan, one, most, judged, params)
    return sizes


def _judged(plan: Pass, one: _Program, most: int, judged: Sized, params: Mapping[str, Any]) -> Sized:
    """Let a program grow to at most so many nodes, if it is worth it; what is remembered then."""
    flow, job, margin, cooldown = one.flow, one.job, params["margin"], params["cooldown_steps"]
    found = best_size(flow, one.of_simulation(job.nodes, most), margin, one.split)
    before_s = size_step_s(flow, flow.nodes, one.split)
    # its present size need not be a legal one, and what is legal no faster
    if found is None or found[0] <= flow.nodes or found[1] >= before_s:
        return judged
    nodes, step_s = found
    target, saved_s = one.of_job(nodes), before_s - step_s
    gain = saved_s / before_s if isfinite(before_s) else 1.0
    before = f"{before_s:.3g} s" if isfinite(before_s) else "it does not fit"
    text = (
        f"a step is to take {step_s:.3g} s with the simulation on {counted(nodes)}; on {flow.nodes} {before}"
    )
    if one.split is not None:
        text += "; its analyses split as is best at its present size"
    data = {
        "step_s": step_s,
        "present_step_s": before_s if isfinite(before_s) else None,
        "from_nodes": job.nodes,
        "to_nodes": target,
    }
    action = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.SHORTER_STEP, text, data))
    steps = ceil(_moving_s(flow, nodes) / saved_s)
    first = max(one.past.next_change, steps)
    if gain <= margin:
        why = f"{gain:.1%} less is not above the margin, {margin:.1%}"
        plan.suppress(action, Reason(ReasonCode.HYSTERESIS, f"{text}: {why}", data))
    elif job.remaining_s is not None and job.remaining_s <= max(steps, cooldown) * step_s:
        why = f"it ends in {job.remaining_s:.3g} s, before {max(steps, cooldown)} steps more"
        plan.suppress(action, Reason(ReasonCode.ALMOST_DONE, f"{text}: {why}", data))
    elif flow.steps < first:
        why = "its size was changed a moment ago" if first > steps else "moving its data takes longer"
        plan.suppress(action, Reason(ReasonCode.COOLDOWN, f"{text}: {why}, not before step {first}", data))
        return one.past
    else:
        plan.resize(Resizes(expands=(action,), taken_nodes=target - job.nodes))
        own = _own(one)
        return one.resized(target, job.nodes if own is None else own, cooldown)
    return judged


def _moving_s(flow: FlowView, nodes: int) -> float:
    """Seconds that it takes to lay the data of a step out over so many nodes of the simulation."""
    data_bytes = max(
        flow.simulation.memory_bytes, *((one.input_bytes or 0.0) / one.every for one in flow.analyses)
    )
    small, large = sorted((flow.nodes, nodes))
    return data_bytes * (1 - small / large) / (small * (flow.platform.bandwidth_bytes_s or inf))
