"""Reads what Dask's own adaptive scaling goes by: the work that waits and runs, or a part of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING

from dask_hpc.scheduler.internals.allotment import AWAITED
from dask_hpc_policies.model import Demand

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState


def demand(scheduler: Scheduler, awaiting: bool = False) -> Demand:
    """What Dask's own adaptive scaling computes its target from; `awaiting`: some tasks wait for data."""
    waiting: Collection[TaskState] = scheduler.unrunnable
    if awaiting:
        waiting = [ts for ts in waiting if ts.worker_restrictions is not AWAITED]
    ready = len(scheduler.queued) + len(waiting)
    waiting_s = _waiting_s(scheduler, chain(scheduler.queued, waiting), ready)
    processing = used_bytes = limit_bytes = 0
    # past the sorted dictionary's own slow iteration: this runs in every pass
    for ws in dict.values(scheduler.workers):
        processing += len(ws.processing)
        used_bytes += ws.nbytes
        limit_bytes += ws.memory_limit
    return Demand(
        occupancy_s=scheduler.total_occupancy + waiting_s,
        ready_tasks=ready,
        processing_tasks=processing,
        used_bytes=used_bytes,
        limit_bytes=limit_bytes,
    )


def demand_without(
    scheduler: Scheduler, elsewhere: Collection[str], resources: Collection[str]
) -> tuple[Demand, list[WorkerState]]:
    """`demand` without what only some workers may run, and the workers that do the rest.

    Parameters
    ----------
    elsewhere
        Names of those workers. Those of them that have no such work do a part of the rest.
    resources
        Names of abstract resources that only they have.
    """
    those = {address for address, ws in scheduler.workers.items() if str(ws.name) in elsewhere}

    def bound(ts: TaskState) -> bool:
        if ts.worker_restrictions is AWAITED:
            return True
        if ts.resource_restrictions and not ts.resource_restrictions.keys().isdisjoint(resources):
            return True
        allowed = set() if ts.loose_restrictions else set(ts.worker_restrictions or ())
        return bool(allowed) and allowed <= those

    # tasks that are bound are never queued
    waiting = [ts for ts in scheduler.unrunnable if not bound(ts)]
    ready = len(scheduler.queued) + len(waiting)
    busy = {a: [ts for ts in scheduler.workers[a].processing if bound(ts)] for a in those}
    bound_s = sum(scheduler._get_prefix_duration(ts.prefix) for tasks in busy.values() for ts in tasks)
    workers = [ws for address, ws in scheduler.workers.items() if not busy.get(address)]
    occupancy_s = max(0.0, scheduler.total_occupancy - bound_s)
    processing = sum(len(ws.processing) for ws in scheduler.workers.values())
    rest = Demand(
        occupancy_s=occupancy_s + _waiting_s(scheduler, chain(scheduler.queued, waiting), ready),
        ready_tasks=ready,
        processing_tasks=processing - sum(map(len, busy.values())),
        used_bytes=sum(ws.nbytes for ws in workers),
        limit_bytes=sum(ws.memory_limit for ws in workers),
    )
    return rest, workers


def _waiting_s(scheduler: Scheduler, tasks: Iterable[TaskState], count: int) -> float:
    """Expected duration of so many tasks together, from the first hundred, as stock has it."""
    sample_s = sum(scheduler._get_prefix_duration(ts.prefix) for ts in islice(tasks, 100))
    return sample_s * max(1.0, count / 100)
