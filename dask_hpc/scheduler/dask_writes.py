"""The one module that changes the internals of Dask's scheduler.

Rules of the file: no decisions are taken here, only carried out, and everything that is put into the
scheduler can be taken out again. Every attribute of `distributed` that is not documented is listed in
`selfcheck`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from distributed.comm import CommClosedError

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler import dask_reads
from dask_hpc.scheduler.allotment import HOLD, AllotmentSet, Lane
from dask_hpc.scheduler.dask_reads import BARRIER

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: States in which a worker gives up a task it was asked back, and states in which it never had it.
GIVEN_UP = frozenset({"ready", "constrained", "waiting"})
NOT_THERE = frozenset({"released", None})
#: RPC by which a worker that executes the first input of a shuffle has the shuffle begun.
SHUFFLE = "shuffle_get_or_create"


def restrict(ts: TaskState, lane: Lane) -> None:
    """Apply a lane's restriction to a task that is not on a worker.

    A shuffle that ends gives its outputs a plain copy of what they had: those are bound to the
    shared set again, those it still pins are left alone.
    """
    if lane.kind == "free":
        return
    if lane.kind == "p2p" and dask_reads.pinned_by_shuffle(ts):
        return
    ts.worker_restrictions = lane.restriction


def admit(
    scheduler: Scheduler,
    batch: list[tuple[TaskState, WorkerState, Lane]],
    only: dict[str, AllotmentSet],
    stimulus_id: str,
) -> list[tuple[TaskState, Lane]]:
    """Send held tasks to the chosen workers; returns those that could not be sent.

    A task that has been sent may be stolen by any worker of its job, so it is restricted to the
    job's allotment from then on. Until then it is restricted to one worker, by a set from `only`, which
    holds one for each address; those that are missing are added.
    """
    recommendations = {}
    for ts, ws, _ in reversed(batch):
        address = ws.address
        target = only.get(address)
        if target is None:
            target = only[address] = AllotmentSet((address,))
        ts.worker_restrictions = target
        recommendations[ts.key] = "processing"
    scheduler.transitions(recommendations, stimulus_id)  # type: ignore[arg-type]
    refused = []
    for ts, _, lane in batch:
        if ts.state == "no-worker":
            ts.worker_restrictions = HOLD
            refused.append((ts, lane))
        elif ts.state == "processing":
            ts.worker_restrictions = lane.job.allotment
        else:
            restrict(ts, lane)
    return refused


def retry_unplaced(scheduler: Scheduler, keys: Iterable[Any], stimulus_id: str) -> None:
    """Look for a worker again for tasks that had found none."""
    tasks = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    ready = [ts for ts in tasks if ts.state == "no-worker"]
    if ready:
        # recommendations are taken from the end
        ready.sort(key=lambda ts: ts.priority or (), reverse=True)
        scheduler.transitions({ts.key: "processing" for ts in ready}, stimulus_id)


def requeue(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus_id: str) -> None:
    """Have tasks that no worker has placed by the rules of now.

    They go back to the start for that, but for the barrier of a shuffle: stock ends the shuffle when its
    barrier is released, and what has been sent is lost. A barrier is placed from where it is.
    """
    recommendations: dict[Any, Any] = {}
    barriers = []
    for ts in tasks:
        if ts.state == "no-worker" and dask_reads.is_barrier(ts.key):
            barriers.append(ts.key)
        elif ts.state in ("queued", "no-worker"):
            recommendations[ts.key] = "released"
    if recommendations:
        scheduler.transitions(recommendations, stimulus_id)
        scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
    retry_unplaced(scheduler, barriers, stimulus_id)


def ask_back(scheduler: Scheduler, address: str, key: Any, stimulus_id: str) -> bool:
    """Ask a worker to give up a task unless it is executing; its answer is a ``steal-response``."""
    comm = scheduler.stream_comms.get(address)
    if comm is None:
        return False
    try:
        comm.send({"op": "steal-request", "key": key, "stimulus_id": stimulus_id})
    except CommClosedError:
        return False
    return True


def take_back(scheduler: Scheduler, key: Any, address: str, stimulus_id: str) -> None:
    """Place a task anew that its worker has given up.

    Only for tasks the worker has let go: anything else would run them twice.
    """
    scheduler._reschedule(key, address, stimulus_id=stimulus_id)


def cancel(scheduler: Scheduler, wanted: dict[str, list[Any]], reason: str, stimulus_id: str) -> None:
    """Release keys for the clients that want them and tell those clients why."""
    for client, keys in wanted.items():
        if client in scheduler.clients:
            scheduler.client_releases_keys(keys=keys, client=client, stimulus_id=stimulus_id)
            scheduler.report(
                {"op": "cancelled-keys", "keys": keys, "reason": "cancelled", "msg": reason}, client=client
            )


def keep_copies(scheduler: Scheduler, places: Mapping[Any, Collection[str]], stimulus_id: str) -> bool:
    """Make plain data of tasks in memory, and forget what only they were made from.

    Like scattered data they cannot be computed again from then on. `places` gives the workers that keep
    each of them; other replicas are dropped, because stock would choose by itself which one goes. Returns
    whether all of them are there; if not, nothing is changed.
    """
    tasks = [scheduler.tasks.get(key) for key in places]
    for ts, addresses in zip(tasks, places.values(), strict=True):
        if ts is None or not any(ws.address in addresses for ws in ts.who_has or ()):
            return False
    recommendations: dict[Any, Any] = {}
    for ts, addresses in zip(tasks, places.values(), strict=True):
        assert ts is not None
        for ws in list(ts.who_has or ()):
            if ws.address not in addresses:
                scheduler.request_remove_replicas(ws.address, [ts.key], stimulus_id=stimulus_id)
        ts.run_spec = None
        for dts in list(ts.dependencies):
            ts.dependencies.discard(dts)
            dts.dependents.discard(ts)
            if not dts.dependents and not dts.who_wants:
                recommendations[dts.key] = "forgotten"
    scheduler.transitions(recommendations, stimulus_id)
    return True


def unrestrict(ts: TaskState) -> None:
    """Take our restriction off a task; what a user or a shuffle put there stays."""
    if isinstance(ts.worker_restrictions, AllotmentSet):
        ts.worker_restrictions = None
    annotations = ts.annotations
    if annotations and isinstance(annotations.get("shuffle_original_restrictions"), (set, frozenset)):
        annotations["shuffle_original_restrictions"] = None


async def retire(scheduler: Scheduler, addresses: Sequence[str], stimulus_id: str) -> Collection[str]:
    """Have Dask move what only these workers hold and take them out; gives those that it could."""
    retired: Mapping[str, Any] = await scheduler.retire_workers(
        workers=list(addresses), close_workers=False, remove=True, stimulus_id=stimulus_id
    )
    return retired.keys()


def stop_intake(scheduler: Scheduler, addresses: Iterable[str], stimulus_id: str) -> None:
    """Have workers take neither tasks nor data any more.

    A worker that stock could not retire has been told to go on, and says so a moment later: unless it is
    told as well, it is used again.
    """
    status = "closing_gracefully"
    for address in addresses:
        if address in scheduler.workers:
            scheduler.handle_worker_status_change(status, address, stimulus_id)
            message = {"op": "worker-status-change", "status": status, "stimulus_id": stimulus_id}
            scheduler.worker_send(address, message)


async def move_off(
    scheduler: Scheduler, addresses: Sequence[str], staying: Collection[str], within_s: float
) -> Collection[str]:
    """Move what only these workers hold and take them out, as far as that can be done in time.

    Stock moves nothing off a worker with actors, and nothing when it cannot move all: then at least what
    fits elsewhere is copied, to workers that stay if there are any. Returns those that are out of the
    scheduler.
    """
    began_s = stopwatch_s()
    gone: Collection[str] = ()
    with suppress(TimeoutError):
        gone = await asyncio.wait_for(retire(scheduler, addresses, "hpc-departure"), within_s)
    left = [address for address in addresses if address not in gone and address in scheduler.workers]
    # of two copies stock's memory manager keeps the one that is not on a closing worker
    stop_intake(scheduler, left, "hpc-departure")
    others = [ws.address for ws in scheduler.running if ws.address not in left]
    others = [address for address in others if address in staying] or others
    keys = dask_reads.sole_keys(scheduler, left)
    if keys and others:
        left_s = max(1.0, within_s - (stopwatch_s() - began_s))
        with suppress(TimeoutError):
            await asyncio.wait_for(_copy(scheduler, keys, others), left_s)
    return [address for address in addresses if address not in scheduler.workers]


async def _copy(scheduler: Scheduler, keys: Iterable[Any], addresses: Sequence[str]) -> None:
    """Copy results to these workers in turn.

    Not by `Scheduler.replicate`: it logs an event that cannot be sent, and a client that then asks for
    events, or is subscribed to them, loses its connection.
    """
    wanted: dict[str, dict[Any, list[str]]] = {}
    for key, address in zip(keys, cycle(addresses)):
        wanted.setdefault(address, {})[key] = [ws.address for ws in scheduler.tasks[key].who_has or ()]
    await asyncio.gather(*(scheduler.gather_on_worker(address, held) for address, held in wanted.items()))


async def remove(scheduler: Scheduler, address: str) -> None:
    """Take a worker out whose end was expected: what it executes does not count as suspicious."""
    if address in scheduler.workers:
        await scheduler.remove_worker(address=address, stimulus_id="hpc-departure", expected=True, close=True)


def rehome(scheduler: Scheduler, key: Any, source: str, target: str) -> bool:
    """Note that an actor lives on another worker now; whether it is still wanted and both are there."""
    ts = scheduler.tasks.get(key)
    old, new = scheduler.workers.get(source), scheduler.workers.get(target)
    if ts is None or old is None or new is None or ts not in old.actors or ts.state != "memory":
        return False
    scheduler.add_replica(ts, new)
    old.actors.discard(ts)
    new.actors.add(ts)
    scheduler.remove_replica(ts, old)
    return True


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


def put_back(scheduler: Scheduler, key: Any, lineage: Lineage) -> None:
    """Have a task be made again as it was before `stand_in`, as far as what that needs is still there."""
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


def fall_back(scheduler: Scheduler, key: Any, lineage: Lineage) -> bool:
    """Have a task that is about to be placed anew be made as before `stand_in`; whether that can be done.

    If not, it is about to be forgotten, as all that needs it.
    """
    ts = scheduler.tasks[key]
    gone = any(
        scheduler.tasks.get(dts.key) is not dts or dts.state == "erred" for dts in lineage.dependencies
    )
    if lineage.run_spec is None or lineage.has_lost_dependencies or gone:
        ts.has_lost_dependencies = True
        return False
    put_back(scheduler, key, lineage)
    return True


def sweep(scheduler: Scheduler, lineage: Lineage, stimulus_id: str) -> None:
    """Forget what only a result needed that has been forgotten while something stood in for its lineage.

    A task that gave itself back and was not placed anew has left a slot, which stock does not expect.
    """
    orphans = [
        dts.key
        for dts in lineage.dependencies
        if scheduler.tasks.get(dts.key) is dts and not dts.dependents and not dts.who_wants
    ]
    scheduler.transitions(dict.fromkeys(orphans, "forgotten"), stimulus_id)
    scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


def release(scheduler: Scheduler, keys: Iterable[Any], stimulus_id: str) -> None:
    """Let go of results in memory; those that are needed are made again."""
    there = [key for key in keys if key in scheduler.tasks and scheduler.tasks[key].state == "memory"]
    scheduler.transitions(dict.fromkeys(there, "released"), stimulus_id)


class Overrides:
    """Handlers and methods of one scheduler that are replaced while jobs are active.

    `undo` restores exactly what was there.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._no_workers_timeout: float | None = None
        self._streams: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {}
        self._shuffle: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._waiting_actors: WeakSet[TaskState] = WeakSet()

    def stream(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the stream handler `name` by ``make(original)``.

        Where stock has none (without work stealing nobody handles its answers), ours is added.
        """
        handlers = self._scheduler.stream_handlers
        original = handlers.get(name)
        ours = make(original if original is not None else _nothing)
        handlers[name] = ours
        self._streams[name] = (original, ours)

    def hold_without_limit(self) -> None:
        """Let tasks be held for longer than ``distributed.scheduler.no-workers-timeout``.

        That limit is for tasks that no worker can run; a held task waits its turn.
        """
        self._no_workers_timeout = self._scheduler.no_workers_timeout
        self._scheduler.no_workers_timeout = None

    def keep_shuffles_somewhere(self) -> None:
        """Let a shuffle whose tasks may run nowhere begin where its first task executes.

        Stock chooses the workers of the outputs from the restriction of the barrier when the first input
        arrives. A node that is being drained may still execute that input when no other node is left.
        """
        scheduler = self._scheduler
        stock = scheduler.handlers.get(SHUFFLE)
        if stock is None:
            return

        def get_or_create(shuffle_id: Any, key: Any, worker: str) -> Any:
            barrier = scheduler.tasks.get(f"{BARRIER}{shuffle_id}")
            allotment = barrier.worker_restrictions if barrier is not None else None
            if barrier is None or type(allotment) is not AllotmentSet or len(allotment):
                return stock(shuffle_id=shuffle_id, key=key, worker=worker)
            barrier.worker_restrictions = {worker}
            try:
                return stock(shuffle_id=shuffle_id, key=key, worker=worker)
            finally:
                barrier.worker_restrictions = allotment

        scheduler.handlers[SHUFFLE] = get_or_create
        self._shuffle = (stock, get_or_create)

    def cache_valid_workers(self) -> None:
        """Answer `valid_workers` for allotments from a cache.

        Stock builds two sets of the whole allotment for every task; with a thousand workers that is
        most of the time a task takes.
        """
        scheduler: Any = self._scheduler
        stock = type(scheduler).valid_workers

        def valid_workers(ts: TaskState) -> set[WorkerState] | None:
            allotment = ts.worker_restrictions
            if type(allotment) is not AllotmentSet or ts.host_restrictions or ts.resource_restrictions:
                answer: set[WorkerState] | None = stock(scheduler, ts)
                return answer
            # each of these only grows, so that their sum tells when one has changed
            now = allotment.version + scheduler._workers_added_total + scheduler._workers_removed_total
            if allotment.cached_for != now:
                workers = scheduler.workers
                allotment.cached = {workers[a] for a in allotment if a in workers}
                allotment.cached_for = now
            if len(scheduler.running) < len(scheduler.workers):
                return allotment.cached & scheduler.running
            return allotment.cached

        scheduler.valid_workers = valid_workers

    def let_actors_wait(self) -> None:
        """Let an actor that no worker may have yet wait like any other task.

        Stock has a state for such tasks, and takes it for granted that no actor is ever in it. Until there
        is a worker for it, it is therefore no actor.
        """
        scheduler: Any = self._scheduler
        if "decide_worker_non_rootish" in vars(scheduler):
            return
        stock, waiting = type(scheduler).decide_worker_non_rootish, self._waiting_actors

        def decide_worker_non_rootish(ts: TaskState) -> WorkerState | None:
            if waiting and ts in waiting:
                waiting.discard(ts)
                ts.actor = True
            ws: WorkerState | None = stock(scheduler, ts)
            if ws is None and ts.actor:
                waiting.add(ts)
                ts.actor = False
            return ws

        scheduler.decide_worker_non_rootish = decide_worker_non_rootish

    def undo(self) -> None:
        """Put every original back."""
        handlers = self._scheduler.stream_handlers
        for name, (original, ours) in self._streams.items():
            if handlers.get(name) is not ours:
                continue
            if original is None:
                del handlers[name]
            else:
                handlers[name] = original
        self._streams.clear()
        if self._shuffle is not None and self._scheduler.handlers.get(SHUFFLE) is self._shuffle[1]:
            self._scheduler.handlers[SHUFFLE] = self._shuffle[0]
        self._shuffle = None
        if self._scheduler.no_workers_timeout is None:
            self._scheduler.no_workers_timeout = self._no_workers_timeout
        vars(self._scheduler).pop("valid_workers", None)
        vars(self._scheduler).pop("decide_worker_non_rootish", None)
        for ts in self._waiting_actors:
            ts.actor = True
        self._waiting_actors.clear()


def _nothing(**message: Any) -> None:
    """Stand-in for a handler that stock does not have."""


def tell(scheduler: Scheduler, topic: str, message: dict[str, Any]) -> None:
    """Send a message to the client that listens on `topic`."""
    scheduler.log_event(topic, message)


def notice_topic(client: str) -> str:
    """Name of the event topic on which a client gets notices."""
    return f"hpc-notice-{client}"


def producer_topic(client: str, job: str) -> str:
    """Name of the event topic on which a client is told about the windows of one of its jobs."""
    return f"{notice_topic(client)}-{job}"


def forget_topics(scheduler: Scheduler) -> None:
    """Drop the topics of notices that nobody listens to any more."""
    topics = scheduler._broker._topics
    ours = [name for name in topics if name.startswith(notice_topic(""))]
    for name in ours:
        if not topics[name].subscribers:
            del topics[name]
