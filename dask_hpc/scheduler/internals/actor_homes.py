"""Where actors live, as Dask's scheduler has it, but for what it leaves wrong.

In the set of a worker it leaves actors whose making there was given up, and those that were stolen before
they began: these are in the set of the worker that they were taken from, and not of the one that has them,
until `data.settle_actor` puts them right. Who has a handle of one looks like who has the actor from then on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState


def living(ws: WorkerState) -> set[TaskState]:
    """Actors that live on the worker, or are about to."""
    return {ts for ts in ws.actors if host(ts) is ws}


def actors_on(scheduler: Scheduler, address: str) -> list[Any]:
    """Keys of the actors that live on the worker, or are about to."""
    return [ts.key for ts in living(scheduler.workers[address])]


def home(scheduler: Scheduler, key: Any) -> str | None:
    """Address of the worker on which an actor lives; None when there is none."""
    ts = scheduler.tasks.get(key)
    ws = host(ts) if ts is not None and ts.actor and ts.who_has else None
    return None if ws is None else ws.address


def host(ts: TaskState) -> WorkerState | None:
    """The worker that has an actor, or makes it."""
    there = ts.who_has or ({ts.processing_on} if ts.processing_on else ())
    # others that have it have a handle of it
    return next((ws for ws in there if ts in ws.actors), next(iter(there), None))


def host_for_actor(scheduler: Scheduler, leaving: Collection[str], staying: Collection[str]) -> str | None:
    """The worker that takes an actor best: of those that stay, if there are any, as stock would place it."""
    others = [ws for ws in scheduler.running if ws.address not in leaving]
    others = [ws for ws in others if ws.address in staying] or others
    return min(others, key=lambda ws: (len(ws.actors), ws.nbytes)).address if others else None
