"""What the chart of jobs draws: the sizes of jobs over the last minutes, as rectangles.

Rules of the file: plain data in and out; no Bokeh, no clock, no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dask_hpc.report.looks import COLORS as PALETTE
from dask_hpc.report.looks import letters, printable

if TYPE_CHECKING:
    from dask_hpc.scheduler.tables.jobs import JobRecord

#: Jobs beyond these are counted and not drawn.
MAX_ROWS = 12
#: Of more changes of a job's size the latest are drawn.
_MAX_CHANGES = 50
#: Share of a row that the largest job fills, and that a job without nodes does.
_FULL, _THIN = 0.8, 0.06
#: Bars narrower than this share of the window carry no number.
_TEXT_SHARE = 0.03
_LABEL_LETTERS = 20
_GREY = "#808080"
#: Ink that can be read on a colour, where it is not black.
_INK = {"#0072B2": "#FFFFFF"}
#: Names of the columns of a chart.
COLUMNS = "left right bottom top color job nodes since text text_x text_y ink".split()


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: rectangles by column, seconds relative to now, row 0 on top."""

    columns: dict[str, list[Any]]
    #: What stands beside each row.
    labels: tuple[str, ...]
    #: Jobs that found no room.
    hidden: int = 0


def chart(active: Iterable[JobRecord], ended: Iterable[JobRecord], now_s: float, window_s: float) -> Chart:
    """Active jobs in the order given, then those that ended in the window.

    Parameters
    ----------
    ended
        The one that ended last comes first.
    """
    begin_s = now_s - window_s
    jobs = list(active)
    for job in ended:
        if job.end_s is not None and job.end_s <= begin_s:
            break
        if job.end_s is not None:
            jobs.append(job)
    drawn = jobs[:MAX_ROWS]
    rows = [_stretches(job, begin_s, now_s) for job in drawn]
    most = max((n for row in rows for _, _, n in row), default=1) or 1
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    labels = []
    for index, (job, stretches) in enumerate(zip(drawn, rows, strict=True)):
        letter, color = _look(job.id)
        labels.append(_short(f"{letter} {job.name}"))
        for start_s, end_s, nodes in stretches:
            bar = _bar(index, start_s - now_s, end_s - now_s, nodes, most, window_s)
            bar |= {"job": f"{letter} {printable(job.id)}", "color": color if nodes else _GREY}
            bar["ink"] = _INK.get(bar["color"], "#000000")
            for name in COLUMNS:
                columns[name].append(bar[name])
    return Chart(columns, tuple(labels), len(jobs) - len(drawn))


def _stretches(job: JobRecord, from_s: float, now_s: float) -> list[tuple[float, float, int]]:
    """``(start_s, end_s, nodes)`` from its submission to its end, cut to the window."""
    until_s = now_s if job.end_s is None else job.end_s
    steps = [*list(job.sizes)[-_MAX_CHANGES:], (until_s, 0)]
    # between its start and the first of these changes nothing is drawn
    waited_s = steps[0][0] if job.start_s is None else min(job.start_s, steps[0][0])
    found = [(t_s, end_s, n) for (t_s, n), (end_s, _) in pairwise(steps)]
    found.insert(0, (job.submit_s, waited_s, 0))
    cut = ((max(t_s, from_s), min(end_s, now_s), n) for t_s, end_s, n in found)
    return [(t_s, end_s, n) for t_s, end_s, n in cut if end_s > t_s]


def _bar(row: int, left: float, right: float, nodes: int, most: int, window_s: float) -> dict[str, Any]:
    base, tall = row + 0.9, max(_THIN, _FULL * nodes / most)
    wide = right - left >= _TEXT_SHARE * window_s
    return {
        "left": round(left, 2),
        "right": round(right, 2),
        "bottom": base,
        "top": base - tall,
        "nodes": str(nodes) if nodes else "none: it waits",
        "since": f"{-left:.0f} s ago",
        "text": str(nodes) if nodes and wide else "",
        "text_x": round((left + right) / 2, 2),
        "text_y": base - tall / 2,
    }


def _look(id: str) -> tuple[str, str]:
    """Letter and colour of a job: its number is the end of its id, so that they stay its own."""
    digits = id.rpartition("-")[2]
    number = int(digits) - 1 if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return letters(max(0, number)), PALETTE[max(0, number) % len(PALETTE)]


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LABEL_LETTERS else text[: _LABEL_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
