"""Charts of a run as inline SVG, without scripts.

Rules of the file: a timeline in, text out. Horizontal positions are percentages and vertical ones are
pixels, so that a chart fits any width while its letters keep their size. Every job has a letter, a
pattern and a colour: colour never stands alone. All text passes through `escape`.

Colours are those of Okabe and Ito (2008, "Color universal design"), which people with any common form
of colour blindness tell apart.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask_hpc.report.timeline import JobHistory, NodeSpan, Timeline

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
#: Rows lower than this carry no text.
TEXT_ROW_PX = 12
#: Spans narrower than this share of the width carry no text.
TEXT_WIDTH = 0.025

#: What XML 1.0 forbids, and the marks that turn the direction of the text around them.
_UNSAFE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


def escape(text: object) -> str:
    """`text` made safe for the text and the attributes of HTML and SVG."""
    return html.escape(printable(text), quote=True)


def printable(text: object) -> str:
    """`text` with every character that is not for reading replaced by U+FFFD."""
    return _UNSAFE.sub("\ufffd", str(text))


@dataclass(frozen=True, slots=True)
class Look:
    """How one job is shown everywhere."""

    letter: str
    color: str
    pattern: str
    #: Name of its fill in the page.
    fill_id: str


def looks(jobs: Sequence[JobHistory]) -> dict[str, Look]:
    """The look of every job, by id, in order of submission."""
    return {
        job.run.id: Look(
            letter=letters(index),
            color=COLORS[index % len(COLORS)],
            pattern=PATTERNS[index % len(PATTERNS)],
            fill_id=f"job{index % (len(COLORS) * len(PATTERNS))}",
        )
        for index, job in enumerate(jobs)
    }


def letters(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def definitions(styles: dict[str, Look]) -> str:
    """The fills that all charts of the page refer to."""
    fills = {style.fill_id: style for style in styles.values()}
    tiles = "".join(
        f'<pattern id="{key}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{style.color}"/>'
        + (f'<path d="{style.pattern}" class="ink"/>' if style.pattern else "")
        + "</pattern>"
        for key, style in fills.items()
    )
    lost = '<pattern id="lost" width="8" height="8" patternUnits="userSpaceOnUse">' + (
        '<path d="M0 0l8 8M8 0l-8 8" class="cross"/></pattern>'
    )
    body = f"<defs>{tiles}{lost}</defs>"
    return f'<svg width="0" height="0" class="definitions" aria-hidden="true">{body}</svg>'


def swatch(fill_id: str) -> str:
    """A small sample of a job's fill, for legends and tables."""
    return _swatch(f'fill="url(#{fill_id})"')


def state_swatch(state: str) -> str:
    """A small sample of how a node that is idle, draining or lost looks."""
    return _swatch(f'class="{state}"')


def _swatch(attribute: str) -> str:
    return (
        '<svg width="22" height="12" aria-hidden="true" class="swatch">'
        f'<rect width="22" height="12" {attribute}/></svg>'
    )


def format_seconds(seconds: float) -> str:
    """A duration in the largest fitting unit."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms" if seconds >= 0.001 else "<1 ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def ticks(end_s: float, most: int = 6) -> list[float]:
    """Round moments from 0 to `end_s`, at most `most` of them."""
    if end_s <= 0:
        return [0.0]
    steps = [m * 10.0**e for e in range(-3, 2) for m in (1, 2, 5) if m * 10.0**e < 60]
    steps += [60.0, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200]
    steps += [m * 86_400.0 * 10**e for e in range(5) for m in (1, 2, 5)]
    step_s = next((step for step in steps if end_s / step < most), end_s)
    return [i * step_s for i in range(int(end_s / step_s) + 1)]


def _x(t_s: float, end_s: float) -> float:
    return 100 * t_s / end_s if end_s > 0 else 0.0


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _rect(x: float, width: float, y: float, height: float, attributes: str, inside: str = "") -> str:
    place = (
        f'x="{_number(x)}%" y="{_number(y)}" width="{_number(max(width, 0.08))}%" height="{_number(height)}"'
    )
    if inside:
        return f"<rect {place} {attributes}>{inside}</rect>"
    return f"<rect {place} {attributes}/>"


def axis(end_s: float) -> str:
    """The time axis under a chart."""
    marks = []
    for t_s in ticks(end_s):
        x = _x(t_s, end_s)
        anchor = "start" if x < 4 else "end" if x > 94 else "middle"
        marks.append(
            f'<line x1="{_number(x)}%" x2="{_number(x)}%" y1="0" y2="5" class="rule"/>'
            f'<text x="{_number(x)}%" y="17" text-anchor="{anchor}">{escape(format_seconds(t_s))}</text>'
        )
    return f'<svg width="100%" height="22" class="axis" aria-hidden="true">{"".join(marks)}</svg>'


def _grid(end_s: float, height: float) -> str:
    positions = [_number(_x(t_s, end_s)) for t_s in ticks(end_s)]
    return "".join(
        f'<line x1="{x}%" x2="{x}%" y1="0" y2="{_number(height)}" class="grid"/>' for x in positions
    )


def row_px(rows: int) -> int:
    """Height of one row of a chart with `rows` rows."""
    return max(3, min(24, 4_000 // max(1, rows)))


def node_map(timeline: Timeline, styles: dict[str, Look]) -> str:
    """One row a node over time, filled by the job that holds it."""
    height = row_px(len(timeline.nodes))
    row = {node: index for index, node in enumerate(timeline.nodes)}
    body = "".join(
        _node_span(span, row[span.node] * height, height, timeline.end_s, styles, timeline.labels)
        for span in timeline.spans
    )
    total = height * len(timeline.nodes)
    label = f"Node map: which job held each of {len(timeline.nodes)} nodes over time"
    return (
        f'<svg width="100%" height="{total}" role="img" aria-label="{escape(label)}">'
        f"{body}{_grid(timeline.end_s, total)}</svg>"
    )


def _node_span(
    span: NodeSpan, y: float, height: int, end_s: float, styles: dict[str, Look], names: Mapping[str, str]
) -> str:
    x, width = _x(span.start_s, end_s), _x(span.end_s - span.start_s, end_s)
    style = styles.get(span.job) if span.job is not None else None
    holder = "no named job" if span.job is None else names.get(span.job, span.job)
    about = f"{span.node}: {holder}, {span.state}, {span.start_s:.1f} s to {span.end_s:.1f} s"
    title = f"<title>{escape(about)}</title>"
    gap = 1 if height > 6 else 0
    if span.state == "lost":
        parts = _rect(x, width, y, height - gap, 'class="lost"', title)
    elif style is None:
        parts = _rect(x, width, y, height - gap, 'class="idle"', title)
    else:
        parts = _rect(x, width, y, height - gap, f'fill="url(#{style.fill_id})"', title)
    if span.state == "draining":
        parts += _rect(x, width, y + 1, max(1, height - gap - 2), 'class="draining"')
    text = "lost" if span.state == "lost" else f"{style.letter} {holder}" if style else ""
    if text and height >= TEXT_ROW_PX and width >= 100 * TEXT_WIDTH:
        # An inner viewport cuts what does not fit.
        parts += (
            f'<svg x="{_number(x)}%" y="{_number(y)}" width="{_number(width)}%" height="{height - gap}">'
            f'<text x="3" y="{_number(height / 2 + 4)}" class="on">{escape(text[:60])}</text></svg>'
        )
    return parts


def job_sizes(timeline: Timeline, jobs: Sequence[JobHistory], styles: dict[str, Look]) -> str:
    """One row a job: its waiting time as a dashed line, then its size over time."""
    height, bar = 40, 34
    end_s = timeline.end_s
    most = max((n for job in jobs for _, n in job.run.nodes), default=1) or 1
    parts = []
    for index, job in enumerate(jobs):
        run, style = job.run, styles[job.run.id]
        base = (index + 1) * height - 2
        gone_s = end_s if run.end_s is None else run.end_s
        x, end = _x(run.submit_s, end_s), _x(gone_s if run.start_s is None else run.start_s, end_s)
        parts.append(
            f'<line x1="{_number(x)}%" x2="{_number(end)}%" y1="{base - 4}" y2="{base - 4}" class="waiting">'
            f"<title>{escape(f'{job.label} waits')}</title></line>"
        )
        for (t_s, n), until_s in zip(run.nodes, [*(t for t, _ in run.nodes[1:]), gone_s], strict=False):
            if n == 0 or until_s <= t_s:
                continue
            x, width = _x(t_s, end_s), _x(until_s - t_s, end_s)
            tall = max(3.0, bar * n / most)
            about = f"<title>{escape(f'{job.label}: {n} nodes, {t_s:.1f} s to {until_s:.1f} s')}</title>"
            parts.append(_rect(x, width, base - tall, tall, f'fill="url(#{style.fill_id})"', about))
            if width >= 100 * TEXT_WIDTH:
                parts.append(f'<text x="{_number(x)}%" dx="3" y="{_number(base - 3)}" class="on">{n}</text>')
        parts.append(f'<line x1="0" x2="100%" y1="{base}" y2="{base}" class="grid"/>')
    total = height * len(jobs)
    return (
        f'<svg width="100%" height="{total}" role="img" aria-label="Size of each job over time, in nodes">'
        f"{_grid(end_s, total)}{''.join(parts)}</svg>"
    )


def utilization(timeline: Timeline) -> str:
    """Nodes held by named jobs (filled) and nodes there are (line) over time."""
    height = 96
    levels = timeline.levels()
    most = max((up for _, up, _ in levels), default=1) or 1
    ends = [*(t for t, _, _ in levels[1:]), timeline.end_s]
    parts, before = [], None
    for (t_s, up, held), until_s in zip(levels, ends, strict=True):
        x, width = _x(t_s, timeline.end_s), _x(until_s - t_s, timeline.end_s)
        if held:
            about = f"{held} of {up} nodes held, {t_s:.1f} s to {until_s:.1f} s"
            tall = (height - 4) * held / most
            parts.append(
                _rect(x, width, height - tall, tall, 'class="held"', f"<title>{escape(about)}</title>")
            )
        y = _number(height - (height - 4) * up / most)
        parts.append(f'<line x1="{_number(x)}%" x2="{_number(x + width)}%" y1="{y}" y2="{y}" class="pool"/>')
        if before is not None and before != y:
            parts.append(f'<line x1="{_number(x)}%" x2="{_number(x)}%" y1="{before}" y2="{y}" class="pool"/>')
        before = y
    return (
        f'<svg width="100%" height="{height}" role="img" aria-label="Nodes held by jobs over time">'
        f"{_grid(timeline.end_s, height)}{''.join(parts)}</svg>"
    )
