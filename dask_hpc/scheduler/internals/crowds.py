"""Reads how crowded workers are, and whether a task had better be elsewhere. Changes nothing."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Where more tasks wait, none is sent ahead of them: they would have to be counted for each.
_MANY = 1000
#: Tasks of a worker whose needs stand for those of all.
_LOOKED_AT = 100


def any_running(scheduler: Scheduler, addresses: Collection[str]) -> bool:
    """Whether tasks may be sent to any of these workers now: it is neither paused nor on its way out."""
    running, workers = scheduler.running, scheduler.workers
    if len(running) == len(workers) or not addresses:
        return len(addresses) > 0
    if len(running) < len(addresses):
        return any(ws.address in addresses for ws in running)
    return any(workers[address] in running for address in addresses if address in workers)


def crowd(ws: WorkerState) -> int:
    """Tasks on the worker beyond those its threads can execute; those that have seceded do not count."""
    return len(ws.processing) - len(ws.long_running) - ws.nthreads


def starved(ws: WorkerState) -> int:
    """Tasks on the worker that wait for an abstract resource which others there have: they take no thread.

    Stock sends a worker all that need what it offers, however few of them can execute at once. Their number
    is reckoned from what is needed beyond what there is, and from how much the first of them need: it is
    exact where all need the same. Stock's own sum is no help: what a task needs stays in that of the worker
    it was stolen from. Runs for many tasks.
    """
    needs = [ts.resource_restrictions for ts in islice(ws.processing, _LOOKED_AT) if ts.resource_restrictions]
    if not needs:
        return 0
    count, counted, all_of_them = 0, set[str](), max(1.0, len(ws.processing) / _LOOKED_AT)
    for name, offered in ws.resources.items():
        of_it = [each for each in needs if name in each]
        together = sum(each[name] for each in of_it)
        excess = together * all_of_them - offered
        if excess > 0:
            # who lacks several is one task
            new = sum(counted.isdisjoint(each) for each in of_it)
            count += math.ceil(excess * new / together - 1e-9)
            counted.add(name)
    return count


def later(scheduler: Scheduler, ws: WorkerState, priority: tuple[float, ...]) -> list[TaskState]:
    """Tasks on the worker that would be done after one of that priority, were it sent there.

    Some of them execute already. Empty where no task waits for a thread. Runs for many tasks.
    """
    if not 0 < crowd(ws) < _MANY or ws not in scheduler.running:
        return []
    return [ts for ts in ws.processing if ts.priority is not None and ts.priority > priority]


def moving_pays(scheduler: Scheduler, ts: TaskState, victim: WorkerState, thief: WorkerState) -> bool:
    """Whether an idle worker would have done a task sooner than its own, as work stealing reckons.

    Its own has it, or is about to get it.
    """
    compute_s = scheduler._get_prefix_duration(ts.prefix)
    here_s = scheduler.get_comm_cost(ts, victim) + compute_s
    done_s = victim.occupancy - here_s / 2 + (here_s if ts.processing_on is None else 0.0)
    return scheduler.get_comm_cost(ts, thief) + compute_s <= done_s


def with_all_data(scheduler: Scheduler, ts: TaskState, allowed: Container[str]) -> WorkerState | None:
    """The worker that alone has all that a task depends on, if it is among those that are allowed and runs.

    Stock weighs no other one then, for nothing has to be moved. None where it would weigh some, and for an
    actor. Runs for every task that depends on others.
    """
    found: WorkerState | None = None
    for dts in ts.dependencies:
        holders = dts.who_has
        if holders is None or len(holders) != 1:
            return None
        (ws,) = holders
        if found is None:
            found = ws
        elif ws is not found:
            return None
    if found is None or ts.actor or found.address not in allowed or found not in scheduler.running:
        return None
    return found


def sent_to_a_thread(scheduler: Scheduler) -> float | None:
    """Tasks that stock queuing has on a worker for each of its threads; None: all that there are."""
    saturation = scheduler.WORKER_SATURATION
    return None if math.isinf(saturation) else float(saturation)
