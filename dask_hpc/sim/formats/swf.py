"""Reads the standard workload format (SWF, Parallel Workloads Archive): 18 numbers a job, one job a line.

Rules of the file: a line is right or the whole file is refused, with line and field; what is right but
cannot be simulated is left out and counted in the notes. Of the 18 fields the run uses job number (1),
submission (2), run time (4), processors requested (8) or else allocated (5), time requested (9), status
(11), user (12) and executable (14); the others are checked to be numbers. A field of -1 is unknown.

Left out, each with a counted note: jobs without a submission time, a run time (negative) or a size, and the
partial executions of checkpointed jobs (status 2 to 4), whose sum is on a line of its own. A run time of 0
stays. A job without a requested time gets its run time as estimate, which is counted too. Lines need not
be in order: jobs are taken by submission, those of one second by job number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.text_file import read_lines
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time",
    "used memory", "requested processors", "requested time", "requested memory", "status", "user", "group",
    "executable", "queue", "partition", "preceding job", "think time",
)  # fmt: skip

#: Beyond these a number is no time in seconds and no size, but damage.
_LONGEST_S = 1e12
_LARGEST = 100_000_000
_PARTIAL = (2, 3, 4)
#: Blank lines, and comments that do not say how large the machine is.
_PASSED = re.compile(rb"(?:;(?![; \t]*Max)[^\n]*\n|[ \t\r]*\n)++")
#: What Python reads as a number and the format has not: ``1_000``.
_NO_NUMBER = "_"


def read(path: str | Path) -> Workload:
    """The jobs of an SWF file, plain or gzip.

    Raises
    ------
    WorkloadError
        When the file cannot be read or a line is not 18 numbers in range: file, line and field are named.
    """
    # Headers of old logs hold names in Latin-1; numbers are ASCII in every case.
    lines = ((number, line.decode("latin-1")) for number, line in read_lines(path, _PASSED))
    return parse(lines, str(path))


def parse(lines: Iterable[tuple[int, str]], source: str) -> Workload:
    """The jobs in lines, each with its number; raises as `read`."""
    header: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    first_line: dict[int, int] = {}
    jobs: list[Job] = []
    for number, line in lines:
        line = line.strip()
        if not line:
            continue
        if line.startswith(";"):
            key, colon, value = line.lstrip("; ").partition(":")
            if colon:
                header.setdefault(key.strip(), value.strip())
            continue
        values = _numbers(line, source, number)
        job = _job(values, left_out)
        if job is None:
            continue
        id = int(values[0])
        if id in first_line:
            raise _error(
                source, number, 1, f"{id} is also the job of line {first_line[id]}; numbers are unique"
            )
        first_line[id] = number
        jobs.append(job)
    if not jobs:
        why = _counted(left_out) or "no line with 18 numbers"
        raise WorkloadError(f"{source}: no job that can be simulated; {why}")
    return Workload(
        name=Path(source).name,
        jobs=tuple(sorted(jobs, key=lambda job: (job.submit_s, int(job.id)))),
        machine=_machine(header),
        source=source,
        notes=tuple(f"{count} {what}" for what, count in left_out.items()),
    )


def _job(values: list[float], left_out: Counter[str]) -> Job | None:
    submit_s, runtime_s, requested_s = values[1], values[3], values[8]
    nodes = int(values[7]) if values[7] > 0 else int(values[4])
    if values[10] in _PARTIAL:
        left_out["partial executions left out (status 2 to 4)"] += 1
    elif submit_s < 0:
        left_out["jobs left out: no submission time"] += 1
    elif runtime_s < 0:
        left_out["jobs left out: no run time"] += 1
    elif nodes < 1:
        left_out["jobs left out: no size"] += 1
    else:
        if requested_s <= 0:
            left_out["jobs without a requested time: their run time is the estimate"] += 1
            requested_s = runtime_s
        return Job(
            id=str(int(values[0])),
            submit_s=submit_s,
            start_nodes=nodes,
            min_nodes=nodes,
            max_nodes=nodes,
            walltime_s=requested_s,
            runtime_s=runtime_s,
            user="" if values[11] < 0 else str(int(values[11])),
            application="" if values[13] < 0 else str(int(values[13])),
        )
    return None


def _numbers(line: str, source: str, number: int) -> list[float]:
    words = line.split()
    if len(words) < len(FIELDS):
        raise _error(source, number, len(words) + 1, f"is not there: the line has {len(words)} of 18 fields")
    try:
        values = [float(word) for word in words[: len(FIELDS)]]
    except ValueError:
        values = []
    if not values or _NO_NUMBER in line or not all(map(math.isfinite, values)):
        for i, word in enumerate(words[: len(FIELDS)], start=1):
            if not _is_number(word):
                raise _error(source, number, i, f"{_short(word)} is not a number")
    for i in (1, 3, 8):
        if abs(values[i]) > _LONGEST_S:
            raise _error(source, number, i + 1, f"{words[i]} s is out of range; at most {_LONGEST_S:g} s")
    for i in (0, 4, 7):
        if abs(values[i]) > _LARGEST or values[i] != int(values[i]):
            raise _error(
                source, number, i + 1, f"{words[i]} is out of range; a whole number of at most {_LARGEST}"
            )
    return values


def _is_number(word: str) -> bool:
    try:
        return _NO_NUMBER not in word and math.isfinite(float(word))
    except ValueError:
        return False


def _machine(header: dict[str, str]) -> Machine | None:
    for key in ("MaxProcs", "MaxNodes"):
        value = header.get(key, "").split(" ")[0]
        if value.isascii() and value.isdigit() and len(value) < 10 and 0 < int(value) <= _LARGEST:
            return Machine(nodes=int(value))
    return None


def _error(source: str, line: int, field: int, what: str) -> WorkloadError:
    return WorkloadError(f"{source}, line {line}, field {field} ({FIELDS[field - 1]}): {what}")


def _short(word: str) -> str:
    return repr(word if len(word) <= 40 else word[:37] + "...")


def _counted(left_out: Counter[str]) -> str:
    return "; ".join(f"{count} {what}" for what, count in left_out.items())
