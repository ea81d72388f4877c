"""Walltime: which nodes end when, and whom that concerns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, letter, text
from dask_hpc_widgets.views.view import Picture, View

#: Nodes beyond these, those with the most time, are not shown.
_MAX_ROWS = 32
_left_s = itemgetter("walltime_left_s")
_COLUMNS: tuple[Column, ...] = (
    ("Node", False),
    ("Walltime left", False),
    ("Job", False),
    ("State", False),
)


def html(picture: Picture) -> Markup:
    """A table of the nodes that have a walltime, the next to end first."""
    return table(picture).html(float(picture.status.get("now_s", 0.0)))


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    nodes = picture.status.get("nodes", ())
    # there may be thousands, twice a second, most of them in this order: sorting is cheaper than a heap
    limited = sorted([node for node in nodes if node["walltime_left_s"] is not None], key=_left_s)
    names = {job["id"]: job["name"] or job["id"] for job in picture.jobs}
    longest_s = max(1.0, _left_s(limited[-1])) if limited else 1.0
    now_s = float(picture.status.get("now_s", 0.0))
    rows = {
        node["id"]: (
            node["id"],
            round(now_s + node["walltime_left_s"], 1),
            round(20 * node["walltime_left_s"] / longest_s) * 5,
            node["job"],
            names.get(node["job"], node["job"]),
            node["state"],
        )
        for node in limited[:_MAX_ROWS]
    }
    hidden = len(limited) - len(rows)
    note = f"{counted(hidden)} with more time not shown." if hidden else ""
    if not limited:
        many = f"{counted(len(nodes))}, none with" if nodes else "No node is known to have"
        note = f"{many} a walltime: each stays until it is released."
    return Table(caption="Walltime left of nodes", columns=_COLUMNS, rows=rows, cells=_cells, note=note)


def _cells(fields: Sequence[Any]) -> list[Cell]:
    node, end_s, percent, job, name, state = fields
    return [
        [text(node)],
        [["bar", percent], ["left", end_s]],
        [letter(job), f" {text(name)}"] if job else ["no job"],
        [["badge", text(state)]],
    ]


VIEW = View(name="walltime", title="Walltime", section="nodes", html=html, table=table)
