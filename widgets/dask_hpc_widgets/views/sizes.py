"""Sizes: how many nodes each job has had over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from dask_hpc.report.looks import Look, looks
from dask_hpc.report.spans import JobSpan, job_spans
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, letter, text
from dask_hpc_widgets.views.view import Picture, View

#: Jobs beyond these, the oldest, are not shown.
_MAX_JOBS = 24
#: Least time that the chart spans, and the step in which it grows: a page that is watched changes seldom.
_LEAST_S, _STEP_S = 10.0, 2.0
#: Height of a row; a full row is the largest size of all jobs.
_HEIGHT = 24.0
_NONE = "No job has had a node yet."
_COLUMNS: tuple[Column, ...] = (("Job", False), ("Nodes over time", False), ("Nodes now", True))


class _Sizes:
    """Sizes over time, which are compared without looking at each: changes come at the end, old ones go."""

    __slots__ = ("_ends", "all")

    def __init__(self, sizes: Sequence[tuple[float, int]]) -> None:
        self.all = sizes
        self._ends = len(sizes), tuple(sizes[0]), tuple(sizes[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sizes) and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]


def html(picture: Picture) -> Markup:
    """A row a job, in order of its first start, all on one axis of time up to now."""
    shown = _shown(picture)
    if not shown:
        return markup.soft(_NONE)
    now_s = float(picture.status.get("now_s", 0.0))
    oldest_s = min(job["sizes"][0][0] for job in shown)
    age_s = max(_STEP_S, ceil((now_s - oldest_s) / _STEP_S) * _STEP_S)
    span_s = max(_LEAST_S, age_s)
    first_s = oldest_s + age_s - span_s
    most = max(nodes for job in shown for _, nodes in job["sizes"])
    styles = looks(job["id"] for job in picture.jobs)
    rows = [_row(styles[job["id"]], job, first_s, span_s, now_s, max(1, most)) for job in shown]
    axis = f"From {markup.seconds(span_s)} ago (left) to now (right); full height is {counted(most)}."
    return markup.soft(axis) + markup.table(_COLUMNS, rows, "Nodes of jobs over time")


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data; the browser draws the steps, on one axis of time up to now."""
    shown = _shown(picture)
    rows = {
        job["id"]: (job["id"], job["name"] or job["id"], job["nodes"], job.get("end_s"), _Sizes(job["sizes"]))
        for job in shown
    }
    note = "From the first start (left) to now (right), all on one scale." if shown else _NONE
    return Table(caption="Nodes of jobs over time", columns=_COLUMNS, rows=rows, cells=_cells, note=note)


def _cells(fields: Sequence[Any]) -> list[Cell]:
    id, name, nodes, end_s, sizes = fields
    look = letter(id)
    steps: list[int] = []
    told = 0
    for t_s, count in sizes.all:
        before, told = told, round(10 * t_s)
        steps += [told - before, count]
    end = None if end_s is None else round(end_s, 1)
    return [[look, f" {text(name)}"], [["steps", text(name), look[2], end, steps]], [str(nodes)]]


def _shown(picture: Picture) -> list[Mapping[str, Any]]:
    started = [job for job in picture.jobs if job.get("sizes")]
    return sorted(started, key=lambda job: float(job["sizes"][0][0]))[-_MAX_JOBS:]


def _row(
    look: Look, job: Mapping[str, Any], first_s: float, span_s: float, now_s: float, most: int
) -> list[str]:
    sizes: Sequence[tuple[float, int]] = job["sizes"]
    name = job["name"] or job["id"]
    told = "; ".join(
        f"{counted(int(nodes))} from {markup.roughly(max(0.0, now_s - t_s))} ago" for t_s, nodes in sizes
    )
    end_s = min(now_s, first_s + span_s)
    spans = job_spans(job["id"], sizes[0][0], sizes[0][0], job.get("end_s"), sizes, end_s)
    chart = markup.steps(f"{name}: {told}", _HEIGHT, _path(spans, first_s, span_s, most), look.color)
    return [markup.letter(job["id"], look) + f" {name}", chart, str(job["nodes"])]


def _path(spans: Sequence[JobSpan], first_s: float, span_s: float, most: int) -> str:
    """A closed outline below the steps."""

    def x(t_s: float) -> str:
        return f"{100 * min(1.0, max(0.0, (t_s - first_s) / span_s)):.1f}"

    if not spans:
        return ""
    steps = (f"H{x(span.start_s)}V{_HEIGHT * (1 - span.nodes / most):.1f}" for span in spans)
    return "".join([f"M{x(spans[0].start_s)} {_HEIGHT:g}", *steps, f"H{x(spans[-1].end_s)}V{_HEIGHT:g}Z"])


VIEW = View(name="sizes", title="Sizes over time", section="jobs", html=html, table=table)
