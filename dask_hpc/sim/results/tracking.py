"""How closely the running mix followed the workload: I/O intensities over time, from what a run left behind.

Rules of the file: pure; computed afterwards from sizes over time, for every policy alike, so that policies
that know nothing of intensities can be compared with those that steer by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.views import pending_view
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity, preferred_size

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result


def intensity(result: Result) -> Iterator[tuple[float, float, float]]:
    """Time in seconds, intensity of the running mix and of the workload from then on, at every change.

    The running mix is the node-weighted mean over the jobs that hold nodes, the workload that over these and
    the waiting ones at their preferred sizes (ADMIRE 2023, D3.3, section 4.2.2, which tracks the first
    against the second). Nothing when no job of the workload has an intensity.
    """
    jobs = result.workload.jobs
    if not any(job.io_intensity or job.io_by_nodes for job in jobs):
        return
    #: Time, intensity and nodes that come to (or leave) the running mix and the queue.
    changes: list[tuple[float, bool, float, int]] = []
    for run, row in zip(result.runs, result.rows, strict=True):
        view = pending_view(ActiveJob(jobs[row.key], row.key))
        size = preferred_size(view)
        asked = job_intensity(view, size) if size else 0.0
        changes.append((run.submit_s, False, asked, size))
        queued, before = True, 0
        for t_s, nodes in run.nodes:
            if before:
                changes.append((t_s, True, job_intensity(view, before), -before))
            if nodes:
                changes.append((t_s, True, job_intensity(view, nodes), nodes))
            # A job that was interrupted waits again between two stretches of running.
            waits = nodes == 0 and t_s != run.end_s
            if waits != queued:
                changes.append((t_s, False, asked, size if waits else -size))
            queued, before = waits, nodes
    changes.sort(key=lambda change: change[0])
    running, waiting = Mix(), Mix()
    for i, (t_s, holds, share, nodes) in enumerate(changes):
        if holds:
            running = running.plus(share, nodes)
        else:
            waiting = waiting.plus(share, nodes)
        if i + 1 == len(changes) or changes[i + 1][0] != t_s:
            yield t_s, running.intensity, running.joined(waiting).intensity
