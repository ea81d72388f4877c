"""Requests of evolving jobs: granted or denied, with a reason.

An evolving job asks for other sizes while it runs (Feitelson and Rudolph 1996); `JobView.requested_nodes` is
what it asks for. Rules of the file: fewer nodes are always granted, down to the nearest legal size not below
what was asked for, and before anybody starts: who waits may have them. More nodes are granted from what is
idle, whole or not at all, in order of service, while no job waits for nodes; nobody shrinks for them. A
request that is denied stands, and is looked at again in every pass.
"""

from __future__ import annotations

from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import is_legal, smallest_at_least
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.sizing import Resizes
from dask_hpc_policies.wording import counted


def grant_fewer(plan: Pass) -> None:
    """Take from evolving jobs of the pass what they give up."""
    for job, wanted in _requests(plan):
        if wanted < job.nodes:
            _give_up(plan, job, wanted)


def answer_for_more(plan: Pass, denied: Reason | None = None) -> None:
    """Grant or deny the nodes that evolving jobs of the pass ask for, when all have started that can.

    `denied`: why nobody is to get any.
    """
    for job, wanted in _requests(plan):
        if wanted > job.nodes:
            _ask_for_more(plan, job, wanted, denied)


def _requests(plan: Pass) -> list[tuple[JobView, int]]:
    asking = [job for job in plan.running if job.kind == "evolving"]
    return [(job, job.requested_nodes) for job in asking if job.requested_nodes is not None]


def _give_up(plan: Pass, job: JobView, wanted: int) -> None:
    target = smallest_at_least(job.constraint, max(wanted, job.min_nodes), job.nodes - 1)
    if target is None:
        why = f"no legal size from {max(wanted, job.min_nodes)} to {job.nodes - 1} nodes"
        plan.suppress(_shrink(job, wanted), Reason(ReasonCode.OUT_OF_BOUNDS, why))
        return
    plan.resize(Resizes(shrinks=(_shrink(job, target),), freed_nodes=job.nodes - target))


def _ask_for_more(plan: Pass, job: JobView, wanted: int, denied: Reason | None) -> None:
    more = wanted - job.nodes
    text = f"asks for {counted(wanted)}, has {job.nodes}"
    data = {"from_nodes": job.nodes, "to_nodes": wanted, "idle_nodes": plan.idle_nodes}
    action = Expand(job=job.id, nodes=wanted, reason=Reason(ReasonCode.JOB_REQUEST, text, data))
    if wanted > job.max_nodes or not is_legal(job.constraint, wanted):
        why = f"{counted(wanted)}: at most {job.max_nodes}, constraint {job.constraint}"
        plan.suppress(action, Reason(ReasonCode.OUT_OF_BOUNDS, why, data))
    elif denied is not None:
        plan.suppress(action, denied)
    elif plan.head is not None:
        why = f"{plan.head.id} waits for nodes, {plan.idle_nodes} are idle"
        plan.suppress(action, Reason(ReasonCode.BEHIND_HEAD, why, {**data, "head": plan.head.id}))
    elif more > plan.idle_nodes:
        why = f"{counted(more)} more asked for, idle are {plan.idle_nodes}"
        plan.suppress(action, Reason(ReasonCode.NOT_ENOUGH_NODES, why, data))
    else:
        plan.resize(Resizes(expands=(action,), taken_nodes=more))


def _shrink(job: JobView, target: int) -> Shrink:
    text = f"asks for fewer nodes: from {job.nodes} to {target}"
    data = {"from_nodes": job.nodes, "to_nodes": target}
    return Shrink(job=job.id, nodes=target, reason=Reason(ReasonCode.JOB_REQUEST, text, data))
