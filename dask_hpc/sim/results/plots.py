"""Plots of runs: node map, jobs over time, use of nodes, intensities, and several runs side by side.

Needs matplotlib, the extra ``plot``; importing this module without it raises an ImportError.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_hpc.errors import WorkloadError
from dask_hpc.report.figure import NEEDS, spans_figure
from dask_hpc.sim.results.series import utilization
from dask_hpc.sim.results.tracking import intensity

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(NEEDS) from error

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result

#: Told apart by readers who do not see all colours (Tol, 2021).
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_WAITS = "#dddddd"
#: Bars of a rate over time.
_STRETCHES = 200
#: Stretches of time in `waits_figure`; lines that are told apart without colours.
_WINDOWS, _STYLES = 24, ("-", "--", "-.", ":")
#: Of a title that fits above a panel of `usage_figure`.
_TITLE_CHARACTERS = 55
#: Longest time, in seconds, that is drawn in a unit of so many seconds.
_UNITS = (
    (300.0, 1.0, "s"),
    (3 * 3600.0, 60.0, "min"),
    (3 * 86_400.0, 3600.0, "h"),
    (math.inf, 86_400.0, "d"),
)


def run_figures(result: Result, folder: Path) -> list[str]:
    """Write the plots of one run into `folder`; returns their names."""
    figures = {"jobs.png": jobs_figure(result)}
    if result.node_log:
        figures["node_map.png"] = node_map_figure(result)
    if tracked := list(intensity(result)):
        figures["intensity.png"] = intensity_figure(result, tracked)
    for name, figure in figures.items():
        save(figure, folder / name)
    return list(figures)


def node_map_figure(result: Result) -> Figure:
    """One row a node over time, filled by the job that holds it, as in the report of a live run."""
    return spans_figure(result.spans(), f"{result.workload.name}, {result.policy['policy']}")


def jobs_figure(result: Result) -> Figure:
    """Waiting and running time of every job above, nodes held below."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    spans = result.spans()
    styles, rows = spans.looks(), {job: index for index, job in enumerate(spans.labels)}
    for span in spans.job_spans:
        colour = styles[span.job].color if span.nodes else _WAITS
        above.barh(rows[span.job], span.end_s - span.start_s, left=span.start_s, height=0.8, color=colour)
    above.set_ylabel("job")
    _head(above, result, ": waiting, running")
    above.invert_yaxis()
    steps = list(utilization(result))
    below.step([step[0] for step in steps], [step[1] for step in steps], where="post", color=COLOURS[0])
    below.set(xlabel="time (s)", ylabel="nodes held", ylim=(0, result.machine.nodes * 1.05))
    return figure


def intensity_figure(result: Result, tracked: Sequence[tuple[float, float, float]]) -> Figure:
    """I/O intensity of the running mix and of the workload above (`intensity`), file-system use below."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    times = [step[0] for step in tracked]
    running, whole = ([step[i] for step in tracked] for i in (1, 2))
    above.step(times, running, where="post", color=COLOURS[0], label="running jobs")
    above.step(times, whole, where="post", color=COLOURS[1], label="all jobs, waiting ones too")
    above.set_ylabel("share of time in I/O")
    _head(above, result)
    above.legend()
    if len(result.file_system) > 1:
        edges, rates = _means(result.file_system)
        below.stairs([rate / 1e9 for rate in rates], edges, fill=True, color=COLOURS[2])
    below.set(xlabel="time (s)", ylabel="file system, mean (GB/s)")
    return figure


def as_written(texts: Iterable[Any]) -> None:
    """Have texts of a figure shown as they are: names come from users, and may have dollar signs."""
    for text in texts:
        text.set_parse_math(False)


def _head(axes: Any, result: Result, more: str = "") -> None:
    axes.set_title(f"{result.workload.name}, {result.policy['policy']}{more}", parse_math=False)


def _means(series: Sequence[tuple[float, float, float]]) -> tuple[list[float], list[float]]:
    """Edges of equal stretches of time, and the mean rate in each: single transfers are too short to see."""
    return _stretches([row[0] for row in series], [row[1] + row[2] for row in series])


def _stretches(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Edges of equal stretches of time, and the mean in each of what has `values` from `times` on."""
    summed = np.concatenate(([0.0], np.cumsum(np.array(values[:-1]) * np.diff(times))))
    edges = np.linspace(times[0], times[-1], _STRETCHES + 1)
    means = np.diff(np.interp(edges, times, summed)) / np.diff(edges)
    return edges.tolist(), means.tolist()


def usage_figure(results: Mapping[str, Result]) -> Figure:
    """Nodes in use over time, from the first submission on: a panel for each run, by title, on common axes.

    Where there are more changes than can be seen, means of equal stretches of time are drawn.
    """
    series = {title: list(utilization(result)) for title, result in results.items()}
    longest_s = max((steps[-1][0] - steps[0][0] for steps in series.values() if steps), default=0.0)
    unit_s, unit = _unit(longest_s)
    figure = Figure(figsize=(5, 0.6 + len(results)), layout="constrained")
    rows = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for i, (axes, (title, result)) in enumerate(zip(rows, results.items(), strict=True)):
        steps = series[title]
        times = [(step[0] - steps[0][0]) / unit_s for step in steps]
        held: list[float] = [step[1] for step in steps]
        if len(times) > 2 * _STRETCHES:
            times, held = _stretches(times, held)
        else:
            held = held[:-1]
        if held:
            axes.stairs(held, times, fill=True, color=COLOURS[i % len(COLOURS)])
        text = textwrap.fill(title, _TITLE_CHARACTERS)
        axes.set_title(text, loc="left", fontsize="medium", parse_math=False)
        nodes = result.machine.nodes
        axes.set(ylabel="nodes", ylim=(0, nodes * 1.05), yticks=(0, nodes))
    rows[-1].set_xlabel(f"time ({unit})")
    return figure


def waits_figure(results: Mapping[str, Result]) -> Figure:
    """Jobs that wait over time above; below how long jobs waited, by the time of their submission.

    Below there is, of the jobs submitted in each of at most `_WINDOWS` equal stretches of time, the median as
    a line, and the range that holds nine in ten as a band. Times count from the first submission.
    """
    series = {title: list(utilization(result)) for title, result in results.items()}
    unit_s, unit = _unit(max((steps[-1][0] - steps[0][0] for steps in series.values() if steps), default=0.0))
    waits = {title: _waits(result) for title, result in results.items()}
    wait_unit_s, wait_unit = _unit(max((high for rows in waits.values() for *_, high in rows), default=0.0))
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for i, title in enumerate(results):
        colour, style, steps = COLOURS[i % len(COLOURS)], _STYLES[i % len(_STYLES)], series[title]
        times = [(step[0] - steps[0][0]) / unit_s for step in steps]
        above.step(times, [step[3] for step in steps], where="post", color=colour, ls=style, label=title)
        middles = [row[0] / unit_s for row in waits[title]]
        low, median, high = ([row[k] / wait_unit_s for row in waits[title]] for k in (1, 2, 3))
        below.plot(middles, median, color=colour, ls=style, marker=".")
        below.fill_between(middles, low, high, color=colour, alpha=0.15, linewidth=0)
    above.set(ylabel="jobs that wait", ylim=(0, None))
    as_written(above.legend(fontsize="small").get_texts())
    below.set(xlabel=f"time ({unit})", ylabel=f"wait of jobs\nsubmitted then ({wait_unit})", ylim=(0, None))
    return figure


def _waits(result: Result) -> list[tuple[float, float, float, float]]:
    """Middle of a stretch of time, and the 5, 50 and 95 % quantiles of the waits of jobs submitted in it."""
    known = [(run.submit_s, run.wait_s) for run in result.runs if run.wait_s is not None]
    if not known:
        return []
    submits, waits = (np.array(column) for column in zip(*known, strict=True))
    submits = submits - submits.min()
    edges = np.linspace(0.0, max(float(submits.max()), 1e-9), min(_WINDOWS, len(known)) + 1)
    places = np.clip(np.searchsorted(edges, submits, side="right") - 1, 0, len(edges) - 2)
    return [
        ((edges[place] + edges[place + 1]) / 2, *np.quantile(waits[places == place], (0.05, 0.5, 0.95)))
        for place in np.unique(places)
    ]


def _unit(longest_s: float) -> tuple[float, str]:
    """Seconds and name of the unit that such a time is drawn in."""
    return next((in_s, name) for limit_s, in_s, name in _UNITS if longest_s <= limit_s)


def png(figure: Figure) -> bytes:
    """`figure` as the bytes of a PNG file."""
    canvas: Any = FigureCanvasAgg(figure)
    file = io.BytesIO()
    canvas.print_figure(file, format="png", dpi=150)
    return file.getvalue()


def compare_figure(results: Sequence[tuple[str, Result]], path: Path) -> None:
    """Write makespans, and waits and turnarounds as box plots, of several runs into `path`.

    Raises
    ------
    WorkloadError
        When the file cannot be written, or matplotlib does not know its kind.
    """
    names = [name for name, _ in results]
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    spans, waits, turnarounds = figure.subplots(1, 3)
    places = range(1, len(names) + 1)
    spans.bar(places, [result.metrics(jobs=False)["makespan_s"] or 0.0 for _, result in results])
    spans.set_title("makespan (s)")
    for axes, title, attribute in (
        (waits, "wait (s)", "wait_s"),
        (turnarounds, "turnaround (s)", "turnaround_s"),
    ):
        values: list[list[float]] = [
            [value for run in result.runs if (value := getattr(run, attribute)) is not None]
            for _, result in results
        ]
        axes.boxplot(values, showmeans=True, showfliers=False)
        axes.set_title(title)
    for axes in (spans, waits, turnarounds):
        axes.set_xticks(places, names, parse_math=False)
        axes.tick_params(axis="x", rotation=30)
    save(figure, path)


def check_path(path: Path, made: Path | None = None) -> None:
    """See whether a figure can be written into `path`: asked before hours are spent on what it shows.

    Parameters
    ----------
    made
        A folder that is made until then, with what is written beside the figure.

    Raises
    ------
    WorkloadError
        As `save`, and for a name that does not say the kind.
    """
    kinds = sorted(FigureCanvasAgg.get_supported_filetypes())
    why = ""
    if path.suffix.removeprefix(".").lower() not in kinds:
        why = f"its name must end in one of {', '.join(f'.{kind}' for kind in kinds)}"
    elif not path.parent.exists() and made is not None and path.parent.resolve() == made.resolve():
        pass
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    if why:
        raise WorkloadError(f"{path}: the figure cannot be written: {why}")


def save(figure: Figure, path: Path) -> None:
    """Write `figure` into `path`.

    Raises
    ------
    WorkloadError
        When the file cannot be written, or matplotlib does not know its kind.
    """
    canvas: Any = FigureCanvasAgg(figure)
    try:
        canvas.print_figure(path, dpi=120)
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{path}: the figure cannot be written: {error}") from None
