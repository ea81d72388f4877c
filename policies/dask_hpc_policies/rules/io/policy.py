"""I/O-aware scheduling: keep the I/O intensity of what runs near that of the whole workload.

ADMIRE (2023, D3.3, section 4.2), equations 4.5 to 4.13, algorithms 2 and 3. Two kinds of decisions:

* a waiting job starts when it is the best of the queue by its place and by how near it brings the
  intensity of the running mix to that of the workload; `reordering` weighs the two (0 is first come, first
  served; 1 is balance alone, and may starve). The best job is waited for when it does not fit (``block``);
* a malleable job at a scheduling point takes the size that brings the two intensities nearest. It expands
  whenever that helps. It shrinks only when the nodes go to the best job of the queue, and that helps too.

Read so where the source is silent or cannot be meant: equation 4.11 picks job and size together, so the
best job waits for its best size; the choice ends when nothing fits; a part of the priority whose values are
all equal counts as 0; a resize must bring the intensities nearer also when that of the workload is brought
up to date. Places are counted over queued and running jobs together (text at equation 4.5), waiting jobs
first. While nobody waits the workload is what runs, the intensities are equal, and the equations have no
wish: idle nodes then go to jobs at a scheduling point, as in the source's baseline `fcfs-malleable`.

Run-time adaptation of the reordering (the source's future work, our rule): `reordering` is the most, and
what is used is its share (W - lowest) / (highest - lowest), with W the workload's intensity and its lowest
and highest value so far: fairness while there is little I/O, balance while there is much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import Bool, Float, Parameter
from dask_hpc_policies.params import Choice as ChoiceParameter
from dask_hpc_policies.rules.admission import Pass, needed_nodes
from dask_hpc_policies.rules.io.balance import Balance
from dask_hpc_policies.rules.io.candidates import SAME, Choice
from dask_hpc_policies.rules.io.intensity import job_intensity
from dask_hpc_policies.rules.requests import answer_for_more, grant_fewer
from dask_hpc_policies.rules.sizing import Resizes, resizable
from dask_hpc_policies.wording import counted

Params = Mapping[str, Any]

PARAMETERS: tuple[Parameter, ...] = (
    Float("reordering", 0.4, lo=0.0, hi=1.0, label="Reordering intensity",
          help="weight of I/O balance against order of arrival: 0 is first come, first served, 1 balance "
          "alone"),
    Bool("adaptive", False, label="Adaptive reordering",
         help="reorder less while the workload's I/O intensity is low; reordering is then the most"),
    ChoiceParameter("unfitting", "block", ("block", "skip"), label="Best job does not fit",
                    help="block: wait for its nodes; skip: start the best of those that fit, which may "
                    "starve wide jobs"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IoAwareState:
    """Range of the workload's intensity so far, for the adaptive reordering; None before the first job."""

    lowest: float | None = None
    highest: float | None = None

    def seen(self, intensity: float) -> IoAwareState:
        """With one more value."""
        if self.lowest is None or self.highest is None:
            return IoAwareState(lowest=intensity, highest=intensity)
        if self.lowest <= intensity <= self.highest:
            return self
        return IoAwareState(lowest=min(self.lowest, intensity), highest=max(self.highest, intensity))

    def share(self, intensity: float) -> float:
        """Where in the range `intensity` is, from 0 to 1; 1 while there is no range yet."""
        if self.lowest is None or self.highest is None or self.highest <= self.lowest:
            return 1.0
        return (intensity - self.lowest) / (self.highest - self.lowest)


def decide(view: ClusterSnapshot, state: IoAwareState, params: Params) -> tuple[Decision, IoAwareState]:
    """One pass; see the module."""
    plan = Pass(view)
    grant_fewer(plan)
    balance: Balance[str] = Balance()
    jobs = {job.id: job for job in view.jobs}
    balance.submit_all((job.id, job) for job in plan.waiting)
    for job in view.jobs:
        if job.state != "pending" and job.nodes > 0 and not job.is_default:
            balance.run(job.id, job.nodes, job_intensity(job, job.nodes))
    if params["adaptive"] and jobs:
        state = state.seen(balance.workload)
    reordering = reordering_now(params, state, balance.workload)
    block = params["unfitting"] == "block"
    for job in plan.running:
        if resizable(job) and job.at_scheduling_point:
            _resize(plan, balance, job, reordering, block)
    while (choice := balance.best(balance.system, plan.idle_nodes, reordering, block=block)) is not None:
        _start(plan, balance, jobs, choice)
    # a job without a legal size waits for no nodes
    plan.head = next((job for job in plan.waiting if needed_nodes(job) is not None), None)
    answer_for_more(plan)
    _explain(plan, balance, balance.leader(balance.system, reordering) if block else None)
    return plan.answer(), state


def reordering_now(params: Params, state: IoAwareState, workload: float) -> float:
    """The reordering intensity to use while the workload's intensity is `workload`."""
    most: float = params["reordering"]
    return most * state.share(workload) if params["adaptive"] else most


def better_size(
    balance: Balance[Any], key: Any, job: JobView, idle_nodes: int, reordering: float, block: bool
) -> tuple[int, float, str] | None:
    """Size to give a running job at a scheduling point, its intensity there, and whom it shrinks for.

    None to leave it as it is. The text is the key of that job in the queue, empty for an expansion.
    """
    now = balance.running[key]
    if not balance.keys:
        reach = min(job.max_nodes, now.nodes + idle_nodes)
        largest = largest_at_most(job.constraint, reach, now.nodes + 1)
        return None if largest is None else (largest, job_intensity(job, largest), "")
    distance = abs(balance.workload - balance.system.intensity)
    for nodes, intensity, delta in balance.sizes_by_distance(key, job, idle_nodes, distance - SAME):
        if delta >= distance - SAME:
            return None
        after = balance.system.plus(now.intensity, -now.nodes).plus(intensity, nodes)
        if abs(after.joined(balance.queued).intensity - after.intensity) >= distance - SAME:
            continue
        if nodes > now.nodes:
            return nodes, intensity, ""
        choice = balance.best(after, idle_nodes + now.nodes - nodes, reordering, block=block)
        if choice is not None and choice.nodes > idle_nodes and choice.delta < distance - SAME:
            return nodes, intensity, str(balance.keys[choice.place])
    return None


def _explain(plan: Pass, balance: Balance[str], leader: Choice | None) -> None:
    """Say why each job waits: `leader` for nodes, the others behind it, all for nodes when there is none."""
    first = None if leader is None else balance.keys[leader.place]
    for job in plan.waiting:
        need = needed_nodes(job)
        if need is None:
            continue
        if first is not None and job.id != first:
            text = f"waits behind {first}, which is the best to start next"
            plan.reasons[job.id] = Reason(ReasonCode.BEHIND_HEAD, text, {"head": first})
            continue
        need = need if leader is None else leader.nodes
        text = f"{'is' if first else 'would be'} started on {counted(need)}, idle are {plan.idle_nodes}"
        data = {"needed_nodes": need, "idle_nodes": plan.idle_nodes}
        plan.reasons[job.id] = Reason(ReasonCode.NOT_ENOUGH_NODES, text, data)


def _resize(plan: Pass, balance: Balance[str], job: JobView, reordering: float, block: bool) -> None:
    found = better_size(balance, job.id, job, plan.idle_nodes, reordering, block)
    if found is None:
        return
    nodes, intensity, head = found
    system, workload = balance.system.intensity, balance.workload
    text = f"I/O intensity {system:.3f} runs, {workload:.3f} in all: from {job.nodes} to {nodes}"
    data = {"from_nodes": job.nodes, "to_nodes": nodes, "system": system, "workload": workload}
    if nodes > job.nodes:
        expand = Expand(job=job.id, nodes=nodes, reason=Reason(ReasonCode.IO_BALANCE, text, data))
        plan.resize(Resizes(expands=(expand,), taken_nodes=nodes - job.nodes))
    else:
        reason = Reason(ReasonCode.IO_BALANCE, f"{text}, which lets {head} start", {**data, "head": head})
        shrink = Shrink(job=job.id, nodes=nodes, reason=reason)
        plan.resize(Resizes(shrinks=(shrink,), freed_nodes=job.nodes - nodes))
    if plan.locked:
        return
    balance.run(job.id, nodes, intensity)
    if nodes > job.nodes:
        return
    choice = balance.best(balance.system, plan.idle_nodes, reordering, block=block)
    if choice is not None:
        _start(plan, balance, {j.id: j for j in plan.waiting}, choice)


def _start(plan: Pass, balance: Balance[str], jobs: Mapping[str, JobView], choice: Choice) -> None:
    job = jobs[balance.leave(choice.place)]
    text = f"{counted(choice.nodes)} of {plan.idle_nodes} idle, I/O intensities {choice.delta:.3f} apart then"
    data = {"nodes": choice.nodes, "idle_nodes": plan.idle_nodes, "delta": choice.delta}
    plan.start(job, choice.nodes, Reason(ReasonCode.IO_BALANCE, text, data))
    if not job.is_default:
        balance.run(job.id, choice.nodes, job_intensity(job, choice.nodes))
