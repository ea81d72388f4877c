"""Decisions: what was done or turned down, when, for whom, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import escape
from dask_hpc_widgets.views.view import Picture, View

#: The latest of these are shown.
MAX_ROWS = 30
_COLUMNS: tuple[markup.Column, ...] = (
    ("When", False),
    ("Job", False),
    ("What", False),
    ("Result", False),
    ("Why", False),
)


def html(picture: Picture) -> str:
    """A table of the latest decisions, newest first."""
    if not picture.decisions:
        return markup.soft("Nothing was decided yet: the policy is asked when there is a job.")
    return table(picture.decisions[-MAX_ROWS:], float(picture.status.get("now_s", 0.0)))


def table(rows: Iterable[Mapping[str, Any]], now_s: float) -> str:
    """Rows as `Runtime.decisions` gives them, newest first."""
    return markup.table(
        _COLUMNS, [_row(row, now_s) for row in reversed(list(rows))], "Decisions, newest first"
    )


def _row(row: Mapping[str, Any], now_s: float) -> list[str]:
    took = "" if row["latency_s"] is None else f" in {markup.seconds(row['latency_s'])}"
    size = "" if row["nodes"] is None else f" to {row['nodes']} node{'' if row['nodes'] == 1 else 's'}"
    return [
        escape(f"{markup.roughly(max(0.0, now_s - row['t_s']))} ago"),
        escape(row["job"] or "all"),
        escape(f"{row['action']}{size}"),
        markup.badge(f"{row['result']}{took}"),
        f"{escape(row['reason'])} <span>({escape(row['reason_code'])}, on {escape(row['trigger'])})</span>",
    ]


VIEW = View(name="decisions", title="Decisions", html=html)
