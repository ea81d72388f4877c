"""What a loss now would cost: work of protected jobs that no whole version stands for.

It is what would be computed again if scheduler and workers were all lost this moment and the job were
submitted anew, in core-seconds: one thread of a worker for a second. It is found when somebody asks.

Of a job whose program keeps state, it is all that its nodes could have done since its newest whole version
was begun, or since it has had nodes when it has none: a bound from above, as they may have waited. Of any
other job, it is what has been computed for those results that its clients want and its newest version has
not. That goes by what tasks of each kind take, so it is about right; where there is more to look at than
`MOST_TASKS`, it is a bound from below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from dask_hpc.scheduler.internals import durations

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Tasks that are looked at for one job.
MOST_TASKS = 5_000


@dataclass(frozen=True, slots=True)
class Loss:
    """What would be computed again for one job."""

    core_s: float
    #: How sure that is.
    bound: Literal["about", "at least", "at most"]


def of_state(sizes: Iterable[tuple[float, int]], since_s: float | None, now_s: float, threads: float) -> Loss:
    """Of a job whose program keeps state.

    Parameters
    ----------
    sizes
        Since when it has had how many nodes, as `JobRecord.sizes`.
    since_s
        When its newest whole version was begun; None: it has none.
    threads
        Of one of its nodes.
    """
    steps = [*sizes, (now_s, 0)]
    node_s = sum(
        nodes * max(0.0, until_s - (from_s if since_s is None else max(from_s, since_s)))
        for (from_s, nodes), (until_s, _) in pairwise(steps)
    )
    return Loss(node_s * threads, "at most")


def of_results(scheduler: Scheduler, wanted: Iterable[Any], saved: Iterable[Any]) -> Loss:
    """Of a job whose results are written: what its clients want of it, and what a version has."""
    spent_s, whole = durations.spent_s(scheduler, wanted, saved, MOST_TASKS)
    return Loss(spent_s, "about" if whole else "at least")
