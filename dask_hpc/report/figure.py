"""Who held which node when as matplotlib figures, for documents that cannot hold HTML, and to compare runs.

figure = compared_figure({"as it ran": rt.timeline().spans, "fcfs, simulated": result.spans()})
figure.savefig("nodes.png", dpi=150)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.report.coarse import coarse, each
from dask_hpc.report.looks import looks, printable
from dask_hpc.report.spans import DRAINING, LOST, Spans
from dask_hpc.report.svg import TEXT_WIDTH, most_drawn_w
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is said where matplotlib is missing.
NEEDS = "a figure needs matplotlib: pip install 'dask-hpc[plot]'"
#: Hatches in the order of `dask_hpc.report.looks.PATTERNS`.
_HATCHES = ("", "///", "---", "|||", "\\\\\\", "...")
_EDGE = "#00000066"
#: Jobs that the legend names.
_LEGEND = 20
#: With more rows than these none carries text.
TEXT_ROWS = 60


def draw_spans(axes: Any, spans: Spans) -> None:
    """Draw one row a node over time, the first on top, filled by the job that holds it.

    What is predicted is pale, right of a line. `axes` are of matplotlib.
    """
    few = len(spans.nodes) <= TEXT_ROWS
    styles, rows = spans.looks(), {node: index for index, node in enumerate(spans.nodes)}
    for span in spans.node_spans:
        look = None if span.job is None else styles.get(span.job)
        row, width, lost = rows[span.node], span.end_s - span.start_s, span.state == LOST
        axes.barh(
            row,
            width,
            left=span.start_s,
            height=0.92 if few else 1.0,
            color="white" if lost or not look else look.color,
            hatch="xx" if lost else _HATCHES[look.pattern_index] if look else "",
            edgecolor=_EDGE,
            linestyle="--" if span.state == DRAINING else "-",
            linewidth=0.8 if few else 0.0,
        )
        text = "lost" if lost else look.letter if look else ""
        if text and width > TEXT_WIDTH * (spans.end_s - spans.start_s) and few:
            axes.text(
                span.start_s + width / 2,
                row,
                text,
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
            )
    for end in spans.ends:
        # on the first row that it is on at last
        own = [span for span in spans.node_spans if span.job == end.job]
        last_s = max((span.end_s for span in own), default=0.0)
        for row in sorted(rows[span.node] for span in own if span.end_s == last_s)[:1]:
            axes.plot([end.low_s, end.high_s], [row, row], color="black", marker="|", markersize=6, zorder=5)
            axes.plot([end.expected_s], [row], color="black", marker="|", markersize=12, zorder=5)
    if spans.now_s is not None:
        axes.axvspan(spans.now_s, spans.end_s, color="white", alpha=0.5, zorder=3, linewidth=0)
        axes.axvline(spans.now_s, color="black", linestyle=":", zorder=4)
        axes.annotate(" predicted", (spans.now_s, 1), xycoords=("data", "axes fraction"), va="bottom")
    axes.set_xlabel("time (s)")
    axes.set_xlim(spans.start_s, max(spans.end_s, spans.start_s + 1e-3))
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    # parse_math: a dollar sign in a name must not start a formula.
    if few:
        axes.set_yticks(list(rows.values()), [printable(node) for node in rows], parse_math=False)


def _draw_power(axes: Any, spans: Spans) -> None:
    """Draw what was drawn, the bounds, and what was expected."""
    top_w = most_drawn_w(spans)
    for span in spans.power:
        ends = [span.start_s, span.end_s]
        if span.min_w is not None and span.max_w is not None:
            axes.fill_between(ends, span.min_w, span.max_w, color="#9ecae1", linewidth=0)
        for bound_w in (span.lower_w, span.upper_w):
            if bound_w is not None and 0 < bound_w <= top_w:
                axes.plot(ends, [bound_w, bound_w], color="black", linestyle="--", linewidth=1)
    if any(span.watts is not None for span in spans.power):
        times = [t_s for span in spans.power for t_s in (span.start_s, span.end_s)]
        watts = [span.watts if span.watts is not None else float("nan") for span in spans.power for _ in "ab"]
        axes.plot(times, watts, color="#1f77b4")
    axes.set_ylim(0, 1.05 * top_w)
    axes.set_ylabel("W")
    axes.set_xlabel("time (s)")
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
    return spans_figure(build_timeline(records).spans, title)


def spans_figure(spans: Spans, title: str = "") -> Figure:
    """One row a node over time, filled by the job that holds it, with a legend.

    Raises
    ------
    ImportError
        When matplotlib is missing; the extra ``plot`` brings it.
    """
    return _figure({title: spans})


def compared_figure(runs: Mapping[str, Spans]) -> Figure:
    """Runs of the same jobs below each other, on one axis of time that begins with the first submission.

    Parameters
    ----------
    runs
        By what each is called: ``rt.timeline().spans``, ``result.spans()`` of the simulator. A job has one
        colour in all, where it has one id in all.

    Raises
    ------
    ImportError
        When matplotlib is missing; the extra ``plot`` brings it.
    """
    return _figure({title: spans.shifted(-_submitted(spans)) for title, spans in runs.items()})


def _submitted(spans: Spans) -> float:
    return min((span.start_s for span in spans.job_spans), default=spans.start_s)


def _figure(runs: Mapping[str, Spans]) -> Figure:
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError(NEEDS) from error
    rows = [max(1, min(len(spans.nodes), TEXT_ROWS)) for spans in runs.values()]
    figure = Figure(figsize=(10, 0.6 + len(rows) + 0.32 * sum(rows)), layout="constrained")
    several = len(runs) > 1
    powered = [spans for spans in runs.values() if spans.power and not several]
    heights = [*rows, *(4 for _ in powered)]
    if powered:
        figure.set_size_inches(10, 1.2 + figure.get_figheight())
    all_axes = figure.subplots(len(heights), sharex=len(heights) > 1, squeeze=False, height_ratios=heights)[
        :, 0
    ]
    first_s = 0.0 if several else min(spans.start_s for spans in runs.values())
    end_s = max([first_s + 1e-3, *(spans.end_s for spans in runs.values())])
    labels: dict[str, str] = {}
    for axes, (title, spans) in zip(all_axes, runs.items(), strict=False):
        # a bar takes milliseconds, and thousands of nodes would have many each
        draw_spans(axes, coarse(spans))
        if (many := each(spans)) > 1:
            axes.set_ylabel(f"{many} nodes a row")
        axes.set_xlim(first_s, end_s)
        axes.label_outer()
        if title:
            # above the word that says where the prediction begins
            pad = None if spans.now_s is None else 16
            axes.set_title(printable(title), loc="left", parse_math=False, pad=pad)
        labels |= spans.labels
    for axes, spans in zip(all_axes[len(rows) :], powered, strict=True):
        _draw_power(axes, spans)
    handles = [
        Patch(
            facecolor=style.color,
            hatch=_HATCHES[style.pattern_index],
            edgecolor=_EDGE,
            label=printable(f"{style.letter}  {labels[job]}"),
        )
        for job, style in list(looks(labels).items())[:_LEGEND]
    ]
    handles.append(Patch(facecolor="white", edgecolor=_EDGE, label="no named job"))
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    for label in legend.get_texts():
        label.set_parse_math(False)
    return figure
