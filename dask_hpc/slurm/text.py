"""The output of Slurm's commands as rows.

Rules of the file: text in, frozen rows out; no clock, no process. What is asked for and how it is read
stand in one table per command, so that they cannot differ. Texts that users choose (names of jobs,
reasons of administrators) come last in a line, because they may hold the divider. Words of Slurm, such as
states and reasons, are kept as they are: a newer release may have more of them. A line that is not as
expected is an error that names it; nothing is guessed and nothing left out.

The formats are those of Slurm 20.11 to 25.05; times are read as `dask_hpc.slurm.commands` asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dask_hpc.errors import SlurmError
from dask_hpc.slurm.notation import expand_hosts, parse_duration_s, parse_job_id, parse_time_s
from dask_hpc.slurm.rows import NodeGroup, QueuedJob, RecordedJob

_WORD = re.compile(r"[A-Z][A-Z_]*")
_COUNT = re.compile(r"[0-9]{1,10}")
_CANCELLED = re.compile(r"CANCELLED by ([0-9]+)")
_EXIT = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class _Column:
    #: What the command calls it.
    asked: str
    #: Names of the fields of the row that it fills, and how they are read.
    names: tuple[str, ...]
    read: Callable[[str], Any]


def parse_squeue(output: str) -> tuple[QueuedJob, ...]:
    """What `squeue` printed with the format `SQUEUE_FORMAT` and without header.

    Raises
    ------
    SlurmError
        For a line that is not as expected, with its number, the line and what was expected.
    """
    return tuple(QueuedJob(**row) for row in _rows("squeue", _numbered(output), _SQUEUE))


def sacct_jobs(lines: Iterable[tuple[int, str]]) -> Iterator[RecordedJob]:
    """What `sacct` printed with the format `SACCT_FORMAT`, parsable and without header, line by line.

    Parameters
    ----------
    lines
        Each with its number.

    Raises
    ------
    SlurmError
        As `parse_squeue`.
    """
    return (RecordedJob(**row) for row in _rows("sacct", lines, _SACCT))


def parse_sinfo(output: str) -> tuple[NodeGroup, ...]:
    """What `sinfo` printed with the format `SINFO_FORMAT` and without header.

    Raises
    ------
    SlurmError
        As `parse_squeue`.
    """
    return tuple(NodeGroup(**row) for row in _rows("sinfo", _numbered(output), _SINFO))


def parse_kill_wait_s(output: str) -> float:
    """Seconds from SIGTERM to SIGKILL, of what ``scontrol show config`` prints.

    Raises
    ------
    SlurmError
        When it does not say.
    """
    found = re.search(r"^KillWait\s*=\s*(\d+)\s*sec", output, re.MULTILINE)
    if found is None:
        raise SlurmError("scontrol show config prints no line such as 'KillWait = 30 sec'")
    return float(found.group(1))


def _numbered(output: str) -> Iterable[tuple[int, str]]:
    return enumerate(output.split("\n"), start=1)


def _rows(
    command: str, lines: Iterable[tuple[int, str]], columns: tuple[_Column, ...]
) -> Iterator[dict[str, Any]]:
    for line_number, line in lines:
        if not line.strip():
            continue
        texts = line.split("|", len(columns) - 1)
        if len(texts) != len(columns):
            names = "|".join(column.asked for column in columns)
            expected = f"{len(columns)} fields ({names}), got {len(texts)}"
            raise _malformed(command, line_number, line, f"expected {expected}")
        row: dict[str, Any] = {}
        for column, text in zip(columns, texts, strict=True):
            try:
                value = column.read(text)
            except SlurmError as error:
                raise _malformed(command, line_number, line, f"{column.asked}: {error}") from None
            row.update(zip(column.names, value if len(column.names) > 1 else (value,), strict=True))
        yield row


def _malformed(command: str, line_number: int, line: str, expected: str) -> SlurmError:
    shown = line if len(line) <= 200 else line[:200] + "..."
    return SlurmError(f"{command}, line {line_number}: {expected}; the line is {shown!r}")


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise SlurmError(f"{text!r} is no number; expected digits")
    return int(text)


def _seconds(text: str) -> float:
    return float(_count(text))


def _state(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise SlurmError(f"{text!r} is no state of a job; expected a word such as RUNNING")
    return text


def _state_and_who(text: str) -> tuple[str, int | None]:
    if match := _CANCELLED.fullmatch(text):
        return "CANCELLED", int(match.group(1))
    return _state(text), None


def _exit(text: str) -> tuple[int, int]:
    match = _EXIT.fullmatch(text)
    if match is None:
        raise SlurmError(f"{text!r} is no exit code; expected code:signal, such as 0:15")
    return int(match.group(1)), int(match.group(2))


def _reason(text: str) -> str:
    return "" if text.strip() in ("None", "none", "(null)") else text.strip()


def _is_default(text: str) -> bool:
    return text.endswith("*")


def _columns(*columns: tuple[str, str, Callable[[str], Any]]) -> tuple[_Column, ...]:
    return tuple(_Column(asked, tuple(names.split()), read) for asked, names, read in columns)


def _asked(columns: Iterable[_Column], divider: str) -> str:
    return divider.join(column.asked for column in columns)


_SQUEUE = _columns(
    ("%A", "number", _count),
    ("%i", "id", parse_job_id),
    ("%P", "partition", str),
    ("%u", "user", str),
    ("%T", "state", _state),
    ("%D", "nodes", _count),
    ("%N", "hosts", expand_hosts),
    ("%l", "time_limit_s", parse_duration_s),
    ("%L", "time_left_s", parse_duration_s),
    ("%V", "submit_s", parse_time_s),
    ("%S", "start_s", parse_time_s),
    ("%e", "end_s", parse_time_s),
    ("%r", "reason", _reason),
    ("%j", "name", str),
)
_SACCT = _columns(
    ("JobID", "id", parse_job_id),
    ("JobIDRaw", "plain_id", parse_job_id),
    ("Partition", "partition", str),
    ("User", "user", str),
    ("State", "state cancelled_by", _state_and_who),
    ("ExitCode", "exit_code exit_signal", _exit),
    ("NNodes", "nodes", _count),
    ("NodeList", "hosts", expand_hosts),
    ("Timelimit", "time_limit_s", parse_duration_s),
    ("ElapsedRaw", "elapsed_s", _seconds),
    ("Submit", "submit_s", parse_time_s),
    ("Start", "start_s", parse_time_s),
    ("End", "end_s", parse_time_s),
    ("Reason", "reason", _reason),
    ("JobName", "name", str),
)
_SINFO = _columns(("%R", "partition", str), ("%P", "is_default", _is_default), ("%D", "nodes", _count))
#: What to ask `squeue`, `sacct` and `sinfo` for.
SQUEUE_FORMAT = _asked(_SQUEUE, "|")
SACCT_FORMAT = _asked(_SACCT, ",")
SINFO_FORMAT = _asked(_SINFO, "|")
