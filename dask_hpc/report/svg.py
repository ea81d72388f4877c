"""Charts of a run: where each rectangle, line and text goes. The templates draw them as inline SVG.

Rules of the file: spans in, shapes out; geometry alone, no markup. Horizontal positions are percentages
and vertical ones are pixels, so that a chart fits any width while its letters keep their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dask_hpc.report.looks import Look, format_seconds, ticks
from dask_hpc.report.spans import DRAINING, LOST, End, JobSpan, NodeSpan, PowerSpan, Spans
from dask_hpc_policies.wording import counted

#: Spans narrower than this share of the width carry no text.
TEXT_WIDTH = 0.025
#: Height of a row of nodes; of one of the chart of job sizes, and of its largest job; of the chart of
#: utilization; of marks.
NODE_ROW_PX, JOB_ROW_PX, _JOB_BAR_PX, UTILIZATION_PX, MARKS_PX = 24, 40, 34, 96, 12
#: Height of the lane of power, and a bound above so many times the draw is not drawn: it is none.
POWER_PX, OPEN_BOUND = 72, 4.0
#: Height of a heading, and of what is left free below a chart, where several stand in one picture.
TITLE_PX, GAP_PX = 26, 6
#: Nearer to it than so many percent no other time is written.
_NOW_WIDTH = 7.0
#: The latest decisions are marked.
_MAX_MARKS = 300
#: Narrower rectangles cannot be seen.
_NARROWEST, _MARK_WIDTH = 0.08, 0.3


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


def axis(start_s: float, end_s: float, now_s: float | None = None) -> Drawing:
    """The time axis under a chart: time since `start_s`, and what is now."""
    shapes: list[Shape] = []
    taken = None if now_s is None else _x(now_s, start_s, end_s)
    for t_s in ticks(end_s - start_s):
        x = _x(t_s, 0.0, end_s - start_s)
        shapes.append(Line(x, x, 0, 5, "rule"))
        if taken is None or abs(x - taken) > _NOW_WIDTH:
            shapes.append(Text(x, 17, format_seconds(t_s), _anchor(x)))
    if taken is not None:
        shapes += [Line(taken, taken, 0, 5, "now"), Text(taken, 17, "now", _anchor(taken))]
    return Drawing(22, "", shapes)


def _anchor(x: float) -> str:
    return "start" if x < 4 else "end" if x > 94 else "middle"


def node_map(spans: Spans, styles: Mapping[str, Look]) -> Drawing:
    """One row a node over time, filled by the job that holds it; what is predicted is pale."""
    row = {node: index for index, node in enumerate(spans.nodes)}
    shapes: list[Shape] = []
    for span in spans.node_spans:
        shapes += _node_span(span, row[span.node] * NODE_ROW_PX, spans, styles)
    total = NODE_ROW_PX * len(spans.nodes)
    label = f"Node map: which job held each of {counted(len(spans.nodes))} over time"
    return Drawing(total, label, [*shapes, *_over(spans, total)])


def _node_span(span: NodeSpan, y: int, spans: Spans, styles: Mapping[str, Look]) -> Iterator[Shape]:
    x, width = _x(span.start_s, spans.start_s, spans.end_s), _width(span, spans)
    style = styles.get(span.job) if span.job is not None else None
    holder = "no named job" if span.job is None else spans.labels.get(span.job, span.job)
    title = f"{span.node}: {holder}, {'predicted' if span.predicted else span.state}, {_when(span, spans)}"
    height = NODE_ROW_PX - 1  # a gap between rows
    lost = span.state == LOST
    filled = {"fill_id": style.fill_id} if style and not lost else {"css": "lost" if lost else "idle"}
    yield _rect(x, width, y, height, title=title, **filled)
    if span.state == DRAINING:
        yield _rect(x, width, y + 1, height - 2, css="draining")
    text = "lost" if lost else f"{style.letter} {holder}" if style else ""
    if text and width >= 100 * TEXT_WIDTH:
        yield Label(x, width, y, height, text[:60], NODE_ROW_PX / 2 + 4)


def job_sizes(spans: Spans, jobs: Sequence[str], styles: Mapping[str, Look]) -> Drawing:
    """One row a job: its waiting time as a dashed line, then its size over time."""
    of_job: dict[str, list[JobSpan]] = {job: [] for job in jobs}
    for span in spans.job_spans:
        if span.job in of_job:
            of_job[span.job].append(span)
    most = max((span.nodes for own in of_job.values() for span in own), default=1)
    total = JOB_ROW_PX * len(jobs)
    shapes: list[Shape] = list(_grid(spans.end_s - spans.start_s, total))
    for index, (job, own) in enumerate(of_job.items()):
        shapes += _job_row(own, (index + 1) * JOB_ROW_PX - 2, most, spans, styles[job])
    shapes += _ghost(spans, total)
    for index, job in enumerate(of_job):
        shapes += _ends(spans, job, (index + 1) * JOB_ROW_PX - 2 - _JOB_BAR_PX / 2)
    return Drawing(total, "Size of each job over time, in nodes", shapes)


def _job_row(own: Sequence[JobSpan], base: int, most: int, spans: Spans, style: Look) -> Iterator[Shape]:
    for span in own:
        label = spans.labels.get(span.job, span.job)
        x, width = _x(span.start_s, spans.start_s, spans.end_s), _width(span, spans)
        if not span.nodes:
            yield Line(x, x + width, base - 4, base - 4, "waiting", f"{label} waits, {_when(span, spans)}")
            continue
        tall = max(3.0, _JOB_BAR_PX * span.nodes / most)
        title = f"{label}: {counted(span.nodes)}, {_when(span, spans)}"
        yield _rect(x, width, base - tall, tall, fill_id=style.fill_id, title=title)
        if width >= 100 * TEXT_WIDTH:
            yield Text(x, base - 3, str(span.nodes), css="on", shift=3)
    yield Line(0, 100, base, base, "grid")


def _ends(spans: Spans, job: str, y: float) -> Iterator[Line]:
    """A whisker from the least to the most that is stated of an end, and a stroke where it is expected."""
    for end in spans.ends:
        if end.job != job:
            continue
        low, expected, high = (
            min(100.0, _x(t_s, spans.start_s, spans.end_s)) for t_s in (end.low_s, end.expected_s, end.high_s)
        )
        title = f"{spans.labels[job]} ends at {told_end(end, spans.start_s)}"
        yield Line(low, high, y, y, "whisker", title)
        for x, half in ((low, 4), (expected, 8), (high, 4)):
            yield Line(x, x, y - half, y + half, "whisker", title)


def told_end(end: End, origin_s: float) -> str:
    """When a job ends since `origin_s`, in words, and the interval."""
    expected, low, high = (format_seconds(t_s - origin_s) for t_s in (end.expected_s, end.low_s, end.high_s))
    return f"{expected}, {low} to {high}"


def marks(spans: Spans, styles: Mapping[str, Look]) -> Drawing:
    """A tick for each of the latest decisions, with its reason."""
    shapes: list[Shape] = []
    for mark in spans.marks[-_MAX_MARKS:]:
        size = "" if mark.nodes is None else f" to {mark.nodes}"
        label = spans.labels.get(mark.job, mark.job)
        title = f"{mark.t_s - spans.start_s:.1f} s: {mark.action} {label}{size}: {mark.text}"
        style = styles.get(mark.job)
        filled = {"fill_id": style.fill_id} if style else {"css": "held"}
        shapes.append(
            Rect(
                _x(mark.t_s, spans.start_s, spans.end_s), _MARK_WIDTH, 0, MARKS_PX - 2, title=title, **filled
            )
        )
    return Drawing(MARKS_PX, f"Decisions: {len(shapes)} marks", shapes)


def power_lane(spans: Spans) -> Drawing:
    """What was drawn over time, between the bounds that held, before what was expected."""
    most_w = most_drawn_w(spans)
    shapes: list[Shape] = []

    def y(watts: float) -> float:
        return POWER_PX - (POWER_PX - 4) * min(1.0, watts / most_w)

    before: float | None = None
    for span in spans.power:
        x, width = _x(span.start_s, spans.start_s, spans.end_s), _width(span, spans)
        if span.min_w is not None and span.max_w is not None:
            top = y(span.max_w)
            shapes.append(_rect(x, width, top, max(1.0, y(span.min_w) - top), css="expected"))
        shapes += [
            Line(x, x + width, y(bound_w), y(bound_w), "bound")
            for bound_w in (span.lower_w, span.upper_w)
            if bound_w is not None and 0 < bound_w <= most_w
        ]
        if span.watts is None:
            before = None
            continue
        title = f"{span.watts:.0f} W, {_when(span, spans)}"
        shapes.append(Line(x, x + width, y(span.watts), y(span.watts), "pool", title))
        if before is not None and before != span.watts:
            shapes.append(Line(x, x, y(before), y(span.watts), "pool"))
        before = span.watts
    shapes += [*_over(spans, POWER_PX), Text(0, 12, f"{most_w:.0f} W", shift=3)]
    return Drawing(POWER_PX, "Watts of all nodes over time, and the bounds", shapes)


def most_drawn_w(spans: Spans) -> float:
    """The top of the lane of power: bounds far above all that was drawn or expected are open."""
    drawn_w = max(
        [1.0, *(watts for span in spans.power for watts in (span.watts, span.max_w) if watts is not None)]
    )
    bounds = [watts for span in spans.power for watts in (span.lower_w, span.upper_w) if watts is not None]
    return max([drawn_w, *(watts for watts in bounds if watts <= OPEN_BOUND * drawn_w)])


def _over(spans: Spans, height: float) -> Iterator[Shape]:
    """What lies over a chart: the lines of the axis, and the veil over what is predicted."""
    yield from _grid(spans.end_s - spans.start_s, height)
    yield from _ghost(spans, height)


def _ghost(spans: Spans, height: float) -> Iterator[Shape]:
    if spans.now_s is not None:
        x = _x(spans.now_s, spans.start_s, spans.end_s)
        yield Rect(x, max(0.0, 100 - x), 0, height, css="ghost")
        yield Line(x, x, 0, height, "now")


def _when(span: NodeSpan | JobSpan | PowerSpan, spans: Spans) -> str:
    return f"{span.start_s - spans.start_s:.1f} s to {span.end_s - spans.start_s:.1f} s"


def utilization(levels: Sequence[tuple[float, int, int]], end_s: float) -> Drawing:
    """Nodes held by named jobs (filled) and nodes there are (line) over time, from 0 s on."""
    full = UTILIZATION_PX - 4
    most = max((up for _, up, _ in levels), default=1) or 1
    ends = [*(t for t, _, _ in levels[1:]), end_s]
    shapes: list[Shape] = list(_grid(end_s, UTILIZATION_PX))
    before: float | None = None
    for (t_s, up, held), until_s in zip(levels, ends, strict=True):
        x, width = _x(t_s, 0.0, end_s), _x(until_s - t_s, 0.0, end_s)
        if held:
            title = f"{held} of {counted(up)} held, {t_s:.1f} s to {until_s:.1f} s"
            tall = full * held / most
            shapes.append(_rect(x, width, UTILIZATION_PX - tall, tall, css="held", title=title))
        y = UTILIZATION_PX - full * up / most
        shapes.append(Line(x, x + width, y, y, "pool"))
        if before is not None and before != y:
            shapes.append(Line(x, x, before, y, "pool"))
        before = y
    return Drawing(UTILIZATION_PX, "Nodes held by jobs over time", shapes)


def _x(t_s: float, start_s: float, end_s: float) -> float:
    return 100 * (t_s - start_s) / (end_s - start_s) if end_s > start_s else 0.0


def _width(span: NodeSpan | JobSpan | PowerSpan, spans: Spans) -> float:
    return _x(span.end_s - span.start_s, 0.0, spans.end_s - spans.start_s)


def _rect(
    x: float, width: float, y: float, height: float, *, fill_id: str = "", css: str = "", title: str = ""
) -> Rect:
    return Rect(x, max(width, _NARROWEST), y, height, fill_id, css, title)


def _grid(end_s: float, height: float) -> Iterator[Line]:
    for t_s in ticks(end_s):
        x = _x(t_s, 0.0, end_s)
        yield Line(x, x, 0, height, "grid")
