"""Recorded runs as estimates of a workload: what has run before says how long jobs will take.

Rules of the file: pure; a workload goes in with runs of an earlier simulation or of a trace, a workload with
`Job.recorded_s` comes out. A run teaches when it completed and had one size all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dask_hpc.errors import TraceError, WorkloadError
from dask_hpc.sim.formats import sacct
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.formats.parsing import parse_json
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.workload import Workload
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.runs import job_runs
from dask_hpc_policies.jobs.estimates import RecordedRuns
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


_LARGEST_S = 1e12
_MOST_NODES = 10_000_000


def read_recorded(path: str | Path, workload: Workload) -> RecordedRuns:
    """What the runs in a file took, by application and size, for estimates of `workload`.

    Raises
    ------
    WorkloadError
        With file and field, for a file of another kind, whatever is wrong in it, and when no run of it
        teaches anything (completed, of one size, with a name).
    """
    file = Path(path)
    name = file.name.lower().removesuffix(".gz")
    read = next((reader for ending, reader in _READERS.items() if name.endswith(ending)), None)
    if read is None:
        raise WorkloadError(f"{file}: recorded runs are in a file that ends in {', '.join(_READERS)}")
    applications = {(job.id, job.name): job.application for job in workload.jobs if job.application}
    runs = [replace(run, name=applications.get((run.id, run.name), run.name)) for run in read(file)]
    book = recorded_runs(runs, replace(workload, jobs=()))
    if not book.totals:
        raise WorkloadError(f"{file}: none of {len(runs)} runs has a name, completed and had one size only")
    return book


def _trace(file: Path) -> Iterable[JobRun]:
    try:
        return job_runs(read_trace(file).records)
    except TraceError as error:
        raise WorkloadError(str(error)) from None


def _sacct(file: Path) -> Iterable[JobRun]:
    for job in sacct.read(file).jobs:
        end_s = job.submit_s + job.runtime_s
        nodes = ((job.submit_s, job.max_nodes), (end_s, 0))
        yield JobRun(
            id=job.id, name=job.application or job.name, submit_s=job.submit_s, start_s=job.submit_s,
            end_s=end_s, nodes=nodes,
        )  # fmt: skip


def _result(file: Path) -> Iterable[JobRun]:
    whole = parse_json(read_text(file), str(file))
    if not isinstance(whole.value, dict) or whole.value.get("kind") != "simulation":
        whole.fail("is no result of a simulation; dask hpc simulate prints one with --json")
    for place in whole.need("jobs").sequence():
        steps = []
        for step in place.need("nodes").sequence():
            pair = list(step.sequence())
            if len(pair) != 2:
                step.wrong("a time and a number of nodes")
            steps.append((pair[0].number(-_LARGEST_S, _LARGEST_S), pair[1].integer(0, _MOST_NODES)))
        yield JobRun(
            id=place.need("id").text(),
            name=place.need("name").text() if place.need("name").value else "",
            state=place.need("state").text(),
            submit_s=place.need("submit_s").number(-_LARGEST_S, _LARGEST_S),
            start_s=_time(place.need("start_s")),
            end_s=_time(place.need("end_s")),
            nodes=tuple(steps),
        )


def _time(place: Field) -> float | None:
    return None if place.value is None else place.number(-_LARGEST_S, _LARGEST_S)


_READERS: dict[str, Callable[[Path], Iterable[JobRun]]] = {
    ".jsonl": _trace,
    ".json": _result,
    ".sacct": _sacct,
}
