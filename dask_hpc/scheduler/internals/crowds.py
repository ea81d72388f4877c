"""Reads how crowded workers are, and whether a task had better be elsewhere. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState


def crowd(ws: WorkerState) -> int:
    """Tasks on the worker beyond those its threads can execute; those that have seceded do not count."""
    return len(ws.processing) - len(ws.long_running) - ws.nthreads


def moving_pays(scheduler: Scheduler, ts: TaskState, thief: WorkerState) -> bool:
    """Whether an idle worker would have done a task sooner than its own, as work stealing reckons."""
    victim = ts.processing_on
    if victim is None:
        return False
    compute_s = scheduler._get_prefix_duration(ts.prefix)
    here_s = scheduler.get_comm_cost(ts, victim) + compute_s
    return scheduler.get_comm_cost(ts, thief) + compute_s <= victim.occupancy - here_s / 2
