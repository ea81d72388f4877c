"""Handlers and methods of one scheduler that are replaced while jobs are active, and put back.

Rules of the file: everything that is replaced here is restored by `Overrides.undo`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.internals.allotment import HOLD, AllotmentSet
from dask_hpc.scheduler.internals.crowds import crowd, with_all_data
from dask_hpc.scheduler.internals.reads import BARRIER, load, priority_with, stock_slots
from dask_hpc.scheduler.internals.stock_plugins import StockPlugins
from dask_hpc.wire import HELPER_RESOURCE

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState


class OpenWorkers(set[Any]):
    """Workers that stock's queue may send root tasks to, in place of ``Scheduler.idle_task_count``.

    Stock adds a worker whenever it has a free slot; one that is not open stays out.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Addresses of the workers that are open.
        self.open: Collection[str] = ()

    def add(self, worker: WorkerState, _put: Any = set.add, _drop: Any = set.discard) -> None:
        """Add a worker if it is open, else take it out. Runs for every task."""
        if worker.address in self.open:
            _put(self, worker)
        else:
            _drop(self, worker)


#: RPC by which a worker that executes the first input of a shuffle has the shuffle begun.
SHUFFLE = "shuffle_get_or_create"
#: Workers that are weighed for a task whose data is outside its allotment.
_WEIGHED = 4
#: Steps of tasks in the table that the scheduler has of them: to a worker, to wait for one, to one from that,
#: and to stock's queue.
STEPS = (
    ("waiting", "processing"), ("waiting", "no-worker"), ("no-worker", "processing"), ("waiting", "queued"),
)  # fmt: skip
#: Methods of the scheduler that are replaced, and that table.
_METHODS = (
    "valid_workers",
    "decide_worker_non_rootish",
    "decide_worker_rootish_queuing_disabled",
    "_check_unrunnable_task_timeouts",
    "bulk_schedule_unrunnable_after_adding_worker",
    "_TRANSITIONS_TABLE",
)


class Overrides:
    """Handlers and methods of one scheduler that are replaced while jobs are active.

    `undo` restores exactly what was there.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._streams: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {}
        self._shuffle: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self.stock_plugins = StockPlugins(scheduler)
        self._waiting_actors: WeakSet[TaskState] = WeakSet()
        self._actors_wait = False  # asked for every task: whether that set is empty takes longer
        self._turn: Callable[[TaskState], tuple[float, ...] | None] | None = None
        self._open: Callable[[], Collection[str]] = tuple

    def limit_queue(self, open: Callable[[], Collection[str]]) -> None:
        """Have stock send queued tasks to open workers alone; call `look_at` when that has changed.

        `open` gives their addresses; what it gave is kept until the next look.
        """
        self._open = open
        self._scheduler.idle_task_count = OpenWorkers()
        self.look_at(self._scheduler.workers)

    def look_at(self, addresses: Collection[str]) -> None:
        """See anew which of these workers have free slots for stock's queue."""
        workers, idle = self._scheduler.workers, self._scheduler.idle_task_count
        among: Collection[str] = addresses
        if isinstance(idle, OpenWorkers):
            idle.open = among = self._open()
        for address in addresses:
            worker = workers.get(address)
            if worker is None:
                continue
            if address in among and stock_slots(self._scheduler, worker) > 0:
                idle.add(worker)
            else:
                idle.discard(worker)

    def stream(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the stream handler `name` by ``make(original)``.

        Where stock has none (without work stealing nobody handles its answers), ours is added.
        """
        handlers = self._scheduler.stream_handlers
        original = handlers.get(name)
        ours = make(original if original is not None else _nothing)
        handlers[name] = ours
        self._streams[name] = (original, ours)

    def limit_what_waits(
        self, restricted: Callable[[], list[TaskState]], plain: Callable[[], list[TaskState]]
    ) -> None:
        """Apply ``distributed.scheduler.no-workers-timeout`` to what stock would apply it to.

        Stock fails all tasks that have had no worker for so long; a held task waits its turn. `restricted`
        gives those without a worker that the user has restricted, `plain` those that fail when there has been
        no running worker at all for so long.
        """
        scheduler: Any = self._scheduler
        stock = type(scheduler)._check_unrunnable_task_timeouts

        def check(timestamp: float, recommendations: dict[Any, Any], stimulus_id: str) -> set[Any]:
            everything = scheduler.unrunnable
            found = sorted(restricted(), key=everything.__getitem__)
            scheduler.unrunnable = {ts: everything[ts] for ts in found}
            try:
                failed: set[Any] = stock(
                    scheduler, timestamp, recommendations=recommendations, stimulus_id=stimulus_id
                )
            finally:
                scheduler.unrunnable = everything
            for ts in found:
                if ts.state != "no-worker":
                    del everything[ts]
            since = scheduler._no_workers_since
            if since is not None and timestamp > since + scheduler.no_workers_timeout:
                held = plain()
                failed.update(ts.key for ts in held)
                scheduler._fail_tasks_after_no_workers_timeout(held, recommendations, stimulus_id)
            return failed

        scheduler._check_unrunnable_task_timeouts = check

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

    def keep_to_plain_nodes(self, plain: Callable[[], AllotmentSet | None]) -> None:
        """Let tasks without restrictions run on the nodes of plain work alone, which `plain` gives."""
        self.cache_valid_workers(plain)
        self.keep_siblings_together(plain)
        self.pass_over_held()

    def pass_over_held(self) -> None:
        """Let stock look at held tasks no more when a worker comes: none may run there until it is sent.

        There may be a hundred thousand, and stock asks of each where it may run.
        """
        scheduler: Any = self._scheduler
        stock = type(scheduler).bulk_schedule_unrunnable_after_adding_worker

        def runnable(ws: WorkerState) -> dict[Any, Any]:
            everything = scheduler.unrunnable
            scheduler.unrunnable = [ts for ts in everything if ts.worker_restrictions is not HOLD]
            try:
                found: dict[Any, Any] = stock(scheduler, ws)
            finally:
                scheduler.unrunnable = everything
            return found

        scheduler.bulk_schedule_unrunnable_after_adding_worker = runnable

    def cache_valid_workers(self, plain: Callable[[], AllotmentSet | None]) -> None:
        """Answer `valid_workers` for allotments from a cache; `plain` is that of tasks without restrictions.

        Stock builds two sets of the whole allotment for every task; with a thousand workers that is
        most of the time a task takes.
        """
        scheduler: Any = self._scheduler
        stock = type(scheduler).valid_workers

        def valid_workers(ts: TaskState) -> set[WorkerState] | None:
            allotment = ts.worker_restrictions or plain()
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
            everywhere = not ts.worker_restrictions and len(allotment.cached) == len(scheduler.workers)
            if everywhere:
                return None
            # one that is processing is about to be stolen: its data is no matter
            if len(allotment.cached) > _WEIGHED and ts.dependencies and ts.state != "processing":
                return _few(ts, allotment.cached, scheduler.idle) or allotment.cached
            return allotment.cached

        scheduler.valid_workers = valid_workers

    def keep_siblings_together(self, plain: Callable[[], AllotmentSet | None]) -> None:
        """Have stock place root tasks that it does not queue on the workers of plain work alone.

        With an infinite ``worker-saturation`` it fills one worker after the other, so that siblings are
        together, out of all workers that are idle. `plain` gives those that it may choose from.
        """
        scheduler: Any = self._scheduler
        stock = type(scheduler).decide_worker_rootish_queuing_disabled

        def decide(ts: TaskState) -> WorkerState | None:
            allowed, group = plain(), ts.group
            if allowed is None:
                answer: WorkerState | None = stock(scheduler, ts)
                return answer
            last = group.last_worker
            # of one that is just being lost stock would choose another, out of all workers
            if last is not None and not (last.address in allowed and last in scheduler.running):
                group.last_worker = last = None
            if last is not None and group.last_worker_tasks_left:
                answer = stock(scheduler, ts)
                return answer
            idle, running, threads = scheduler.idle, scheduler.running, scheduler.total_nthreads
            scheduler.running = {ws for ws in running if ws.address in allowed}
            scheduler.idle = {ws.address: ws for ws in scheduler.running if ws.address in idle}
            # a worker gets as many as its share of the threads
            scheduler.total_nthreads = sum([ws.nthreads for ws in scheduler.running])
            try:
                answer = stock(scheduler, ts)
            finally:
                scheduler.idle, scheduler.running, scheduler.total_nthreads = idle, running, threads
            return answer

        scheduler.decide_worker_rootish_queuing_disabled = decide

    def order_by(self, turn: Callable[[TaskState], tuple[float, ...] | None]) -> None:
        """Let `turn` say, when a restricted task is placed, where it comes among those on its worker."""
        self._turn = turn

    def place(
        self,
        elsewhere: Callable[[TaskState, WorkerState], bool],
        waits: Callable[[TaskState, WorkerState], bool],
    ) -> None:
        """Place tasks as stock does, but for those whose data is all on one worker, and actors.

        Before one is placed behind others, `elsewhere` says whether it is held instead; before any is placed,
        `waits` does.

        There is nothing to weigh where all data is on one worker; stock would take longer over that than
        over all else. An actor that no worker may have yet waits like any other task: stock has a state for
        such tasks, and takes it for granted that no actor is ever in it. Until there is a worker for it, it
        is therefore no actor.
        """
        scheduler: Any = self._scheduler
        stock, waiting = type(scheduler).decide_worker_non_rootish, self._waiting_actors
        prepare = self._prepare

        def decide_worker_non_rootish(ts: TaskState) -> WorkerState | None:
            where: Any = ts.worker_restrictions
            if where is HOLD:  # it gets its turn when it is sent; an actor that is held is none until then
                return None
            prepare(ts)
            ws: WorkerState | None
            # a result that was read back may be made again where its user has said
            free = type(where) is AllotmentSet and not (ts.resource_restrictions or ts.host_restrictions)
            if not free or (ws := with_all_data(scheduler, ts, where)) is None:
                ws = stock(scheduler, ts)
                if ws is None and HELPER_RESOURCE in (ts.resource_restrictions or ()):
                    # where it may run there are no helper cores (yet): it takes turns there
                    writes.need_no(ts, HELPER_RESOURCE)
                    ws = stock(scheduler, ts)
            if free and ws is not None and ((crowd(ws) >= 0 and elsewhere(ts, ws)) or waits(ts, ws)):
                return None
            if ws is None and ts.actor:
                waiting.add(ts)
                self._actors_wait = True
                ts.actor = False
            return ws

        scheduler.decide_worker_non_rootish = decide_worker_non_rootish
        self._wait_in_one_step()

    def _prepare(self, ts: TaskState) -> None:
        """Give a task that is placed its turn, and have one that has waited as an actor be one."""
        if self._turn is not None and (ts.worker_restrictions is not None or ts.resource_restrictions):
            turn = self._turn(ts)
            if turn is not None:
                ts.priority = priority_with(ts, turn)
        if self._actors_wait and ts in self._waiting_actors:
            self._waiting_actors.discard(ts)
            self._actors_wait = bool(self._waiting_actors)
            ts.actor = True
        if ts.actor:
            for ws in self._scheduler.workers.values():  # where it was to be made before, it does not live
                ws.actors.discard(ts)

    def _wait_in_one_step(self) -> None:
        """Have tasks wait in the step that finds no worker, and held ones go where `writes.admit` has chosen.

        Stock tells everybody of a step that has led nowhere, and lets the task wait in another one.
        """
        scheduler: Any = self._scheduler
        steps, tasks, prepare = type(scheduler)._TRANSITIONS_TABLE, scheduler.tasks, self._prepare
        ready, hold, choose, queue = (steps[step] for step in STEPS)
        waiting = {"no-worker": hold, "queued": queue}

        def place(scheduler: Any, key: Any, stimulus_id: str) -> Any:
            if tasks[key].worker_restrictions is HOLD:
                return hold(scheduler, key, stimulus_id)
            found = ready(scheduler, key, stimulus_id)
            if found[0] and (wait := waiting.get(found[0].get(key))):  # no worker may have it: it waits now
                return wait(scheduler, key, stimulus_id)
            return found

        def send(scheduler: Any, key: Any, stimulus_id: str) -> Any:
            ts = tasks[key]
            where = ts.worker_restrictions
            ws = where.worker if type(where) is AllotmentSet else None
            if ws is None or ts.resource_restrictions or ts.host_restrictions:
                return choose(scheduler, key, stimulus_id)
            prepare(ts)
            scheduler.unrunnable.pop(ts, None)
            return scheduler._add_to_processing(ts, ws, stimulus_id=stimulus_id)

        scheduler._TRANSITIONS_TABLE = {**steps, STEPS[0]: place, STEPS[2]: send}

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
        for name in _METHODS:
            vars(self._scheduler).pop(name, None)
        self.stock_plugins.give_back()
        if isinstance(self._scheduler.idle_task_count, OpenWorkers):
            self._scheduler.idle_task_count = set()
            self.look_at(self._scheduler.workers)
        for ts in self._waiting_actors:
            ts.actor = True
        self._waiting_actors.clear()
        self._actors_wait = False
        self._turn = None


def _few(ts: TaskState, allotment: set[WorkerState], idle: Collection[str]) -> set[WorkerState]:
    """Some workers of an allotment for a task whose data is all outside it; none: any will do.

    Stock weighs every worker of the allotment then, which takes longer than all else that a task costs. All
    of them would have to fetch the data; of a few that are idle, or have the fewest tasks for their threads,
    one is as good (Mitzenmacher 2001).
    """
    for dts in ts.dependencies:
        if dts.who_has and not allotment.isdisjoint(dts.who_has):
            return set()
    some = set(islice((ws for ws in allotment if ws.address in idle), _WEIGHED))
    return some or set(nsmallest(_WEIGHED, allotment, key=load))


def _nothing(**message: Any) -> None:
    """Stand-in for a handler that stock does not have."""
