"""Charts of a run: where each rectangle, line and text goes. The templates draw them as inline SVG.

Rules of the file: a timeline in, shapes out; geometry alone, no markup. Horizontal positions are percentages
and vertical ones are pixels, so that a chart fits any width while its letters keep their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dask_hpc.report.looks import Look, format_seconds, ticks
from dask_hpc.report.timeline import JobHistory, NodeSpan, Timeline

#: Rows lower than this carry no text.
TEXT_ROW_PX = 12
#: Spans narrower than this share of the width carry no text.
TEXT_WIDTH = 0.025
#: Height of a row of the chart of job sizes, and of its largest job; height of the chart of utilization.
JOB_ROW_PX, _JOB_BAR_PX, UTILIZATION_PX = 40, 34, 96
#: Narrower rectangles cannot be seen.
_NARROWEST = 0.08


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle, filled by a fill of the page or by the class `css`; `title` says what it is."""

    KIND: ClassVar = "rect"
    x: float
    width: float
    y: float
    height: float
    fill_id: str = ""
    css: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line."""

    KIND: ClassVar = "line"
    x1: float
    x2: float
    y1: float
    y2: float
    css: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that begins at a point."""

    KIND: ClassVar = "text"
    x: float
    y: float
    text: str
    anchor: str = "start"
    css: str = ""
    #: Pixels to the right of the point.
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A text in a box, which cuts what does not fit."""

    KIND: ClassVar = "label"
    x: float
    width: float
    y: float
    height: float
    text: str
    #: Of the text, from the top of the box.
    baseline: float


Shape = Rect | Line | Text | Label


@dataclass(frozen=True, slots=True)
class Drawing:
    """One drawing."""

    height: int
    #: What it shows, for those who hear it; empty when others say so.
    label: str
    shapes: Sequence[Shape]


def axis(end_s: float) -> Drawing:
    """The time axis under a chart."""
    shapes: list[Shape] = []
    for t_s in ticks(end_s):
        x = _x(t_s, end_s)
        anchor = "start" if x < 4 else "end" if x > 94 else "middle"
        shapes += [Line(x, x, 0, 5, "rule"), Text(x, 17, format_seconds(t_s), anchor)]
    return Drawing(22, "", shapes)


def row_px(rows: int) -> int:
    """Height of one row of a chart with `rows` rows."""
    return max(3, min(24, 4_000 // max(1, rows)))


def node_map(timeline: Timeline, styles: Mapping[str, Look]) -> Drawing:
    """One row a node over time, filled by the job that holds it."""
    height = row_px(len(timeline.nodes))
    row = {node: index for index, node in enumerate(timeline.nodes)}
    shapes: list[Shape] = []
    for span in timeline.spans:
        shapes += _node_span(span, row[span.node] * height, height, timeline, styles)
    total = height * len(timeline.nodes)
    label = f"Node map: which job held each of {len(timeline.nodes)} nodes over time"
    return Drawing(total, label, [*shapes, *_grid(timeline.end_s, total)])


def _node_span(
    span: NodeSpan, y: int, height: int, timeline: Timeline, styles: Mapping[str, Look]
) -> Iterator[Shape]:
    x, width = _x(span.start_s, timeline.end_s), _x(span.end_s - span.start_s, timeline.end_s)
    style = styles.get(span.job) if span.job is not None else None
    holder = "no named job" if span.job is None else timeline.labels.get(span.job, span.job)
    title = f"{span.node}: {holder}, {span.state}, {span.start_s:.1f} s to {span.end_s:.1f} s"
    gap = 1 if height > 6 else 0
    lost = span.state == "lost"
    filled = {"fill_id": style.fill_id} if style and not lost else {"css": "lost" if lost else "idle"}
    yield _rect(x, width, y, height - gap, title=title, **filled)
    if span.state == "draining":
        yield _rect(x, width, y + 1, max(1, height - gap - 2), css="draining")
    text = "lost" if lost else f"{style.letter} {holder}" if style else ""
    if text and height >= TEXT_ROW_PX and width >= 100 * TEXT_WIDTH:
        yield Label(x, width, y, height - gap, text[:60], height / 2 + 4)


def job_sizes(timeline: Timeline, jobs: Sequence[JobHistory], styles: Mapping[str, Look]) -> Drawing:
    """One row a job: its waiting time as a dashed line, then its size over time."""
    most = max((n for job in jobs for _, n in job.run.nodes), default=1) or 1
    total = JOB_ROW_PX * len(jobs)
    shapes: list[Shape] = list(_grid(timeline.end_s, total))
    for index, job in enumerate(jobs):
        shapes += _job_row(job, (index + 1) * JOB_ROW_PX - 2, most, timeline.end_s, styles[job.run.id])
    return Drawing(total, "Size of each job over time, in nodes", shapes)


def _job_row(job: JobHistory, base: int, most: int, end_s: float, style: Look) -> Iterator[Shape]:
    run = job.run
    gone_s = end_s if run.end_s is None else run.end_s
    waits_until_s = gone_s if run.start_s is None else run.start_s
    submit, start = _x(run.submit_s, end_s), _x(waits_until_s, end_s)
    yield Line(submit, start, base - 4, base - 4, "waiting", f"{job.label} waits")
    for (t_s, n), until_s in zip(run.nodes, [*(t for t, _ in run.nodes[1:]), gone_s], strict=False):
        if n == 0 or until_s <= t_s:
            continue
        x, width = _x(t_s, end_s), _x(until_s - t_s, end_s)
        tall = max(3.0, _JOB_BAR_PX * n / most)
        title = f"{job.label}: {n} nodes, {t_s:.1f} s to {until_s:.1f} s"
        yield _rect(x, width, base - tall, tall, fill_id=style.fill_id, title=title)
        if width >= 100 * TEXT_WIDTH:
            yield Text(x, base - 3, str(n), css="on", shift=3)
    yield Line(0, 100, base, base, "grid")


def utilization(timeline: Timeline) -> Drawing:
    """Nodes held by named jobs (filled) and nodes there are (line) over time."""
    full = UTILIZATION_PX - 4
    levels = timeline.levels()
    most = max((up for _, up, _ in levels), default=1) or 1
    ends = [*(t for t, _, _ in levels[1:]), timeline.end_s]
    shapes: list[Shape] = list(_grid(timeline.end_s, UTILIZATION_PX))
    before: float | None = None
    for (t_s, up, held), until_s in zip(levels, ends, strict=True):
        x, width = _x(t_s, timeline.end_s), _x(until_s - t_s, timeline.end_s)
        if held:
            title = f"{held} of {up} nodes held, {t_s:.1f} s to {until_s:.1f} s"
            tall = full * held / most
            shapes.append(_rect(x, width, UTILIZATION_PX - tall, tall, css="held", title=title))
        y = UTILIZATION_PX - full * up / most
        shapes.append(Line(x, x + width, y, y, "pool"))
        if before is not None and before != y:
            shapes.append(Line(x, x, before, y, "pool"))
        before = y
    return Drawing(UTILIZATION_PX, "Nodes held by jobs over time", shapes)


def _x(t_s: float, end_s: float) -> float:
    return 100 * t_s / end_s if end_s > 0 else 0.0


def _rect(
    x: float, width: float, y: float, height: float, *, fill_id: str = "", css: str = "", title: str = ""
) -> Rect:
    return Rect(x, max(width, _NARROWEST), y, height, fill_id, css, title)


def _grid(end_s: float, height: float) -> Iterator[Line]:
    for t_s in ticks(end_s):
        x = _x(t_s, end_s)
        yield Line(x, x, 0, height, "grid")
