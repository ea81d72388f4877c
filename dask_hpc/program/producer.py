"""A job that keeps state on its nodes: it is asked before they change.

`Producer` is the low level: `probe` at a step boundary, then `begin`, lay the state out anew,
`commit` (or `abort`). `dask_hpc.program.program` drives it through phases and does all of that. The calls are
those of Invasive MPI (Chadha 2019, section 3.1) with nodes in place of processes.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dask_hpc.channel import OnChannel
from dask_hpc.errors import DaskHPCError, JobCancelled, JobError, JobFailed, WindowError
from dask_hpc.wire import producer_topic
from dask_hpc_policies.layout import checked_function
from dask_hpc_policies.numeric import is_real

logger = logging.getLogger(__name__)

#: Id of the job whose program is calling a function of the user's.
IN_PROGRAM: ContextVar[str | None] = ContextVar("hpc_in_program", default=None)
#: Makes the named nodes ready to join; the producer is told when it has returned.
Join = Callable[["Change"], Awaitable[None]]


class Status(enum.StrEnum):
    """What a change means for one node (Chadha 2019, section 3.1)."""

    #: It was there when the producer began.
    NEW = "NEW"
    #: It joins in this window.
    JOINING = "JOINING"
    #: It was there and will be.
    STAYING = "STAYING"
    #: It is there for the last time.
    LEAVING = "LEAVING"


@dataclass(frozen=True)
class Change:
    """Who stays, joins and leaves in one window. It grows or it shrinks, never both.

    Both are named only when every node was lost and others take their place.
    """

    reconfig_id: int
    staying: tuple[str, ...]
    joining: tuple[str, ...]
    leaving: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes after the change: those that stay, in their order, then those that join."""
        return (*self.staying, *self.joining)

    @property
    def counts(self) -> dict[Status, int]:
        """Number of nodes by status."""
        return {
            Status.STAYING: len(self.staying),
            Status.JOINING: len(self.joining),
            Status.LEAVING: len(self.leaving),
        }

    def status(self, node: str) -> Status:
        """What the change means for a node.

        Raises
        ------
        ValueError
            When the node takes no part in it.
        """
        for status, nodes in (
            (Status.STAYING, self.staying),
            (Status.JOINING, self.joining),
            (Status.LEAVING, self.leaving),
        ):
            if node in nodes:
                return status
        raise ValueError(f"node {node!r} takes no part in window {self.reconfig_id}: {self}")


def _change(message: Mapping[str, Any]) -> Change:
    return Change(
        message["reconfig_id"],
        *(tuple(message[name]) for name in ("staying", "joining", "leaving")),
    )


async def _ready(change: Change) -> None:
    """Nodes that need nothing before they join."""


class Producer:
    """Takes part in windows for one job. Made by `Job.producer`.

    Methods that ask the scheduler have the form of the job's client; `probe` never waits.

    Parameters
    ----------
    join
        Coroutine function that makes joining nodes ready, called with the `Change` that is coming;
        default: nothing is needed.
    """

    def __init__(self, job: OnChannel, join: Join | None = None) -> None:
        self._job = job
        self._join = _ready if join is None else checked_function("join", join)
        self._pending: Change | None = None
        self._open: Change | None = None
        #: Why the open window was aborted from outside.
        self._aborted: str | None = None
        self._topic = ""
        #: How the job has ended, when it has.
        self._over: str | None = None
        self._joining: set[asyncio.Task[None]] = set()
        #: Set when the scheduler says what is to be done at a step boundary, or that there is none any more.
        self.called = asyncio.Event()
        #: Steps that have begun and not ended: `probe` is for the time between them.
        self.busy = 0
        #: Why a version of the state is to be written at the next step boundary; None: it is not.
        self.commit_asked: str | None = None
        #: Nodes the state is laid out over, in order; empty before `start`.
        self.nodes: tuple[str, ...] = ()
        #: One row a window that was begun: reconfig_id, nodes before and after, seconds, result.
        self.windows: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<Producer {self._job.id} nodes={len(self.nodes)}>"

    # ---------------------------------------------------------- start and stop

    def start(self, timeout: float | None = None) -> Any:
        """Wait until the job runs and take part from now on; returns the nodes it has.

        Raises
        ------
        JobFailed, JobCancelled, JobError
            When the job has ended.
        TimeoutError
            When it has not started within `timeout` seconds.
        """
        return self._sync(self._start, timeout)

    async def _start(self, timeout: float | None = None) -> tuple[str, ...]:
        check_timeout(timeout)
        client = self._job.channel.client
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            row = await self._ask("await_start", timeout_s=_left_s(deadline_s))
            if row["state"] == "running":
                break
            if row["state"] == "completed":
                raise JobError(f"job {row['id']} has ended ({row['reason']}); declare another one")
            if row["state"] not in ("pending", "adapting"):
                error = JobFailed if row["state"] == "failed" else JobCancelled
                raise error(f"job {row['id']} is {row['state']}: {row['reason']}")
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"job {row['id']} is {row['state']} after {timeout:g} s: {row['reason']}")
        # a topic of its own: the producer of another handle on the same job listens elsewhere
        self._topic = f"{producer_topic(client.id, self._job.require_id())}-{uuid.uuid4().hex[:8]}"
        # clients keep what listens for ever, and a producer holds on to the whole state of its program
        told = weakref.WeakMethod(self._told)

        def hear(event: Any) -> None:
            listener = told()
            if listener is not None:
                listener(event)

        client.subscribe_topic(self._topic, hear)
        try:
            self.nodes = tuple(await self._ask("produce", client=client.id, topic=self._topic))
        except BaseException:
            client.unsubscribe_topic(self._topic)
            raise
        return self.nodes

    def stop(self) -> Any:
        """Take part no longer: the job's nodes change at task boundaries again."""
        return self._sync(self._stop)

    async def _stop(self) -> None:
        client = self._job.channel.client
        for task in self._joining:
            task.cancel()
        self._pending = self._open = None
        if self.nodes:
            self.nodes = ()
            client.unsubscribe_topic(self._topic)
            await self._ask("produced")

    # ---------------------------------------------------------------- windows

    def probe(self) -> Change | None:
        """The change that is waiting for this step boundary; None when there is none. Costs nothing.

        Raises
        ------
        WindowError
            Outside a step boundary: while a step has not ended or a window is open.
        JobCancelled
            When the job has ended.
        """
        if self._over is not None:
            raise JobCancelled(f"job {self._job.id} has ended: {self._over}")
        if self._open is not None:
            raise WindowError(
                f"probe inside window {self._open.reconfig_id} of {self._job.id}: commit or abort it first"
            )
        if self.busy:
            raise WindowError(
                f"probe outside a step boundary of {self._job.id}: {self.busy} steps have not ended; probe "
                "between steps"
            )
        return self._pending

    def begin(self) -> Any:
        """Open the window that `probe` has shown; returns its `Change`. Nothing else resizes the job now.

        Raises
        ------
        WindowError
            When nothing is pending (any more): the old size goes on.
        """
        return self._sync(self._begin)

    async def _begin(self) -> Change:
        pending = self.probe()
        if pending is None:
            raise WindowError(f"no window of {self._job.id} is pending; begin follows a probe that shows one")
        self._pending = None
        began_s = time.monotonic()
        message = await self._ask("begin", reconfig_id=pending.reconfig_id)
        change = self._open = _change(message)
        self._aborted = None
        self.windows.append(
            {
                "reconfig_id": change.reconfig_id,
                "before": len(change.staying) + len(change.leaving),
                "after": len(change.nodes),
                "began_s": began_s,
                "latency_s": None,
                "result": "open",
            }
        )
        return change

    def commit(self) -> Any:
        """Close the window: the state lies on the new nodes, leaving ones may go. Returns the nodes.

        Raises
        ------
        WindowError
            When no window is open (any more): the old size goes on.
        """
        return self._sync(self._commit)

    async def _commit(self) -> tuple[str, ...]:
        change = self._opened()
        try:
            self.nodes = tuple(await self._ask("commit", reconfig_id=change.reconfig_id))
        except WindowError as error:
            self._closed("aborted")
            raise WindowError(f"{error}. {self._aborted or ''}".rstrip()) from None
        except BaseException:
            self._closed("unknown")
            raise
        self._closed("done")
        return self.nodes

    def abort(self, reason: str = "aborted by the producer") -> Any:
        """Close the window with everything as it was; `reason` is given to those who asked."""
        return self._sync(self._abort, reason)

    async def _abort(self, reason: str = "aborted by the producer") -> None:
        change = self._opened()
        self._closed("aborted")
        try:
            await self._ask("abort", reconfig_id=change.reconfig_id, reason=reason)
        except (DaskHPCError, OSError) as error:
            # it was over before; whoever aborts has an error of his own to report
            logger.debug("Window %s of %s: %s", change.reconfig_id, self._job.id, error)

    def _opened(self) -> Change:
        if self._open is None:
            raise WindowError(f"no window of {self._job.id} is open; begin one first")
        return self._open

    def _closed(self, result: str) -> None:
        self._open = None
        row = self.windows[-1]
        row["latency_s"] = time.monotonic() - row["began_s"]
        row["result"] = result

    def phase(self, name: str, elastic: bool) -> Any:
        """Say that a phase begins; in one that is not elastic the job is not resized."""
        return self._sync(self._phase, name, elastic)

    async def _phase(self, name: str, elastic: bool) -> None:
        await self._ask("phase", name=name, elastic=elastic)

    # --------------------------------------------------------------- messages

    def _told(self, event: Any) -> None:
        """A message of the scheduler (runs in the client's event loop)."""
        _, message = event
        kind = message["window"]
        self.called.set()
        if kind == "over":
            self._over = message["reason"]
            return
        if kind == "checkpoint":
            self.commit_asked = message["reason"]
            return
        id = message["reconfig_id"]
        if kind == "join":
            task = asyncio.get_running_loop().create_task(self._prepare(_change(message)))
            self._joining.add(task)
            task.add_done_callback(self._joining.discard)
        elif kind == "pending":
            self._pending = _change(message)
        else:
            if self._pending is not None and self._pending.reconfig_id == id:
                self._pending = None
            if self._open is not None and self._open.reconfig_id == id:
                self._aborted = message["reason"]

    async def _prepare(self, change: Change) -> None:
        try:
            await self._join(change)
        except Exception as error:
            logger.warning("Nodes %s cannot join %s", ", ".join(change.joining), self._job.id, exc_info=True)
            said = str(error) if isinstance(error, WindowError) else f"{type(error).__name__}: {error}"
            why = f"a joining node is not ready: {said}"
            await self._quietly("abort", reconfig_id=change.reconfig_id, reason=why)
        else:
            await self._quietly("joined", reconfig_id=change.reconfig_id)

    async def _quietly(self, method: str, **arguments: Any) -> None:
        try:
            await self._ask(method, **arguments)
        except (DaskHPCError, OSError) as error:
            # the window was aborted meanwhile, and its other end has said why; or nobody is there any more
            logger.debug("%s: %s", method, error)

    async def _ask(self, method: str, **arguments: Any) -> Any:
        return await self._job.channel.ask(method, job=self._job.require_id(), **arguments)

    def _sync(self, function: Any, *args: Any) -> Any:
        return self._job.channel.run(function, *args)


def check_timeout(timeout: Any) -> None:
    """Raise `ValueError` unless `timeout` is None or a number of seconds, 0 or more."""
    if timeout is not None and not (is_real(timeout) and timeout >= 0):
        raise ValueError(f"timeout is {timeout!r}; allowed: seconds as a number, 0 or more, or None")


def _left_s(deadline_s: float | None) -> float:
    """Seconds of one long poll."""
    return 20.0 if deadline_s is None else min(20.0, max(0.0, deadline_s - time.monotonic()))
