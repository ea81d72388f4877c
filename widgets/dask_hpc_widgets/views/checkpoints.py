"""Checkpoints: which jobs are protected, what a loss now would cost, and the latest version of each name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask.utils import format_bytes

from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.view import Picture, View

#: Sections of the status that it shows.
SECTIONS = ("checkpoints", "protected_jobs")
#: Jobs and names beyond these are counted and not shown.
_MAX_ROWS = 50
_NAMES = 5
_EMPTY = (
    "Nothing is protected. rt.checkpoint(obj, name='...') protects results, protect=True of a job what it "
    "computes; hpc.checkpoint.store names the folder."
)
_NOTHING = "nothing"
_JOBS: tuple[Column, ...] = (
    ("Job", False),
    ("Writes", False),
    ("Newest version", False),
    ("Next version", False),
    ("A loss now would cost, on one core", False),
)
_MANAGERS: tuple[Column, ...] = (("Host", False), ("Checkpoints have", True), ("May have", True))
_COMMITS: tuple[Column, ...] = (
    ("Name", False),
    ("Version", True),
    ("State", False),
    ("Begun", False),
    ("Levels", False),
    ("Size", True),
    ("Blocks left", True),
    ("Took", True),
)


def html(picture: Picture) -> Markup:
    """What a loss now would cost; a row a protected job; what came back; a row a name."""
    told, jobs = picture.section("checkpoints"), picture.section("protected_jobs") or ()
    taken = (told or {}).get("taken_over") or {"asked": ()}
    # who protects nothing is not told of what others of his clusters have left, until he asks for it
    if not jobs and not (told and (told["latest"] or taken["asked"])):
        return markup.soft(_EMPTY)
    names = {job["id"]: job["name"] for job in picture.jobs}
    parts: list[str] = []
    if jobs:
        parts.append(markup.element("p", _total(jobs)))
        parts.append(_table(_JOBS, [_job(job, names) for job in jobs], "Protected jobs"))
    if told is not None:
        parts.append(markup.element("p", _results(told)))
        if taken["asked"]:
            parts.append(markup.element("p", _taken_over(taken)))
        if managers := [row for row in told.get("managers", ()) if row["limit_bytes"]]:
            parts.append(_table(_MANAGERS, [_manager(row) for row in managers], "Memory of hosts"))
        latest = sorted(told["latest"], key=lambda row: float(row["age_s"]))
        parts.append(_table(_COMMITS, [_commit(row) for row in latest], "Latest version of each name"))
    return Markup().join(parts)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], caption: str) -> Markup:
    hidden = len(rows) - _MAX_ROWS
    more = markup.soft(f"{hidden} more are not shown; rt.status() has all.") if hidden > 0 else ""
    return markup.table(columns, rows[:_MAX_ROWS], caption) + more


def _total(jobs: Sequence[Mapping[str, Any]]) -> Markup:
    words = {job["loss_is"] for job in jobs if job["loss_core_s"]}
    cost = _cost(sum(job["loss_core_s"] for job in jobs), words.pop() if len(words) == 1 else "about")
    return Markup("Were the whole cluster lost now, {} would be computed again.").format(
        markup.strong(cost if cost == _NOTHING else f"{cost} on one core")
    )


def _cost(core_s: float, bound: str) -> str:
    return f"{bound} {markup.roughly(core_s)}" if core_s else _NOTHING


def _job(job: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    age_s, due_s = job["version_age_s"], job["due_in_s"]
    coming: str
    if job["under_way"]:
        coming = markup.badge("under way")
    elif due_s is None:
        coming = "when a policy asks" if job["writes"] == "state" else "when a policy asks, and at its end"
    else:
        coming = f"in {markup.roughly(due_s)}" if due_s else "now"
    return [
        markup.named(names.get(job["job"], ""), job["job"]),
        _written(job),
        "none yet" if age_s is None else f"{markup.roughly(age_s)} ago",
        coming,
        _cost(job["loss_core_s"], job["loss_is"]),
    ]


def _written(job: Mapping[str, Any]) -> str:
    parts = [f"{job['writes']}, as {job['name']}"]
    if job["writes"] == "results":
        parts.append(f"{job['written_results']} written")
        if job["left_results"]:
            parts.append(f"{job['left_results']} of an earlier run not asked for yet")
        if job["unwritable_results"]:
            parts.append(f"{job['unwritable_results']} cannot be written")
    return "; ".join(parts)


def _results(told: Mapping[str, Any]) -> str:
    parts = [f"{counted(told['protected_results'], 'result')} protected"]
    for key, words in (("restored", "read back"), ("recomputed", "computed again"), ("lost", "lost")):
        parts.append(f"{told[f'{key}_results']} {words}")
    return f"{', '.join(parts)} so far."


def _taken_over(told: Mapping[str, Any]) -> str:
    what = f"{counted(told['results'], 'result')} in {counted(told['versions'], 'version')}"
    names = f"{', '.join(told['asked'][:_NAMES])}{', ...' * (len(told['asked']) > _NAMES)} among them"
    since = markup.roughly(told["age_s"])
    return f"{what} in memory, {names}, were taken over from an earlier scheduler {since} ago."


def _manager(row: Mapping[str, Any]) -> list[str]:
    on_disk = f", {format_bytes(row['disk_bytes'])} of it on disk" if row.get("disk_bytes") else ""
    return [row["host"], format_bytes(row["held_bytes"]) + on_disk, format_bytes(row["limit_bytes"])]


def _commit(row: Mapping[str, Any]) -> list[str]:
    whole = row["state"] == "complete"
    reason = f" {row['reason']}" if row["reason"] else ""
    return [
        markup.strong(row["name"]),
        "" if row["version"] is None else str(row["version"]),
        markup.badge(row["state"]) + reason,
        f"{markup.roughly(row['age_s'])} ago",
        ", ".join(row["levels"]) + _safety(row),
        format_bytes(row["bytes"]) if whole else "",
        f"{row['blocks_left']} of {row['blocks']}",
        markup.seconds(row["writing_s"] + row["finishing_s"]) if whole else "",
    ]


def _safety(row: Mapping[str, Any]) -> str:
    """What may be lost of a version that hosts hold in memory, and what that costs."""
    if row.get("losses_survived") is None:
        return ""
    lost = counted(row["losses_survived"], "host")
    return f": {lost} may be lost, {row['storage_ratio']:.2g} bytes a byte"


VIEW = View(name="checkpoints", title="Checkpoints", html=html)
