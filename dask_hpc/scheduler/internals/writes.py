"""The one module that changes the internals of Dask's scheduler.

Rules of the file: no decisions are taken here, only carried out, and everything that is put into the
scheduler can be taken out again. Every attribute of `distributed` that is not documented is listed in
`selfcheck`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distributed.comm import CommClosedError
from distributed.core import Status
from distributed.scheduler import ClientState, TaskState, Transition

from dask_hpc.clock import epoch_s
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.internals.allotment import AWAITED, HOLD, AllotmentSet, Lane
from dask_hpc.scheduler.internals.stock_plugins import NO_RUN, nothing
from dask_hpc.wire import ANNOTATION, HELPER_RESOURCE, notice_topic

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskGroup, WorkerState

logger = logging.getLogger(__name__)

#: States in which a worker gives up a task it was asked back, and states in which it never had it.
GIVEN_UP = frozenset({"ready", "constrained", "waiting"})
NOT_THERE = frozenset({"released", None})
#: Span of tasks that no user has put into one.
_DEFAULT_SPAN = ("default",)


def restrict(ts: TaskState, lane: Lane) -> None:
    """Apply a lane's restriction to a task that is not on a worker.

    A shuffle that ends gives its outputs a plain copy of what they had: those are bound to the
    shared set again, those it still pins are left alone.
    """
    if lane.kind == "free":
        return
    if lane.kind == "p2p" and reads.pinned_by_shuffle(ts):
        return
    ts.worker_restrictions = lane.restriction


def hold(ts: TaskState) -> None:
    """Let a task that has found no worker wait to be admitted."""
    ts.worker_restrictions = HOLD


def await_data(ts: TaskState) -> None:
    """Let a task wait for its data, which somebody brings; it is not run."""
    ts.worker_restrictions = AWAITED


def aim(
    scheduler: Scheduler,
    owner: dict[Any, Lane[Any]],
    key: Any,
    addresses: Collection[str],
    *,
    helper: bool = False,
    loose: bool = False,
) -> None:
    """Have a task that is on no worker run on one of these, and nowhere else; none: wherever there is one.

    It is treated as one that its user has restricted so from then on. It takes a `helper` core, or none.
    A `loose` one runs elsewhere when none of these is there any more.
    """
    ts, lane = scheduler.tasks.get(key), owner.get(key)
    if ts is None or ts.state not in ("waiting", "no-worker") or (lane is not None and lane.guest):
        return
    if lane is not None:
        owner[key] = lane.job.lanes["free"]
    ts.worker_restrictions, ts.loose_restrictions = set(addresses) or None, loose
    take_helper(scheduler, key, helper)


def aim_no_more(
    scheduler: Scheduler, owner: dict[Any, Lane[Any]], key: Any, lane: Lane[Any] | None
) -> None:
    """Undo `aim` for a task that had no restrictions of a user's, and was in that lane before."""
    ts = scheduler.tasks.get(key)
    if ts is None:
        return
    ts.worker_restrictions, ts.loose_restrictions = None, False
    if lane is not None and key in owner:
        owner[key] = lane
        restrict(ts, lane)


def take_helper(scheduler: Scheduler, key: Any, helper: bool) -> None:
    """Have a task that is on no worker, or done, take a helper core where it runs, or none."""
    ts = scheduler.tasks.get(key)
    if ts is None or ts.state not in ("waiting", "no-worker", "memory"):
        return
    need_no(ts, HELPER_RESOURCE)
    if helper:
        ts.resource_restrictions = {**(ts.resource_restrictions or {}), HELPER_RESOURCE: 1}


def need_no(ts: TaskState, name: str) -> None:
    """Have a task that is on no worker need an abstract resource no more."""
    needs = ts.resource_restrictions
    if needs and name in needs:
        ts.resource_restrictions = {each: needs[each] for each in needs if each != name}


def drop_resource(scheduler: Scheduler, name: str) -> None:
    """Have no worker offer an abstract resource any more, and no task that is on none need it."""
    if scheduler.resources.pop(name, None) is None:
        return  # no worker has, and no task does
    for ws in scheduler.workers.values():
        ws.resources.pop(name, None)
    for ts in scheduler.tasks.values():
        if ts.state != "processing":
            need_no(ts, name)


def arrive(
    scheduler: Scheduler, ts: TaskState, ws: WorkerState, nbytes: int, type_name: str, stimulus_id: str,
    part: bool,
) -> bool:  # fmt: skip
    """Make a task that waits for its data a result that a worker has; whether the worker can have it now.

    One that is being emptied can: its results are moved. Of a `part`, for which nobody waits without the
    others, clients hear with what they are told next.
    Who watches the scheduler sees the end of a task like others; that it was on the worker before is left
    out: nothing was sent, no slot taken. It is not run later either: when the data is lost, it waits again.
    """
    if ws.status not in (Status.running, Status.closing_gracefully):
        return False
    key = ts.key
    recommendations: dict[Any, Any] = {}
    to_clients: dict[str, list[Any]] = {}
    to_workers: dict[str, list[Any]] = {}
    scheduler.unrunnable.pop(ts, None)
    ts.run_id = next(TaskState._run_id_iterator)
    ts.set_nbytes(nbytes)
    # what stock's step from ``processing`` to ``memory`` comes to for a task that no worker has run
    scheduler._add_to_memory(ts, ws, recommendations, to_clients, type=b"", typename=type_name)
    scheduler.transition_log.append(
        Transition(key, "processing", "memory", recommendations, stimulus_id, epoch_s())
    )
    for plugin in list(scheduler.plugins.values()):
        try:
            if (transition := plugin.transition) is not nothing:
                transition(
                    key, "processing", "memory", stimulus_id=stimulus_id, worker=ws.address, nbytes=nbytes,
                    type=b"", typename=type_name, startstops=NO_RUN,
                )  # fmt: skip
        except Exception:
            logger.info("Plugin failed with exception", exc_info=True)
    if recommendations:
        scheduler._transitions(recommendations, to_clients, to_workers, stimulus_id)
    while part and to_clients:
        client, messages = to_clients.popitem()
        if (stream := scheduler.client_comms.get(client)) is not None:
            stream.buffer += messages  # and it is not woken
    if to_clients or to_workers:
        scheduler.send_all(to_clients, to_workers)
    if to_workers:
        hurry(scheduler, to_workers)
    return True


def hurry(scheduler: Scheduler, addresses: Iterable[str]) -> None:
    """Have what is to be sent to workers go now: streams wait for more, as long as a step takes (5 ms)."""
    for address in addresses:
        stream: Any = scheduler.stream_comms.get(address)
        if stream is not None:
            stream.next_deadline = None
            stream.waker.set()


def order(ts: TaskState, place: float) -> float | None:
    """Give a task that place among those of its graph; a worker that has it already is not told.

    Gives the place that it had; None: it has none, and keeps that.
    """
    if ts.priority is None:
        return None
    *others, before = ts.priority
    ts.priority = (*others, place)
    return before


def unorder(ts: TaskState) -> None:
    """Give a task the priority that it has in stock."""
    if ts.priority is not None:
        ts.priority = (ts.priority[0], *ts.priority[-2:])


def admit(
    scheduler: Scheduler,
    batch: list[tuple[TaskState, WorkerState, Lane]],
    only: dict[str, AllotmentSet],
    stimulus_id: str,
) -> list[tuple[TaskState, Lane]]:
    """Send held tasks to the chosen workers; returns those that could not be sent.

    A task that has been sent may be stolen by any worker that its job may use, so it is restricted to
    these from then on. Until then it is restricted to one worker, by a set from `only`, which
    holds one for each address; those that are missing are added.
    """
    recommendations = {}
    for ts, ws, _ in reversed(batch):
        address = ws.address
        target = only.get(address)
        if target is None or target.worker is not ws:
            target = only[address] = AllotmentSet((address,))
            target.worker = ws
        ts.worker_restrictions = target
        recommendations[ts.key] = "processing"
    scheduler.transitions(recommendations, stimulus_id)  # type: ignore[arg-type]
    refused = []
    for ts, _, lane in batch:
        if ts.state == "no-worker":
            ts.worker_restrictions = HOLD
            refused.append((ts, lane))
        elif ts.state == "processing":
            ts.worker_restrictions = lane.job.reach
        else:
            restrict(ts, lane)
    return refused


def hold_queued(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus_id: str) -> None:
    """Take tasks out of stock's queue, to be held; their lane has to be one of held tasks by now."""
    recommendations: dict[Any, Any] = {ts.key: "released" for ts in tasks if ts.state == "queued"}
    if recommendations:
        scheduler.transitions(recommendations, stimulus_id)


def fill_from_queue(scheduler: Scheduler, stimulus_id: str) -> None:
    """Let stock send what it has queued to workers that are open to it."""
    scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


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
        if ts.state == "no-worker" and reads.is_barrier(ts.key):
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


def unannotate(ts: TaskState) -> None:
    """Take our annotation off a task: what users see of annotations is their own."""
    annotations = ts.annotations
    if annotations and ANNOTATION in annotations:
        ts.annotations = {name: value for name, value in annotations.items() if name != ANNOTATION}


def put_in_span(
    scheduler: Scheduler, groups: Iterable[TaskGroup], name: str, id: str, over: Callable[[str], bool]
) -> None:
    """Have task groups that are in no span of a user's belong to one: Dask's own tools tell it apart then.

    As an annotation it would be sent to workers with every task. A group is in one span, as in stock: that of
    its first task, or of a later one when nothing of that span runs any more (`over`, by its id).
    """
    spans = scheduler.extensions.get("spans")
    if spans is None:
        return
    for group in groups:
        present = spans.spans.get(group.span_id)
        if present is not None and (present.name == _DEFAULT_SPAN or (present.id != id and over(present.id))):
            span = spans._ensure_span((name,), (id,))
            present.groups.discard(group)
            span.groups.add(group)
            group.span_id = id


def tell(scheduler: Scheduler, topic: str, message: dict[str, Any]) -> None:
    """Send a message to the client that listens on `topic`."""
    scheduler.log_event(topic, message)


def want(scheduler: Scheduler, keys: Collection[Any], client: str) -> None:
    """Have results stay as if a client of that name wanted them; keys that are not known are passed over.

    Stock's `client_desires_keys` would tell all other clients again that they are there, a message each.
    """
    state = scheduler.clients.get(client)
    if state is None:
        scheduler.clients[client] = state = ClientState(client)
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts is not None:
            if ts.who_wants is None:
                ts.who_wants = set()
            ts.who_wants.add(state)
            state.wants_what.add(ts)


def want_no_more(scheduler: Scheduler, keys: Collection[Any], client: str, stimulus_id: str) -> None:
    """Undo `want` for all that this client wants."""
    scheduler.client_releases_keys(keys, client, stimulus_id)
    scheduler.clients.pop(client, None)


def forget_topics(scheduler: Scheduler) -> None:
    """Drop the topics of notices that nobody listens to any more."""
    topics = scheduler._broker._topics
    ours = [name for name in topics if name.startswith(notice_topic(""))]
    for name in ours:
        if not topics[name].subscribers:
            del topics[name]
