"""Reads what workers have measured of tasks, apart for each span. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from distributed.scheduler import heartbeat_interval

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


def heartbeat_s(scheduler: Scheduler) -> float:
    """Seconds between two heartbeats of a worker, each of which says what it has measured since the last."""
    return float(heartbeat_interval(len(scheduler.workers)))


def heard_since(scheduler: Scheduler, at_s: float) -> bool:
    """Whether each worker has had a heartbeat later than that (`distributed.metrics.time`)."""
    return all(ws.last_seen > at_s for ws in dict.values(scheduler.workers))


def executed(
    scheduler: Scheduler, ids: Iterable[str] | None = None
) -> Iterator[tuple[str, str, str, str, float]]:
    """Span, name of tasks, activity, unit and amount of what they did while they executed.

    Up to the last heartbeats.

    Of these spans, as far as there are any of these ids; None: of all.
    Activities are Dask's own (``thread-cpu`` and its like, in seconds) and what code has told Dask's meter; a
    task's seconds are the sum over them. Nothing where Dask's spans are switched off.
    """
    extension = scheduler.extensions.get("spans")
    if extension is None:
        return
    known = extension.spans
    for id, span in known.items() if ids is None else [(id, known[id]) for id in ids if id in known]:
        for metric, amount in span._cumulative_worker_metrics.items():
            if len(metric) == 4 and metric[0] == "execute":
                _, name, activity, unit = metric
                if isinstance(activity, str):
                    yield id, name, activity, unit, amount
