"""Jobs of a recorded trace as a workload: what would another policy have done to them?

Rules of the file: `dask_hpc.trace` reads the trace. Jobs are those that it saw begin and end.
A job has the kind, bounds, constraint, priority and walltime that the policy saw; it starts at the size it
asked for, or at the size it got. Its work is the node-seconds that it held, so its run time at that size is
those node-seconds over the size, with linear speed-up: what its run time would have been at other sizes a
trace does not say. The machine has as many nodes as the pool had at most.

Left out, with a counted note: jobs that were not over, failed or were cancelled, and jobs that the trace
does not show from their submission on. Plain work is no job.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from dask_hpc.errors import TraceError, WorkloadError
from dask_hpc.sim.formats.fields import half_pair
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload, ordered
from dask_hpc.trace.check import check_events, check_view
from dask_hpc.trace.files import Trace, TraceWarning, read_trace
from dask_hpc.trace.records import JobEvent, Pass
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies.metrics import JobRun, node_seconds
from dask_hpc_policies.model import JobRequest, JobView
from dask_hpc_policies.views import values_of


def read(path: str | Path) -> Workload:
    """The jobs of a trace, plain or gzip.

    Raises
    ------
    WorkloadError
        With file and line, for what is no trace, and when no job of it can be simulated.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TraceWarning)
        try:
            trace = read_trace(path)
            check_events(trace)
            return from_trace(trace, ("the trace ends in the middle of a line",) if caught else ())
        except TraceError as error:
            raise WorkloadError(str(error)) from None


def from_trace(trace: Trace, notes: tuple[str, ...] = ()) -> Workload:
    """The jobs of a trace that has been read.

    Raises
    ------
    TraceError, WorkloadError
        When a view of a job cannot be, or no job of it can be simulated.
    """
    seen = _views(trace)
    submitted = {
        record.job for record in trace.records if isinstance(record, JobEvent) and record.state == "pending"
    }
    left_out: Counter[str] = Counter()
    runs = []
    for run in job_runs(trace.records):
        if run.id not in submitted:
            left_out["jobs left out: submitted before the trace begins"] += 1
        elif run.end_s is None or run.start_s is None:
            left_out["jobs left out: not over"] += 1
        elif run.state != "completed":
            left_out[f"jobs left out: {run.state}"] += 1
        elif not run.nodes or max(n for _, n in run.nodes) < 1:
            left_out["jobs left out: held no node"] += 1
        else:
            runs.append(run)
    if not runs:
        why = "; ".join(f"{count} {what}" for what, count in left_out.items()) or "it has no jobs"
        raise WorkloadError(f"{trace.source}: no job that can be simulated; {why}")
    _check_names(trace, runs)
    begin_s = min(run.submit_s for run in runs)
    nodes = max((n for _, n in pool_steps(trace.records)), default=0)
    widest = max(n for run in runs for _, n in run.nodes)
    return Workload(
        name=Path(trace.source).name,
        jobs=ordered(_job(run, seen.get(run.id), begin_s) for run in runs),
        machine=Machine(nodes=max(nodes, widest)),
        source=trace.source,
        notes=(*notes, *(f"{count} {what}" for what, count in left_out.items())),
    )


def _check_names(trace: Trace, runs: Iterable[JobRun]) -> None:
    for run in runs:
        for text in (run.id, run.name):
            if wrong := half_pair(text):
                raise WorkloadError(f"{trace.source}: the name of a job, {wrong}")


def _views(trace: Trace) -> Mapping[str, JobView]:
    """The first view of each job that a policy had."""
    views: dict[str, JobView] = {}
    for number, record in enumerate(trace.records):
        if isinstance(record, Pass):
            for view in record.snapshot.jobs:
                if not view.is_default and view.id not in views:
                    check_view(trace, number, view)
                    views[view.id] = view
    return views


def _job(run: JobRun, view: JobView | None, begin_s: float) -> Job:
    held_node_s = node_seconds(run.nodes, run.start_s or 0.0, run.end_s or 0.0)
    got = next(n for _, n in run.nodes if n)
    if view is None:
        view = JobView(id=run.id, kind="rigid", start_nodes=got, min_nodes=got, max_nodes=got)
    start = view.start_nodes if view.start_nodes or view.kind != "rigid" else got
    reference = start or got
    asked = replace(
        view,
        name=run.name,
        submit_s=run.submit_s - begin_s,
        start_nodes=start,
        min_nodes=min(view.min_nodes, reference),
        max_nodes=max(view.max_nodes, reference),
    )
    return Job(
        **values_of(JobRequest, asked),
        id=run.id,
        application=run.name,
        runtime_s=held_node_s / reference,
        reference_nodes=reference,
    )
