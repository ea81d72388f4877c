"""What readers of series share: errors that know their line, and times that know their zone."""

from __future__ import annotations

import datetime
from math import isfinite

from dask_hpc_policies.params import shown

#: Most values of a series.
MOST_POINTS = 100_000


class LineError(ValueError):
    """What is wrong in a file, and in which line; None: it is about the whole."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.line = line


def moment(text: str, line: int, name: str) -> float:
    """Seconds since 1970 of a time such as ``2026-01-31T23:00Z``.

    Raises
    ------
    LineError
        For what is no time, has no zone, or lies before 1970.
    """
    allowed = "a time with its zone, such as 2026-01-31T23:00Z or 2026-02-01T00:00+01:00"
    try:
        found = datetime.datetime.fromisoformat(text.strip())
        if found.tzinfo is None:
            raise LineError(line, f"{name} is {shown(text)}, without a zone; give {allowed}")
        seconds = found.timestamp()
    except LineError:
        raise
    except (ValueError, OverflowError):
        raise LineError(line, f"{name} is {shown(text)}; give {allowed}") from None
    if seconds < 0:
        raise LineError(line, f"{name} is {shown(text)}; allowed: from 1970 on")
    return seconds


def number(text: str, line: int, name: str) -> float:
    """A finite number.

    Raises
    ------
    LineError
        For anything else.
    """
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise LineError(
            line, f"{name} is {shown(text.strip())}; give a number, or nothing where there is none"
        )
    return found
