"""What the chart of jobs draws: the sizes of jobs over the last minutes, as rectangles.

Rules of the file: plain data in and out; no Bokeh, no clock, no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_hpc.report.looks import looks, printable
from dask_hpc.report.spans import JobSpan, job_spans

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
    styles = looks(job.id for job in drawn)
    rows = [_spans(job, begin_s, now_s) for job in drawn]
    most = max((span.nodes for row in rows for span in row), default=1) or 1
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    labels = []
    for index, (job, spans) in enumerate(zip(drawn, rows, strict=True)):
        look = styles[job.id]
        labels.append(_short(f"{look.letter} {job.name}"))
        for span in spans:
            left, right = max(span.start_s, begin_s) - now_s, min(span.end_s, now_s) - now_s
            bar = _bar(index, left, right, span.nodes, most, window_s)
            bar |= {"job": f"{look.letter} {printable(job.id)}", "color": look.color if span.nodes else _GREY}
            bar["ink"] = _INK.get(bar["color"], "#000000")
            for name in COLUMNS:
                columns[name].append(bar[name])
    return Chart(columns, tuple(labels), len(jobs) - len(drawn))


def _spans(job: JobRecord, from_s: float, now_s: float) -> list[JobSpan]:
    """From its submission to its end, cut to the window."""
    sizes = list(job.sizes)[-_MAX_CHANGES:]
    found = job_spans(job.id, job.submit_s, job.start_s, job.end_s, sizes, now_s)
    return [span for span in found if span.end_s > from_s and span.start_s < now_s]


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


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LABEL_LETTERS else text[: _LABEL_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
