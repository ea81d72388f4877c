"""A client's way to the runtime on its scheduler: a question, its answer, and the errors by name.

Rules of the file: it knows neither jobs nor the runtime's handle; those hold a `Channel`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, cast

from distributed import Client

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import (
    CheckpointError,
    CheckpointValueError,
    ConfigError,
    CorridorError,
    CouplingError,
    InstallError,
    TraceError,
    UnknownJob,
    WindowError,
)
from dask_hpc.show import Decisions, Jobs, Rows
from dask_hpc_policies.codec import half_of_pair
from dask_hpc_policies.jobs.jobspec import InvalidJob
from dask_hpc_policies.params import ParameterError, shown
from dask_hpc_policies.protocol import InvalidPolicy, UnknownPolicy

#: What answers that are lists are made.
_LISTS: dict[str, type[Rows]] = {"jobs": Jobs, "decisions": Decisions}
#: So long after an answer the runtime is taken to be there, in seconds.
_KNOWN_S = 60.0
#: A message that goes at once has gone by then, in seconds.
_SENT_S = 0.001
#: Jobs whose handles are remembered.
_OPENED_KEPT = 100
#: Answers about the whole that are remembered.
_REMEMBERED = ("status", "jobs")
#: Errors that the scheduler side reports by name.
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        CheckpointError,
        CheckpointValueError,
        ConfigError,
        CorridorError,
        CouplingError,
        InstallError,
        InvalidJob,
        ParameterError,
        TraceError,
        UnknownJob,
        UnknownPolicy,
        InvalidPolicy,
        WindowError,
        ValueError,
    )
}
#: A store that hangs is one of those that cannot be written to.
_ERRORS["SilentStoreError"] = CheckpointError


class OnChannel(Protocol):
    """A handle of one job, for those that ask about it: its id and the way to its scheduler."""

    id: str | None
    channel: Channel
    #: Whether it goes on from what an earlier run has left; None: not said.
    resume: bool | None

    def require_id(self) -> str:
        """Its id; raises `RuntimeError` when it has not been submitted."""
        ...


class Channel:
    """Asks the runtime on the scheduler of one client.

    Every question has the form of the client: with an ordinary client `sync` blocks and returns the
    result, with an asynchronous one it returns an awaitable.
    """

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        #: When the runtime has answered last, on the `stopwatch_s`; None: it has not, or has gone since.
        self.answered_s: float | None = None
        #: The last answers about the whole: shown when the cluster does not answer, or must not be asked.
        self.known: dict[str, Any] = {}
        #: Handles of the jobs that were opened last, whatever has become of them.
        self.opened: deque[Any] = deque(maxlen=_OPENED_KEPT)
        #: The last question that nobody waited for when it was asked.
        self._behind: Future[Any] | None = None

    def __reduce__(self) -> Any:
        raise TypeError(
            "a runtime, a job, a flow and a commit stay with their client and cannot be sent: in a task "
            "dask_hpc.runtime(distributed.get_client()) gives a runtime, and its find(id) the job"
        )

    @property
    def client(self) -> Client:
        """The client.

        Raises
        ------
        InstallError
            When it is closed.
        """
        client = self._client()
        if client is None or is_closed(client):
            raise InstallError("the client of this runtime is closed; connect a new one")
        return client

    @property
    def client_or_none(self) -> Client | None:
        """The client, closed or not; None when it is gone."""
        return self._client()

    async def ask(self, method: str, **arguments: Any) -> Any:
        """What the scheduler side answers.

        Raises
        ------
        InstallError
            When the runtime is not installed there.
        Exception
            What the method reports: see `dask_hpc.errors`.
        """
        result, now_s = await self.ask_at(method, **arguments)
        if method in _LISTS:
            result = _LISTS[method](result, now_s)
        if method in _REMEMBERED:
            self.known[method] = result
        return result

    async def ask_at(self, method: str, **arguments: Any) -> tuple[Any, float]:
        """The answer, and the scheduler's clock when it was given."""
        await _settled(self._behind)
        return await self._ask_now(method, arguments)

    def ask_behind(self, method: str, **arguments: Any) -> Future[Any]:
        """`ask` without waiting, from any thread; what is asked from now on waits for its answer.

        So the cluster hears all in the order in which it was said.
        """
        loop: Any = self.client.loop
        asking = self._ask_after(self._behind, method, arguments)
        self._behind = asyncio.run_coroutine_threadsafe(asking, loop.asyncio_loop)
        return self._behind

    async def _ask_after(self, before: Future[Any] | None, method: str, arguments: Mapping[str, Any]) -> Any:
        await _settled(before)
        return (await self._ask_now(method, arguments))[0]

    async def ask_or_undo(self, undo: str, argument: str, method: str, **arguments: Any) -> Any:
        """`ask` for what nobody else could let go of, should whoever asks be interrupted before the answer.

        That is then an argument of the method `undo`, and what is asked from now on waits for it.
        """
        asking = asyncio.ensure_future(self.ask(method, **arguments))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            undone = self._undo(asking, undo, argument)
            self._behind = asyncio.run_coroutine_threadsafe(undone, asyncio.get_running_loop())
            raise

    async def _undo(self, asking: asyncio.Future[Any], method: str, argument: str) -> None:
        await self._ask_now(method, {argument: await asking})

    async def _ask_now(self, method: str, arguments: Mapping[str, Any]) -> tuple[Any, float]:
        if not _fits(arguments):  # Dask would log two tracebacks before it says so
            raise ValueError(
                f"{method}: {shown(arguments)}; allowed: no number of 2**64 or more, and text that UTF-8 has"
            )
        client = self.client
        scheduler: Any = client.scheduler
        known = self.answered_s is not None and stopwatch_s() - self.answered_s < _KNOWN_S
        # a scheduler logs a traceback when it is asked for what it does not know, and answers None
        there = known or await _is_there(client)
        answer = await scheduler.hpc(method=method, arguments=dict(arguments)) if there else None
        self.answered_s = None if answer is None else stopwatch_s()
        if answer is None:
            raise InstallError(
                "dask_hpc is not installed on this cluster; call dask_hpc.install(client), start the "
                "scheduler with --preload dask_hpc.preload, or use dask_hpc.LocalCluster"
            )
        raise_error(answer)
        return _lists(answer["result"]), answer["now_s"]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message on the stream of the graphs, from any thread; what follows waits for nothing.

        After each message Dask waits 10 ms for more of them: a graph that follows is not to come later
        because there was one of ours.
        """
        client: Any = self.client
        client._send_to_scheduler(message)
        client.loop.add_callback(client.loop.call_later, _SENT_S, self.send_now)

    def send_now(self) -> None:
        """Send what is to go to the scheduler: Dask waits a moment for more of it."""
        stream: Any = getattr(self.client_or_none, "scheduler_comm", None)
        if stream is not None:
            stream.next_deadline = None
            stream.waker.set()

    def sync(self, method: str, **arguments: Any) -> Any:
        """`ask` in the form of the client."""
        return _called(self.client, partial(self.ask, method, **arguments))

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a coroutine function of ours in the form of the client."""
        return _called(self.client, function, *args)

    def end(self, function: Callable[..., Any], *args: Any) -> Any:
        """`run` what closes something; nothing when the client is closed already, which has closed it."""
        client = self.client_or_none
        if client is None or is_closed(client):
            return self.done()
        return _called(client, function, *args)

    def done(self) -> Any:
        """What a method of the client's form returns when there is nothing to do any more."""
        client = self.client_or_none
        return _nothing() if client is not None and client.asynchronous else None


def is_closed(client: Client) -> bool:
    """Whether a client is closed: one that has lost its scheduler for good is, too."""
    return client.scheduler is None or client.status == "closed"


async def _nothing() -> None:
    """What is awaited with an asynchronous client."""


def _called(client: Client, function: Callable[..., Any], *args: Any) -> Any:
    """Call a coroutine function in the form of a client.

    An interrupt of who waits cancels it where it waits itself. Dask does so only once its loop has begun it,
    and lets it run to its end when the interrupt comes before, as it does where the loop is busy.
    """
    if client.asynchronous:
        return client.sync(function, *args)
    loop: Any = client.loop
    begun: list[asyncio.Task[Any]] = []
    interrupted = False

    async def beginning() -> Any:
        """The call, which can be cancelled from here on."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        begun.append(task)
        if interrupted:
            # what it does when it is cancelled is to be done
            task.cancel()
        return await function(*args)

    def cancel() -> None:
        for task in begun:
            if not task.done() and not task.cancelling():
                task.cancel()

    try:
        return client.sync(beginning)
    except KeyboardInterrupt:
        interrupted = True
        loop.add_callback(cancel)
        raise


async def answered(asked: Future[Any]) -> Any:
    """What `Channel.ask_behind` was answered, whoever else waits for it."""
    return await asyncio.shield(asyncio.wrap_future(asked))


async def _settled(asked: Future[Any] | None) -> None:
    """Wait until a question has its answer, or none."""
    if asked is not None and not asked.done():
        await asyncio.gather(answered(asked), return_exceptions=True)


def _fits(value: Any) -> bool:
    """Whether a message can hold every whole number and text of a value."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, str):
        return half_of_pair(value) is None
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    elif not isinstance(value, (list, tuple)):
        return True
    # of names there may be many
    return all(_fits(one) for one in value if not (isinstance(one, str) and one.isascii()))


def _has_runtime(dask_scheduler: Any = None) -> bool:
    return "hpc" in dask_scheduler.handlers  # `wire.RPC`, by value


# pickled as it is: the scheduler may not have the package
_has_runtime.__module__ = "__main__"


async def _is_there(client: Client) -> bool:
    """Whether the scheduler has the runtime."""
    return bool(await client.run_on_scheduler(_has_runtime))


def raise_error(answer: Any) -> None:
    """Raise what the scheduler side reports by name."""
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS.get(kind, RuntimeError)(text)


def _lists(value: Any) -> Any:
    """`value` with lists where the network made tuples of them."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
