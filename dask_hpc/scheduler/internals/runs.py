"""Results in memory and the runs of tasks that have made them.

Rules of the file: nothing is changed here; with its sibling `reads` what the package wants to know about the
scheduler is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals.reads import is_barrier

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


def sendable(scheduler: Scheduler, keys: Iterable[Any]) -> dict[str, dict[Any, int]]:
    """Those of `keys` that are in memory, each with the number of its run, by a worker that holds them.

    Not among them are actors, data that no task has made, and what the tasks around the barrier of a shuffle
    leave: the shards are elsewhere, and a shuffle that begins anew needs all of these tasks to run.
    """
    tasks = scheduler.tasks
    found: dict[str, dict[Any, int]] = {}
    # most clusters have none, and this runs for most tasks of jobs
    barriers = any(map(is_barrier, [f"{name}-" for name in scheduler.task_prefixes]))
    for key in keys:
        ts = tasks.get(key)
        if ts is None or not ts.who_has or ts.actor or ts.run_id is None:
            continue
        if barriers and any(is_barrier(one.key) for one in (ts, *ts.dependents, *ts.dependencies)):
            continue
        found.setdefault(next(iter(ts.who_has)).address, {})[key] = ts.run_id
    return found


def in_memory(scheduler: Scheduler, keys: Iterable[Any]) -> dict[Any, int | None]:
    """The run, by its number, that has made each of those of `keys` that are in memory."""
    tasks = scheduler.tasks
    return {key: tasks[key].run_id for key in keys if key in tasks and tasks[key].state == "memory"}


def in_use(scheduler: Scheduler, names: Iterable[str]) -> bool:
    """Whether there are tasks of one of these names: they, or what depends on them, are wanted."""
    groups = [scheduler.task_groups[name] for name in names if name in scheduler.task_groups]
    # one that is released is there because something depends on it: it is run again when that is lost
    return any(count for group in groups for state, count in group.states.items() if state != "forgotten")


def is_asked_for(scheduler: Scheduler, key: Any, run: int) -> bool:
    """Whether somebody wants a result, or waits for it, and that run of its task was the last one."""
    ts = scheduler.tasks[key]
    return ts.run_id == run and bool(ts.who_wants or ts.waiters)
