"""The tiles above the timeline: the few numbers that people look for first.

Rules of the file: pure; what the runtime answered and what was predicted in, texts out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dask_hpc.report.looks import ahead, printable
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.live.forecast import Forecast
from dask_hpc_widgets.views import Picture

#: Letters of a name.
_NAME = 40


class Tile(NamedTuple):
    """One number, what it is of, and what belongs to it."""

    label: str
    value: str
    more: str = ""


def tiles(picture: Picture, forecast: Forecast | None = None) -> list[Tile]:
    """Nodes at work, jobs that wait, the next start, and what applying what is chosen would change."""
    status = picture.status
    # a cluster may have been asked before its first job, when nobody counts who has which node
    now_s = float(status.get("now_s", 0.0))
    at_work = status.get("nodes_at_work", "not known")
    pending = [job for job in picture.jobs if job["state"] == "pending" and not job.get("is_default")]
    longest = max(pending, key=lambda job: now_s - job["submit_s"], default=None)
    count = status.get("jobs_pending", len(pending))
    waits = ""
    if longest is not None:
        waited = markup.roughly(max(0.0, now_s - longest["submit_s"]))
        waits = f"the longest {waited}: {_called(longest)}"
    return [
        Tile("Nodes at work", f"{at_work} of {status.get('pool_nodes', len(status.get('nodes', ())))}"),
        Tile("Jobs waiting", str(count), waits),
        _next(pending, now_s, forecast),
        _gain(forecast),
    ]


def html(found: list[Tile]) -> Markup:
    """The same for a page without widgets."""
    return markup.items(f"{one.label}: {one.value}{f' ({one.more})' if one.more else ''}" for one in found)


def _next(pending: Sequence[Mapping[str, Any]], now_s: float, forecast: Forecast | None) -> Tile:
    label = "Next start"
    if not pending:
        return Tile(label, "none waits")
    if forecast is None:
        return Tile(label, "not known", "Simulate predicts it")
    names = {str(job["id"]): _called(job) for job in pending}
    if forecast.stale:
        return Tile(label, "not known", "simulate again")
    found = forecast.next_start(names)
    if found is None:
        return Tile(label, "not seen", "as it runs")
    id, start_s = found
    if start_s <= now_s:
        return Tile(label, "overdue", f"{names[id]}; simulate again")
    return Tile(label, ahead(start_s - now_s, markup.roughly), f"{names[id]}, predicted")


def _called(job: Mapping[str, Any]) -> str:
    name = printable(job["name"] or job["id"])
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _gain(forecast: Forecast | None) -> Tile:
    label = "Gain if applied"
    if forecast is None:
        return Tile(label, "not known", "Simulate predicts it")
    if forecast.stale:
        return Tile(label, "stale", forecast.stale)
    text = forecast.gain()
    return Tile(label, text, "predicted") if text else Tile(label, "not known", "what runs is not known here")
