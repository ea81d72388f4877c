"""Malleable EASY backfilling (MEBF): resize running jobs where backfilling finds nothing to run.

ADMIRE (2023, D3.3, section 4.1), algorithm 1 and equations 4.1 to 4.4. Waiting jobs start in order of
priority at their preferred size or, when that does not fit, the largest one that does. For the first that
does not fit at all:

1. running malleable jobs of lower priority give up a share of their nodes, each at most `sharing_factor`
   (4.1), unless that would stretch what is left of them by more than `gamma` (4.2 to 4.4);
2. else the job that needs the fewest nodes is backfilled, as long as one fits;
3. else running jobs of the head's priority or above grow, the longest first, when more than a quarter of
   their recorded time is left.

The source leaves open, and here it is so: a waiting job's priority divides running jobs into low and high;
freed nodes are whole nodes, rounded down, and legal sizes; jobs shrink for the head all or nothing, the
lowest priority first, also when some nodes are free but too few; rigid jobs are backfilled too. The listing
has no reservation although the name says EASY: here the head has one, and neither a backfilled job nor an
expansion may delay it. Without an estimate nothing can be promised, so nothing overtakes the head then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.model import JobView
from dask_hpc_policies.params import Duration, Float, Parameter
from dask_hpc_policies.rules import sizing
from dask_hpc_policies.rules.admission import Pass, needed_nodes
from dask_hpc_policies.rules.reservation import Shadow, expected_s, releases, shadow
from dask_hpc_policies.rules.sizing import Resizes
from dask_hpc_policies.wording import counted

Params = Mapping[str, Any]

PARAMETERS: tuple[Parameter, ...] = (
    Float("sharing_factor", 0.20, lo=0.0, hi=1.0, label="Sharing factor",
          help="largest share of its nodes that a job gives up in one shrink (equation 4.1)"),
    Float("gamma", 1.24, lo=1.0, hi=100.0, label="Longest stretch",
          help="a job shrinks only when its remaining time grows by no more than this factor (equation 4.4)"),
    Duration("resize_cost_s", 1.0, hi=86400.0, label="Cost of a resize",
             help="time that a resize costs the job itself (alpha of equation 4.2)"),
    Float("almost_done", 0.25, lo=0.0, hi=1.0, label="Almost done",
          help="a job expands only while more than this share of its recorded time is left"),
)  # fmt: skip


def malleable_easy(plan: Pass, params: Params) -> int:
    """Resize and backfill after the jobs that fit have started; a rule of `scheduling`."""
    jobs = [job for job in plan.running if sizing.resizable(job)]
    head = plan.head
    if head is None:
        _expand(plan, jobs, None, params)
        return 0
    low = sorted((job for job in jobs if job.priority < head.priority), key=_give_first)
    freed, resizes = _shrinks(plan, low, params)
    if resizes is not None:
        plan.resize(resizes)
        if not plan.locked:
            plan.admit()
            return 0
        return freed
    promise = _promise(plan, head)
    if promise.start_s < inf:
        _backfill(plan, head, promise)
        high = [job for job in jobs if job.priority >= head.priority]
        _expand(plan, high, _promise(plan, head), params)
    return freed


def stretch(job: JobView, granted_nodes: int, resize_cost_s: float) -> float:
    """Remaining time without `granted_nodes` of the job's nodes, over that with them.

    Equations 4.2 and 4.3: the remaining time grows by the share of nodes that is given up and by the cost
    of the resize. Nothing but the share counts when the remaining time is not known.
    """
    share = granted_nodes / job.nodes
    if job.remaining_s is None:
        return 1.0 + share
    if job.remaining_s <= 0:
        return inf
    shrink_increase_s = share * job.remaining_s + resize_cost_s
    return (job.remaining_s + shrink_increase_s) / job.remaining_s


def runtime_at(job: JobView, nodes: int) -> float:
    """Expected runtime of a pending job on `nodes` nodes, in seconds.

    The estimate belongs to the preferred size; fewer nodes take longer in proportion.
    """
    preferred = job.start_nodes or job.preferred_nodes or job.max_nodes
    return expected_s(job) * max(1.0, preferred / nodes)


def _give_first(job: JobView) -> tuple[int, float]:
    return job.priority, -job.submit_s


def _shrinks(plan: Pass, low: Sequence[JobView], params: Params) -> tuple[int, Resizes | None]:
    """Nodes that jobs of low priority can free together, and their shrinks when the head needs no more."""
    assert plan.head is not None
    head, need = plan.head.id, plan.shortage_nodes()
    shrinks: list[Shrink] = []
    freed = 0
    for job in low:
        if freed >= need:
            break
        granted = int(job.nodes * params["sharing_factor"] + 1e-9)
        # Neither more than the factor grants nor more than the head still needs.
        granted = min(granted, need - freed)
        target = smallest_at_least(job.constraint, max(job.nodes - granted, job.min_nodes), job.nodes - 1)
        if granted <= 0 or target is None:
            continue
        factor = stretch(job, job.nodes - target, params["resize_cost_s"])
        data = {"head": head, "from_nodes": job.nodes, "to_nodes": target, "needed_nodes": need}
        text = f"{head} lacks {counted(need)}: from {job.nodes} to {target}, {factor:.2f} times its time left"
        action = Shrink(job=job.id, nodes=target, reason=Reason(ReasonCode.HEAD_JOB_WAITS, text, data))
        if factor > params["gamma"]:
            text = f"its time left would be {factor:.3g} times as long, above {params['gamma']:g} (gamma)"
            plan.suppress(action, Reason(ReasonCode.TOO_COSTLY, text, {"stretch": _finite(factor)}))
            continue
        shrinks.append(action)
        freed += job.nodes - target
    if freed < need or not shrinks:
        return freed, None
    return freed, Resizes(shrinks=tuple(shrinks), freed_nodes=freed)


def _promise(plan: Pass, head: JobView) -> Shadow:
    """The head's reservation, with the jobs that this decision has started."""
    now_s = plan.view.now_s
    ends = releases(plan.view)
    # Plain work may start on no node yet.
    ends += [(now_s + runtime_at(job, size), size) for job, size in plan.started if size > 0]
    ends = sorted(end for end in ends if end[0] < inf)
    return shadow(needed_nodes(head) or 0, plan.idle_nodes, ends)


def _backfill(plan: Pass, head: JobView, promise: Shadow) -> None:
    """Start what fits beside the head's reservation, the fewest nodes first."""
    others = [job for job in plan.waiting if job is not head and needed_nodes(job) is not None]
    for job in sorted(others, key=lambda job: needed_nodes(job) or 0):
        size = _backfill_size(plan, job, promise)
        if size is None:
            continue
        text = f"{counted(size)} of {plan.idle_nodes} idle, without delay for {head.id}"
        data = {"nodes": size, "idle_nodes": plan.idle_nodes, "head": head.id}
        plan.start(job, size, Reason(ReasonCode.BACKFILLED, text, data))
        promise = _promise(plan, head)


def _backfill_size(plan: Pass, job: JobView, promise: Shadow) -> int | None:
    """The largest legal size up to the preferred one that fits and delays nobody; None without one."""
    low = needed_nodes(job) or 0
    if low > plan.idle_nodes or job.is_default:
        return None
    high = job.start_nodes or min(plan.idle_nodes, job.preferred_nodes or job.max_nodes)
    size = largest_at_most(job.constraint, max(high, low), low) if job.start_nodes is None else high
    if size is None:
        return None
    if plan.view.now_s + runtime_at(job, size) <= promise.start_s:
        return size
    # On the extra nodes it may stay as long as it likes.
    spare = min(size, promise.extra_nodes)
    if job.start_nodes is not None:
        return size if spare == size else None
    return largest_at_most(job.constraint, spare, low)


def _expand(plan: Pass, jobs: Sequence[JobView], promise: Shadow | None, params: Params) -> None:
    """Let the longest of `jobs` grow into what is idle, without delay for the head when there is one."""
    expands: list[Expand] = []
    now_s, idle = plan.view.now_s, plan.idle_nodes
    promise_s, extra = (inf, idle) if promise is None else (promise.start_s, promise.extra_nodes)
    for job in sorted(jobs, key=_left_s, reverse=True):
        if idle <= 0:
            break
        target = sizing.growth_target(job, idle, "max")
        late = target is not None and now_s + _faster_s(job, target) > promise_s
        if late:
            # It would hold them when the head is due: only nodes that the head leaves over.
            target = sizing.growth_target(job, min(idle, extra), "max")
        if target is None:
            continue
        data = {"from_nodes": job.nodes, "to_nodes": target, "idle_nodes": idle}
        text = f"idle are {counted(idle)}, longest of its rank: from {job.nodes} to {target}"
        action = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.IDLE_NODES, text, data))
        refusal = _no_use(job, target, params)
        if refusal is not None:
            plan.suppress(action, refusal)
            continue
        extra -= target - job.nodes if late else 0
        expands.append(action)
        idle -= target - job.nodes
    plan.resize(Resizes(expands=tuple(expands), taken_nodes=plan.idle_nodes - idle))


def _left_s(job: JobView) -> float:
    return inf if job.remaining_s is None else job.remaining_s


def _faster_s(job: JobView, nodes: int) -> float:
    return _left_s(job) * job.nodes / nodes


def _no_use(job: JobView, target: int, params: Params) -> Reason | None:
    """Why an expansion would not pay; None when it does, or when nothing is known."""
    if job.remaining_s is None:
        return None
    whole_s = job.recorded_s if job.recorded_s is not None else job.walltime_s
    if whole_s is not None and job.remaining_s <= params["almost_done"] * whole_s:
        text = f"{job.remaining_s:g} s of {whole_s:g} s left, not above {params['almost_done']:g} of it"
        return Reason(ReasonCode.ALMOST_DONE, text, {"remaining_s": job.remaining_s, "whole_s": whole_s})
    gain_s = job.remaining_s - _faster_s(job, target)
    if gain_s <= params["resize_cost_s"]:
        text = f"saves {gain_s:g} s, not more than it costs ({params['resize_cost_s']:g} s, resize_cost_s)"
        return Reason(ReasonCode.TOO_COSTLY, text, {"gain_s": gain_s})
    return None


def _finite(value: float) -> float | None:
    return value if value < inf else None
