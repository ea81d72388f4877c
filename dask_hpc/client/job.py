"""A job as its client sees it: entering and leaving it, activating it, waiting for it, placing data on it.

Three messages go on the stream on which graphs go, so that none can overtake a graph: a job is opened,
bound to its client (or unbound), closed. Everything else is a request that is answered.

Over 400 lines because `Job` is one class to its users, and half of it is what they read about it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import uuid
import warnings
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import dask
from distributed import Client, get_worker

from dask_hpc.channel import Channel
from dask_hpc.client import timelines
from dask_hpc.client.arguments import text_of
from dask_hpc.client.commit import warn_of_memory
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import DaskHPCError, InstallError, JobCancelled, JobFailed
from dask_hpc.program.producer import IN_PROGRAM, Producer, check_timeout
from dask_hpc.show import job_html, line, never_raises
from dask_hpc.wire import ANNOTATION, BIND, CLOSE, OPEN, SERVICES
from dask_hpc_policies.codec import decode, field_names
from dask_hpc_policies.jobs.jobspec import JobSpec, check_nodes

if TYPE_CHECKING:
    from dask_hpc.program.program import Program

logger = logging.getLogger("dask_hpc")

#: One long poll of `Job.wait`: short enough for any connection time-out.
_POLL_S = 20.0
#: An exception is held up no longer than this by the last version of a job whose cluster may end with it.
_HELD_UP_S = 60.0
#: What takes longer is said, in seconds.
_SOON_S = 2.0


class _OfGraphs(dict[str, Any]):
    """Annotations with a job, which goes with the graphs that are submitted.

    Not with their layers: Dask fuses none of two that are annotated in different ways, so that what was made
    of a collection of before would have about twice the tasks.
    """

    def copy(self) -> dict[str, Any]:
        """What a layer takes."""
        return {name: value for name, value in self.items() if name != ANNOTATION}


class Job:
    """One job, as the client sees it. Made by `Runtime.job`; a context manager."""

    def __init__(
        self,
        channel: Channel,
        spec: dict[str, Any],
        resume: bool | None = None,
        services: str | None = None,
    ) -> None:
        self.channel = channel
        self._spec = spec
        #: Whether it goes on from what an earlier run of its name has left; None: not said.
        self.resume = resume
        if not (resume is None or isinstance(resume, bool)):
            raise ValueError(f"resume is {resume!r}; allowed: True, False, or None (not said)")
        if resume is not None and not spec.get("protect"):
            raise ValueError(
                f"resume is {resume} and job {spec['name']!r} does not say protect; declare it with "
                "protect=True (or protect='NAME'), or leave resume out"
            )
        #: What is done to blocks of its versions; None: what the setting says.
        self.services = services
        if services is not None and not spec.get("protect"):
            raise ValueError(
                f"services is {services!r} and job {spec['name']!r} does not say protect; declare it with "
                "protect=True (or protect='NAME'), or leave services out"
            )
        if services is not None and services not in SERVICES:
            raise ValueError(f"services is {services!r:.80}; allowed: {', '.join(SERVICES)}")
        self._annotation: Any = None
        #: Tells its messages from those about another job with the same id.
        self._token = uuid.uuid4().hex
        #: Thread that is inside the context, or has opened the job; None when none does.
        self._entered_by: int | None = None
        #: Whether this handle has opened the job (one that was found has not), closed it, is a context.
        self._opened = False
        self._closed = False
        self._entered = False
        #: Number of the last mark that was set behind what was submitted.
        self._mark = 0
        self._opening = asyncio.Lock()
        #: Takes back what was interrupted; kept, since a loop does not keep its tasks.
        self._withdrawing: asyncio.Future[bool] | None = None
        #: Id on the scheduler; None before the job is opened.
        self.id: str | None = None
        #: Key of the task that declares it; None: no task does.
        self._declared_by = _this_task()

    def __repr__(self) -> str:
        return line("Job", id=self.id, **self._declared())

    @never_raises
    def _repr_html_(self) -> str | None:
        return job_html(self)

    def _declared(self) -> dict[str, Any]:
        """What was asked for, without what is as it is when nothing is said."""
        declared = decode(JobSpec, self._spec)
        defaults = {field.name: field.default for field in fields(JobSpec)}
        values = {name: getattr(declared, name) for name in field_names(JobSpec)}
        return {name: value for name, value in values.items() if value != defaults[name]}

    # --------------------------------------------------------------- context

    def __enter__(self) -> Self:
        if self.channel.client.asynchronous:
            raise TypeError("this client is asynchronous: use `async with rt.job(...)`")
        self.channel.run(self._enter)
        self._annotate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unannotate()
        try:
            if kind is not None:
                self.channel.end(self._cancel_after, kind, error)
        finally:
            self._close()

    async def __aenter__(self) -> Self:
        await self._enter()
        self._annotate()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unannotate()
        try:
            if kind is not None:
                await self._cancel_after(kind, error)
        finally:
            self._close()

    async def _enter(self) -> None:
        async with self._opening:
            if self._entered or self._closed or not self._opened:  # else `activate` has opened it
                await self._open()
            self._entered = True

    async def _open(self) -> None:
        if self.id is not None:
            raise RuntimeError(f"job {self.id} was submitted already; declare a new one")
        client = self.channel.client
        said = {"spec": self._spec, "client": client.id, "token": self._token, "task": self._declared_by}
        asking = asyncio.ensure_future(self.channel.ask("announce", **said, pool_hint=_pool_hint(client)))
        try:
            row = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # who has interrupted this must not leave a job behind that waits to be opened
            asking.add_done_callback(self._withdraw)
            raise
        self.id = row["id"]
        if self._spec.get("protect"):
            await self._protect()
        self._opened = True
        self.channel.opened.append(self)
        # Older than what follows, younger than what was submitted before
        self._send(OPEN)

    def _withdraw(self, asked: asyncio.Future[Any]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            said = self._cancel("interrupted before it was submitted", asked.result()["id"])
            self._withdrawing = asyncio.ensure_future(said)

    async def _protect(self) -> None:
        """Find out whether, and from where, it can be protected, before anything is computed."""
        try:
            levels = await self.channel.ask(
                "protect_job", job=self.id, resume=self.resume, services=self.services
            )
        except BaseException:
            await self._cancel("it cannot be protected")
            raise
        if "L3" not in levels:
            warn_of_memory(f"job {self.id}")

    def _annotate(self) -> None:
        # Dask warns that dataframes forget annotations that are set while they are built; ours is
        # merged when the graph is submitted
        ours = r"Dask annotations \{'" + ANNOTATION + r"': '[^']*'\} detected"
        warnings.filterwarnings("ignore", message=ours, category=UserWarning)
        self._entered_by = threading.get_ident()
        self._annotation = dask.annotate(**{ANNOTATION: self.id})
        self._annotation.__enter__()
        # leaving resets what was before entering; where Dask has it no more, layers are annotated as well
        with suppress(AttributeError):
            dask.base._annotations.set(_OfGraphs(dask.get_annotations()))

    def _unannotate(self) -> None:
        # where it was entered by another thread or task, annotations are theirs, and end with them: the job
        # is left all the same, or it would keep its nodes for ever
        with suppress(ValueError):
            self._annotation.__exit__(None, None, None)

    def _send(self, op: str, **fields: Any) -> None:
        """Send a message on the stream of the graphs."""
        client = self.channel.client_or_none
        # closed: the scheduler has cancelled the job
        if client is not None and client.status in ("running", "connecting"):
            self.channel.send({"op": op, "job": self.id, "token": self._token, **fields})

    async def _cancel_after(self, kind: type[BaseException], error: BaseException | None) -> None:
        cancelled = await self._cancel(f"an exception left its context: {kind.__name__}: {error}")
        if cancelled and self._spec.get("protect"):
            await self._save_after()

    async def _save_after(self) -> None:
        """Wait for the last version for a while, where the cluster may be the script's own, and end now."""
        if getattr(self.channel.client_or_none, "cluster", None) is None:
            return
        try:
            with suppress(TimeoutError):
                await self._wait_for_results(stopwatch_s() + _SOON_S)
                return
            text = "Job %s: its last results are still being written, and waited for %g s more at most"
            logger.warning(text, self.id, _HELD_UP_S)
            await self._wait_for_results(stopwatch_s() + _HELD_UP_S)
        except (OSError, DaskHPCError) as second:
            # the user must see the first error
            logger.warning("Job %s: its last results may be lost when the cluster ends: %s", self.id, second)

    async def _cancel(self, reason: str, id: str | None = None) -> bool:
        """Cancel it, if that can be; whether it is."""
        id = id or self.require_id()
        try:
            await ask_cancel(self.channel, id, reason)
            return True
        except (OSError, DaskHPCError) as second:
            # the user must see the first error
            logger.warning("Job %s could not be cancelled: %s", id, second)
            return False

    def is_called(self, job: str) -> bool:
        """Whether that is its id or its name."""
        return job in (self.id, self._spec["name"])

    def mark(self) -> tuple[str | None, str, int]:
        """Set a mark behind all that was submitted to the job, unless its closing message is one.

        Gives its id and token, and the number of the mark.
        """
        self._mark += 1
        if not self._closed:
            self._send(BIND, mark=self._mark)
        return self.id, self._token, self._mark

    def require_id(self) -> str:
        """The id of the job on the scheduler.

        Raises
        ------
        RuntimeError
            When the job has not been submitted.
        """
        if self.id is None:
            raise RuntimeError(
                "the job has not been submitted; enter it with `with rt.job(...) as job:` or call "
                "`job.activate()`"
            )
        return self.id

    # ------------------------------------------------------ the whole client

    def activate(self) -> Any:
        """Let everything that the client submits belong to the job, from any thread; returns the job.

        A job that is not open is opened (``job = rt.job("heat", nodes=2).activate()``). It lasts until
        `deactivate`, until the job is closed or ends, or until another job is activated; then what the
        client submits is plain work. Order counts: what was submitted before the call is not the job's.
        An ``hpc_job`` annotation (the context of another job) and the job of a task that submits come
        first; ``dask.annotate(hpc_job=None)`` makes plain work.

        Raises
        ------
        InvalidJob
            For a job that can never start; see `Runtime.job`.
        CheckpointError, ConfigError
            For a job that says ``protect`` and cannot be protected; it is cancelled then.
        JobFailed, JobCancelled
            When the job has ended so.
        RuntimeError
            When the job is closed, or was found and not declared here.
        """
        client = self.channel.client
        if self.id is None and not client.asynchronous:
            self._entered_by = threading.get_ident()
        return self.channel.run(self._activate)

    async def _activate(self) -> Self:
        async with self._opening:
            if self.id is None:
                await self._open()
        if not self._opened:
            raise RuntimeError(
                f"job {self.id} was not declared by this handle, so it cannot be activated by it; use the "
                "handle that rt.job(...) gave"
            )
        if not self._closed:
            # a stream message is not answered: what makes it void must be known before
            _raise_if_ended(await self.channel.ask("job", job=self.id, token=self._token))
        if self._closed:
            raise RuntimeError(f"job {self.id} is closed: it takes nothing in; declare a new one")
        self._send(BIND, bound=True)
        return self

    def deactivate(self) -> Any:
        """Undo `activate`: what the client submits from now on is plain work. Changes nothing otherwise."""
        # after the closing message nobody may be there to hear another one
        if self._opened and not self._closed:
            self._send(BIND, bound=False)
        return self.channel.done()

    def close(self) -> Any:
        """Close the job, as leaving its context does: it ends when its tasks are done. Returns at once.

        For a job without a ``with`` block. Inside one, leave the block: what it submits after `close`
        is still annotated, and so the job's until the job ends. Closing again changes nothing.

        Raises
        ------
        RuntimeError
            When the job was not submitted, or was found and not declared here.
        """
        if not self._opened:
            raise RuntimeError(
                f"job {self.require_id()} was not declared by this handle, so it cannot be closed by it; use "
                "`cancel`, or the handle that rt.job(...) gave"
            )
        self._close()
        return self.channel.done()

    def _close(self) -> None:
        self._entered_by = None
        if not self._closed:
            self._closed = True
            self._send(CLOSE)

    def say_closed(self, open_jobs: Collection[str]) -> None:
        """Say again that it is closed, where the scheduler takes it for one of these jobs that are open."""
        if self._closed and self.id in open_jobs:
            self._send(CLOSE)

    # ------------------------------------------------------------------ data

    def scatter(self, data: Any, workers: Any = None, *, timeout: float | None = None, **kwargs: Any) -> Any:
        """Like `distributed.Client.scatter`, onto the nodes that the job holds; returns what that returns.

        A job that waits for nodes is waited for, unless it shares those of others meanwhile. The data stays
        where it is when the job is resized.

        Parameters
        ----------
        data
            A list, dict, tuple or set of values, or one value.
        workers
            Some of the job's workers (addresses or names). None: all of them.
        timeout
            Seconds to wait for nodes, and Dask's own limit for the transfer. None: for ever, and Dask's
            default.
        **kwargs
            ``broadcast`` (True: a copy on each of these workers), ``direct``, ``hash``.

        Raises
        ------
        ValueError
            When `workers` names workers that are not the job's.
        TimeoutError
            When the job has no node in time.
        JobFailed, JobCancelled
            When the job ends before it has one, or has ended.
        """
        self.require_id()
        check_timeout(timeout)
        return self.channel.run(self._scatter, data, workers, timeout, kwargs)

    async def _scatter(self, data: Any, workers: Any, timeout: float | None, kwargs: dict[str, Any]) -> Any:
        if workers is not None and not isinstance(workers, (list, tuple, set, frozenset)):
            workers = [workers]
        named = None if workers is None else list(workers)
        job = self.require_id()
        waited_s = 0.0
        while True:
            left_s = _POLL_S if timeout is None else min(_POLL_S, timeout - waited_s)
            answer = await self.channel.ask("workers", job=job, workers=named, timeout_s=max(0.0, left_s))
            if answer["workers"]:
                break
            row = answer["row"]
            _raise_if_ended(row)
            if row["state"] == "completed":
                raise JobCancelled(f"job {job} has ended: it holds no nodes; scatter while it is open")
            waited_s += left_s
            if timeout is not None and waited_s >= timeout:
                raise TimeoutError(f"job {job} holds no node after {timeout:g} s; {row['reason']}")
        if timeout is not None:
            kwargs = {**kwargs, "timeout": timeout}
        return await self.channel.client.scatter(data, workers=answer["workers"], asynchronous=True, **kwargs)

    # ------------------------------------------------------------- questions

    def status(self) -> Any:
        """The job as a dict: state, nodes, times, counts of tasks, and why it is in that state."""
        return self.channel.sync("job", job=self.require_id())

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the job has ended; returns its row.

        Of a job that says ``protect``, however it has ended, the last version is whole then, or has failed:
        the log says so.

        Parameters
        ----------
        timeout
            Seconds; None waits for ever (and is refused inside the job's own context, which would never
            be left, and in the thread that has opened the job by `activate` and not closed it).

        Raises
        ------
        JobFailed, JobCancelled
            When that is how it ended.
        TimeoutError
            When it has not ended, or its last version has not, in time.
        """
        check_timeout(timeout)
        inside = self._entered_by == threading.get_ident() and not self.channel.client.asynchronous
        if timeout is None and inside:
            raise RuntimeError(
                f"job {self.require_id()} does not end before its context is left or it is closed: wait "
                "after that, or give a timeout"
            )
        return self.channel.run(self._wait, timeout)

    async def _wait(self, timeout: float | None) -> Any:
        end_s = None if timeout is None else stopwatch_s() + timeout
        try:
            row = await self._wait_for_end(timeout)
        except (JobFailed, JobCancelled):
            # what has come of it is not to be lost with the cluster of a script that ends now
            with suppress(InstallError):  # it is uninstalled
                await self._wait_for_results(end_s)
            raise
        await self._wait_for_results(end_s)
        return row

    async def _wait_for_results(self, end_s: float | None) -> None:
        # of one that was found nobody knows here whether it says protect
        while self._spec.get("protect") or not self._opened:
            left_s = _POLL_S if end_s is None else end_s - stopwatch_s()
            if await self.channel.ask("job_saved", job=self.id, timeout_s=min(_POLL_S, max(0.0, left_s))):
                break
            if left_s <= 0.0:
                raise TimeoutError(f"job {self.id} has ended, and its last results are still being written")

    async def _wait_for_end(self, timeout: float | None) -> Any:
        job = self.require_id()
        waited_s = 0.0
        while True:
            left_s = _POLL_S if timeout is None else min(_POLL_S, timeout - waited_s)
            row = await self.channel.ask("wait", job=job, timeout_s=max(0.0, left_s))
            if row["state"] == "completed":
                return row
            _raise_if_ended(row)
            if self._closed and not row["closed"]:
                self._send(CLOSE)  # what was on its way when the connection broke has not come
            waited_s += left_s
            if timeout is not None and waited_s >= timeout:
                context = "" if row["closed"] else "; its context is still open"
                raise TimeoutError(
                    f"job {job} is {row['state']} after {timeout:g} s with {row['unfinished_tasks']} "
                    f"unfinished tasks{context}; {row['reason']}"
                )

    def cancel(self, reason: str = "") -> Any:
        """Cancel the job; returns its row.

        What it has not finished is cancelled for the clients that have submitted it. What others want of it
        (clients, variables, published datasets, `fire_and_forget`, other work) is computed as plain work.
        """
        text = text_of("reason", reason, "a text")
        return self.channel.run(ask_cancel, self.channel, self.require_id(), text)

    def resize(self, nodes: int, *, wait: bool | None = None) -> Any:
        """Resize the running job to `nodes` nodes; returns the outcome with its reason.

        Parameters
        ----------
        wait
            Whether to wait until the outcome is known; else what has been begun is ``under way``. None:
            yes, but not in a function that a program of this job calls, which only goes on after that.
            A loop of your own around `producer` needs False for the same reason. True there is refused
            with a `RuntimeError` (an asynchronous client may await it elsewhere).

        Returns
        -------
        dict
            ``result`` is ``done``, ``aborted`` (taken back), ``refused`` (cannot be done now) or ``under
            way``; ``reason`` says why.

        Raises
        ------
        InvalidJob
            When `nodes` is no number of nodes.
        """
        nodes = check_nodes(self.require_id(), "nodes", nodes)
        return self.channel.sync("resize", job=self.require_id(), nodes=nodes, wait=self._waits(wait))

    def request(self, nodes: int, *, wait: bool | None = None) -> Any:
        """Ask for `nodes` more (or, negative, fewer) from inside the running job.

        Parameters
        ----------
        wait
            As for `resize`.

        Returns
        -------
        dict
            ``result``, ``reason``, ``asked`` and ``granted``: all of it, a part (what is idle and legal),
            or nothing.

        Raises
        ------
        InvalidJob
            When the job could never have as many: the message gives the range.
        """
        return self.channel.sync("request", job=self.require_id(), nodes=nodes, wait=self._waits(wait))

    def _waits(self, wait: bool | None) -> bool:
        inside = IN_PROGRAM.get() == self.id
        if wait and inside and not self.channel.client.asynchronous:
            raise RuntimeError(
                f"wait=True inside a function that the program of {self.id} calls would wait for ever: the "
                "program goes on when the function has returned; leave wait out, or ask from another thread"
            )
        return not inside if wait is None else wait

    def producer(self, join: Any = None) -> Producer:
        """Take part in the job's resizes as a producer that keeps state on its nodes.

        `join` is a coroutine function that makes joining nodes ready; it is called with the coming change.
        """
        return Producer(self, join)

    def program(self, size: int, dim: str, **options: Any) -> Program:
        """A simulation in phases whose state of `size` indices along `dim` lives on the job's nodes.

        Options are those of `dask_hpc.program.program.Program`.
        """
        # it needs xarray, and others do not
        from dask_hpc.program.program import Program

        return Program(self, size, dim, **options)

    def why(self) -> Any:
        """The decisions about this job, oldest first."""
        return self.channel.sync("decisions", job=self.require_id())

    def timeline(self, predict: bool = True) -> Any:
        """A picture of the job over time and of who else had its nodes: see `Runtime.timeline`."""
        return self.channel.run(timelines.picture, self.channel, predict, self.require_id())

    def why_waiting(self) -> Any:
        """Who holds what the job needs, when it is expected to start, and what would start it earlier.

        Gives a `dask_hpc.sim.waiting.Waiting`, to be printed or read; None when the job does not wait. Each
        time comes from a run of the simulator from the present state, here in the client.

        Raises
        ------
        WorkloadError
            When the cluster has no node.
        """
        return self.channel.run(timelines.why_waiting, self.channel, self.require_id())


async def ask_cancel(channel: Channel, job: str, reason: str) -> Any:
    """Cancel a job by id or name, behind all that was submitted to it here; gives its row.

    What is submitted goes another way, and would come after this.
    """
    behind = [handle.mark() for handle in list(channel.opened) if handle.is_called(job)]
    return await channel.ask("cancel", job=job, reason=reason, behind=behind)


def _this_task() -> Any:
    """Key of the task that calls this, on its thread; None: none does."""
    try:
        return get_worker().get_current_task()
    except (ValueError, KeyError):
        return None


def _raise_if_ended(row: dict[str, Any]) -> None:
    """Raise what says how a job ended, unless it is active or has completed."""
    if row["state"] == "failed":
        raise JobFailed(f"job {row['id']} failed: {row['reason']}")
    if row["state"] == "cancelled":
        raise JobCancelled(f"job {row['id']} was cancelled: {row['reason']}")


def _pool_hint(client: Client) -> int:
    """Nodes that the client's cluster is going to have, when it knows; it plans and adapts by workers."""
    cluster = client.cluster
    plan = getattr(cluster, "plan", None)
    adaptive = getattr(cluster, "_adaptive", None)
    maximum = getattr(adaptive, "maximum", 0)
    workers = max(len(plan) if plan else 0, maximum if isinstance(maximum, int) else 0)
    return math.ceil(workers / getattr(cluster, "workers_per_node", 1))
