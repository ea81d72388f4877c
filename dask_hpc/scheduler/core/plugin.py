"""The one scheduler plugin: counts what tasks do and passes events on.

Every line here runs on the scheduler's event loop for every task, so it holds no logic beyond
counting. It is in the scheduler only while a job is active.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_hpc.scheduler.core.counting import counting
from dask_hpc.scheduler.core.lifecycle import Lifecycle
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.internals.durations import taken_s
from dask_hpc.scheduler.internals.origins import TOPIC
from dask_hpc.scheduler.internals.reads import IN_PLAY
from dask_hpc.scheduler.internals.stock_plugins import NO_RUN, StockPlugins
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.placing.guests import Guests
from dask_hpc.scheduler.placing.ownership import Ownership
from dask_hpc.scheduler.placing.resting import Resting
from dask_hpc.scheduler.tables.events import (
    ClientJoined,
    ClientLeft,
    Event,
    GraphArrived,
    Restarted,
    SchedulerCloses,
    WorkerJoined,
    WorkerLeft,
)
from dask_hpc.scheduler.tables.small import SmallResults
from dask_hpc.scheduler.tables.state import State
from dask_hpc.wire import ANNOTATION, NODE_ANNOTATION

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


#: Name under which the plugin is registered.
PLUGIN_NAME = "dask-hpc"


class HPCSchedulerPlugin(SchedulerPlugin):
    """Counts tasks; passes everything else on as an event."""

    name = PLUGIN_NAME

    def __init__(
        self,
        state: State,
        ownership: Ownership,
        guests: Guests,
        admission: Admission,
        lifecycle: Lifecycle,
        small: SmallResults,
        resting: Resting,
        handle: Callable[[Event], None],
        stock: StockPlugins,
    ) -> None:
        self._ownership = ownership
        self._guests = guests
        self._admission = admission
        self._lifecycle = lifecycle
        self._small = small
        #: Small results that are held as bytes.
        self._held = small.held
        #: Small results that were asked about.
        self._doubtful = small.doubtful
        self._resting = resting
        self._handle = handle
        self._owner = state.owner
        self._tasks = state.scheduler.tasks
        self.transition = counting(  # type: ignore[method-assign]
            self._owner, self._tasks, admission, small, lifecycle.maybe_done, self._count, *stock.take()
        )

    def update_graph(
        self,
        scheduler: Scheduler,
        *,
        client: str,
        tasks: list[Any],
        annotations: dict[str, dict[Any, Any]],
        **kwargs: Any,
    ) -> None:
        """Claim the new tasks for their jobs, before any of them is placed."""
        # the plugins that come after ours are given the same dictionary
        declared, nodes = annotations.pop(ANNOTATION, {}), annotations.get(NODE_ANNOTATION) or {}
        self._handle(GraphArrived(tasks, declared, client, nodes, kwargs.get("keys") or ()))

    def _count(
        self,
        key: Any,
        start: str,
        finish: str,
        lane: Lane | None,
        worker: str | None,
        nbytes: int | None,
        startstops: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Keep the counts of the task's job; note slots that may have opened."""
        if start == "processing" and startstops is not NO_RUN:
            self._admission.freed(worker, lane, key)
            if worker is not None:
                self._admission.lending.ended(worker, key)
        if lane is None:
            return
        job = lane.job
        if finish in IN_PLAY:
            if start not in IN_PLAY:
                if not lane.own:
                    lane = self._guests.recomputed(self._tasks[key], lane)
                    job = lane.job
                job.unfinished += 1
                if job.resting:
                    self._resting.work(job)
                if lane.guest:
                    job.guests += 1
            elif start == "processing":
                job.processing -= 1
            elif start == "no-worker" or start == "queued":
                job.held -= 1
            if finish == "processing":
                job.processing += 1
            elif finish == "no-worker":
                job.held += 1
                if lane.kind == "root":
                    job.park(self._tasks[key], lane.guest)
                else:
                    job.stranded[key] = None
                    if self._admission.lending.nowhere(job):
                        # no slot of its own opens for it; it may be lent one
                        self._admission.offer(job)
            elif finish == "queued":
                job.held += 1
            return
        if start in IN_PLAY:
            job.unfinished -= 1
            if lane.guest:
                job.guests -= 1
            if start == "processing":
                job.processing -= 1
                if startstops and job.is_default:
                    job.expected.done_s += taken_s(startstops)
                elif startstops and not lane.guest:
                    seconds = job.meter.observe(startstops)
                    job.expected.ended(self._tasks[key].prefix, seconds)
                    if nbytes is not None:
                        self._small.came(key, nbytes)
            elif start == "no-worker" or start == "queued":
                job.held -= 1
            if job.unfinished == job.guests:
                self._lifecycle.maybe_done(job)
        if finish == "released":
            writes.restrict(self._tasks[key], lane)
            if key in self._held:
                self._small.left_memory(key)
            if start == "erred" and not lane.guest:
                job.erred -= 1
        elif finish == "erred":
            if not lane.guest:
                job.erred += 1
                job.failure = f"task {key!r} failed"
        elif finish == "forgotten":
            del self._owner[key]
            if key in self._held or key in self._doubtful:
                self._small.forget(key)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """A worker has connected."""
        self._handle(WorkerJoined(worker))

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """A worker has gone."""
        self._handle(WorkerLeft(worker))

    def add_client(self, scheduler: Scheduler, client: str) -> None:
        """A client has connected, perhaps again."""
        self._handle(ClientJoined(client))

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """A client has gone; the scheduler has dropped what only it wanted."""
        self._handle(ClientLeft(client))

    def log_event(self, topic: str, msg: Any) -> None:
        """An event was logged."""
        if topic == TOPIC:
            self._ownership.worker_clients.heard(msg)

    def restart(self, scheduler: Scheduler) -> None:
        """`Client.restart`: every task has been forgotten."""
        self._handle(Restarted())

    async def before_close(self) -> None:
        """The scheduler is closing."""
        self._handle(SchedulerCloses())
