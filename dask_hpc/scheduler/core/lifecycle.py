"""Life of jobs: opened, closed, done, cancelled; and of plain work, which is a job too."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.core.controller import Controller
from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.placing.ownership import Ownership
from dask_hpc.scheduler.placing.turns import Turns
from dask_hpc.scheduler.resizing.rounds import Rounds
from dask_hpc.scheduler.tables.events import Event, LastJobEnded
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc.wire import notice_topic
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.jobs.jobspec import JobSpec, resolve
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Fields of a request that stay when the pool grows: who made it when, and what was measured of its job.
_KNOWN = ("submit_s", "user", "recorded_s", "io_intensity", "io_by_nodes", "power_by_nodes")


class Lifecycle:
    """Opens and ends jobs."""

    def __init__(
        self,
        state: State,
        ownership: Ownership,
        turns: Turns,
        admission: Admission,
        controller: Controller,
        rounds: Rounds,
        handle: Callable[[Event], None],
    ) -> None:
        self.state = state
        self.scheduler: Scheduler = state.scheduler
        self.ownership = ownership
        self.turns = turns
        self.admission = admission
        self.controller = controller
        self.rounds = rounds
        self._handle = handle
        self._maybe_done: set[JobRecord] = set()

    def client_joined(self, client: str) -> None:
        """A client has connected, perhaps again: what it has said meanwhile of its jobs is lost."""
        open_jobs = False
        for job in self.state.jobs.named:
            if job.client == client:
                job.client_gone_s = None
                open_jobs |= not job.closed
        if open_jobs:
            # what it is sent first has to come alone
            self.scheduler.loop.call_later(self.state.settings.sweep_s, self._ask_closed, client)

    def _ask_closed(self, client: str) -> None:
        """Have a client say again which of its open jobs it has closed."""
        open_jobs = [job.id for job in self.state.jobs.named if job.client == client and not job.closed]
        writes.tell(self.scheduler, notice_topic(client), {"open": open_jobs})

    def client_left(self, client: str) -> None:
        """A client has gone; its jobs are given some time."""
        for job in self.state.jobs.named:
            if job.client == client:
                job.client_gone_s = self.state.now_s()
                # what only this client wanted has just been dropped; what others want goes on
                job.dropped = job.closed and job.done and self._awaited(job) is None
        self.forget_announced()

    def forget_announced(self) -> None:
        """Cancel jobs whose client has gone before it has opened them; asleep, nobody hears of it."""
        for job in list(self.state.jobs.announced.values()):
            if job.client not in self.scheduler.clients:
                self.cancel(job, ReasonCode.CLIENT_GONE, "its client has gone before it was submitted")

    def submitted(self, named: Any, keys: Collection[Any]) -> None:
        """Stock has taken a graph, or reported to the client that it cannot: then its job has failed."""
        job = self.ownership.declared_job(named)
        if job is not None and keys and not any(key in self.scheduler.tasks for key in keys):
            job.erred += 1
            job.failure = f"the scheduler could not take the graph of {next(iter(keys))!r} (its log says why)"

    def tick(self, now_s: float) -> None:
        """Cancel jobs whose client has been gone for too long; sample how well the others scale."""
        limit_s = self.state.settings.client_timeout_s
        for job in self.state.jobs.named:
            gone_s = job.client_gone_s
            if gone_s is not None and not job.closed and now_s - gone_s >= limit_s:
                text = f"its client has been gone for {now_s - gone_s:.0f} s (hpc.client-timeout)"
                self.cancel(job, ReasonCode.CLIENT_GONE, text)
        for job in self.state.jobs.active.values():
            job.meter.sample(now_s, self.state.settings.performance_interval_s)

    def sweep(self) -> None:
        """End closed jobs whose last tasks others have made their own, or have done."""
        for job in self.state.jobs.named:
            if job.closed and job.done:
                self.maybe_done(job)

    def _awaited(self, job: JobRecord) -> Any | None:
        """A task that the job waits for though another one makes it; None: there is none."""
        return self.ownership.guests.of_others(job, reads.IN_PLAY)

    def client_closed(self, client: str) -> None:
        """A client has been closed: nothing more comes into its open jobs."""
        for job in self.state.jobs.named:
            if job.client == client and not job.closed:
                self.cancel(job, ReasonCode.CLIENT_GONE, "its client was closed inside its context")

    def restarted(self) -> None:
        """Every task has been forgotten: jobs stay, but what was closed has lost its work."""
        state = self.state
        state.owner.clear()
        for job in list(state.jobs.active.values()):
            job.unfinished = job.processing = job.held = job.guests = job.erred = 0
            job.queue.clear()
            job.stranded.clear()
            job.bound.clear()
            job.nodeless = False
            if job.closed:
                self.end(job, "cancel", ReasonCode.RESTARTED, "the cluster was restarted")
        self.rounds.poll()

    def maybe_done(self, job: JobRecord) -> None:
        """The job has no unfinished task at this moment: look again after the transitions under way."""
        if not self._maybe_done:
            self.scheduler.loop.asyncio_loop.call_soon(self._check_done)  # type: ignore[attr-defined]
        self._maybe_done.add(job)

    def _check_done(self) -> None:
        jobs, self._maybe_done = self._maybe_done, set()
        for job in jobs:
            if not job.active or not job.done:
                continue
            if job.is_default and self.state.plain:
                self._plain_done(job)
            elif job.closed:
                if (key := self._awaited(job)) is None:
                    self._finish(job)
                else:
                    job.reason = f"it waits for {key!r}, which another one makes that has submitted it, too"

    def _finish(self, job: JobRecord) -> None:
        if job.dropped:
            self.end(job, "cancel", ReasonCode.CLIENT_GONE, "its client has gone, and its tasks with it")
        elif (key := self.ownership.guests.of_others(job, ("erred",))) is not None:
            text = f"task {key!r} failed, which another one has made that had submitted it, too"
            self.end(job, "fail", ReasonCode.TASK_FAILED, text)
        elif job.erred > 0:
            self.end(job, "fail", ReasonCode.TASK_FAILED, job.failure)
        else:
            text = "all its tasks are done"
            if released := job.released_tasks:
                of = counted(job.expected.came_tasks, "task")
                text = f"{released} of its {of} were released before they ran, or made by others: "
                text += "its run time teaches nothing"
            self.end(job, "complete", ReasonCode.DONE, text)

    def _plain_done(self, job: JobRecord) -> None:
        """Plain work has run dry: merge what is left into the job that takes new plain work in."""
        state = self.state
        if job in state.plain and (job is not state.intake or len(state.plain) > 1):
            heir = next((other for other in state.plain if other is not job), None)
            if heir is not None:
                state.plain.remove(job)
                state.moved(())
                self._hand_over(job, heir)
        elif job not in state.plain and not job.reconfig_id:
            self._hand_over(job, state.plain[0])
        self.controller.request("finish")

    def _hand_over(self, job: JobRecord, heir: JobRecord) -> None:
        state = self.state
        if state.intake is job:
            state.intake = heir
        self.ownership.inherit(job, heir)
        self.turns.inherit(job, heir)
        state.jobs.end(job)
        self.controller.forget(job.id)

    def announce(self, spec: JobSpec, client: str, pool_hint: int) -> JobRecord:
        """Check a new job; it is queued when the client's stream says so.

        Raises
        ------
        InvalidJob
            When the pool can never hold it.
        """
        state = self.state
        self.forget_announced()
        state.pool_hint = max(state.pool_hint, pool_hint)
        pool = state.pool_nodes()
        if not pool:
            # no worker has come yet: take the user's word for the size of the pool
            pool = spec.max_nodes or spec.nodes or spec.min_nodes or 1
        return state.jobs.add(spec, resolve(spec, pool), submit_s=state.now_s(), client=client)

    def pool_grew(self) -> None:
        """Jobs that may use more nodes than there were may use what has joined."""
        pool = self.state.pool_nodes()
        for job in self.state.jobs.named:
            request = job.request
            if pool > request.max_nodes and (grown := resolve(job.spec, pool)).max_nodes > request.max_nodes:
                job.request = replace(grown, **{name: getattr(request, name) for name in _KNOWN})

    def settings_changed(self) -> None:
        """What settings say of sizes holds for jobs that are there, too."""
        self.pool_grew()
        least = self.state.settings.default_job_min_nodes
        for job in self.state.jobs.active.values():
            if job.is_default:
                job.request = replace(job.request, start_nodes=least, min_nodes=least, max_nodes=least)

    def close(self, id: str) -> None:
        """No further tasks come: the job ends when those it has are finished."""
        job = self.state.jobs.active.get(id)
        if job is not None and not job.closed:
            job.closed = True
            self.maybe_done(job)
        elif (unopened := self.state.jobs.announced.get(id)) is not None:
            text = "what opens it was lost with its client's connection: what came after it is plain work"
            self.cancel(unopened, ReasonCode.CLIENT_GONE, text)

    def cancel(self, job: JobRecord, code: ReasonCode, text: str) -> None:
        """End a job now: what it has computed stays, what it has not finished is cancelled for its clients.

        What others want of it (clients, variables, datasets, `fire_and_forget`) is computed as plain work. So
        is what such a client has submitted in another job, too, or without one.
        What executes goes on to, for threads cannot be interrupted: nodes with such threads are given last.
        """
        if job.is_default:
            raise ValueError(f"{job.id} is plain work, not a job: cancel its futures instead")
        if job.id in self.state.jobs.announced:
            job.end_s, job.reason = self.state.now_s(), text
            job.step("cancel")
            self.state.jobs.end(job)
        if not job.active:
            return
        unfinished = self.ownership.unfinished_keys(job)
        wanted = reads.wanted_by(self.scheduler, unfinished)
        elsewhere = self.ownership.guests.asked_elsewhere
        wanted = {
            client: [key for key in keys if not elsewhere(key, job, client)]
            for client, keys in wanted.items()
            if client in job.clients
        }
        with self.state.lingering.cancelling(unfinished):
            writes.cancel(self.scheduler, wanted, f"job {job.id}: {text}", f"hpc-cancel-{job.id}")
        self.end(job, "cancel", code, text)

    def end(self, job: JobRecord, event: str, code: ReasonCode, text: str) -> None:
        """A job has ended: free its nodes, keep its results, let the policy look again."""
        state = self.state
        if event == "complete":
            state.jobs.completed(job, state.nodes_up(job), state.now_s())
            self.turns.completed(job)
            job.step("close")
        else:
            self.turns.left(job)
        job.end_s = state.now_s()
        job.reason = text
        nodes = state.nodes_of(job)
        for reserved in {node.reserved for node in nodes}:
            state.give([node for node in nodes if node.reserved == reserved], None, reserved)
        job.step(event)
        self.admission.lending.tell(job)
        state.note_job(job)
        state.jobs.end(job)
        self.controller.note(job.id, code, text)
        if state.plain:  # else it has come as all was handed back, and none of its tasks yet
            left_over = job.unfinished
            bound = self.ownership.inherit(job, state.intake or state.plain[0])
            if left_over:
                moved = self.ownership.rebind(bound)
                writes.retry_unplaced(self.scheduler, [ts.key for ts in moved], f"hpc-end-{job.id}")
        self.rounds.leave(job)
        self.admission.scan(*state.plain)
        self.controller.request("finish")
        if not state.jobs.named:
            self._handle(LastJobEnded())
