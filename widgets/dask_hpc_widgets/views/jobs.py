"""Jobs: what each is called, its state and size, what is left to do, when it is predicted to end, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, named, text
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
    ("Predicted", False),
    ("Resizes", False),
    ("Why", False),
)
_NONE = (
    "No job yet. Declare one: with rt.job('name', min_nodes=1, max_nodes=4): ... "
    "Plain Dask code runs as ever."
)
_NO_WORKER = "Held tasks wait for room on nodes of their job; Dask's own pages call them no-worker."
#: What a row is made of: what else changes in a job is not shown.
_FIELDS = (
    *("id", "name", "state", "kind", "nodes", "min_nodes", "max_nodes", "constraint", "below_minimum"),
    *("submit_s", "start_s", "end_s", "wait_s", "expansions", "shrinks", "reason"),
    *("processing_tasks", "held_tasks", "unfinished_tasks", "forecast"),
    *("lent_tasks", "lent_s", "borrowed_tasks", "borrowed_s", "lending"),
)


def html(picture: Picture) -> Markup:
    """A table with a row a job: active ones in order of submission, then the ended ones, newest first."""
    return table(picture).html(_now(picture))


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data; a search is for all jobs that are known."""
    shown = picture.jobs if search == EVERY else [job for job in picture.jobs if _found(job, search)]
    active = [job for job in shown if job["state"] not in _ENDED]
    ended = [job for job in shown if job["state"] in _ENDED]
    newest = sorted(ended, key=lambda job: job["end_s"] or 0.0, reverse=True)[:_MAX_ENDED]
    rows = {job["id"]: tuple(map(job.get, _FIELDS)) for job in (*active[:_MAX_ACTIVE], *newest)}
    count = len(picture.jobs) - sum(job["state"] in _ENDED for job in picture.jobs)
    count += max(len(picture.jobs) - count, picture.ended_jobs)
    hidden = len(active) + max(len(ended), picture.ended_jobs if search == EVERY else 0) - len(rows)
    note = f"{counted(hidden, 'more job')} not shown; rt.jobs() has all." if hidden else ""
    return Table(
        caption="Jobs",
        columns=_COLUMNS,
        rows=rows,
        cells=lambda fields: row(dict(zip(_FIELDS, fields, strict=True))),
        note=" ".join(filter(None, (note, _held(picture), _waiting(picture)))) if count else _NONE,
        search=True,
    )


def row(job: Mapping[str, Any]) -> list[Cell]:
    """The cells of one job, as `Runtime.jobs` tells of it."""
    waited: Any = ["since", job["submit_s"]] if job["wait_s"] is None else ["for", job["wait_s"]]
    return [
        named(job["name"], job["id"]),
        [["badge", text(job["state"])]],
        _size(job),
        [_tasks(job)],
        [waited if waited[1] is not None else "n/a"],
        [_ran(job)],
        [text(predicted(job) or "not known")],
        [_resizes(job)],
        [text(job["reason"])],
    ]


def one(job: Mapping[str, Any], now_s: float) -> Markup:
    """A table of one job alone."""
    return Table(caption=f"Job {job['id']}", columns=_COLUMNS, rows={0: job}, cells=row).html(now_s)


def predicted(job: Mapping[str, Any]) -> str:
    """What was predicted of a job's run time, and what came, in words; empty: nothing was."""
    forecast = job.get("forecast")
    return str(forecast["text"]) if forecast else ""


def _held(picture: Picture) -> str:
    """Which share of the forecasts held; empty while none could be looked at."""
    found = picture.section("forecasts")
    return f"Predicted ends: {found['text']}." if found else ""


def _waiting(picture: Picture) -> str:
    """What Dask calls tasks that are held; empty where none is."""
    return _NO_WORKER if any(job.get("held_tasks") for job in picture.jobs) else ""


def _now(picture: Picture) -> float:
    return float(picture.status.get("now_s", 0.0))


def _found(job: Mapping[str, Any], search: Search) -> bool:
    state = job["state"]
    # who is being resized runs
    kind = "ended" if state in _ENDED else "pending" if state == "pending" else "running"
    if search.state and search.state != kind:
        return False
    words = search.text.lower().split()
    if not words:
        return True
    told = " ".join(str(job.get(key)) for key in ("id", "name", "state", "kind", "constraint", "reason"))
    return all(word in told.lower() for word in words)


def _ran(job: Mapping[str, Any]) -> Any:
    start_s, end_s = job["start_s"], job["end_s"]
    if start_s is None:
        return "not started"
    return ["since", start_s] if end_s is None else ["for", end_s - start_s]


def _size(job: Mapping[str, Any]) -> Cell:
    low, high = job["min_nodes"], job["max_nodes"]
    bounds = f"always {high}" if job["kind"] == "rigid" or low == high else f"{low} to {high}"
    constraint = "" if job["constraint"] == "any" else f", {job['constraint']}"
    below = " below its minimum" if job["below_minimum"] else ""
    share = round(100 * job["nodes"] / high) if high else 0
    bar = [["bar", share]] if high and job["state"] not in _ENDED else []
    return [*bar, text(f"{job['nodes']}{below} ({job['kind']}: {bounds}{constraint})")]


def _tasks(job: Mapping[str, Any]) -> str:
    parts = [
        f"{job[key]} {word}"
        for key, word in (
            ("processing_tasks", "on workers"),
            ("held_tasks", "held"),
            ("unfinished_tasks", "unfinished"),
        )
        if job.get(key)
    ]
    over = job["state"] in _ENDED
    # seconds of the tasks that have ended there
    parts += [
        f"{job[kind + '_tasks']} {word}{'' if over else ' so far'} ({job.get(kind + '_s') or 0.0:.1f} s)"
        for kind, word in (("lent", "of others on its nodes"), ("borrowed", "on nodes of others"))
        if job.get(kind + "_tasks")
    ]
    last = f"; {job['lending']}" if job.get("lending") and not over else ""
    return (", ".join(parts) or "none left") + last


def _resizes(job: Mapping[str, Any]) -> str:
    parts: Sequence[str] = [
        f"{job[key]} {word}" for key, word in (("expansions", "up"), ("shrinks", "down")) if job[key]
    ]
    return ", ".join(parts) or "none"


VIEW = View(name="jobs", title="Jobs", section="jobs", html=html, table=table)
