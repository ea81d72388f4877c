"""Node map: one tile a node, with the job that holds it and the walltime that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from dask_hpc.report.looks import Look, looks
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, letter, text
from dask_hpc_widgets.views.view import Picture, View

#: Nodes beyond these are counted and not shown.
_MAX_NODES = 4096
#: Above so many nodes a tile is a letter.
_MAX_TILES = 64
#: A job's tiles are marked so that they are found without reading: by colour, and by a letter.
_STATES = {"up": "", "draining": "draining: leaves its job", "lost": "lost: expected back"}
_GIB = 2**30
#: There may be thousands of nodes, twice a second.
_facts = itemgetter("id", "state", "job", "walltime_left_s", "workers", "nthreads", "memory_bytes")


def html(picture: Picture) -> Markup:
    """A list of tiles in order of arrival, with a sentence that counts them."""
    nodes = picture.status.get("nodes", ())
    if not nodes:
        return markup.soft(_stock(picture))
    holders = looks(node["job"] for node in nodes if node["job"])
    names = {job["id"]: job["name"] or job["id"] for job in picture.jobs}
    tiles = [_tile(node, holders, names) for node in nodes[:_MAX_NODES]]
    shown = markup.template("nodes.html", count=_count(picture), tiles=tiles, heat=len(nodes) > _MAX_TILES)
    return shown + (markup.soft(_hidden(nodes)) if len(nodes) > _MAX_NODES else "")


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    nodes = picture.status.get("nodes", ())
    if not nodes:
        return Table(caption="Nodes", cells=list, note=_stock(picture))
    names = {job["id"]: job["name"] or job["id"] for job in picture.jobs}
    many = len(nodes) > _MAX_TILES
    now_s = float(picture.status.get("now_s", 0.0))
    rows = {}
    for node in nodes[:_MAX_NODES]:
        id, state, job, left_s, workers, threads, memory_bytes = _facts(node)
        holder = names.get(job, job) if job else _use(node)
        end_s = None if many or left_s is None else round(now_s + left_s, 1)
        rows[id] = (id, state, job, holder, end_s, workers, threads, memory_bytes)
    note = f"{_count(picture)}. {_hidden(nodes)}".strip()
    return Table(caption="Nodes", rows=rows, cells=_cells, note=note, kind="heat" if many else "map")


def _cells(fields: Sequence[Any]) -> list[Cell]:
    id, state, job, holder, end_s, workers, threads, memory_bytes = fields
    look = letter(job) if job else ["", "", ""]
    equipment = _equipment({"workers": workers, "nthreads": threads, "memory_bytes": memory_bytes})
    lines: list[Cell] = [[text(line)] for line in (_STATES.get(state, state), equipment) if line]
    left: list[Cell] = [] if end_s is None else [[["left", end_s], " of walltime left"]]
    return [[text(id)], [text(state)], [look[2]], [look[1]], [text(holder)], *lines, *left]


def _hidden(nodes: Sequence[Mapping[str, Any]]) -> str:
    hidden = len(nodes) - _MAX_NODES
    return f"{counted(hidden, 'more node')} not shown." if hidden > 0 else ""


def _stock(picture: Picture) -> str:
    pool = picture.status.get("pool_nodes", 0)
    at_work = picture.status.get("nodes_at_work")
    busy = "" if at_work is None else f", {at_work} at work,"
    return f"{counted(pool)}{busy} with stock Dask scheduling; the map begins with the first job."


def _count(picture: Picture) -> str:
    nodes: Sequence[Mapping[str, Any]] = picture.status["nodes"]
    at_work = picture.status.get("nodes_at_work")
    free = [node for node in nodes if node["job"] is None]
    idle = sum(node["state"] == "up" and _role(node) == COMPUTE for node in free)
    roles = [node.get("role", COMPUTE) for node in nodes]
    states = [node["state"] for node in nodes]
    parts = [counted(len(nodes)), *([] if at_work is None else [f"{at_work} at work"])]
    parts += [f"{len(nodes) - len(free)} held by jobs", f"{idle} for plain work or idle"]
    parts += [f"{roles.count(role)} for {role}" for role in sorted({*roles} - {COMPUTE})]
    parts += [f"{states.count(state)} {state}" for state in ("draining", "lost") if state in states]
    left = [left_s for node in nodes if (left_s := node["walltime_left_s"]) is not None]
    if left:
        parts.append(f"the first ends in {markup.roughly(min(left))}")
    return "; ".join(parts)


def _role(node: Mapping[str, Any]) -> str:
    return str(node.get("role", COMPUTE))


def _use(node: Mapping[str, Any]) -> str:
    """What a node without a job is there for."""
    role = _role(node)
    return "no job" if role == COMPUTE else f"for {role}"


def _tile(node: Mapping[str, Any], holders: Mapping[str, Look], names: Mapping[str, str]) -> tuple[Any, ...]:
    """Id, state, colour, letter, holder and further lines, as the template has them."""
    job, state, left_s = node["job"], node["state"], node["walltime_left_s"]
    lines = [
        *([_STATES[state]] if _STATES[state] else []),
        _equipment(node),
        *([] if left_s is None else [f"{markup.roughly(left_s)} of walltime left"]),
    ]
    if not job:
        return node["id"], state, "", "", _use(node), lines
    return node["id"], state, holders[job].color, holders[job].letter, names.get(job, job), lines


def _equipment(node: Mapping[str, Any]) -> str:
    workers, threads = node["workers"], node["nthreads"]
    text = f"{threads} thread{'' if threads == 1 else 's'}"
    if workers != 1:
        text = f"{workers} workers, {text}"
    if node["memory_bytes"]:
        text += f", {node['memory_bytes'] / _GIB:.3g} GiB"
    return text


VIEW = View(name="nodes", title="Nodes", section="nodes", html=html, table=table)
