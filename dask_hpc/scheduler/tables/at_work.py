"""Whether plain work has something to do that a node of its own helps with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.tables.jobs import JobRecord

#: Tasks that are looked at one by one, which takes a millisecond; where there are more they count as work.
_LOOKED_AT = 4000


def at_work(job: JobRecord, tasks: Mapping[Any, Any], owner: Mapping[Any, Lane[Any]]) -> bool:
    """Whether plain work executes, or holds tasks that may run on any node.

    What waits for results of jobs has nothing to do now. No more have tasks that their user has restricted to
    what is not there, as a resource or a lost worker: they run as soon as it is, whoever has that node.

    Parameters
    ----------
    tasks
        All tasks of the scheduler, by key.
    owner
        Their lanes, by key.
    """
    if job.processing or not job.held:
        return job.processing > 0
    if not job.held <= len(job.stranded) + len(job.bound) <= _LOOKED_AT:
        return True
    free = {job.lanes["free"], *(lane for lane in job.inherited if lane.kind == "free")}
    # some may have found a worker since, or belong to another job
    unplaced = {**job.stranded, **job.bound}
    here = [ts for key in unplaced if owner.get(key) in free and (ts := tasks.get(key)) is not None]
    return job.held > sum(ts.state == "no-worker" for ts in here)
