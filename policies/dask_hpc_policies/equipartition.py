"""Equal division of nodes among malleable jobs.

Rules of the file: one water level for all; each job gets the largest legal size at or below the level,
within its bounds. What legal sizes leave over goes to the oldest jobs by one step each and otherwise
stays idle. After McCann, Vaswani and Zahorjan (1993).
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_hpc_policies.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.model import JobView


def lowest_size(job: JobView) -> int:
    """The smallest size the running job may be taken to (its present one when no smaller is legal)."""
    low = smallest_at_least(job.constraint, job.min_nodes, job.nodes)
    return job.nodes if low is None else low


def equal_sizes(jobs: Sequence[JobView], nodes: int) -> list[int] | None:
    """Target sizes of the running `jobs` (oldest first) that divide `nodes` nodes equally.

    None when the lowest sizes of all jobs together are more than `nodes`.
    """
    lows = [lowest_size(job) for job in jobs]
    if sum(lows) > nodes:
        return None

    def size(i: int, level: int) -> int:
        job, low = jobs[i], lows[i]
        if level <= low:
            return low
        legal = largest_at_most(job.constraint, min(level, job.max_nodes), low)
        return low if legal is None else legal

    everyone = range(len(jobs))
    below, above = 0, nodes + 1  # The level `below` always fits.
    while above - below > 1:
        level = (below + above) // 2
        if sum([size(i, level) for i in everyone]) <= nodes:
            below = level
        else:
            above = level
    sizes = [size(i, below) for i in everyone]
    left = nodes - sum(sizes)
    for i in everyone:
        if left <= 0:
            break
        step = size(i, below + 1) - sizes[i]
        if 0 < step <= left:
            sizes[i] += step
            left -= step
    return sizes
