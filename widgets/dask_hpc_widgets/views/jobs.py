"""Jobs: what each is called, its state and size, what is left to do, and why it is as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.view import Picture, View

#: Ended jobs beyond these are counted and not shown.
_MAX_ENDED = 10
_MAX_ACTIVE = 100
_ENDED = ("completed", "failed", "cancelled")
_COLUMNS: tuple[Column, ...] = (
    ("Job", False),
    ("State", False),
    ("Nodes", False),
    ("Tasks", False),
    ("Waited", True),
    ("Running", True),
    ("Resizes", False),
    ("Why", False),
)


def html(picture: Picture) -> Markup:
    """A table with a row a job: active ones in order of submission, then the ended ones, newest first."""
    now_s = float(picture.status.get("now_s", 0.0))
    active = [job for job in picture.jobs if job["state"] not in _ENDED]
    ended = [job for job in picture.jobs if job["state"] in _ENDED]
    newest = sorted(ended, key=lambda job: job["end_s"] or 0.0, reverse=True)[:_MAX_ENDED]
    if not active and not ended:
        return markup.soft(
            "No job yet. Declare one: with runtime.job('name', min_nodes=1, max_nodes=4): ... "
            "Plain Dask code runs as ever."
        )
    rows = [row(job, now_s) for job in (*active[:_MAX_ACTIVE], *newest)]
    hidden = len(active) + max(len(ended), picture.ended_jobs) - len(rows)
    more = markup.soft(f"{hidden} more jobs are not shown; runtime.jobs() has all.") if hidden else ""
    return markup.table(_COLUMNS, rows, "Jobs") + more


def row(job: Mapping[str, Any], now_s: float) -> list[str]:
    """The cells of one job, as `Runtime.jobs` tells of it."""
    return [
        markup.named(job["name"], job["id"]),
        markup.badge(job["state"]),
        _size(job),
        _tasks(job),
        markup.roughly(job["wait_s"] if job["wait_s"] is not None else _since(job["submit_s"], now_s)),
        markup.roughly(_ran(job, now_s), "not started"),
        _resizes(job),
        job["reason"],
    ]


def one(job: Mapping[str, Any], now_s: float) -> Markup:
    """A table of one job alone."""
    return markup.table(_COLUMNS, [row(job, now_s)], f"Job {job['id']}")


def _since(t_s: float | None, now_s: float) -> float | None:
    return None if t_s is None else max(0.0, now_s - t_s)


def _ran(job: Mapping[str, Any], now_s: float) -> float | None:
    if job["start_s"] is None:
        return None
    return float(job["end_s"] - job["start_s"]) if job["end_s"] is not None else _since(job["start_s"], now_s)


def _size(job: Mapping[str, Any]) -> Markup:
    low, high = job["min_nodes"], job["max_nodes"]
    bounds = f"always {high}" if job["kind"] == "rigid" or low == high else f"{low} to {high}"
    constraint = "" if job["constraint"] == "any" else f", {job['constraint']}"
    below = " below its minimum" if job["below_minimum"] else ""
    bar = markup.bar(job["nodes"] / high) if high and job["state"] not in _ENDED else Markup()
    return bar + f"{job['nodes']}{below} ({job['kind']}: {bounds}{constraint})"


def _tasks(job: Mapping[str, Any]) -> str:
    parts = [
        f"{job[key]} {word}"
        for key, word in (
            ("processing_tasks", "on workers"),
            ("held_tasks", "held"),
            ("unfinished_tasks", "unfinished"),
            ("lent_tasks", "of others on its nodes so far"),
            ("borrowed_tasks", "on nodes of others so far"),
        )
        if job.get(key)
    ]
    return ", ".join(parts) or "none left"


def _resizes(job: Mapping[str, Any]) -> str:
    parts: Sequence[str] = [
        f"{job[key]} {word}" for key, word in (("expansions", "up"), ("shrinks", "down")) if job[key]
    ]
    return ", ".join(parts) or "none"


VIEW = View(name="jobs", title="Jobs", section="jobs", html=html)
