"""The node map of a run as a matplotlib figure, for documents that cannot hold HTML.

figure = node_map_figure([trace.header, *trace.records])
figure.savefig("nodes.png", dpi=150)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_hpc.report.svg import TEXT_WIDTH, looks, printable
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Hatches in the order of `dask_hpc.report.svg.PATTERNS`.
_HATCHES = ("", "///", "---", "|||", "\\\\\\", "...")


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
    styles = looks(timeline.jobs)
    rows = {node: index for index, node in enumerate(timeline.nodes)}
    figure = Figure(figsize=(10, 1.6 + 0.32 * max(1, min(len(rows), 60))), layout="constrained")
    axes = figure.add_subplot()
    hatches = {style.pattern: _HATCHES[index % 6] for index, style in enumerate(styles.values())}
    for span in timeline.spans:
        style = styles.get(span.job) if span.job is not None else None
        lost = span.state == "lost"
        color = "white" if lost else style.color if style else "#e6e9ec"
        hatch = "xx" if lost else hatches[style.pattern] if style else ""
        width = span.end_s - span.start_s
        axes.barh(
            rows[span.node],
            width,
            left=span.start_s,
            height=0.92,
            color=color,
            hatch=hatch,
            edgecolor="#00000066",
            linestyle="--" if span.state == "draining" else "-",
            linewidth=0.8,
        )
        text = "lost" if lost else style.letter if style else ""
        if text and width > TEXT_WIDTH * timeline.end_s and len(rows) <= 60:
            axes.text(
                span.start_s + width / 2,
                rows[span.node],
                text,
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
            )
    axes.set_xlabel("time [s]")
    axes.set_xlim(0, timeline.end_s or 1)
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    # parse_math: a dollar sign in a name must not start a formula.
    if len(rows) <= 60:
        axes.set_yticks(list(rows.values()), [printable(node) for node in rows], parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(printable(title), loc="left", parse_math=False)
    handles = [
        Patch(
            facecolor=style.color,
            hatch=hatches[style.pattern],
            edgecolor="#00000066",
            label=printable(f"{style.letter}  {job.label}"),
        )
        for job, style in zip(timeline.jobs[:20], styles.values(), strict=False)
    ]
    handles.append(Patch(facecolor="#e6e9ec", label="no named job"))
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    for label in legend.get_texts():
        label.set_parse_math(False)
    return figure
