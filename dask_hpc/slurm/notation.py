"""How Slurm writes times, lists of hosts and the ids of jobs.

Rules of the file: one text in, one value out. What Slurm does not know or does not limit is a value
(None, infinity); what is none of its notations is an error that says what was expected. No clock and no
time zone of this machine: a time of day without zone is refused unless the caller gives the zone.

==============================================  ======================================================
durations                                       ``1-02:03:04``, ``02:03:04``, ``1-02:03``, ``1-02``,
                                                ``02:03`` and ``02:03.004`` (minutes and seconds),
                                                ``30`` (minutes)
unlimited                                       ``UNLIMITED``, ``INFINITE``
not known                                       ``NOT_SET``, ``INVALID``, ``N/A``, ``Unknown``, ``None``,
                                                ``(null)``, ``Partition_Limit``, nothing
times                                           seconds since 1970, or ISO 8601
hosts                                           ``n[1-3,7],gpu[01-02],login``
jobs                                            ``12``, ``12_3`` and ``12_[4-9%2]`` (array), ``12+1``
                                                (heterogeneous), each with a step, such as ``12.batch``
==============================================  ======================================================
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from dataclasses import dataclass

from dask_hpc.errors import SlurmError

#: Most hosts that one list may name, as in Slurm itself.
MOST_HOSTS = 65_536

_UNLIMITED = {"unlimited", "infinite"}
_UNKNOWN = {"", "(null)", "n/a", "none", "not_set", "invalid", "unknown", "partition_limit"}
_DAYS = re.compile(r"([0-9]{1,7})-([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?")
_CLOCK = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{2}(?:\.[0-9]{1,9})?)")
_MINUTES = re.compile(r"[0-9]{1,9}")
_SECONDS = re.compile(r"[0-9]{1,11}")
_JOB = re.compile(
    r"([0-9]{1,10})"
    r"(?:_([0-9]{1,10})|_\[([0-9,:%.-]+)\]|\+([0-9]{1,10}))?"
    r"(?:\.([A-Za-z0-9_+-]+))?"
)
_HOST = re.compile(r"(?:[^\s\[\],()|]|\[[^\[\]]*\])+")
_PIECES = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class JobId:
    """The id of a job as Slurm shows it; as text it is what Slurm prints.

    Each task of an array and each component of a heterogeneous job has a plain number of its own besides,
    which its environment and most commands know.
    """

    #: The job; that of the whole array, or of the first component.
    number: int
    #: Which task of an array this is.
    array_task: int | None = None
    #: Tasks of an array that have not been started, in Slurm's notation: ``4-9%2``.
    array_tasks: str | None = None
    #: Which component of a heterogeneous job this is, from 0.
    component: int | None = None
    #: Which step of the job: ``batch``, ``extern``, ``0``; None for the job itself.
    step: str | None = None

    def __str__(self) -> str:
        text = str(self.number)
        if self.array_task is not None:
            text += f"_{self.array_task}"
        elif self.array_tasks is not None:
            text += f"_[{self.array_tasks}]"
        elif self.component is not None:
            text += f"+{self.component}"
        return text if self.step is None else f"{text}.{self.step}"


def parse_job_id(text: str) -> JobId:
    """The id that `text` is.

    Raises
    ------
    SlurmError
        When it is none.
    """
    match = _JOB.fullmatch(text)
    if match is None:
        raise SlurmError(
            f"{text!r} is no id of a job; expected such as 12, 12_3, 12_[4-9%2], 12+1 or 12.batch"
        )
    number, task, tasks, component, step = match.groups()
    return JobId(
        int(number),
        array_task=None if task is None else int(task),
        array_tasks=tasks,
        component=None if component is None else int(component),
        step=step,
    )


def parse_duration_s(text: str) -> float | None:
    """Seconds that `text` stands for; infinity when there is no limit, None when it is not known.

    Raises
    ------
    SlurmError
        When it is none of the notations in the table of this module.
    """
    word = text.strip().lower()
    if word in _UNLIMITED:
        return math.inf
    if word in _UNKNOWN:
        return None
    days: str | None
    hours: str | None
    minutes: str | None
    seconds: str | None
    if match := _DAYS.fullmatch(word):
        days, hours, minutes, seconds = match.groups()
    elif match := _CLOCK.fullmatch(word):
        days, (hours, minutes, seconds) = None, match.groups()
    elif _MINUTES.fullmatch(word):
        days, hours, minutes, seconds = None, None, word, None
    else:
        raise _no_duration(text)
    # only the largest unit that is given may run over
    parts = [(days, 10**7), (hours, 24), (minutes, 60), (seconds, 60)]
    given = [(float(value), limit) for value, limit in parts if value is not None]
    if any(value >= limit for value, limit in given[1:]):
        raise _no_duration(text)
    return float(
        86_400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds or 0)
    )


def parse_time_s(text: str, zone: datetime.tzinfo | None = None) -> float | None:
    """The point in time that `text` stands for, in seconds since 1970; None when it is not known.

    Parameters
    ----------
    zone
        Zone of times without one, in which Slurm writes them unless it is told otherwise.

    Raises
    ------
    SlurmError
        When it is no time, or one without zone and `zone` is not given.
    """
    word = text.strip()
    if word.lower() in _UNKNOWN:
        return None
    if _SECONDS.fullmatch(word):
        return float(word)
    try:
        time = datetime.datetime.fromisoformat(word)
        if time.tzinfo is None:
            if zone is None:
                raise SlurmError(
                    f"{text!r} is a time without zone; set SLURM_TIME_FORMAT=%s for Slurm's commands"
                )
            time = time.replace(tzinfo=zone)
        return time.timestamp()
    except (ValueError, OverflowError):
        raise SlurmError(
            f"{text!r} is no time; expected seconds since 1970, ISO 8601, Unknown or N/A"
        ) from None


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts that a list of Slurm names, in its order; none for ``(null)``, ``None assigned`` and nothing.

    Raises
    ------
    SlurmError
        When it is no list of hosts, or names more than `MOST_HOSTS`.

    Examples
    --------
    >>> expand_hosts("n[1-3,7],gpu[01-02],login")
    ('n1', 'n2', 'n3', 'n7', 'gpu01', 'gpu02', 'login')
    """
    word = text.strip()
    if word in ("", "(null)", "None assigned"):
        return ()
    hosts: list[str] = []
    position = 0
    while True:
        match = _HOST.match(word, position)
        if match is None:
            raise _no_hosts(text)
        hosts += _expand(match.group(), text, MOST_HOSTS - len(hosts))
        position = match.end()
        if position == len(word):
            return tuple(hosts)
        if word[position] != ",":
            raise _no_hosts(text)
        position += 1


def _expand(part: str, text: str, most: int) -> list[str]:
    """The hosts of one `part` between commas, of all of the list `text`."""
    choices: list[list[str]] = []
    total = 1
    for inside, plain in _PIECES.findall(part):
        numbers = [plain] if plain else _numbers(inside, text, most)
        total *= len(numbers)
        if total > most:
            raise _too_many(text)
        choices.append(numbers)
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _numbers(inside: str, text: str, most: int) -> list[str]:
    """The numbers of ``1-3,7``, as wide as the first of each range is written."""
    numbers: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise _no_hosts(text)
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise _no_hosts(text)
        # before they are made: a range may be of any size
        if int(last) - int(first) >= most - len(numbers):
            raise _too_many(text)
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers


def _no_duration(text: str) -> SlurmError:
    return SlurmError(
        f"{text!r} is no duration; expected [days-][hours:]minutes:seconds, UNLIMITED, NOT_SET or N/A"
    )


def _no_hosts(text: str) -> SlurmError:
    return SlurmError(f"{_short(text)} is no list of hosts; expected such as n[1-3,7],gpu[01-02],login")


def _too_many(text: str) -> SlurmError:
    return SlurmError(f"{_short(text)} names too many hosts; at most {MOST_HOSTS} can be read")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}..."
