"""The node map of a run as a matplotlib figure, for documents that cannot hold HTML.

figure = node_map_figure([trace.header, *trace.records])
figure.savefig("nodes.png", dpi=150)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_hpc.report.looks import Look, looks, printable
from dask_hpc.report.svg import TEXT_WIDTH
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Hatches in the order of `dask_hpc.report.looks.PATTERNS`.
_HATCHES = ("", "///", "---", "|||", "\\\\\\", "...")
_EDGE, _IDLE = "#00000066", "#e6e9ec"
#: With more rows than these none carries text.
TEXT_ROWS = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time of one node."""

    row: int
    start_s: float
    end_s: float
    #: Of the job that holds it; None when none does.
    look: Look | None
    #: ``up``, ``draining`` or ``lost``.
    state: str = "up"


def draw_node_map(axes: Any, bars: Iterable[Bar], rows: int, start_s: float, end_s: float) -> None:
    """Draw one row a node over time, row 0 on top, filled by the job that holds it.

    Parameters
    ----------
    axes
        Of matplotlib.
    start_s, end_s
        Of the axis of time.
    """
    few = rows <= TEXT_ROWS
    for bar in bars:
        lost = bar.state == "lost"
        width = bar.end_s - bar.start_s
        axes.barh(
            bar.row,
            width,
            left=bar.start_s,
            height=0.92 if few else 1.0,
            color="white" if lost else bar.look.color if bar.look else _IDLE,
            hatch="xx" if lost else _HATCHES[bar.look.pattern_index] if bar.look else "",
            edgecolor=_EDGE,
            linestyle="--" if bar.state == "draining" else "-",
            linewidth=0.8 if few else 0.0,
        )
        text = "lost" if lost else bar.look.letter if bar.look else ""
        if text and width > TEXT_WIDTH * (end_s - start_s) and few:
            axes.text(
                bar.start_s + width / 2,
                bar.row,
                text,
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
            )
    axes.set_xlabel("time (s)")
    axes.set_xlim(start_s, max(end_s, start_s + 1e-3))
    axes.set_ylim(max(rows, 1) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def node_map_figure(records: Iterable[Record], title: str = "") -> Figure:
    """One row a node over time, filled by the job that holds it.

    Parameters
    ----------
    records
        Records of one trace, as for `dask_hpc.report.page.build_report`.

    Raises
    ------
    ImportError
        When matplotlib is missing; the extra ``plot`` brings it.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError('node_map_figure needs matplotlib: pip install "dask-hpc[plot]"') from error
    timeline = build_timeline(records)
    styles = looks(job.run.id for job in timeline.jobs)
    rows = {node: index for index, node in enumerate(timeline.nodes)}
    figure = Figure(figsize=(10, 1.6 + 0.32 * max(1, min(len(rows), TEXT_ROWS))), layout="constrained")
    axes = figure.add_subplot()
    bars = (
        Bar(
            rows[span.node],
            span.start_s,
            span.end_s,
            None if span.job is None else styles.get(span.job),
            span.state,
        )
        for span in timeline.spans
    )
    draw_node_map(axes, bars, len(rows), 0.0, timeline.end_s or 1.0)
    # parse_math: a dollar sign in a name must not start a formula.
    if len(rows) <= TEXT_ROWS:
        axes.set_yticks(list(rows.values()), [printable(node) for node in rows], parse_math=False)
    if title:
        axes.set_title(printable(title), loc="left", parse_math=False)
    handles = [
        Patch(
            facecolor=style.color,
            hatch=_HATCHES[style.pattern_index],
            edgecolor=_EDGE,
            label=printable(f"{style.letter}  {job.label}"),
        )
        for job, style in zip(timeline.jobs[:20], styles.values(), strict=False)
    ]
    handles.append(Patch(facecolor=_IDLE, label="no named job"))
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    for label in legend.get_texts():
        label.set_parse_math(False)
    return figure
