"""Decisions: what was done or turned down, when, for whom, and why."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, letter, text
from dask_hpc_widgets.views.view import Picture, View

#: The latest of these are shown.
MAX_ROWS = 30
#: Jobs of a row that are named.
_NAMED = 4
_NONE = "Nothing was decided yet: the policy is asked when there is a job."
_what = itemgetter("action", "nodes", "result", "reason_code", "reason")
_shown = itemgetter("t_s", "action", "nodes", "result", "latency_s", "reason")
_COLUMNS: tuple[Column, ...] = (
    ("When", False),
    ("Job", False),
    ("What", False),
    ("Result", False),
    ("Why", False),
)


def html(picture: Picture) -> Markup:
    """A table of the latest decisions, newest first; those that repeat are one row."""
    if not picture.decisions:
        return markup.soft(_NONE)
    return table(picture).html(float(picture.status.get("now_s", 0.0)))


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    groups: dict[Hashable, list[Mapping[str, Any]]] = {}
    for row in reversed(picture.decisions):
        groups.setdefault(_key(row), []).append(row)
    rows = {key: tuple(_brief(group)) for key, group in list(groups.items())[:MAX_ROWS]}
    return Table(
        caption="Decisions, newest first",
        columns=_COLUMNS,
        rows=rows,
        cells=_cells,
        note="" if rows else _NONE,
    )


def _key(row: Mapping[str, Any]) -> Hashable:
    """What repeats: jobs that are held for one reason, and jobs of one pass with which the same was done."""
    what = _what(row)
    return what if row["result"] == "held" else (*what, row["t_s"], row["trigger"], row["job"] is None)


def _brief(group: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The newest of a group, and its jobs, each once: how many, and the first."""
    newest = group[0]
    jobs = list(dict.fromkeys([row["job"] for row in group if row["job"]]))
    return [*_shown(newest), newest["reason_code"], newest["trigger"], len(jobs), tuple(jobs[:_NAMED])]


def _cells(fields: Sequence[Any]) -> list[Cell]:
    t_s, action, nodes, result, latency_s, reason, code, trigger, count, jobs = fields
    took = "" if latency_s is None else f" in {markup.seconds(latency_s)}"
    size = "" if nodes is None else f" to {nodes} node{'' if nodes == 1 else 's'}"
    who: Cell = [["strong", f"{count} jobs"], ": "] if count > 1 else [] if jobs else ["all"]
    for i, job in enumerate(jobs):
        who += [*([", "] if i else []), letter(job), f" {text(job)}"]
    if count > len(jobs):
        who.append(f" and {count - len(jobs)} more")
    called = f"({code}, on {trigger})"
    return [
        [["ago", t_s]],
        who,
        [text(f"{action}{size}")],
        [["badge", text(f"{result}{took}")]],
        [text(reason), " ", ["soft", text(called)]],
    ]


VIEW = View(name="decisions", title="Decisions", section="decisions", html=html, table=table)
