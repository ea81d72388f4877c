"""The engine: puts the parts together, and decides only when the whole is awake.

Asleep, nothing of this package is in the scheduler but one RPC handler, three stream handlers of its own,
the one that adaptive clusters ask (`pool_target`), and what hears of workers (`losses`). The first job wakes
it: the plugin joins, handlers are wrapped, plain work is the default job. After the last, all is stock's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dask_hpc.clock import Clock
from dask_hpc.config import Settings
from dask_hpc.errors import DaskHPCError, TraceError
from dask_hpc.scheduler.core.answers import Answers
from dask_hpc.scheduler.core.controller import Controller
from dask_hpc.scheduler.core.handlers import Handlers
from dask_hpc.scheduler.core.lifecycle import Lifecycle
from dask_hpc.scheduler.core.notices import Notices
from dask_hpc.scheduler.core.periodic import Periodic
from dask_hpc.scheduler.core.plugin import PLUGIN_NAME, HPCSchedulerPlugin
from dask_hpc.scheduler.core.tracing import Tracing
from dask_hpc.scheduler.internals import overrides, selfcheck, writes
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.placing.guests import Guests
from dask_hpc.scheduler.placing.overflow import OVERFLOW, Overflow
from dask_hpc.scheduler.placing.ownership import Ownership
from dask_hpc.scheduler.placing.queue import PlainQueue
from dask_hpc.scheduler.placing.resting import Resting
from dask_hpc.scheduler.placing.turns import Turns
from dask_hpc.scheduler.resizing.rounds import Rounds
from dask_hpc.scheduler.resizing.work import StockWork
from dask_hpc.scheduler.tables.events import (
    ActionEnded,
    AdmissionPassed,
    AllotmentsChanged,
    ClientClosed,
    ClientJoined,
    ClientLeft,
    Event,
    GraphArrived,
    GraphTaken,
    LastJobEnded,
    Restarted,
    RoundEnded,
    SchedulerCloses,
    SlotsOpened,
    TaskAnswered,
    VersionEnded,
    WindowMoved,
    WorkerJoined,
    WorkerLeft,
)
from dask_hpc.scheduler.tables.heard import Heard
from dask_hpc.scheduler.tables.losses import Losses
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.small import SmallResults
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Engine:
    """Everything that runs on one scheduler."""

    def __init__(self, scheduler: Scheduler, settings: Settings, policy: Policy) -> None:
        self.scheduler = scheduler
        self.parts = Parts()
        self.state = State(scheduler, settings, Clock(), self.parts)
        self._overrides = overrides.Overrides(scheduler)
        self.tracing = Tracing(self.state, self._spawn)
        self.guests = Guests(self.state)
        self.ownership = Ownership(self.state, self.parts, self.guests)
        self.rounds = Rounds(self.state, self.parts, self.handle)
        self.queue = PlainQueue(self.state, self._overrides.look_at)
        self.turns = Turns(self.state, self._overrides.order_by)
        self.admission = Admission(
            self.state, self.parts, self.queue, self.turns, self.handle, self.rounds.watched
        )
        self._resting = Resting(self.state)
        self.overflow = Overflow(self.state, self.admission.lending, self.admission.offer)
        self.controller = Controller(self.state, self.parts, self.rounds, policy)
        self.answers = Answers(self.state, lambda: self.controller.request("answer"))
        self.lifecycle = Lifecycle(
            self.state, self.ownership, self.turns, self.admission, self.controller, self.rounds, self.handle
        )
        self._handlers, self._hears = Handlers(self.ownership, self.handle), self._table()
        self.parts.add(self, self.answers, self.rounds.windows, self.rounds.thefts, StockWork(self.state))
        self.watched, self.small = Watched(scheduler), SmallResults(self.state)
        self.losses = Losses(self.state, self.watched, lambda: self.tracing.tick(self.state.now_s()))
        self.parts.add(self.lifecycle, Notices(self.state), self.tracing, Heard(self.state), self.losses)
        self.awake = self.leaving = False
        self._lock = asyncio.Lock()
        #: How many need it awake although no job is active.
        self._needed = 0
        self._periodic = Periodic(scheduler)
        self._background: set[asyncio.Task[None]] = set()
        self._adoption: asyncio.Task[None] | None = None

    # ------------------------------------------------------------- sleep, wake

    async def wake(self) -> None:
        """Take the scheduler's work over, unless that has happened."""
        async with self._lock:
            if self.awake:
                return
            selfcheck.require(self.scheduler)
            self.awake = True
            try:
                self._join()
                self._start_plain()
            except BaseException:  # half awake it would keep what it has not taken over
                self.awake = False
                self._part()
                raise
            self._adoption = self._spawn(self._adopt())

    async def open_job(self, id: str) -> None:
        """Queue an announced job and wake up."""
        if self.leaving or (job := self.state.jobs.queue(id, self.state.now_s())) is None:
            return
        try:
            await self.wake()
        except Exception as error:
            # this runs on the client's stream, which must not break, and nobody is to wait for ever
            ours = isinstance(error, DaskHPCError)
            logger.error("Job %s cannot be queued: %s", id, error, exc_info=not ours)
            job.end_s, job.reason = self.state.now_s(), str(error) or repr(error)
            job.step("fail")
            self.state.jobs.end(job)
            return
        if not job.active:
            return self.rest()  # it was cancelled meanwhile
        self.turns.join(job)
        self.state.note_job(job)
        self.controller.request("submit")

    async def sleep(self) -> None:
        """Hand everything back to stock scheduling, unless a job needs us."""
        async with self._lock:
            if not self.awake or self._has_work():
                return
            # a task that a worker gives back after we have gone would be lost
            while self.rounds.drain.waiting or self.overflow.waiting:
                self.rounds.abandon("dask_hpc goes to sleep")
                await asyncio.sleep(self.state.settings.sweep_s)
                if self._has_work():  # it waits in `wake`, for no worker that is silent
                    return
            self.controller.enabled = self.awake = False
            self.rounds.abandon("dask_hpc goes to sleep")
            if self._adoption is not None:
                self._adoption.cancel()
            await self.ownership.hand_back()
            # a job that has come meanwhile waits in `wake`
            self._part()
            await self.tracing.flush()

    @asynccontextmanager
    async def kept_awake(self) -> AsyncIterator[None]:
        """Be awake, all tasks taken over, until the end of the block."""
        self._needed += 1
        try:
            await self.wake()
            if self._adoption is not None:
                await asyncio.wait([self._adoption])
            yield
        finally:
            self._needed -= 1
            self.rest()

    def needed(self) -> bool:
        """Whether somebody keeps it awake (`kept_awake`)."""
        return self._needed > 0

    def _has_work(self) -> bool:
        return bool(self.state.jobs.named) or (self.parts.needed() and not self.leaving)

    def rest(self) -> None:
        """Go to sleep, if nobody needs it any more."""
        if not self._has_work():
            self._spawn(self.sleep())

    async def stop(self) -> None:
        """Hand everything back although jobs may be active: their tasks go on as plain work."""
        self.leaving = True
        self.rounds.abandon("dask_hpc was uninstalled")
        for job in (*self.state.jobs.named, *self.state.jobs.announced.values()):
            job.end_s = self.state.now_s()
            job.reason = "dask_hpc was uninstalled; its tasks go on as plain Dask work"
            self.state.give(self.state.nodes_of(job), None)
            job.step("cancel")
            self.state.jobs.end(job)
        await self.sleep()
        self.tracing.close()

    def _join(self) -> None:
        parts = (self.ownership, self.guests, self.admission, self.lifecycle, self.small, self._resting)
        plugin = HPCSchedulerPlugin(self.state, *parts, self.handle, self._overrides.stock_plugins)
        self.scheduler.add_plugin(plugin, name=PLUGIN_NAME)
        self._overrides.keep_to_plain_nodes(self.state.plain_allotment)
        self._overrides.limit_what_waits(self.ownership.unplaced_by_users, self.ownership.unplaced_plain)
        self._overrides.keep_shuffles_somewhere()
        self._overrides.place(self.overflow.elsewhere, self.admission.waits)
        self._handlers.install(self._overrides)
        self.ownership.worker_clients.wake()
        for address in self.scheduler.workers:
            self.state.add_worker(address)
        self.parts.tick(self.state.now_s())
        self._periodic.start("hpc-tick", self.state.settings.tick_s, self._tick)
        self._periodic.start("hpc-sweep", self.state.settings.sweep_s, self._sweep)
        try:
            self.tracing.to(self.state.settings.trace_path)
        except TraceError as error:
            # jobs matter more than their trace, which is kept in memory all the same
            logger.error("Going on without a trace file: %s", error)

    def _part(self) -> None:
        state = self.state
        self._periodic.stop()
        self._overrides.undo()
        if self.scheduler.plugins.get(PLUGIN_NAME) is not None:
            self.scheduler.remove_plugin(PLUGIN_NAME)
        writes.forget_topics(self.scheduler)
        self.small.clear()
        self.admission.clear()
        for address in list(state.nodes.at):
            state.drop_worker(address)
        state.nodes.clear()
        for job in [one for one in state.jobs.active.values() if one.is_default]:
            state.jobs.end(job)
            self.controller.forget(job.id)
        state.plain.clear()
        state.intake = None
        self.queue.closed = False
        state.owner.clear()

    def _start_plain(self) -> None:
        state = self.state
        job = state.jobs.add_default(submit_s=state.now_s(), min_nodes=state.settings.default_job_min_nodes)
        job.step("start")
        job.start_s = state.now_s()
        job.reason = "plain work uses the nodes that no job holds"
        state.start_plain(job)
        state.intake = job
        self._overrides.limit_queue(self.queue.open)
        state.moved = self._overrides.look_at

    async def _adopt(self) -> None:
        await self.ownership.adopt(self.state.plain[0])
        if self.awake:
            self.admission.scan(*self.state.plain)
            self.controller.enabled = True
            self.controller.request("submit")

    def close(self) -> None:
        """Stop everything at once: the scheduler is going away."""
        self.controller.enabled = False
        self._periodic.stop()
        for task in self._background:
            task.cancel()
        self.tracing.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A background task of dask_hpc failed", exc_info=error)

    def use_settings(self, settings: Settings) -> None:
        """Work by other settings from now on."""
        state = self.state
        state.settings, state.nodes.by = settings, settings.node_by
        state.records = deque(state.records, maxlen=settings.trace_keep)
        self.controller.decisions = deque(self.controller.decisions, maxlen=settings.decisions_keep)
        for name, seconds in (("hpc-tick", settings.tick_s), ("hpc-sweep", settings.sweep_s)):
            self._periodic.change(name, seconds)

    # ----------------------------------------------------------------- events

    def handle(self, event: Event) -> None:
        """Something has happened: whoever has to know is told, at once and in order."""
        for hear in self._hears[type(event)]:
            hear(event)

    def _table(self) -> Mapping[type[Event], tuple[Callable[[Any], None], ...]]:
        """Who hears what."""
        admission, ownership = self.admission, self.ownership
        lifecycle, controller = self.lifecycle, self.controller
        return {
            GraphArrived: (self._claim,),
            GraphTaken: (lambda event: lifecycle.submitted(event.job, event.keys),),
            WorkerJoined: (self._worker_joined,),
            WorkerLeft: (self._worker_left,),
            SlotsOpened: (lambda event: admission.freed(event.address, None),),
            TaskAnswered: (self._answered, lambda event: admission.wake()),
            ClientJoined: (lambda event: lifecycle.client_joined(event.client),),
            ClientLeft: (
                lambda event: lifecycle.client_left(event.client),
                lambda event: ownership.worker_clients.forget(event.client),
            ),
            ClientClosed: (lambda event: lifecycle.client_closed(event.client),),
            Restarted: (lambda event: lifecycle.restarted(),),
            SchedulerCloses: (lambda event: self.close(),),
            AllotmentsChanged: (
                lambda event: self._resting.look(),
                lambda event: admission.scan(*event.jobs),
            ),
            AdmissionPassed: (lambda event: self._poll(),),
            ActionEnded: (lambda event: controller.report(event.outcome, event.trigger),),
            RoundEnded: (lambda event: controller.request("finish"),),
            VersionEnded: (lambda event: controller.version_ended(),),
            WindowMoved: (lambda event: writes.tell(self.scheduler, event.topic, event.message),),
            LastJobEnded: (lambda event: self.rest(),),
        }

    def _claim(self, event: GraphArrived) -> None:
        """New tasks belong to jobs from here on."""
        if not self.awake:
            return
        intake = self.state.intake
        jobs = self.ownership.claim(event)
        self.parts.claimed(event.wanted)
        if self.state.intake is not intake:
            self.controller.request("submit")
        if jobs:
            self.admission.offer(*jobs)

    def _worker_joined(self, event: WorkerJoined) -> None:
        """A node serves whom it served before, else plain work."""
        state = self.state
        node = state.add_worker(event.address)
        self.lifecycle.pool_grew()
        job = state.jobs.active.get(node.job) if node.job is not None else None
        if job is not None and not job.fits(state.nodes_up(job)):
            state.give([node], None)
        elif job is not None:
            self.controller.note(job.id, ReasonCode.NODE_RETURNED, f"node {node.id} is back")
            state.note_job(job)
        self.admission.scan(*state.served_by(event.address))
        self.controller.request("node-added")

    def _answered(self, event: TaskAnswered) -> None:
        """A worker gives a task back, or does not."""
        asker = self.overflow if event.stimulus_id.startswith(OVERFLOW) else self.rounds.drain
        asker.answered(event.state, event.stimulus_id)

    def _worker_left(self, event: WorkerLeft) -> None:
        """A job goes on with what is left."""
        state, address = self.state, event.address
        node = state.drop_worker(address)
        self.admission.worker_left(address)
        self.overflow.lost(address)
        self.rounds.lost(address)
        # what was pinned to the node may run elsewhere now
        self.admission.scan(*state.pins)
        job = state.jobs.active.get(node.job) if node is not None and node.job is not None else None
        if node is not None and job is not None and not node.up:
            left, low = state.nodes_up(job), job.request.min_nodes
            text = f"node {node.id} was lost; left: {counted(left)}"
            if left < low:
                text += f", below the minimum of {low}: it is served first"
            job.reason = text
            self.controller.note(job.id, ReasonCode.WORKER_LOST, text)
            state.note_job(job)
        self.controller.request("node-lost")

    # ------------------------------------------------------------------ periodic

    def _sweep(self) -> None:
        self._resting.look()
        self.guests.place_lost()
        self.lifecycle.sweep()
        self.overflow.look()
        self.admission.sweep()
        self._poll()

    def _poll(self) -> None:
        if self.rounds.watching:
            self.rounds.poll()

    def _tick(self) -> None:
        self.parts.tick(self.state.now_s())
        self.controller.request("tick")
