"""Reads how crowded workers are, and whether a task had better be elsewhere. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_hpc.scheduler.internals import reads

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Where more tasks wait, none is sent ahead of them: they would have to be counted for each.
_MANY = 1000


def crowd(ws: WorkerState) -> int:
    """Tasks on the worker beyond those its threads can execute; those that have seceded do not count."""
    return len(ws.processing) - len(ws.long_running) - ws.nthreads


def overtaken(scheduler: Scheduler, ws: WorkerState, ts: TaskState, turn: tuple[float, ...]) -> int:
    """How many tasks on the worker would be done after `ts`, were it sent; some of them execute already.

    0 where no task waits for a thread.
    """
    own = reads.in_turn(ts, turn)
    if own is None or not 0 < crowd(ws) < _MANY or ws not in scheduler.running:
        return 0
    return sum([other.priority > own for other in ws.processing if other.priority is not None])


def moving_pays(scheduler: Scheduler, ts: TaskState, thief: WorkerState) -> bool:
    """Whether an idle worker would have done a task sooner than its own, as work stealing reckons."""
    victim = ts.processing_on
    if victim is None:
        return False
    compute_s = scheduler._get_prefix_duration(ts.prefix)
    here_s = scheduler.get_comm_cost(ts, victim) + compute_s
    return scheduler.get_comm_cost(ts, thief) + compute_s <= victim.occupancy - here_s / 2
