"""The one module that reads the internals of Dask's scheduler.

Rules of the file: nothing is changed here. Every attribute of `distributed` that is not documented is
listed in `selfcheck`; whatever else the package wants to know about the scheduler it asks here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from distributed.scheduler import _task_slots_available

from dask_hpc.scheduler.internals import actor_homes
from dask_hpc.scheduler.internals.crowds import starved

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: States of a task that has been asked for and is not finished.
IN_PLAY = frozenset({"waiting", "queued", "no-worker", "processing"})
#: Key prefix of the barrier of a P2P shuffle or rechunk.
BARRIER = "shuffle-barrier-"
_UNLIMITED_SLOTS = 1 << 30


def queuing(scheduler: Scheduler) -> bool:
    """Whether the scheduler queues root tasks (a finite ``worker-saturation``)."""
    return not math.isinf(scheduler.WORKER_SATURATION)


def first_queued(scheduler: Scheduler, most: int) -> list[TaskState]:
    """As many of the tasks that stock has queued, in no order; of more, those that come first are there."""
    queued = scheduler.queued
    # a heap has what comes first in front, and what was taken out of its middle, too
    there = (ts for entry in queued._heap if (ts := entry[2]()) is not None and ts in queued._data)
    return list(islice(there, most))


def stock_slots(scheduler: Scheduler, ws: WorkerState) -> int:
    """Further tasks that stock sends to the worker from its queue; 0 unless it is running."""
    if ws not in scheduler.running:
        return 0
    return _task_slots_available(ws, scheduler.WORKER_SATURATION) if queuing(scheduler) else _UNLIMITED_SLOTS


def free_slots(scheduler: Scheduler, ws: WorkerState) -> int:
    """Further tasks that may be sent to the worker; the first of `room`."""
    return room(scheduler, ws)[0]


def idle_threads(scheduler: Scheduler, ws: WorkerState) -> int:
    """Threads of the worker that a task sent now would find idle; the second of `room`."""
    return room(scheduler, ws)[1]


def room(scheduler: Scheduler, ws: WorkerState) -> tuple[int, int]:
    """How many more tasks stock queuing would have on the worker, and how many threads have none at all.

    The second is below 0 where tasks wait for a thread, and leaves out threads that stock leaves idle, too (a
    saturation below 1). Tasks that wait for a resource take none. Both are 0 unless it is running. In one: it
    runs for most tasks of jobs that share nodes.
    """
    if ws not in scheduler.running:
        return 0, 0
    idle = ws.nthreads - len(ws.processing) + len(ws.long_running)
    if ws.resources:
        idle += starved(ws)
    ahead = _ahead(scheduler.WORKER_SATURATION, ws.nthreads)
    if ahead is None:
        return _UNLIMITED_SLOTS, idle
    return idle + ahead, (idle if ahead > 0 else idle + ahead)


@cache
def _ahead(saturation: float, threads: int) -> int | None:
    """Tasks that stock queuing sends a worker beyond its threads, below 0: short of them; None: all."""
    return None if math.isinf(saturation) else max(math.ceil(saturation * threads), 1) - threads


def priority_with(ts: TaskState, turn: tuple[float, ...]) -> tuple[float, ...] | None:
    """The task's priority with `turn` to decide among tasks of one user priority.

    Stock's is the user's, the count of the graph, the place in the graph. What tasks submit, whose count is
    below 0, comes first, as in stock. None for a task that has no priority.
    """
    own = ts.priority
    return own if own is None or own[-2] < 0 else (own[0], *turn, *own[-2:])


def load(ws: WorkerState) -> float:
    """Tasks per thread: what stock queuing compares to find the least busy worker."""
    return len(ws.processing) / ws.nthreads


def user_restricted(ts: TaskState) -> bool:
    """Whether the user said where the task may run, by workers, hosts or resources."""
    return bool(ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)


def was_sent(ts: TaskState) -> bool:
    """Whether the task has been on a worker before: it has had a result, or would have one."""
    return ts.run_id is not None


def is_barrier(key: Any) -> bool:
    """Whether a key is that of the barrier of a P2P shuffle or rechunk."""
    return type(key) is str and key.startswith(BARRIER)


def shuffle_tasks(scheduler: Scheduler, keys: Iterable[Any]) -> set[TaskState]:
    """Barriers among `keys` and the tasks that depend on one: a shuffle pins those itself."""
    tasks = scheduler.tasks
    found: set[TaskState] = set()
    # `is_barrier`, written out: this runs for every task
    for key in [key for key in keys if type(key) is str and key.startswith(BARRIER)]:
        if key in tasks:
            barrier = tasks[key]
            found.add(barrier)
            found.update(barrier.dependents)
    return found


def pinned_by_shuffle(ts: TaskState) -> bool:
    """Whether a running shuffle has pinned the task to one worker for now."""
    return bool(ts.annotations and "shuffle_original_restrictions" in ts.annotations)


def is_root(scheduler: Scheduler, ts: TaskState, groups: dict[Any, bool]) -> bool:
    """Whether stock would queue the task, or it has no dependencies.

    Ask before the task is restricted; `groups` caches the answer per task group.
    """
    return not ts.dependencies or is_queued(scheduler, ts, groups)


def is_queued(scheduler: Scheduler, ts: TaskState, groups: dict[Any, bool]) -> bool:
    """Whether stock would queue the task; see `is_root`."""
    if is_producer(ts):
        return True
    answer = groups.get(ts.group)
    if answer is None:
        answer = groups[ts.group] = scheduler.is_rootish(ts)
    return answer


def is_producer(ts: TaskState) -> bool:
    """Whether the task reads data in, which stock queues whatever it depends on."""
    return ts.run_spec is not None and ts.run_spec.data_producer


def tasks_on(ws: WorkerState) -> list[TaskState]:
    """Tasks that have been sent to the worker and not come back, seceded ones included."""
    return list(ws.processing)


def runs_on(ts: TaskState, address: str, run_id: int | None) -> bool:
    """Whether the task is on that worker, in that very run."""
    ws = ts.processing_on
    return ws is not None and ws.address == address and ts.run_id == run_id


def holders(scheduler: Scheduler, key: Any) -> set[str]:
    """Addresses of the workers that hold a result, or a handle of an actor."""
    ts = scheduler.tasks.get(key)
    return {ws.address for ws in ts.who_has or ()} if ts is not None else set()


def shuffles_on(scheduler: Scheduler, address: str) -> list[Any]:
    """Keys of the barriers of running shuffles that the worker takes part in or will get outputs of."""
    plugin = scheduler.plugins.get("shuffle")
    if plugin is None or not plugin.active_shuffles:  # type: ignore[attr-defined]
        return []
    return [
        f"{BARRIER}{id}"
        for id, shuffle in plugin.active_shuffles.items()  # type: ignore[attr-defined]
        if address in shuffle.participating_workers or address in shuffle.run_spec.worker_for.values()
    ]


def is_bare(scheduler: Scheduler, address: str) -> bool:
    """Whether the worker has no tasks, data, actors or shuffles."""
    ws = scheduler.workers[address]
    there = ws.processing or ws.nbytes or actor_homes.living(ws)
    return not (there or shuffles_on(scheduler, address))


def is_needed(ws: WorkerState) -> bool:
    """Whether the worker holds results, or executes what will become one."""
    return bool(ws.has_what or ws.processing)


def vetoed_by(scheduler: Scheduler, workers: list[WorkerState]) -> str | None:
    """Name of a plugin that lets not all of these workers go; None when all of them do.

    The plugin of shuffles is not asked: they end, and are waited for.
    """
    for name, plugin in scheduler.plugins.items():
        if name != "shuffle" and len(plugin.valid_workers_downscaling(scheduler, workers)) < len(workers):
            return name
    return None


def sole_bytes(scheduler: Scheduler, addresses: Collection[str]) -> int:
    """Bytes of results that are on these workers and on no other."""
    return nbytes(scheduler, sole_keys(scheduler, addresses))


def sole_keys(
    scheduler: Scheduler, addresses: Collection[str], leaving: Collection[str] | None = None
) -> list[Any]:
    """Keys of results on these workers that are on none but the leaving ones; actors are not among them.

    `leaving` are these workers themselves by default.
    """
    leaving = addresses if leaving is None else leaving
    found: dict[Any, None] = {}
    for address in addresses:
        for ts in scheduler.workers[address].has_what:
            if not ts.actor and all(ws.address in leaving for ws in ts.who_has or ()):
                found[ts.key] = None
    return list(found)


def spillable(scheduler: Scheduler, keys: Iterable[Any], leaving: Collection[str]) -> dict[str, list[Any]]:
    """Those of `keys` that only leaving workers hold and that can be brought back, by one that holds them.

    What the inputs of a shuffle leave in memory is no value: the shards are elsewhere.
    """
    found: dict[str, list[Any]] = {}
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts is None or ts.actor or is_barrier(key) or any(is_barrier(dts.key) for dts in ts.dependents):
            continue
        holders = sorted(ws.address for ws in ts.who_has or ())
        if holders and all(address in leaving for address in holders):
            found.setdefault(holders[0], []).append(key)
    return found


def writable(scheduler: Scheduler, keys: Iterable[Any]) -> list[Any]:
    """Those of `keys` whose values are in memory; an actor is none."""
    tasks = scheduler.tasks
    return [key for key in keys if key in tasks and tasks[key].state == "memory" and not tasks[key].actor]


def unneeded(scheduler: Scheduler, keys: Iterable[Any]) -> list[Any]:
    """Those of `keys` that are in memory nowhere and that nobody wants or waits for."""
    tasks = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    return [ts.key for ts in tasks if ts.state == "released" and not ts.who_wants and not ts.waiters]


def not_remade(scheduler: Scheduler, keys: Iterable[Any], known: dict[Any, bool] | None = None) -> set[Any]:
    """Those of `keys` that stock could not make again, or not once a worker more is lost.

    These are data that no task has made, and whatever has such data, an actor or something forgotten among
    what it was made from. What is found out is noted in `known`, for whoever asks often: it holds until a
    result is made plain data (`writes.keep_copies`) or cannot be read back, for nothing else has a task that
    could be run again run no more. Whoever keeps it forgets it then.
    """
    tasks, doubtful = scheduler.tasks, {} if known is None else known
    for key in keys:
        stack = [tasks[key]] if key in tasks and key not in doubtful else []
        while stack:
            ts = stack[-1]
            if ts.key in doubtful:
                pass
            elif ts.run_spec is None or ts.actor or ts.has_lost_dependencies:
                doubtful[ts.key] = True
            elif missing := [dts for dts in ts.dependencies if dts.key not in doubtful]:
                stack += missing
                continue
            else:
                doubtful[ts.key] = any(doubtful[dts.key] for dts in ts.dependencies)
            stack.pop()
    return {key for key in keys if key in tasks and doubtful[key]}


def least_asked(scheduler: Scheduler, keys: Iterable[Any], asked: Mapping[str, int]) -> dict[str, list[Any]]:
    """Keys in memory by a worker that holds them: of several the one that has been asked for least so far.

    Actors are not among them.
    """
    found: dict[str, list[Any]] = {}
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts is None or ts.actor or not ts.who_has:
            continue
        address = min(
            [ws.address for ws in ts.who_has], key=lambda at: (asked.get(at, 0) + len(found.get(at, ())), at)
        )
        found.setdefault(address, []).append(key)
    return found


def states(scheduler: Scheduler, keys: Iterable[Any]) -> dict[Any, str]:
    """State of the tasks of these keys that there are."""
    return {key: scheduler.tasks[key].state for key in keys if key in scheduler.tasks}


def nbytes(scheduler: Scheduler, keys: Iterable[Any]) -> int:
    """Bytes of these results."""
    return sum(scheduler.tasks[key].get_nbytes() for key in keys if key in scheduler.tasks)


def memory_limit(scheduler: Scheduler, address: str) -> float:
    """Memory limit of a worker in bytes; infinite when it has none, or is not there."""
    ws = scheduler.workers.get(address)
    return float("inf") if ws is None else ws.memory_limit or float("inf")


def running(scheduler: Scheduler) -> set[str]:
    """Addresses of the workers that take tasks and data."""
    return {ws.address for ws in scheduler.running}


def others_running(scheduler: Scheduler, addresses: Collection[str]) -> bool:
    """Whether there is a worker besides these that takes data."""
    return any(ws.address not in addresses for ws in scheduler.running)


def moving_s(scheduler: Scheduler, addresses: Collection[str]) -> float:
    """Seconds that moving what only these workers hold may take, by the measured bandwidth, twice over."""
    return 2 * sole_bytes(scheduler, addresses) / max(1.0, scheduler.bandwidth)


def keys_on(scheduler: Scheduler, address: str) -> list[Any]:
    """Keys of tasks that have been sent to the worker and not come back."""
    ws = scheduler.workers.get(address)
    return [] if ws is None else [ts.key for ts in ws.processing]


def unfinished(scheduler: Scheduler, keys: Iterable[Any]) -> list[Any]:
    """Those of `keys` whose tasks have no result yet."""
    return [key for key in keys if key in scheduler.tasks and scheduler.tasks[key].state != "memory"]


def to_retire(
    scheduler: Scheduler,
    workers: Iterable[str] | None,
    names: Iterable[Any] | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Addresses of the workers that a call of ``Scheduler.retire_workers`` is about."""
    if names is not None:
        wanted = {str(name) for name in names}
        return [address for address, ws in scheduler.workers.items() if str(ws.name) in wanted]
    if workers is not None:
        return [address for address in workers if address in scheduler.workers]
    return list(scheduler.workers_to_close(**{**options, "attribute": "address"}))


def stealing_towards(scheduler: Scheduler, address: str) -> bool:
    """Whether work stealing is about to move a task to the worker."""
    stealing = scheduler.extensions.get("stealing")
    if stealing is None:
        return False
    return any(info["thief"].address == address for info in stealing.in_flight.values())


def wanted_by(scheduler: Scheduler, keys: Collection[Any]) -> dict[str, list[Any]]:
    """Which of `keys` each client wants."""
    wanted: dict[str, list[Any]] = {}
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts is not None:
            for client in ts.who_wants or ():
                wanted.setdefault(client.client_key, []).append(key)
    return wanted


def unplaced(scheduler: Scheduler) -> list[TaskState]:
    """Tasks that could be sent to a worker if there was one for them; queued ones are not among them."""
    return list(scheduler.unrunnable)


def all_tasks(scheduler: Scheduler) -> Iterator[TaskState]:
    """Every task the scheduler knows, as of now."""
    return iter(list(scheduler.tasks.values()))


def worker_facts(ws: WorkerState) -> dict[str, Any]:
    """What the node table keeps about a worker."""
    return {"name": ws.name, "host": ws.host, "nthreads": ws.nthreads, "memory_bytes": ws.memory_limit}
