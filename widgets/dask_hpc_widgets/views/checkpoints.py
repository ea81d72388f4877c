"""Checkpoints: which jobs are protected, what a loss now would cost, and the latest version of each name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from dask.utils import format_bytes

from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, bounded, named, text
from dask_hpc_widgets.views.view import Picture, View

#: Sections of the status that it shows.
SECTIONS = ("checkpoints", "protected_jobs")
#: Jobs and names beyond these are counted and not shown.
_MAX_ROWS = 50
_NAMES = 5
#: Ages in rows, which say when something was, and how long until something will be.
_JOB_AGES = (("version_age_s", -1), ("due_in_s", 1))
_COMMIT_AGES = (("age_s", -1),)
_EMPTY = (
    "Nothing is protected. rt.checkpoint(obj, name='...') protects results, protect=True of a job what it "
    "computes; hpc.checkpoint.store names the folder."
)
_NOTHING = "nothing"
_TITLE = "Checkpoints"
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
    return table(picture).html(_now(picture))


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    told, jobs = picture.section("checkpoints"), picture.section("protected_jobs") or ()
    taken = (told or {}).get("taken_over") or {"asked": ()}
    # who protects nothing is not told of what others of his clusters have left, until he asks for it
    if not jobs and not (told and (told["latest"] or taken["asked"])):
        return Table(caption=_TITLE, cells=list, note=_EMPTY)
    now_s = _now(picture)
    names = {job["id"]: job["name"] for job in picture.jobs}
    lines: dict[Hashable, Cell] = {}
    more: list[Table] = []
    if jobs:
        lines["total"] = _total(jobs)

        def protected(job: Mapping[str, Any]) -> dict[str, Any]:
            row = {**job, "called": names.get(job["job"], ""), "now": job["due_in_s"] == 0}
            return _timed(row, _JOB_AGES, now_s)

        more.append(_table("Protected jobs", _JOBS, _job, jobs, "job", protected))
    if told is not None:
        lines["results"] = [_results(told)]
        if taken["asked"]:
            lines["taken"] = _taken_over(taken, now_s)
        if managers := [row for row in told.get("managers", ()) if row["limit_bytes"]]:
            more.append(_table("Memory of hosts", _MANAGERS, _manager, managers, "host"))
        latest = sorted(told["latest"], key=itemgetter("age_s"))

        def made(row: Mapping[str, Any]) -> dict[str, Any]:
            return _timed({**row}, _COMMIT_AGES, now_s)

        more.append(_table("Latest version of each name", _COMMITS, _commit, latest, "name", made))
    return Table(caption=_TITLE, kind="text", rows=lines, cells=lambda line: [line], more=more)


def _now(picture: Picture) -> float:
    return float(picture.status.get("now_s", 0.0))


def _timed(row: dict[str, Any], ages: Sequence[tuple[str, int]], now_s: float) -> dict[str, Any]:
    """`row` with times in place of `ages`, which would make it another one each time."""
    for key, sign in ages:
        if (age_s := row.get(key)) is not None:
            row[key] = round(now_s + sign * age_s)
    return row


def _table(
    caption: str,
    columns: Sequence[Column],
    cells: Callable[[Mapping[str, Any]], list[Cell]],
    rows: Sequence[Mapping[str, Any]],
    key: str,
    made: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda row: row,
) -> Table:
    """`made`: what the rows that are shown are made of."""
    shown = bounded(rows, _MAX_ROWS, "rt.status()", itemgetter(key))
    shown["rows"] = {own: made(row) for own, row in shown["rows"].items()}
    return Table(caption=caption, columns=columns, cells=cells, **shown)


def _total(jobs: Sequence[Mapping[str, Any]]) -> Cell:
    words = {job["loss_is"] for job in jobs if job["loss_core_s"]}
    cost = _cost(sum(job["loss_core_s"] for job in jobs), words.pop() if len(words) == 1 else "about")
    cost = cost if cost == _NOTHING else f"{cost} on one core"
    return ["Were the whole cluster lost now, ", ["strong", cost], " would be computed again."]


def _cost(core_s: float, bound: str) -> str:
    return f"{bound} {markup.roughly(core_s)}" if core_s else _NOTHING


def _job(job: Mapping[str, Any]) -> list[Cell]:
    written_s, due_s = job["version_age_s"], job["due_in_s"]
    coming: Cell
    if job["under_way"]:
        coming = [["badge", "under way"]]
    elif due_s is None:
        coming = ["when a policy asks" if job["writes"] == "state" else "when a policy asks, and at its end"]
    else:
        coming = ["now"] if job["now"] else ["in ", ["left", due_s]]
    return [
        named(job["called"], job["job"]),
        [_written(job)],
        ["none yet" if written_s is None else ["ago", written_s]],
        coming,
        [_cost(job["loss_core_s"], job["loss_is"])],
    ]


def _written(job: Mapping[str, Any]) -> str:
    parts = [f"{job['writes']}, as {text(job['name'])}"]
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


def _taken_over(taken: Mapping[str, Any], now_s: float) -> Cell:
    what = f"{counted(taken['results'], 'result')} in {counted(taken['versions'], 'version')}"
    names = text(", ".join(taken["asked"][:_NAMES])) + ", ..." * (len(taken["asked"]) > _NAMES)
    told = f"{what} in memory, {names} among them, were taken over from an earlier scheduler "
    return [told, ["ago", round(now_s - taken["age_s"])], "."]


def _manager(row: Mapping[str, Any]) -> list[Cell]:
    on_disk = f", {format_bytes(row['disk_bytes'])} of it on disk" if row.get("disk_bytes") else ""
    held = format_bytes(row["held_bytes"]) + on_disk
    return [[text(row["host"])], [held], [format_bytes(row["limit_bytes"])]]


def _commit(row: Mapping[str, Any]) -> list[Cell]:
    whole = row["state"] == "complete"
    return [
        [["strong", text(row["name"])]],
        ["" if row["version"] is None else str(row["version"])],
        [["badge", text(row["state"])], f" {text(row['reason'])}" if row["reason"] else ""],
        [["ago", row["age_s"]]],
        [text(", ".join(row["levels"])) + _safety(row)],
        [format_bytes(row["bytes"]) if whole else ""],
        [f"{row['blocks_left']} of {row['blocks']}"],
        [markup.seconds(row["writing_s"] + row["finishing_s"]) if whole else ""],
    ]


def _safety(row: Mapping[str, Any]) -> str:
    """What may be lost of a version that hosts hold in memory, and what that costs."""
    if row.get("losses_survived") is None:
        return ""
    lost = counted(row["losses_survived"], "host")
    return f": {lost} may be lost, {row['storage_ratio']:.2g} bytes a byte"


VIEW = View(name="checkpoints", title=_TITLE, html=html, table=table)
