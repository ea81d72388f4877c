"""What a job is known to draw: watts of one of its nodes, least and most, by size.

Rules of the file: a table by size (`power_by_nodes`) holds, but for a range that the user says and that it
does not contradict, then what the user says (`min_power_w`, `max_power_w`), then what any busy node draws. A
workload's table was measured. A live job whose user says what it draws has one once it was measured itself,
of that alone; another one has that of jobs of its name. Watts are of one node.
"""

from __future__ import annotations

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.numeric import between

#: A mean contradicts what the user says where it is outside of it by more than this share.
_SLACK = 0.1


def node_w(job: JobRequest, nodes: int, busy_w: float) -> tuple[float, float]:
    """Least and most watts of one of `nodes` nodes of `job`.

    Between the sizes of `power_by_nodes` straight lines, outside them the nearest. That is a mean: where the
    user names two bounds around it, they hold, for it says nothing of how far a job goes up and down. Of a
    job that names one bound alone both are that bound.

    Parameters
    ----------
    busy_w
        What a node draws that runs a job of which nothing is known.
    """
    least_w, most_w = job.min_power_w, job.max_power_w
    if job.power_by_nodes:
        watts = between(job.power_by_nodes, nodes)
        if least_w is None or most_w is None or not least_w < most_w:
            return watts, watts
        slack_w = _SLACK * watts
        if not least_w - slack_w <= watts <= most_w + slack_w:
            return watts, watts
        return min(least_w, watts), max(most_w, watts)
    if least_w is None and most_w is None:
        return busy_w, busy_w
    low = most_w if least_w is None else least_w
    high = least_w if most_w is None else most_w
    assert low is not None
    assert high is not None
    return low, high


def says_watts(job: JobRequest) -> bool:
    """Whether anything is known of what the job draws."""
    return bool(job.power_by_nodes) or declares_watts(job)


def declares_watts(job: JobRequest) -> bool:
    """Whether the job's user says what a node of it draws."""
    return job.min_power_w is not None or job.max_power_w is not None


def mean_w(job: JobRequest, nodes: int, busy_w: float) -> float:
    """What one of `nodes` nodes of `job` is taken to draw: as measured, else between least and most."""
    if job.power_by_nodes:
        return between(job.power_by_nodes, nodes)
    low, high = node_w(job, nodes, busy_w)
    return (low + high) / 2
