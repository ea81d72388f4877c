"""How many nodes a job has the pool keep while the cluster follows the load (`adapt`).

Rules of the file: a job keeps all that it holds, and its smallest size where it has lost some. A job that
*rests* (it asked for no nodes of its own, is open, and has had no task for a while) keeps its smallest size
alone: what it has beyond goes back to the pool, unless other work wants it, and comes again with its next
tasks, for which the pool grows as for anybody's. Nodes that may not leave (pinned, with an actor) stay beside
it. What is never resized keeps all, and so does a job with a constraint: the nodes of a pool go one by one,
by sizes that it may not have.
"""

from __future__ import annotations

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.wording import counted


def kept_nodes(job: JobRequest, nodes: int, fixed: int, rests: bool) -> int:
    """Nodes that the pool has for a job that holds `nodes` of it; `fixed` of them may not leave."""
    least = job.min_nodes
    if rests and job.kind == "malleable" and job.constraint == "any":
        return max(least, fixed)
    return max(least, nodes)


def given_back(job: JobRequest, quiet_s: float) -> Reason:
    """Why a job that has had no task for so long has fewer nodes, as its user is told."""
    text = (
        f"it rests: no task for {quiet_s:g} s (hpc.lend); what it held beyond {counted(job.min_nodes)} "
        "(min_nodes) goes back to the pool, and nodes come again with its next tasks"
    )
    return Reason(ReasonCode.NO_DEMAND, text, {"min_nodes": job.min_nodes, "quiet_s": quiet_s})
