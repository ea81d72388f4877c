"""Jobs that Slurm has accounted for: the output of ``sacct`` in a file.

Rules of the file: the reading of values is that of `dask_hpc.slurm.text`. Two forms are read:

* what the command asks for that the live part uses, without header; `COMMAND` prints it;
* any ``sacct --parsable2`` (or ``--parsable``) with its header line, as long as the columns JobID, State,
  NNodes (or AllocNodes), Submit and ElapsedRaw (or Elapsed, or Start and End) are there. Timelimit, JobName,
  User and Partition are used when they are. Times without zone are taken as they stand; only their
  differences matter.

A job is as it ran: rigid, of the nodes it had, with the time it took as run time and its time limit as
walltime. Left out, with a counted note: steps, jobs that have not started or are not over, and jobs without
a size or a run time.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dask_hpc.errors import SlurmError, WorkloadError
from dask_hpc.sim.formats.text_file import decoded, read_lines
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.workload import Workload, ordered
from dask_hpc.slurm.notation import parse_duration_s, parse_job_id, parse_time_s
from dask_hpc.slurm.rows import RecordedJob, is_over
from dask_hpc.slurm.text import SACCT_FORMAT, sacct_jobs

#: Prints a file that can be read, of all jobs of the last 30 days.
COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --noheader --parsable2 --noconvert "
    f"--starttime=now-30days --format={SACCT_FORMAT} > jobs.sacct"
)

T = TypeVar("T")

_MOST_NODES = 10_000_000
_BLANK = re.compile(rb"(?:[ \t\r]*\n)++")
_COUNT = re.compile(r"[0-9]{1,10}")
_STATE = re.compile(r"([A-Z][A-Z_]*)(?: by [0-9]+)?\+?")


@dataclass(frozen=True, slots=True)
class _Row:
    """What is used of a line, whichever form it has."""

    id: str
    is_step: bool
    state: str
    nodes: int
    submit_s: float | None
    elapsed_s: float | None
    started: bool
    walltime_s: float | None
    name: str
    user: str


def read(path: str | Path) -> Workload:
    """The jobs in a file that ``sacct`` has printed, plain or gzip.

    Raises
    ------
    WorkloadError
        With file, line and column, for a line that is not as expected, and when no job is left.
    """
    lines = ((number, decoded(path, number, line)) for number, line in read_lines(path, _BLANK))
    return parse(lines, str(path))


def parse(lines: Iterable[tuple[int, str]], source: str) -> Workload:
    """The jobs in lines, each with its number, none of them blank; raises as `read`."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        raise WorkloadError(f"{source}: the file is empty")
    every = itertools.chain([first], rest)
    try:
        if "JobID" in first[1].strip().split("|"):
            rows = _with_header(every)
        else:
            rows = [_row(job) for job in sacct_jobs(every)]
    except SlurmError as error:
        raise WorkloadError(f"{source}: {error}") from None
    left_out: Counter[str] = Counter()
    kept = [row for row in rows if not _why_not(row, left_out)]
    if not kept:
        why = "; ".join(f"{count} {what}" for what, count in left_out.items()) or "no line"
        raise WorkloadError(f"{source}: no job that can be simulated; {why}")
    begin_s = min(row.submit_s for row in kept if row.submit_s is not None)
    seen: Counter[str] = Counter()
    jobs = [_job(row, begin_s, seen) for row in kept]
    return Workload(
        name=Path(source).name,
        jobs=ordered(jobs),
        source=source,
        notes=tuple(f"{count} {what}" for what, count in left_out.items()),
    )


def _why_not(row: _Row, left_out: Counter[str]) -> bool:
    if row.is_step:
        reason = "steps left out"
    elif not row.started:
        reason = "jobs left out: not started"
    elif not is_over(row.state):
        reason = "jobs left out: not over"
    elif row.submit_s is None:
        reason = "jobs left out: no time of submission"
    elif not 1 <= row.nodes <= _MOST_NODES:
        reason = "jobs left out: no size"
    elif row.elapsed_s is None or not math.isfinite(row.elapsed_s):
        reason = "jobs left out: no run time"
    else:
        return False
    left_out[reason] += 1
    return True


def _job(row: _Row, begin_s: float, seen: Counter[str]) -> Job:
    # a job that was put back into the queue has a line for each of its runs
    seen[row.id] += 1
    return Job(
        id=row.id if seen[row.id] == 1 else f"{row.id}.run{seen[row.id]}",
        name=row.name,
        application=row.name,
        user=row.user,
        submit_s=(row.submit_s or 0.0) - begin_s,
        start_nodes=row.nodes,
        min_nodes=row.nodes,
        max_nodes=row.nodes,
        runtime_s=row.elapsed_s or 0.0,
        walltime_s=row.walltime_s if row.walltime_s and math.isfinite(row.walltime_s) else None,
    )


def _row(job: RecordedJob) -> _Row:
    return _Row(
        id=str(job.id),
        is_step=job.id.step is not None,
        state=job.state,
        nodes=job.nodes,
        submit_s=job.submit_s,
        elapsed_s=job.elapsed_s,
        started=job.start_s is not None,
        walltime_s=job.time_limit_s,
        name=job.name,
        user=job.user,
    )


def _with_header(lines: Iterable[tuple[int, str]]) -> list[_Row]:
    """Rows of an output whose first line names its columns."""
    columns: list[str] = []
    rows = []
    for number, line in lines:
        line = line.rstrip("\r")
        if not line.strip():
            continue
        if not columns:
            columns = line.rstrip("|").split("|")
            _check(columns, number)
            continue
        # the name of a job may hold the divider; only the last column can be told apart then
        values = line.split("|", len(columns) - 1)
        if len(values) < len(columns):
            raise SlurmError(
                f"line {number}: expected {len(columns)} fields as in the header, got {len(values)}"
            )
        values[-1] = values[-1].rstrip("|")
        rows.append(_named(dict(zip(columns, values, strict=True)), number))
    return rows


def _check(columns: list[str], number: int) -> None:
    needed = {
        "State": ("State",),
        "Submit": ("Submit",),
        "NNodes": ("NNodes", "AllocNodes"),
        "ElapsedRaw": ("ElapsedRaw", "Elapsed"),
    }
    for name, either in needed.items():
        timed = name == "ElapsedRaw" and {"Start", "End"} <= set(columns)
        if not timed and not set(either) & set(columns):
            raise SlurmError(f"line {number}: the header has no column {' or '.join(either)}")


def _named(values: Mapping[str, str], number: int) -> _Row:
    def get(name: str, read: Callable[[str], T]) -> T:
        try:
            return read(values[name])
        except SlurmError as error:
            raise SlurmError(f"line {number}: {name}: {error}") from None

    job = get("JobID", parse_job_id)
    start_s = get("Start", _time_s) if "Start" in values else None
    end_s = get("End", _time_s) if "End" in values else None
    elapsed_s: float | None = None
    if "ElapsedRaw" in values:
        elapsed_s = float(get("ElapsedRaw", _count))
    elif "Elapsed" in values:
        elapsed_s = get("Elapsed", parse_duration_s)
    elif start_s is not None and end_s is not None:
        elapsed_s = max(0.0, end_s - start_s)
    return _Row(
        id=str(job),
        is_step=job.step is not None,
        state=get("State", _state),
        nodes=get("NNodes" if "NNodes" in values else "AllocNodes", _count),
        submit_s=get("Submit", _time_s),
        elapsed_s=elapsed_s,
        # without a column for it, a job that took time has started
        started=start_s is not None if "Start" in values else bool(elapsed_s),
        walltime_s=get("Timelimit", parse_duration_s) if "Timelimit" in values else None,
        name=values.get("JobName", ""),
        user=values.get("User", ""),
    )


def _time_s(text: str) -> float | None:
    return parse_time_s(text, datetime.UTC)


def _state(text: str) -> str:
    match = _STATE.fullmatch(text.strip())
    if match is None:
        raise SlurmError(f"{text!r} is no state of a job; expected a word such as COMPLETED")
    return match[1]


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text.strip()):
        raise SlurmError(f"{text!r} is no number; expected digits")
    return int(text)
