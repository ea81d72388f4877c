"""What clients can ask the scheduler side: one RPC handler, one method a name.

The handler is there from the moment the runtime is installed, also while the engine sleeps. Every
method takes and returns plain data.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from distributed.protocol.pickle import loads

from dask_hpc.config import Settings, is_setting
from dask_hpc.errors import ConfigError, DaskHPCError, InstallError, UnknownJob
from dask_hpc.scheduler import dask_reads, dask_writes, producer_methods, selfcheck, workers
from dask_hpc.scheduler.departures import Departures
from dask_hpc.scheduler.engine import Engine
from dask_hpc.scheduler.jobs import JobRecord
from dask_hpc.scheduler.panels import Panels
from dask_hpc.scheduler.pool_target import PoolTarget
from dask_hpc.scheduler.releases import Releases
from dask_hpc.trace import encode_line
from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Action, Expand, Outcome, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobspec import JobSpec, check_nodes
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Name of the RPC handler, and of the stream handlers that open, bind and close jobs.
RPC = "hpc"
OPEN = "hpc-open-job"
BIND = "hpc-bind"
CLOSE = "hpc-close-job"
#: Held tasks of a job that are looked at to tell how long they take.
_LOOKED_AT = 20


class Service:
    """The runtime of one scheduler, as clients see it."""

    def __init__(self, scheduler: Scheduler, settings: Settings, policy: Policy) -> None:
        self.scheduler = scheduler
        self.engine = Engine(scheduler, settings, policy)
        self.pool_target = PoolTarget(self.engine)
        self.departures = Departures(self.engine)
        self.releases = Releases(self.engine, self.departures.depart)
        self.pool_target.wrap()
        self.panels = Panels(scheduler)
        self._checked: set[str] = set()
        #: Messages still to come on the streams of clients: client and token by job, by name of the message.
        self._due: dict[str, dict[str, tuple[str, str]]] = {OPEN: {}, CLOSE: {}}
        scheduler.handlers[RPC] = self.call
        scheduler.stream_handlers[OPEN] = self.open_job
        scheduler.stream_handlers[BIND] = self.bind_job
        scheduler.stream_handlers[CLOSE] = self.close_job

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Run one of the methods below by name.

        Returns
        -------
        dict
            ``{"result": ..., "now_s": ...}``, or ``{"error": [class, text]}`` for what is the user's to
            mend: that is no failure of the scheduler and leaves no traceback in its log.
        """
        function = self._METHODS.get(method)
        if function is None:
            return {
                "error": [
                    "ValueError",
                    f"the runtime has no method {method!r}; it has {', '.join(self._METHODS)}",
                ]
            }
        try:
            result = await function(self, **(arguments or {}))
            return {"result": result, "now_s": self.engine.state.now_s()}
        except (DaskHPCError, ValueError) as error:
            return {"error": [type(error).__name__, str(error)]}

    async def open_job(self, job: str, token: str = "", **kwargs: Any) -> None:
        """A client has entered a job's context.

        This comes on the stream that graphs come on: what was submitted before is older than the job.
        """
        if self._expects(OPEN, job, token):
            await self.engine.open_job(job)

    def close_job(self, job: str, token: str = "", **kwargs: Any) -> None:
        """A client has left a job's context; no graph is still on its way."""
        if self._expects(CLOSE, job, token):
            self.engine.ownership.unbind(job)
            self.engine.lifecycle.close(job)

    def bind_job(
        self, job: str, token: str = "", client: str = "", bound: bool = True, **kwargs: Any
    ) -> None:
        """What a client submits from now on, from whatever thread, belongs to a job (or no more).

        Only a job that its client has not closed can be bound, and unbound only what is bound.
        """
        if self._is_open(job, token):
            if bound:
                self.engine.ownership.bind(job, client)
            else:
                self.engine.ownership.unbind(job, client)

    def _is_open(self, job: str, token: str) -> bool:
        # its closing message is still to come, and it is this very job
        due = self._due[CLOSE]
        return job in due and due[job][1] == token

    def _expects(self, name: str, job: str, token: str) -> bool:
        # the message may be about a job of an earlier installation with the same id
        due = self._due[name]
        return job in due and due[job][1] == token and due.pop(job) is not None

    # --------------------------------------------------------------- methods

    async def announce(
        self, spec: Mapping[str, Any], client: str, token: str, pool_hint: int = 0
    ) -> dict[str, Any]:
        """Check a new job, which the stream will open; returns its row."""
        selfcheck.require(self.scheduler)
        await self._check_workers()
        if self.scheduler.handlers.get(RPC) != self.call or self.engine.leaving:
            raise InstallError("dask_hpc is being uninstalled; install it again to declare jobs")
        job = self.engine.lifecycle.announce(decode(JobSpec, dict(spec)), client, pool_hint)
        for name, due in self._due.items():
            there = {id: entry for id, entry in due.items() if entry[0] in self.scheduler.clients}
            self._due[name] = {**there, job.id: (client, token)}
        return self._row(job)

    async def job(self, job: str, token: str | None = None) -> dict[str, Any]:
        """Row of one job; with `token`, of the open job that was announced with it and no other."""
        if token is not None and not self._is_open(job, token):
            raise UnknownJob(
                f"job {job} is not open on this cluster any more (dask_hpc may have been installed anew "
                "since it was declared); declare a new one"
            )
        return self._row(self.engine.state.jobs.find(job))

    async def workers(
        self, job: str, timeout_s: float, workers: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Addresses on which a job may run now, and its row; waits up to `timeout_s` seconds for one.

        Returns
        -------
        dict
            ``workers`` (those that are named, if any are) and ``row``. No workers: the job has ended, or
            has no node yet.
        """
        record = self.engine.state.jobs.find(job)
        pause_s = self.engine.state.settings.sweep_s / 10
        deadline_s = self.engine.state.now_s() + timeout_s
        while not (held := self._held(record)) and self.engine.state.now_s() < deadline_s:
            if record.ended.is_set():
                break
            await asyncio.sleep(pause_s)
        chosen = held if workers is None or not held else self._some_of(record.id, held, workers)
        return {"workers": chosen, "row": self._row(record)}

    def _held(self, record: JobRecord) -> list[str]:
        # not those that are being drained: what is put there stays there
        return [] if record.ended.is_set() else sorted(record.allotment)

    def _some_of(self, job: str, held: list[str], workers: Sequence[Any]) -> list[str]:
        """Addresses of the workers that the user names; raises `ValueError` unless all are the job's."""
        chosen, wrong = [], []
        for worker in workers:
            try:
                address = self.scheduler.coerce_address(worker)
            except (TypeError, ValueError, OSError):
                address = ""
            if address in held:
                chosen.append(address)
            else:
                wrong.append(worker)
        if wrong or not chosen:
            raise ValueError(
                f"workers is {list(workers)!r}; {wrong!r} are not workers of job {job}, which holds "
                f"{', '.join(held)}: name some of these, or leave workers out"
            )
        return chosen

    async def jobs(self, ended: int | None = None) -> list[dict[str, Any]]:
        """Rows of all jobs that are remembered (of the last `ended` that ended), in order of submission."""
        return self.job_rows(ended)

    def job_rows(self, ended: int | None = None) -> list[dict[str, Any]]:
        """See `jobs`."""
        table = self.engine.state.jobs
        begin = 0 if ended is None else max(0, len(table.ended) - ended)
        records = [
            *itertools.islice(table.ended, begin, None),
            *(job for job in table.active.values() if not job.is_default or job.unfinished),
            *table.announced.values(),
        ]
        return [self._row(job) for job in sorted(records, key=lambda job: job.submit_s)]

    async def wait(self, job: str, timeout_s: float) -> dict[str, Any]:
        """Row of the job when it has ended, or after `timeout_s` seconds."""
        record = self.engine.state.jobs.find(job)
        try:
            await asyncio.wait_for(record.ended.wait(), timeout_s)
        except TimeoutError:
            return self._row(record)
        return self._row(record)

    async def cancel(self, job: str, reason: str = "") -> dict[str, Any]:
        """Cancel a job; returns its row."""
        record = self.engine.state.jobs.find(job, one=True)
        self.engine.lifecycle.cancel(record, ReasonCode.USER_REQUEST, reason or "cancelled by the user")
        return self._row(record)

    async def resize(self, job: str, nodes: int, wait: bool = True) -> dict[str, Any]:
        """Resize a running job on the user's request; see `enact`."""
        record = self.engine.state.jobs.find(job, one=True)
        check_nodes(record.id, "nodes", nodes)
        while record.id in self.engine.state.jobs.announced:
            # the message that opens it is on its way
            await asyncio.sleep(self.engine.state.settings.sweep_s / 10)
        # a job that was submitted a moment ago may be starting
        await asyncio.sleep(0)
        if record.state == "pending" and record.reconfig_id:
            await self.engine.rounds.outcome(record.reconfig_id)
        now = self.engine.state.nodes_up(record)
        reason = Reason(ReasonCode.USER_REQUEST, f"the user asked for {counted(nodes)}", {"nodes": nodes})
        kind = Shrink if nodes < now else Expand
        action: Action = kind(job=record.id, nodes=nodes, reason=reason)
        return await self.enact(action, wait)

    async def enact(self, action: Action, wait: bool = True) -> dict[str, Any]:
        """Carry out one action that was asked for.

        Returns the outcome when it is known; without `wait` at once, and then ``result`` may be
        ``under way``.
        """
        accepted, refused = self.engine.controller.act([action], "request")
        if accepted and (wait or self.engine.rounds.ended(accepted[0][1])):
            outcome = await self.engine.rounds.outcome(accepted[0][1])
        elif accepted:
            id = accepted[0][1]
            outcome = Outcome(action=action, result="under way", reason=action.reason, reconfig_id=id)
        else:
            outcome = refused[0]
        return {"result": outcome.result, "reason": outcome.reason.text, **_flat(outcome)}

    async def decisions(self, job: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Rows of the decision feed, oldest first."""
        rows = list(self.engine.controller.decisions)
        if job is not None:
            id = self.engine.state.jobs.find(job).id
            rows = [row for row in rows if row["job"] == id]
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ValueError(f"limit is {limit!r}; allowed: a whole number of decisions, 0 or more, or None")
        return rows if limit is None else rows[-limit:] if limit > 0 else []

    async def trace(self) -> list[str]:
        """The trace that is kept in memory, as JSON lines."""
        records = list(self.engine.state.records)
        return await asyncio.to_thread(lambda: [encode_line(r) for r in (self.engine.header(), *records)])

    async def snapshot(self) -> dict[str, Any]:
        """The picture that a policy would get now, encoded."""
        snapshot: dict[str, Any] = encode(self.engine.state.snapshot("request"))
        return snapshot

    async def picture(self, ended: int, decisions: int) -> dict[str, Any]:
        """What those who watch want at once: `status`, `jobs` and `decisions` (the last of these).

        Costs no more after a thousand jobs than after one.
        """
        return {
            "status": await self.status(),
            "jobs": await self.jobs(ended),
            "ended_jobs": len(self.engine.state.jobs.ended),
            "decisions": await self.decisions(limit=decisions),
        }

    async def status(self) -> dict[str, Any]:
        """State of the runtime as a whole."""
        engine, state = self.engine, self.engine.state
        passes = sorted(engine.controller.pass_s)
        return {
            **self.summary(),
            "versions": selfcheck.versions(),
            "settings": encode(state.settings),
            "nodes": [encode(view) for view in state.nodes.views()],
            "panels": list(self.panels.paths),
            "panels_problem": self.panels.problem,
            "held_tasks": sum(job.held for job in state.jobs.active.values()),
            "reconfiguring": engine.rounds.active,
            "pass_median_s": passes[len(passes) // 2] if passes else None,
            "pass_p99_s": passes[int(len(passes) * 0.99)] if passes else None,
        }

    def summary(self) -> dict[str, Any]:
        """The part of `status` that is cheap whatever the size of the cluster."""
        engine, state = self.engine, self.engine.state
        return {
            "awake": engine.awake,
            "policy": registry.spec_of(engine.controller.policy),
            "policy_failure": engine.controller.failure,
            "policy_dropped": engine.controller.dropped,
            "now_s": state.now_s(),
            "pool_nodes": state.nodes.up() if engine.awake else len(self.scheduler.workers),
            "idle_nodes": state.idle_nodes() if engine.awake else None,
            "jobs_pending": sum(job.state == "pending" for job in state.jobs.named),
            "jobs_running": sum(job.state in ("running", "adapting") for job in state.jobs.named),
        }

    async def release(
        self, count: int, dry_run: bool = False, among: Sequence[Any] | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Let `count` nodes go without losing anything; see `Releases.release` and `Releases.plan`."""
        check_nodes("release", "count", count)
        releases = self.releases
        return await (releases.plan(count, among) if dry_run else releases.release(count, among, force))

    async def recall(self, going: int, among: Sequence[Any] | None = None) -> list[Any]:
        """Have no more than `going` nodes leave; gives the names of workers kept; see `Releases.recall`."""
        return self.releases.recall(going, among)

    async def pin(self, workers: Sequence[Any], keep: bool) -> list[str]:
        """Have nodes with these workers (by name) stay, or no longer; gives the names of all that stay."""
        self.releases.pin(map(str, workers), keep)
        return sorted(self.releases.pinned)

    async def pool(self, **view: Any) -> dict[str, Any]:
        """Workers that there should be, which of them stay, and why; see `PoolTarget.decide`."""
        decision = self.pool_target.decide(**view)
        return {"nodes": decision.nodes, "stay": sorted(decision.stay), "reason": decision.reason.text}

    async def depart(self, worker: str, within_s: float, reason: str) -> dict[str, Any]:
        """A worker (by address) will be gone soon, whatever is left on it; see `Departures`."""
        return await self.departures.depart(worker, within_s, reason)

    async def closing(self) -> None:
        """The whole cluster is going away: workers that leave now have nothing to move."""
        self.departures.closing = True

    async def update(
        self,
        policy: Any = None,
        pickled: bytes | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Change policy, parameters or settings; all or nothing.

        A policy that fails on the present state is refused.
        """
        given = dict(parameters or {})
        changes = {name: given.pop(name) for name in list(given) if is_setting(name)}
        if "node_by" in changes and self.engine.awake and changes["node_by"] != self.engine.state.nodes.by:
            raise ConfigError("hpc.node.by cannot change while jobs are active; wait for them to end")
        settings = self.engine.state.settings.updated(**changes)
        present = self.engine.controller.policy
        if pickled is not None:
            wanted = registry.create(loads(pickled), **given)
        elif policy is not None:
            wanted = registry.create(policy, **given)
        else:
            wanted = registry.updated(present, **given) if given else present
        if wanted is not present:
            self.engine.controller.require_able(wanted)
        self.engine.trace_to(settings.trace_path)
        self.engine.use_settings(settings)
        self.engine.state.nodes.by = settings.node_by
        if wanted is not present:
            self.engine.controller.use(wanted)
        self.engine.controller.request("settings")
        return await self.status()

    async def uninstall(self, client: str) -> dict[str, Any]:
        """Cancel nothing, hand every task back to stock scheduling, and leave; `client` hears no more."""
        self.scheduler.unsubscribe_topic(dask_writes.notice_topic(client), client)
        await self.leave()
        return {"uninstalled": True}

    async def leave(self) -> None:
        """Take everything of ours out of the scheduler; what runs goes on as plain Dask work."""
        self.releases.unwrap()
        self.pool_target.unwrap()
        self.panels.remove()
        await self.engine.stop()
        dask_writes.forget_topics(self.scheduler)
        handlers, streams = self.scheduler.handlers, self.scheduler.stream_handlers
        if handlers.get(RPC) == self.call:
            del handlers[RPC]
        for name, ours in ((OPEN, self.open_job), (CLOSE, self.close_job)):
            if streams.get(name) == ours:
                del streams[name]
                clients = self.scheduler.clients
                due = {job for job, (client, _) in self._due[name].items() if client in clients}
                if due:
                    streams[name] = _last_messages(streams, name, due)
                if name == CLOSE and streams.get(BIND) == self.bind_job:
                    del streams[BIND]
                    if due:
                        # a job is bound any number of times, but never after it was closed
                        streams[BIND] = _ignore

    async def _check_workers(self) -> None:
        new = set(self.scheduler.workers) - self._checked
        if new:
            await workers.require(self.scheduler, sorted(new))
            self._checked |= new
        self._checked &= set(self.scheduler.workers)

    def _row(self, job: Any) -> dict[str, Any]:
        state = self.engine.state
        nodes = len(state.nodes.free()) if job in state.plain else state.nodes_up(job)
        row: dict[str, Any] = job.row(nodes)
        row["target_nodes"] = self.engine.rounds.target(job) if job.reconfig_id else None
        row["held_task_s"] = dask_reads.learned_task_s(job.first_held(_LOOKED_AT))
        return row

    _METHODS: ClassVar[Mapping[str, Any]] = {
        **producer_methods.METHODS,
        "announce": announce,
        "job": job,
        "workers": workers,
        "jobs": jobs,
        "wait": wait,
        "cancel": cancel,
        "resize": resize,
        "release": release,
        "recall": recall,
        "pin": pin,
        "pool": pool,
        "depart": depart,
        "closing": closing,
        "decisions": decisions,
        "trace": trace,
        "snapshot": snapshot,
        "picture": picture,
        "status": status,
        "update": update,
        "uninstall": uninstall,
    }


def _flat(outcome: Outcome) -> dict[str, Any]:
    action = outcome.action
    return {
        "action": action.TAG,
        "job": getattr(action, "job", ""),
        "nodes": getattr(action, "nodes", None),
        "reason_code": outcome.reason.code.value,
        "reconfig_id": outcome.reconfig_id,
        "latency_s": outcome.latency_s,
    }


def _last_messages(streams: dict[str, Any], name: str, jobs: set[str]) -> Callable[..., None]:
    """A handler that takes the messages still to come about `jobs`, then removes itself.

    A message without a handler would end the stream of its client.
    """

    def handler(job: str, **kwargs: Any) -> None:
        jobs.discard(job)
        if not jobs and streams.get(name) is handler:
            del streams[name]
            if name == CLOSE and streams.get(BIND) is _ignore:
                del streams[BIND]

    return handler


def _ignore(**message: Any) -> None:
    """Stand-in for the handler that binds jobs when there are none any more."""


def of(scheduler: Scheduler) -> Service:
    """The service of a scheduler.

    Raises
    ------
    InstallError
        When the runtime is not installed there.
    """
    owner = getattr(scheduler.handlers.get(RPC), "__self__", None)
    if not isinstance(owner, Service):
        raise InstallError("dask_hpc is not installed on this scheduler; call dask_hpc.install(client)")
    return owner
