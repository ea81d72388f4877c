"""Whether plain work has something to do that a node of its own helps with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.tables.jobs import JobRecord

#: Tasks that are looked at each time, which takes a millisecond; of more what was found holds until
#: others come or go, and where there are still more they count as work.
_EACH_TIME, _MOST = 4000, 100_000


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
    noted = len(job.stranded) + len(job.bound)
    if not job.held <= noted <= _MOST:
        return True
    present = (job.held, noted, len(job.bound), next(reversed(job.stranded), None))
    if noted > _EACH_TIME and job.looked_at[0] == present:
        return job.looked_at[1]
    free = {job.lanes["free"], *(lane for lane in job.inherited if lane.kind == "free")}
    # some may have found a worker since, or belong to another job
    unplaced = {**job.stranded, **job.bound}
    here = [ts for key in unplaced if owner.get(key) in free and (ts := tasks.get(key)) is not None]
    job.looked_at = present, job.held > sum(ts.state == "no-worker" for ts in here)
    return job.looked_at[1]
