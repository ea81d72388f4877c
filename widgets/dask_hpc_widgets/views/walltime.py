"""Walltime: which nodes end when, and whom that concerns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.view import Picture, View

#: Nodes beyond these, those with the most time, are not shown.
_MAX_ROWS = 32
_COLUMNS: tuple[Column, ...] = (
    ("Node", False),
    ("Walltime left", False),
    ("Job", False),
    ("State", False),
)


def html(picture: Picture) -> Markup:
    """A table of the nodes that have a walltime, the next to end first."""
    nodes = picture.status.get("nodes", ())
    limited = [node for node in nodes if node["walltime_left_s"] is not None]
    if not limited:
        many = (
            f"None of {len(nodes)} nodes has a walltime" if nodes else "No node is known to have a walltime"
        )
        return markup.soft(f"{many}: they stay until they are released.")
    names = {job["id"]: job["name"] or job["id"] for job in picture.jobs}
    longest_s = max(1.0, *(node["walltime_left_s"] for node in limited))
    ordered = sorted(limited, key=lambda node: float(node["walltime_left_s"]))
    rows = [_row(node, names, longest_s) for node in ordered[:_MAX_ROWS]]
    hidden = len(limited) - len(rows)
    more = markup.soft(f"{hidden} nodes with more time are not shown.") if hidden else ""
    return markup.table(_COLUMNS, rows, "Walltime left of nodes") + more


def _row(node: Mapping[str, Any], names: Mapping[str, str], longest_s: float) -> list[str]:
    left_s, job = node["walltime_left_s"], node["job"]
    return [
        node["id"],
        markup.bar(left_s / longest_s) + markup.roughly(left_s),
        markup.letter(job) + f" {names.get(job, job)}" if job else "no job",
        markup.badge(node["state"]),
    ]


VIEW = View(name="walltime", title="Walltime", section="nodes", html=html)
