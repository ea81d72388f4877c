"""Rules for resizing running jobs, each a function of one pass.

A job management policy says when to resize (Chadha 2019, section 5.3; John 2024, section 4.2):

* PRMA (priority to running malleable jobs): idle nodes go to running jobs, nobody shrinks, each job
  expands a bounded number of times so that waiting jobs get their turn;
* PWMA (priority to waiting malleable jobs): running jobs shrink for the waiting head, all or nothing;
  when they cannot, or nobody waits, idle nodes go to running jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_hpc_policies.decision import UNEXPLAINED, Decision, Expand, Reason, ReasonCode, Shrink, Suppressed
from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules import sizing
from dask_hpc_policies.rules.admission import Pass, needed_nodes
from dask_hpc_policies.rules.sizing import Limits, Resizes, equal_sizes, lowest_size
from dask_hpc_policies.wording import counted

Params = Mapping[str, Any]


#: Resizes in a pass; returns the nodes it could have freed for the head (0 when it does not shrink).
Rule = Callable[[Pass, Params], int]


#: Decides a whole pass; returns the decision and the next state.
Decide = Callable[[ClusterSnapshot, Any, Params], tuple[Decision, Any]]


Grow = Callable[[Sequence[JobView], int, Limits], Resizes]


Take = Callable[[Sequence[JobView], int, Limits, str], Resizes | None]


def in_order(plan: Pass, params: Params) -> None:
    """Start pending jobs in order of service; the first that does not fit blocks those behind it."""
    plan.admit(params.get("target_nodes"))


def never(_: Pass, __: Params) -> int:
    """Resize nobody."""
    return 0


def fixed(plan: Pass, params: Params) -> int:
    """Bring every malleable job to the target size, or the nearest legal size within its bounds."""
    shrinks: list[Shrink] = []
    expands: list[Expand] = []
    freed = taken = 0
    for job in _malleable(plan):
        wanted = params["target_nodes"] or job.start_nodes
        if wanted is None:
            continue
        target = largest_at_most(job.constraint, min(wanted, job.max_nodes), job.min_nodes)
        target = lowest_size(job) if target is None else target
        if target > job.nodes:
            reach = sizing.growth_target(job, min(target - job.nodes, plan.idle_nodes - taken), "max")
            target = job.nodes if reach is None else reach
        if target == job.nodes:
            continue
        reason = Reason(
            ReasonCode.FIXED_TARGET,
            f"target is {counted(wanted)}: from {job.nodes} to {target}",
            {"wanted_nodes": wanted, "from_nodes": job.nodes, "to_nodes": target},
        )
        if target > job.nodes:
            expands.append(Expand(job=job.id, nodes=target, reason=reason))
            taken += target - job.nodes
        else:
            shrinks.append(Shrink(job=job.id, nodes=target, reason=reason))
            freed += job.nodes - target
    plan.resize(Resizes(shrinks=tuple(shrinks), expands=tuple(expands), taken_nodes=taken, freed_nodes=freed))
    return 0


def prma(plan: Pass, params: Params, *, grow: Grow) -> int:
    """Priority to running jobs: they grow into what is idle."""
    plan.resize(grow(sizing.oldest_first(_malleable(plan)), plan.idle_nodes, _limits(params)))
    return 0


def pwma(plan: Pass, params: Params, *, grow: Grow, take: Take) -> int:
    """Priority to the waiting head: running jobs shrink for it; when they cannot, they grow."""
    jobs = sizing.oldest_first(_malleable(plan))
    limits = _limits(params)
    if plan.head is not None:
        resizes = take(jobs[::-1], plan.shortage_nodes(), limits, plan.head.id)
        if resizes is not None:
            return _serve_head(plan, resizes)
    reclaimable = sizing.reclaimable_nodes(jobs, limits) if plan.head is not None else 0
    plan.resize(grow(jobs, plan.idle_nodes, limits))
    return reclaimable


def growing(plan: Pass, _: Params) -> int:
    """Idle nodes go to malleable jobs at a scheduling point, each up to its maximum; nobody shrinks.

    The baseline FCFSm of ADMIRE (2023, D3.3, section 4.2.5). Jobs grow although others wait: that
    takes the place of backfilling.
    """
    jobs = [job for job in sizing.oldest_first(_malleable(plan)) if job.at_scheduling_point]
    plan.resize(sizing.grow_in_order(jobs, plan.idle_nodes, Limits()))
    return 0


def performance_aware(plan: Pass, params: Params) -> int:
    """Shrink what scales worst for the head; let what scales best grow (John 2024, algorithm 3).

    The measure is the MTCT, time in transfers over time in computation. Jobs without one keep their
    size. With nobody waiting idle nodes are given out too, which the printed nesting leaves out.
    """
    limits = _limits(params)
    jobs = [job for job in sizing.oldest_first(_malleable(plan)) if job.mtct is not None]
    jobs.sort(key=_mtct)
    reclaimable = 0
    if plan.head is not None:
        resizes = sizing.shrink_in_order(jobs[::-1], plan.shortage_nodes(), limits, plan.head.id)
        if resizes is not None:
            return _serve_head(plan, resizes)
        reclaimable = sizing.reclaimable_nodes(jobs, limits)
    grown = sizing.grow_in_order(jobs, plan.idle_nodes, limits, ReasonCode.SCALES_WELL)
    unknown = _unknown(plan, plan.idle_nodes - grown.taken_nodes)
    plan.resize(replace(grown, suppressed=grown.suppressed + unknown))
    return reclaimable


def equipartition(plan: Pass, _: Params) -> int:
    """Equal shares for all running malleable jobs, after room for the head (McCann et al. 1993)."""
    jobs = sizing.oldest_first(_malleable(plan))
    before, lows = [job.nodes for job in jobs], [lowest_size(job) for job in jobs]
    held = sum(before)
    reclaimable = held - sum(lows)
    head, reserved = plan.head, 0
    if head is not None and plan.shortage_nodes() <= reclaimable:
        reserved = needed_nodes(head) or 0
    sizes = equal_sizes(jobs, plan.idle_nodes + held - reserved, lows)
    if sizes is None:
        return reclaimable
    if sizes != before:
        _divide(plan, jobs, sizes, head if reserved else None)
    if reserved and not plan.locked:
        plan.admit()
        return 0
    return reclaimable


def _divide(plan: Pass, jobs: Sequence[JobView], sizes: Sequence[int], head: JobView | None) -> None:
    """Bring `jobs` to their equal `sizes`, which make room for `head`, if for anybody."""
    shrinks: list[Shrink] = []
    expands: list[Expand] = []
    freed = taken = 0
    for job, size in zip(jobs, sizes, strict=True):
        more = size - job.nodes
        if more == 0:
            continue
        reason = UNEXPLAINED if plan.view.brief else _share_reason(job, size, head)
        if more < 0:
            shrinks.append(Shrink(job=job.id, nodes=size, reason=reason))
            freed -= more
        else:
            expands.append(Expand(job=job.id, nodes=size, reason=reason))
            taken += more
    plan.resize(Resizes(shrinks=tuple(shrinks), expands=tuple(expands), freed_nodes=freed, taken_nodes=taken))


def _malleable(plan: Pass) -> list[JobView]:
    """The running jobs that a rule may touch (`sizing.resizable`)."""
    return [job for job in plan.running if job.kind == "malleable"]


def _limits(params: Params) -> Limits:
    return Limits(
        step=params.get("step", "max"),
        min_remaining_s=params.get("min_remaining_s", 0.0),
        max_expansions=params.get("max_expansions"),
    )


def _mtct(job: JobView) -> float:
    return 0.0 if job.mtct is None else job.mtct


def _serve_head(plan: Pass, resizes: Resizes) -> int:
    plan.resize(resizes)
    if plan.locked:
        return resizes.freed_nodes
    plan.admit()
    return 0


def _unknown(plan: Pass, idle_nodes: int) -> tuple[Suppressed, ...]:
    unmeasured: list[Suppressed] = []
    for job in _malleable(plan):
        target = sizing.growth_target(job, idle_nodes, "next") if job.mtct is None else None
        if target is not None:
            wish = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.IDLE_NODES, "nodes are idle"))
            unmeasured.append(Suppressed(action=wish, reason=_NO_DATA))
    return tuple(unmeasured)


_NO_DATA = Reason(ReasonCode.NO_PERFORMANCE_DATA, "no time in transfers and computation measured yet")


def _share_reason(job: JobView, size: int, head: JobView | None) -> Reason:
    data = {"from_nodes": job.nodes, "to_nodes": size}
    if size > job.nodes:
        return Reason(ReasonCode.EQUAL_SHARE, f"equal share: from {job.nodes} to {size}", data)
    if head is not None:
        text = f"room for {head.id} and equal shares: from {job.nodes} to {size}"
        return Reason(ReasonCode.HEAD_JOB_WAITS, text, {"head": head.id, **data})
    return Reason(ReasonCode.POOL_SHARED, f"equal shares: from {job.nodes} to {size}", data)
