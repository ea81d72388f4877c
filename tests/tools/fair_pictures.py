"""Pictures for the tests of the policy `fair`, and what it makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_hpc_policies.decision import Decision, Expand, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.fair.policy import FairState


def running(id: str, nodes: int, attained_node_s: float = 0.0, **more: Any) -> JobView:
    """A malleable job that runs."""
    fields = {"min_nodes": 1, "max_nodes": 64, "start_s": 0.0, **more}
    return JobView(id=id, state="running", nodes=nodes, attained_node_s=attained_node_s, **fields)


def waiting(id: str, low: int = 1, high: int = 64, **more: Any) -> JobView:
    """A malleable job that waits."""
    return JobView(id=id, min_nodes=low, max_nodes=high, **more)


def rigid(id: str, nodes: int, **more: Any) -> JobView:
    """A job of one size that waits."""
    return JobView(id=id, kind="rigid", start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, **more)


def view(idle: int, *jobs: JobView, now_s: float = 50.0, **more: Any) -> ClusterSnapshot:
    """A picture of these jobs."""
    return ClusterSnapshot(now_s=now_s, jobs=jobs, idle_nodes=idle, **more)


def decide(snapshot: ClusterSnapshot, state: FairState | None = None, **params: Any) -> Decision:
    """What `fair` decides."""
    policy = create("fair", **params)
    decision: Decision = policy.decide(snapshot, state or FairState())[0]
    return decision


def sizes(snapshot: ClusterSnapshot, decision: Decision) -> dict[str, int]:
    """Nodes of every job once the decision is carried out."""
    after = {job.id: job.nodes for job in snapshot.jobs}
    after |= {a.job: a.nodes for a in decision.actions if isinstance(a, (Start, Expand, Shrink))}
    return after


def resizes(decision: Decision) -> list[Expand | Shrink]:
    """Expansions and reductions of a decision."""
    return [action for action in decision.actions if isinstance(action, (Expand, Shrink))]


def carried_out(snapshot: ClusterSnapshot, decision: Decision, later_s: float = 0.0) -> ClusterSnapshot:
    """The picture after the decision, so much later, with nothing else changed."""
    after = sizes(snapshot, decision)
    jobs = [
        replace(job, nodes=after[job.id], state="running", start_s=job.start_s or snapshot.now_s)
        if after[job.id] != job.nodes
        else job
        for job in snapshot.jobs
    ]
    grown = sum(after.values()) - sum(job.nodes for job in snapshot.jobs)
    return replace(
        snapshot, jobs=tuple(jobs), idle_nodes=snapshot.idle_nodes - grown, now_s=snapshot.now_s + later_s
    )
