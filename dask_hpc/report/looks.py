"""How jobs, times and names are shown everywhere: letters, colours, patterns, durations, marks on an axis.

Every job has a letter, a pattern and a colour: colour never stands alone. Colours are those of Okabe and Ito
(2008, "Color universal design"), which people with any common form of colour blindness tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
#: Strokes laid over the colour, on a tile of 8 x 8 pixels; the first is plain. Their number and the number
#: of colours have no common divisor: 42 jobs differ in one of them.
PATTERNS = (
    "",
    "M-2 2l4-4M0 8l8-8M6 10l4-4",
    "M0 4h8",
    "M4 0v8",
    "M-2 6l4 4M0 0l8 8M6-2l4 4",
    "M3 4h2M4 3v2M0 0h1M7 8h1",
)

#: What comes sooner is there at once for whoever reads that (Nielsen 1993, "Usability engineering").
_AT_ONCE_S = 0.1
#: How ids of jobs on a live cluster end (`dask_hpc.scheduler.tables.job_table`).
_NUMBERED = re.compile("-([1-9][0-9]{0,8})$", re.ASCII)
#: What XML 1.0 forbids, and the marks that turn the direction of the text around them.
_UNSAFE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


def printable(text: object) -> str:
    """`text` with every character that is not for reading replaced by U+FFFD."""
    found = str(text)
    # most texts are, and are looked at twice a second
    return found if found.isprintable() else _UNSAFE.sub("\ufffd", found)


@dataclass(frozen=True, slots=True)
class Look:
    """How one job is shown everywhere."""

    letter: str
    color: str
    #: A path of `PATTERNS`; empty for plain colour.
    pattern: str
    #: Its place in `PATTERNS`.
    pattern_index: int
    #: Name of its fill in a page.
    fill_id: str


def looks(ids: Iterable[str]) -> dict[str, Look]:
    """Letter, colour and pattern of every job, by id: the one place where they are given out.

    A job of a live cluster keeps its own through its life, whoever looks and whatever else is shown: its id
    ends in its number on that cluster, which decides. Jobs whose ids do not (of a workload in a file) have
    them by their places, so they are to be given all at once, in order of submission.
    """
    found = list(dict.fromkeys(ids))
    numbers = [_number(id) for id in found]
    if None in numbers or len(set(numbers)) < len(numbers):
        return {id: _look(index) for index, id in enumerate(found)}
    return {id: _look(number) for id, number in zip(found, numbers, strict=True) if number is not None}


# a page is told of the same jobs twice a second
@lru_cache(maxsize=10_000)
def look(id: str) -> Look:
    """What `looks` gives a job that is shown alone."""
    return looks([id])[id]


@lru_cache(maxsize=10_000)
def _look(index: int) -> Look:
    """What the job with this number has, counted from 0."""
    return Look(
        letter=letters(index),
        color=COLORS[index % len(COLORS)],
        pattern=PATTERNS[index % len(PATTERNS)],
        pattern_index=index % len(PATTERNS),
        fill_id=f"job{index % (len(COLORS) * len(PATTERNS))}",
    )


@lru_cache(maxsize=10_000)
def _number(id: str) -> int | None:
    """The number of a job on its cluster, counted from 0; None when its id does not end in one."""
    found = _NUMBERED.search(id)
    return int(found.group(1)) - 1 if found else None


def letters(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def format_seconds(seconds: float) -> str:
    """A duration in the largest fitting unit."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms" if seconds >= 0.001 else "<1 ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def ahead(seconds: float, long: Callable[[float], str] = format_seconds) -> str:
    """When something comes that is so many seconds ahead; `long` words a second and more."""
    if seconds < _AT_ONCE_S:
        return "at once"
    return f"in {long(seconds) if seconds >= 1 else 'under a second'}"


def ticks(end_s: float, most: int = 6) -> list[float]:
    """Round moments from 0 to `end_s`, at most `most` of them."""
    if end_s <= 0:
        return [0.0]
    steps = [m * 10.0**e for e in range(-3, 2) for m in (1, 2, 5) if m * 10.0**e < 60]
    steps += [60.0, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200]
    steps += [m * 86_400.0 * 10**e for e in range(5) for m in (1, 2, 5)]
    step_s = next((step for step in steps if end_s / step < most), end_s)
    return [i * step_s for i in range(int(end_s / step_s) + 1)]
