"""Recorded runs as estimates of a workload: what has run before says how long jobs will take.

Rules of the file: pure; a workload goes in with runs of an earlier simulation or of a trace, a workload with
`Job.recorded_s` comes out. A run teaches when it completed and had one size all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dask_hpc.sim.job import Job
from dask_hpc.sim.workload import Workload
from dask_hpc_policies.estimates import RecordedRuns
from dask_hpc_policies.metrics import JobRun


def recorded_runs(runs: Iterable[JobRun], workload: Workload) -> RecordedRuns:
    """The book of what `runs` of the jobs in `workload` took, by application (else name) and size."""
    applications = {job.id: _application(job) for job in workload.jobs}
    book = RecordedRuns()
    totals: dict[tuple[str, int], tuple[int, float]] = {}
    for run in runs:
        sizes = {nodes for _, nodes in run.nodes if nodes}
        application = applications.get(run.id, run.name)
        if run.state != "completed" or run.start_s is None or run.end_s is None or len(sizes) != 1:
            continue
        seconds = run.end_s - run.start_s
        if application and seconds > 0:
            key = (application, sizes.pop())
            number, total = totals.get(key, (0, 0.0))
            totals[key] = (number + 1, total + seconds)
    return replace(book, totals=totals)


def with_recorded(workload: Workload, book: RecordedRuns) -> Workload:
    """`workload` whose jobs know what their application took before on the size that they prefer.

    A job whose application is not in the book keeps what it has; estimates then come from its walltime.
    """
    jobs = []
    found = 0
    for job in workload.jobs:
        estimate = book.estimate(_application(job), job.nodes or job.preferred_nodes or job.max_nodes, None)
        found += estimate is not None
        jobs.append(job if estimate is None else replace(job, recorded_s=estimate.seconds))
    note = f"{found} of {len(jobs)} jobs have estimates from recorded runs"
    return replace(workload, jobs=tuple(jobs), notes=(*workload.notes, note))


def _application(job: Job) -> str:
    return job.application or job.name
