"""Coupling: the flows of coupled programs, and where their analyses run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from dask.utils import format_bytes

from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, bounded, text
from dask_hpc_widgets.views.view import Picture, View

#: Flows beyond these, and analyses of one flow, are counted and not shown.
_MAX_ROWS, _MAX_ANALYSES = 20, 5
_EMPTY = "No program is coupled. rt.couple(name, fields) declares a flow that one hands its steps over to."
_FLOWS: tuple[Column, ...] = (
    ("Flow", False),
    ("State", False),
    ("Sources", True),
    ("Steps", True),
    ("In flight", True),
    ("Handed over", True),
    ("Analyses", False),
    ("Latest step", False),
)
_FULL = {
    "wait": "then programs wait",
    "drop-oldest": "then the oldest is left out",
    "drop-newest": "then the newest is left out",
}
_WHERE = {"auto": "where most blocks are", "in-situ": "in situ", "in-transit": "in transit"}


def html(picture: Picture) -> Markup:
    """A row a flow."""
    return table(picture).html(0.0)


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    flows = picture.section("coupling")
    if not flows:
        return Table(caption="Coupling", cells=list, note=_EMPTY)
    rows = bounded(flows, _MAX_ROWS, "rt.flows()", itemgetter("name"))
    return Table(caption="Flows of coupled programs", columns=_FLOWS, cells=_flow, **rows)


def _flow(row: Mapping[str, Any]) -> list[Cell]:
    size, names = row["size"], list(row["analyses"])
    analyses: Cell = []
    for name in names[:_MAX_ANALYSES]:
        analyses += ["; "] * bool(analyses) + _analysis(row, name)
    if (hidden := len(names) - _MAX_ANALYSES) > 0:
        analyses.append(f"; and {hidden} more")
    when_full = text(_FULL.get(row["when_full"], row["when_full"]))
    return [
        [["strong", text(row["name"])]],
        [["badge", text(row["state"])], f" {text(row['reason'])}" if row["reason"] else ""],
        [str(row["sources"]) if size is None else f"{row['sources']} of {size}"],
        [str(row["steps"])],
        [f"{row['in_flight']} of {row['queue']}, {when_full}"],
        [format_bytes(row["bytes"])],
        analyses,
        [_latest(row.get("latest", []))],
    ]


def _latest(steps: Sequence[Mapping[str, Any]]) -> str:
    """How long the latest step took whose values were computed, and how much of that in situ."""
    for one in reversed(steps):
        if one["step_s"] is not None and (share := one["in_situ_work_share"]) is not None:
            idle = f", {one['idle_helper_core_s']:.3g} core s of helpers idle" if one["helper_cores"] else ""
            return f"{one['step_s']:.3g} s, {share:.0%} of work in situ{idle}"
    return ""


def _analysis(row: Mapping[str, Any], name: str) -> Cell:
    said = row["analyses"][name]
    # what a policy has chosen, if one has
    where = row.get("split", {}).get(name, said["where"])
    steps = "each step" if said["window"] == 1 else f"{said['window']} steps"
    if said["every"] > 1:
        steps = f"{steps}, at one of {said['every']}"
    return [["strong", text(name)], f" {text(_WHERE.get(where, where))}, {steps}"]


VIEW = View(name="coupling", title="Coupling", section="coupling", html=html, table=table)
