"""Lineage: how a result is made, exchanged for something else and put back.

Rules of the file: with its siblings `writes`, `data` and `overrides` the only code that changes the
internals of Dask's scheduler; no decisions are taken here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals.allotment import AllotmentSet

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState


@dataclass(frozen=True, slots=True)
class Lineage:
    """How a result was made, while something else stands in for that."""

    run_spec: Any
    dependencies: tuple[TaskState, ...]
    has_lost_dependencies: bool
    #: Workers, hosts, resources and looseness that the user wants for the task.
    restrictions: tuple[Any, Any, Any, bool]


def stand_in(scheduler: Scheduler, key: Any, task: Any, type_name: str) -> Lineage:
    """Have a result in memory be made by `task`, which depends on nothing, if it is ever made again.

    Where a user wanted it made no longer counts: that worker may be gone. What it was made from is kept
    by nothing but the returned lineage; hand that to `put_back`, `fall_back` or `sweep`.
    """
    ts = scheduler.tasks[key]
    ours = isinstance(ts.worker_restrictions, AllotmentSet)
    workers = None if ours else ts.worker_restrictions
    wanted = (workers, ts.host_restrictions, ts.resource_restrictions, ts.loose_restrictions)
    lineage = Lineage(ts.run_spec, tuple(ts.dependencies), ts.has_lost_dependencies, wanted)
    for dts in lineage.dependencies:
        dts.dependents.discard(ts)
        if dts.waiters:
            dts.waiters.discard(ts)
    ts.dependencies.clear()
    ts.run_spec, ts.has_lost_dependencies = task, False
    # scattered data has none of these, and tasks need them all
    ts.type, ts.priority = ts.type or type_name, ts.priority or (0, 0, 0)
    if ts.group.span_id is None and (spans := scheduler.extensions.get("spans")) is not None:
        spans.observe_tasks([ts], code=(), span_metadata={})
    if not ours:
        ts.worker_restrictions = None
    ts.host_restrictions = ts.resource_restrictions = None
    return lineage


def renew(scheduler: Scheduler, key: Any, task: Any) -> None:
    """Have what stands in for a task already be another one, as dependent on nothing as the first."""
    scheduler.tasks[key].run_spec = task


def forgive(scheduler: Scheduler, key: Any) -> None:
    """Have what becomes of workers while they bring a result back not count against its task."""
    scheduler.tasks[key].suspicious = 0


def go_on(scheduler: Scheduler, key: Any, stimulus_id: str) -> None:
    """Have a lost result be made that stock has given up, because something it was made from has failed."""
    ts = scheduler.tasks.get(key)
    if ts is not None and ts.state == "released" and (ts.who_wants or ts.waiters):
        scheduler.transitions({key: "waiting"}, stimulus_id)


def put_back(scheduler: Scheduler, key: Any, lineage: Lineage) -> bool:
    """Have a task be made again as it was before `stand_in`, as far as what that needs is still there.

    Gives whether all of it is.
    """
    ts = scheduler.tasks[key]
    ts.run_spec = lineage.run_spec
    workers, ts.host_restrictions, ts.resource_restrictions, ts.loose_restrictions = lineage.restrictions
    if not isinstance(ts.worker_restrictions, AllotmentSet):
        ts.worker_restrictions = workers
    there = [dts for dts in lineage.dependencies if scheduler.tasks.get(dts.key) is dts]
    for dts in there:
        ts.dependencies.add(dts)
        dts.dependents.add(ts)
    ts.has_lost_dependencies = lineage.has_lost_dependencies or len(there) < len(lineage.dependencies)
    return not ts.has_lost_dependencies


def whole(scheduler: Scheduler, lineage: Lineage) -> bool:
    """Whether a task can be made as before `stand_in`: all that needs is there still, and has not failed."""
    gone = any(
        scheduler.tasks.get(dts.key) is not dts or dts.state == "erred" for dts in lineage.dependencies
    )
    return not (lineage.run_spec is None or lineage.has_lost_dependencies or gone)


def fall_back(scheduler: Scheduler, key: Any, lineage: Lineage) -> bool:
    """Have a task that is about to be placed anew be made as before `stand_in`; whether that can be done.

    If not, it is about to be forgotten, as all that needs it.
    """
    if not whole(scheduler, lineage):
        scheduler.tasks[key].has_lost_dependencies = True
        return False
    put_back(scheduler, key, lineage)
    return True


def sweep(scheduler: Scheduler, lineage: Lineage, stimulus_id: str) -> None:
    """Forget what only a result needed that has been forgotten while something stood in for its lineage.

    A task that gave itself back and was not placed anew has left a slot, which stock does not expect.
    """
    _forget(
        scheduler, (dts for dts in lineage.dependencies if scheduler.tasks.get(dts.key) is dts), stimulus_id
    )
    scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


def sweep_at_restart(scheduler: Any, stimulus_id: str) -> None:
    """Have `Client.restart` forget at once what only results needed that something stands in for.

    Stock releases what clients want, and takes for granted that no task is left then.
    """

    def clear() -> None:
        _forget(scheduler, scheduler.tasks.values(), stimulus_id)
        type(scheduler)._clear_task_state(scheduler)

    scheduler._clear_task_state = clear


def restart_as_stock(scheduler: Scheduler) -> None:
    """Take `sweep_at_restart` back."""
    vars(scheduler).pop("_clear_task_state", None)


def _forget(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus_id: str) -> None:
    """Forget those of these tasks that nobody wants and nothing needs."""
    orphans = [ts.key for ts in tasks if not ts.dependents and not ts.who_wants]
    scheduler.transitions(dict.fromkeys(orphans, "forgotten"), stimulus_id)
