"""Decisions: what was done or turned down, when, for whom, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.view import Picture, View

#: The latest of these are shown.
MAX_ROWS = 30
_COLUMNS: tuple[Column, ...] = (
    ("When", False),
    ("Job", False),
    ("What", False),
    ("Result", False),
    ("Why", False),
)


def html(picture: Picture) -> Markup:
    """A table of the latest decisions, newest first."""
    if not picture.decisions:
        return markup.soft("Nothing was decided yet: the policy is asked when there is a job.")
    return table(picture.decisions[-MAX_ROWS:], float(picture.status.get("now_s", 0.0)))


def table(rows: Iterable[Mapping[str, Any]], now_s: float) -> Markup:
    """Rows as `Runtime.decisions` gives them, newest first."""
    return markup.table(
        _COLUMNS, [_row(row, now_s) for row in reversed(list(rows))], "Decisions, newest first"
    )


def _row(row: Mapping[str, Any], now_s: float) -> list[str]:
    took = "" if row["latency_s"] is None else f" in {markup.seconds(row['latency_s'])}"
    size = "" if row["nodes"] is None else f" to {row['nodes']} node{'' if row['nodes'] == 1 else 's'}"
    return [
        f"{markup.roughly(max(0.0, now_s - row['t_s']))} ago",
        markup.letter(row["job"]) + f" {row['job']}" if row["job"] else "all",
        f"{row['action']}{size}",
        markup.badge(f"{row['result']}{took}"),
        _why(row),
    ]


def _why(row: Mapping[str, Any]) -> Markup:
    called = markup.element("span", f"({row['reason_code']}, on {row['trigger']})")
    return Markup("{} {}").format(row["reason"], called)


VIEW = View(name="decisions", title="Decisions", section="decisions", html=html)
