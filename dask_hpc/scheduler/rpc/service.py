"""What clients can ask the scheduler side: one RPC handler, one method a name.

The handler is there from the moment the runtime is installed, also while the engine sleeps. Every
method takes and returns plain data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.services import chosen_services
from dask_hpc.checkpoint.store_threads import soon
from dask_hpc.config import Settings, is_setting, no_setting
from dask_hpc.config.policy import loaded
from dask_hpc.errors import LEAVES, CheckpointError, ConfigError, DaskHPCError, InstallError, UnknownJob
from dask_hpc.scheduler.checkpoint.commits import Commits
from dask_hpc.scheduler.checkpoint.departing import Departing, problem
from dask_hpc.scheduler.checkpoint.jobs import ProtectedJobs
from dask_hpc.scheduler.checkpoint.small import SmallCopies
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.core.handlers import contained
from dask_hpc.scheduler.coupling.flows import Flows
from dask_hpc.scheduler.dashboard.pages import Panels
from dask_hpc.scheduler.internals import remote, selfcheck, writes
from dask_hpc.scheduler.io.part import Io
from dask_hpc.scheduler.leaving.actors import Actors
from dask_hpc.scheduler.leaving.data_moves import DataMoves
from dask_hpc.scheduler.leaving.departures import Departures
from dask_hpc.scheduler.leaving.pool_target import PoolTarget
from dask_hpc.scheduler.leaving.releases import Releases
from dask_hpc.scheduler.leaving.roles import Roles
from dask_hpc.scheduler.leaving.sooner import Sooner
from dask_hpc.scheduler.power.corridor import Corridor
from dask_hpc.scheduler.resizing.lending_terms import LendingTerms
from dask_hpc.scheduler.rpc.awaited import Awaited
from dask_hpc.scheduler.rpc.jobs import JobMethods
from dask_hpc.scheduler.rpc.pool import PoolMethods
from dask_hpc.scheduler.rpc.producers import ProducerMethods
from dask_hpc.scheduler.rpc.settings_file import SettingsFile
from dask_hpc.scheduler.rpc.status import StatusMethods
from dask_hpc.scheduler.tables.forecasts import Forecasts
from dask_hpc.scheduler.tables.parts import Method, made
from dask_hpc.wire import BIND, CLOSE, OPEN, RPC, notice_topic
from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode
from dask_hpc_policies.jobs.jobspec import JobSpec
from dask_hpc_policies.params import ParameterError, UnknownParameter
from dask_hpc_policies.protocol import Policy

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class Service:
    """The runtime of one scheduler, as clients see it."""

    def __init__(self, scheduler: Scheduler, settings: Settings, policy: Policy) -> None:
        self.scheduler = scheduler
        self.engine = Engine(scheduler, settings, policy)
        self.departures = Departures(self.engine)
        self.releases = Releases(self.engine, self.departures.depart)
        state, parts = self.engine.state, self.engine.parts
        watched = self.engine.watched
        self.commits = Commits(self.engine, watched)
        self._protected = ProtectedJobs(self.engine, self.commits)
        self._small = SmallCopies(self.engine, self.commits.protected)
        awaited = Awaited(self.engine, watched)
        flows = Flows(self.engine, watched, awaited.bring, awaited.give_up)
        self.pool_target = PoolTarget(self.engine, flows.needs_node)
        self._io = Io(self.engine)
        #: Set once workers have been given our plugin.
        self._equipped = asyncio.Event()
        parts.add(
            self.releases.pins,
            self.releases,
            Actors(state, parts),
            DataMoves(state, parts),
            self.commits,
            self._protected,
            self._small,
            Departing(state, watched, self.commits.protected),
            awaited,
            flows,
            flows.splits,
            self.pool_target,
            Roles(self.engine),
            self._io,
            Corridor(self.engine),
            Sooner(state, self.departures.depart),
            LendingTerms(
                state, self.engine.rounds.windows, self.engine.turns.ahead_s, self.engine.turns.ends_in_s
            ),
        )
        self.pool_target.wrap()
        self.engine.losses.wrap()
        self.panels = Panels(scheduler, lambda: of(scheduler).status)
        self.jobs = JobMethods(self.engine, self._closes)
        self.status = StatusMethods(self.engine, self.jobs, self.panels)
        parts.add(
            self,
            self.jobs,
            self.status,
            Forecasts(
                state,
                target=lambda job: self.engine.rounds.target(job) if job.reconfig_id else None,
                turn=lambda job: self.engine.turns.place(job) if job.reach is state.common else None,
                policy=lambda: self.engine.controller.policy,
            ),
            PoolMethods(self.releases, self.pool_target, self.departures),
            ProducerMethods(self.engine, self.jobs),
            *made(self.engine),
        )
        if settings.settings_file is not None:
            parts.add(SettingsFile(state, settings.settings_file, self.update))
        self._methods = parts.methods()
        self._checked: set[str] = set()
        #: Messages still to come on the streams of clients: client and token by job, by name of the message.
        self._due: dict[str, dict[str, tuple[str, str]]] = {OPEN: {}, CLOSE: {}}
        scheduler.handlers[RPC] = self.call
        scheduler.stream_handlers[OPEN] = self.open_job
        scheduler.stream_handlers[BIND] = self.bind_job
        scheduler.stream_handlers[CLOSE] = self.close_job

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "announce": self.announce,
            "job": self.job,
            "update": self.update,
            "uninstall": self.uninstall,
        }

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Run one of the methods of the parts by name.

        Returns
        -------
        dict
            ``{"result": ..., "now_s": ...}``, or ``{"error": [class, text]}`` for what is the user's to
            mend: that is no failure of the scheduler and leaves no traceback in its log.
        """
        function = self._methods.get(method)
        try:
            if function is None:
                raise ValueError(f"the runtime has no method {method!r}; it has {', '.join(self._methods)}")
            if self.engine.leaving and method != "uninstall":
                raise InstallError(LEAVES)  # what it began now would be left behind
            result = await function(**(arguments or {}))
            return {"result": result, "now_s": self.engine.state.now_s()}
        except (DaskHPCError, ValueError) as error:
            return {"error": [type(error).__name__, str(error)]}

    @contained
    async def open_job(self, job: str, token: str = "", **kwargs: Any) -> None:
        """A client has entered a job's context.

        This comes on the stream that graphs come on: what was submitted before is older than the job.
        """
        if self._expects(OPEN, job, token):
            await self.engine.open_job(job)

    @contained
    def close_job(self, job: str, token: str = "", **kwargs: Any) -> None:
        """A client has left a job's context; no graph is still on its way."""
        if self._expects(CLOSE, job, token):
            self.engine.ownership.unbind(job)
            self.jobs.marks.pop(job, None)
            # its client may go before its end is known
            self._protected.closing(job)
            self.engine.lifecycle.close(job)

    @contained
    def bind_job(
        self, job: str, token: str = "", client: str = "", bound: bool = True, mark: int = 0, **kwargs: Any
    ) -> None:
        """What a client submits from now on, from whatever thread, belongs to a job (or no more).

        Only a job that its client has not closed can be bound, and unbound only what is bound.
        """
        if self._is_open(job, token):
            if mark:  # it says how far the client's messages have been heard, and no more
                self.jobs.marks[job] = mark
            elif bound:
                self.engine.ownership.bind(job, client)
            else:
                self.engine.ownership.unbind(job, client)

    def _is_open(self, job: str, token: str) -> bool:
        # its closing message is still to come, and it is this very job
        due = self._due[CLOSE]
        return job in due and due[job][1] == token

    def _closes(self, job: str, token: str) -> bool:
        """Whether its client is there, whose closing message is still to come."""
        return self._is_open(job, token) and self._due[CLOSE][job][0] in self.scheduler.clients

    def _expects(self, name: str, job: str, token: str) -> bool:
        # the message may be about a job of an earlier installation with the same id
        due = self._due[name]
        return job in due and due[job][1] == token and due.pop(job) is not None

    # --------------------------------------------------------------- methods

    async def announce(
        self, spec: Mapping[str, Any], client: str, token: str, pool_hint: int = 0, task: Any = None
    ) -> dict[str, Any]:
        """Check a new job, which the stream will open; returns its row.

        One that a `task` (its key) declares belongs to the user of the job that the task is in.
        """
        selfcheck.require(self.scheduler)
        await self._check_workers()
        if self.scheduler.handlers.get(RPC) != self.call or self.engine.leaving:
            raise InstallError(LEAVES)
        declared, lane = decode(JobSpec, dict(spec)), self.engine.state.owner.get(task)
        if lane is not None and not declared.user:
            declared = replace(declared, user=lane.job.request.user)
        job = self.engine.lifecycle.announce(declared, client, pool_hint)
        self._io.announced(job)
        # before anything is waited for: who detaches meanwhile expects its messages
        for name, due in self._due.items():
            left = {id: entry for id, entry in due.items() if self._may_come(id, entry[0])}
            self._due[name] = {**left, job.id: (client, token)}
        self.jobs.marks = {id: mark for id, mark in self.jobs.marks.items() if id in self._due[CLOSE]}
        if job.spec.measure_io:
            await self._equipped.wait()
            await self._io.count()
        return self.jobs.row(job)

    def _may_come(self, job: str, client: str) -> bool:
        """Whether a message about a job may still come: a client that is gone may come back to its jobs."""
        return client in self.scheduler.clients or job in self.engine.state.jobs.active

    async def job(self, job: str, token: str | None = None) -> dict[str, Any]:
        """Row of one job; with `token`, of the open job that was announced with it and no other."""
        if token is not None and not self._is_open(job, token):
            raise UnknownJob(
                f"job {job} is not open on this cluster any more (dask_hpc may have been installed anew "
                "since it was declared); declare a new one"
            )
        jobs = self.engine.state.jobs
        return jobs.past(job) or self.jobs.row(jobs.find(job))

    async def update(
        self,
        policy: Any = None,
        pickled: bytes | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Change policy, parameters or settings; all or nothing.

        A policy that fails on the present state is refused, and so is a folder that cannot be written to, or
        a service of versions that needs a key, or a package, that is not there.
        """
        given = dict(parameters or {})
        changes = {name: given.pop(name) for name in list(given) if is_setting(name)}
        wished, _ = self._wished(changes, policy, pickled, given)
        await self._check(wished)
        # last: what is in the way of a new file is moved, once
        async with self.engine.tracing.changing:
            await self.engine.tracing.prepare(wished.trace_path)
            # another update may have come meanwhile
            settings, wanted = self._wished(changes, policy, pickled, given)
            self.engine.tracing.to(settings.trace_path)
        self.engine.use_settings(settings)
        self.engine.lifecycle.settings_changed()
        if wanted is not self.engine.controller.policy:
            self.engine.controller.use(wanted)
        self.engine.controller.request("settings")
        return await self.status.whole()

    async def uninstall(self, client: str) -> dict[str, Any]:
        """Cancel nothing, hand every task back to stock scheduling, and leave; `client` hears no more."""
        self.scheduler.unsubscribe_topic(notice_topic(client), client)
        await self.detach()
        return {"uninstalled": True}

    async def equip(self) -> None:
        """Give our plugin to every worker."""
        try:
            await remote.equip(self.scheduler)
            self._small.equipped = True
        finally:
            # whoever waits for that goes on in any case
            self._equipped.set()

    async def detach(self) -> None:
        """Take everything of ours out of the scheduler; what runs goes on as plain Dask work."""
        self.engine.parts.unwrap()
        self.panels.remove()
        await self.engine.stop()
        await self._small.settled()
        await remote.strip(self.scheduler)
        writes.forget_topics(self.scheduler)
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

    def _wished(
        self, changes: Mapping[str, Any], policy: Any, pickled: bytes | None, given: Mapping[str, Any]
    ) -> tuple[Settings, Policy]:
        """What settings and policy are after an update; raises what it is refused for."""
        state, present = self.engine.state, self.engine.controller.policy
        settings = state.settings.updated_live(**changes)
        if self.engine.awake and settings.node_by != state.nodes.by:
            raise ConfigError("hpc.node.by cannot change while jobs are active; wait for them to end")
        try:
            if pickled is not None or policy is not None:
                wanted = registry.create(policy if pickled is None else loaded(pickled), **given)
            else:
                wanted = registry.updated(present, **given) if given else present
        except UnknownParameter as error:
            raise ParameterError(f"{error}; {no_setting(error.name, listed=False)}") from None
        if wanted is not present:
            self.engine.controller.require_able(wanted)
        return settings, wanted

    async def _check(self, wanted: Settings) -> None:
        """Refuse new services that cannot be had, and a new folder that the scheduler cannot write to.

        Workers are not asked.
        """
        present = self.engine.state.settings
        if wanted.checkpoint_services != present.checkpoint_services:
            try:
                chosen_services(None, wanted.checkpoint_services)
            except CheckpointError as error:
                raise ConfigError(str(error)) from None
        for name, new, old in (
            ("hpc.spill.directory", wanted.spill_directory, present.spill_directory),
            ("hpc.checkpoint.store", wanted.checkpoint_store, present.checkpoint_store),
        ):
            if new is None or new == old:
                continue
            try:
                why = await soon(problem, new)
            except TimeoutError as error:  # its mount may hang
                why = str(error)
            if why is not None:
                raise ConfigError(
                    f"{name} is {new!r}, where the scheduler cannot write ({why}); allowed: a folder that "
                    "the scheduler and all workers can write to (workers are not asked)"
                )

    async def _check_workers(self) -> None:
        new = set(self.scheduler.workers) - self._checked
        if new:
            await remote.require(self.scheduler, sorted(new))
            self._checked |= new
        self._checked &= set(self.scheduler.workers)


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
