"""One figure of a study: a panel for each metric, with what was published.

Needs matplotlib, the extra ``plot``; importing this module without it raises an ImportError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_hpc.sim.results.plots import COLOURS, as_written, save
from dask_hpc.sim.study.findings import Findings
from dask_hpc.sim.study.metrics import METRICS
from dask_hpc.sim.study.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def study_figure(found: Findings, path: Path) -> None:
    """Write the figure of `found` into `path`.

    Raises
    ------
    WorkloadError
        When the file cannot be written, or matplotlib does not know its kind.
    """
    save(figure_of(found), path)


def figure_of(found: Findings) -> Figure:
    """The figure of `found`.

    A factor of several numbers runs along the axis, a line for each policy with the spread of its runs;
    without one there is a bar for each row. Crosses are published values of the same metric.
    """
    from matplotlib.figure import Figure

    metrics = [name for name in found.study.metrics if not METRICS[name].by_job]
    along = _along(found.study.sign_change, found.rows)
    count = max(1, len(metrics))
    # rows of bars share their names; lines have room below each other
    shape = (1, count) if along is None else (-(-count // 2), min(count, 2))
    height = 1.5 + 0.25 * len(found.rows) if along is None else 3.8 * shape[0]
    figure = Figure(
        figsize=(2.0 + 2.8 * count if along is None else 5.5 * shape[1], height), layout="constrained"
    )
    first = None
    for place, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(*shape, place, sharey=first if along is None else None)
        if along is None:
            first = first or axes
            _bars(axes, found, metric)
            axes.tick_params(axis="y", labelleft=axes is first)
        else:
            _lines(axes, found, metric, along)
        axes.set_title(METRICS[metric].heading.lower())
    # one legend for all panels, each name once
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        columns = min(5, len(named))
        legend = figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)
        as_written(legend.get_texts())
    figure.suptitle(found.study.name, parse_math=False)
    return figure


def _along(wanted: str | None, rows: Sequence[Row]) -> str | None:
    """The factor along the axis: the one the study follows, else the first with three numbers or more."""
    names = dict.fromkeys(name for row in rows for name in row.factors)
    for name in ([wanted] if wanted is not None else []) + list(names):
        values = {row.factors.get(name) for row in rows} - {None}
        if len(values) > 2 and all(isinstance(value, (int, float)) for value in values):
            return name
    return None


def _name(row: Row, rows: Sequence[Row], without: str | None = None) -> str:
    parts = [row.policy] if len({one.workload for one in rows}) == 1 else [row.policy, row.workload]
    parts += [
        f"{name.removeprefix('param.').removeprefix('option.')} {value}"
        for name, value in row.factors.items()
        if name != without and len({one.factors.get(name) for one in rows}) > 1
    ]
    return ", ".join(parts)


def _bars(axes: Any, found: Findings, metric: str) -> None:
    rows = found.rows
    heights, below, above = [], [], []
    for row in rows:
        values = row.values(metric)
        middle = row.statistic(metric)
        height = middle if isinstance(middle, (int, float)) else 0.0
        heights.append(height)
        below.append(height - min(values, default=height))
        above.append(max(values, default=height) - height)
    places = range(len(rows))
    axes.barh(places, heights, xerr=(below, above), color=COLOURS[0], ecolor="#333333", capsize=2)
    marks = [
        (one.published, place)
        for one in found.published
        for place, row in enumerate(rows)
        if one.of == metric and dict(one.place) == row.place
    ]
    if marks:
        axes.plot(*zip(*marks, strict=True), "x", color=COLOURS[1], label="published")
    names = [_name(row, rows) for row in rows]
    axes.set_yticks(places, names, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _lines(axes: Any, found: Findings, metric: str, along: str) -> None:
    rows = found.rows
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_name(row, rows, without=along), []).append(row)
    marked = False
    for number, (name, group) in enumerate(groups.items()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = [row for row in group if row.values(metric)]
        steps = sorted((row for row in drawn if along in row.factors), key=lambda row: row.factors[along])
        for row in drawn:
            if along not in row.factors:
                axes.axhline(row.statistic(metric), color=colour, linestyle="--", label=name)
        if steps:
            x = [row.factors[along] for row in steps]
            axes.plot(x, [row.statistic(metric) for row in steps], "o-", color=colour, label=name)
            low, high = ([edge(row.values(metric)) for row in steps] for edge in (min, max))
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    for one in found.published:
        if one.of == metric and along in one.place:
            label = None if marked else "published"
            axes.plot(one.place[along], one.published, "x", color="#000000", label=label)
            marked = True
    axes.set_xlabel(along)
