"""Announced bounds: who is kept for a higher one, and who would leave no room for a lower one.

Rules of the file: pure, and asked where the policy looks ahead. A job is held for bounds alone that come
while it may still run.
"""

from __future__ import annotations

from collections.abc import Iterable

from dask_hpc_policies.model import ClusterSnapshot, JobRequest, JobView
from dask_hpc_policies.power.view import PowerView, Step
from dask_hpc_policies.power.watts import node_w


def hungry(view: ClusterSnapshot, power: PowerView, job: JobRequest) -> bool:
    """Whether a lower bound, of now or announced, needs jobs that draw as much as this one.

    Jobs that could fill the machine and stay below the bound do not help to reach it.
    """
    if power.lower_w is None:
        return False
    most = max(power.lower_w, *(step[1] for step in power.announced), 0.0)
    nodes = view.pool_nodes
    return nodes * node_w(job, job.max_nodes, power.busy_w)[0] + power.base_w >= most


def leaves_room(
    view: ClusterSnapshot, power: PowerView, job: JobView, starting: Iterable[JobView] = ()
) -> bool:
    """Whether `job`, the running and the starting jobs, as small as can be, keep upper bounds of its time."""
    steps = _within(view, power, job)
    if not steps:
        return True
    low_w = min(step[2] for step in steps)
    total, most_w = view.pool_nodes, power.base_w + power.unexplained_w[1]
    for one in (*view.running, *view.adapting, *starting, job):
        least = _least_nodes(one)
        total -= least
        most_w += least * node_w(one, least, power.busy_w)[1]
    return most_w + max(0, total) * power.idle_w <= low_w


def _within(view: ClusterSnapshot, power: PowerView, job: JobView) -> tuple[Step, ...]:
    """The announced steps before the job's end were it started now; of an unknown one, those in sight.

    What is recorded of jobs like it is all that is known of one that has not run yet and has no walltime.
    """
    for length_s in (job.walltime_s, job.remaining_s, job.recorded_s, power.horizon_s):
        if length_s is not None:
            return tuple(step for step in power.announced if step[0] < view.now_s + length_s)
    return power.announced


def _least_nodes(job: JobView) -> int:
    """The fewest nodes that the job can have once it runs."""
    if job.kind == "malleable":
        return job.min_nodes
    return job.nodes or job.start_nodes or job.min_nodes
