"""One step of a flow on its consumer's end, and what is computed of it."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distributed import Client, Future
from distributed.comm import CommClosedError
from distributed.protocol.pickle import dumps, loads

from dask_hpc.client.readers import Reader
from dask_hpc.errors import CouplingError
from dask_hpc.worker.coupling.inside import Raised

#: So long after a value is there its bytes have come, in seconds; then it is fetched.
_ALONG_S = 1.0
#: Held while a reader is added.
_ADDING = threading.Lock()
#: How often a value that could not be fetched with others is asked for by itself; one at a time by a client.
_APART = 2
#: In the place of a value that is there, and that nobody reads.
_UNREAD: Any = object()
_asks: weakref.WeakKeyDictionary[Client, asyncio.Lock] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class Analysis:
    """What is computed of the last steps."""

    name: str
    function: Callable[..., Any]
    window: int
    every: int
    #: The turn its first window begins with.
    first: int
    #: One of `contract.WHERE`.
    where: str = "auto"
    readers: weakref.WeakSet[Reader] = field(default_factory=weakref.WeakSet)

    def read_by(self, reader: Reader) -> None:
        """Have somebody get its values, too; from any thread."""
        with _ADDING:
            # the loop goes through the others meanwhile
            self.readers = weakref.WeakSet((*self.readers, reader))

    def is_read(self, turn: int) -> bool:
        """Whether somebody wants its value of a turn."""
        return any(reader.wants(turn) for reader in self.readers)


@dataclass(slots=True)
class Turn:
    """One step, from the moment its tasks are submitted."""

    sources: list[Future]
    #: What producers number it; None: it has not begun.
    step: int | None = None
    #: Set once all its blocks are there, or it is clear that they will never be.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    #: Why it will never be whole.
    lost: str = ""
    #: Whether it had to make room, and whether all its values are there.
    ousted: bool = False
    computed: bool = False
    #: What is computed of it, by analysis.
    values: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    #: What comes with the word that a value is there: its bytes; None: it is too large for that.
    along: dict[str, asyncio.Future[bytes | None]] = field(default_factory=dict)
    futures: list[Future] = field(default_factory=list)
    #: Where the blocks of each of its sources lie, when that is not as at other steps.
    layout: list[Any] | None = None

    def await_value(self, analysis: Analysis, number: int, future: Future, spawn: Spawned) -> None:
        """The value of an analysis at this turn, which is that number, will come of a task on the cluster."""
        along = self.along[analysis.name] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.values[analysis.name] = spawn(value_of(future, along, partial(analysis.is_read, number)))

    async def read(self, turns: Iterable[Turn], forget: Callable[[], Awaitable[None]]) -> None:
        """Wait until the first value of turns that were submitted with this one is there, or given up.

        `forget` has the scheduler expect them no more.

        Raises
        ------
        CouplingError
            When the scheduler could not read what was submitted: then no step ever comes.
        """
        if values := [task for turn in turns for task in turn.values.values()]:
            await asyncio.wait(values, return_when=asyncio.FIRST_COMPLETED)
        for future in self.sources:
            # nothing is computed for a source: it fails with its graph alone
            if future.status == "error" and (error := await _error_of(future)) is not None:
                await forget()
                why = " ".join(str(error.__cause__ or error).split())
                raise CouplingError(
                    "the scheduler cannot read what an analysis calls, or what that refers to; have it "
                    f"import their modules, too, or define them in the script: {why}"
                )

    def oust(self) -> None:
        """Have nothing computed of it, and keep its blocks: windows of later steps need them."""
        self.ousted = True
        for task in self.values.values():
            task.cancel()
        for future in self.futures:
            future.release()
        self.settled.set()

    def done(self) -> None:
        """Everybody has had its values: windows of later steps need its blocks alone."""
        for value in self.futures:
            value.release()

    def release(self, why: str = "") -> None:
        """Let go of it on the cluster, whatever still refers to it here; why, if it will never be whole."""
        self.lost = self.lost or why
        for task in self.values.values():
            task.cancel()
        for future in (*self.sources, *self.futures):
            future.release()


class Spawned:
    """Coroutines that run beside each other until they end, or all are ended; called with one, it begins.

    `fail` is told why one has failed that is `needed`.
    """

    def __init__(self, fail: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._fail = fail
        self._tasks: set[asyncio.Task[Any]] = set()

    def __call__(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have a coroutine begin."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def needed(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something begin that nobody waits for, and without which nothing goes on."""
        self(work).add_done_callback(self._look)

    def _look(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # whatever it is, nobody is to wait for ever
            why = "the scheduler cannot be reached: " if isinstance(error, CommClosedError) else ""
            self(self._fail(why + (str(error) or repr(error))))

    async def end(self) -> None:
        """Cancel all but the one that this is called in, and wait for their end."""
        mine = asyncio.current_task()
        while left := [task for task in self._tasks if task is not mine]:
            for task in left:
                task.cancel()
            await asyncio.wait(left)


def as_sent(function: Any, analysis: str) -> Callable[..., Any]:
    """What an analysis calls, as workers get it now: what it refers to may change here later.

    Raises
    ------
    TypeError
        When it is no function, gives a coroutine, or refers to what cannot be sent.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; needed: a function of a data set")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"function of {analysis!r} is a coroutine function; needed: one that gives its value")
    try:
        # it is sent with every few steps: from an arbitrary one on it would be another
        copy: Callable[..., Any] = loads(dumps(function))
    except Exception as error:  # whatever objects of users raise
        text = f"function of {analysis!r} cannot be sent to workers, with what it refers to: {error}"
        raise TypeError(text) from None
    return copy


def unneeded(turns: Iterable[int], flight: Sequence[int], begun: int, widest: int) -> list[int]:
    """Turns, of those that have begun, that no window of `widest` steps needs which may still be computed.

    Those end with a turn in `flight` (oldest first), or one that is still to come: `begun` is the first.
    """
    ends = [*flight, begun]
    return [turn for turn in turns if turn < begun and ends[bisect_left(ends, turn)] >= turn + widest]


def let_go(turns: dict[int, Turn], flight: Sequence[int], begun: int, widest: int) -> None:
    """Let go of turns that are `unneeded`."""
    for old in unneeded(turns, flight, begun, widest):
        turns.pop(old).release()


def lose(turns: Mapping[int, Turn], number: int, reason: str, analyses: Iterable[Analysis]) -> None:
    """A turn will never be whole: what was to be made of it fails."""
    turns[number].lost = reason
    for analysis in analyses:
        for turn in range(number, number + analysis.window):
            if turn in turns and (task := turns[turn].values.get(analysis.name)) is not None:
                task.cancel()


def hand_out(
    flow: str, number: int, turn: Turn, turns: Mapping[int, Turn], analyses: Mapping[str, Analysis]
) -> None:
    """Give the values of a turn, or why there are none, to whoever reads; all of them are settled."""
    assert turn.step is not None
    for name, task in turn.values.items():
        value: Any = None
        if task.cancelled():
            window = range(number - analyses[name].window + 1, number)
            earlier = [turns[each] for each in window if each in turns]
            lost = next((each for each in (*earlier, turn) if each.lost), turn)
            why = f"{lost.step} failed, {lost.lost or 'its tasks were cancelled'}"
            error: BaseException | None = CouplingError(
                f"flow {flow!r} has no {name!r} of step {turn.step}: {why}"
            )
        elif (error := task.exception()) is None:
            value, error = task.result()
        for reader in list(analyses[name].readers) if value is not _UNREAD else ():
            reader.put(number, turn.step, value, error)
    turn.values.clear()
    turn.computed = True


async def value_of(
    future: Future,
    along: asyncio.Future[bytes | None] | None = None,
    is_read: Callable[[], bool] = lambda: True,
) -> tuple[Any, BaseException | None]:
    """The value, or what was raised; its traceback is that of the worker and refers to nothing here.

    Parameters
    ----------
    along
        Its bytes when they come by themselves, and None when it has to be fetched.
    is_read
        Whether it has to be fetched then.
    """
    if along is not None:
        state: Any = future._state
        there = asyncio.ensure_future(state.wait())
        try:
            await asyncio.wait((along, there), return_when=asyncio.FIRST_COMPLETED)
            if future.status == "finished" and not along.done():
                await asyncio.wait([along], timeout=_ALONG_S)
        finally:
            there.cancel()
        if along.done() and (content := along.result()) is not None:
            return loads(content), None
    # Dask fetches several results with one request: whoever gives up one of them would give up all
    return await asyncio.shield(_asked_for(future, is_read))


async def all_there(futures: Sequence[Future]) -> str:
    """Wait until all are there; why one of them never will be, if so.

    Raises
    ------
    CouplingError
        When one is no block of the flow's fields.
    """
    for future in futures:
        try:
            error = await asyncio.shield(_error_of(future))
        except CancelledError as lost:
            return str(lost) or "it was lost"
        if isinstance(error, CouplingError):
            raise CouplingError(str(error))
        if error is not None:
            return f"{type(error).__name__}: {error}"
    return ""


async def _error_of(future: Future) -> BaseException | None:
    found: BaseException | None = await future.exception()
    return found


async def _asked_for(future: Future, is_read: Callable[[], bool]) -> tuple[Any, BaseException | None]:
    failed = 0
    while True:
        try:
            error: BaseException | None = await future.exception()
            if error is None and not is_read():
                return _UNREAD, None
            if error is None:
                async with _one_by_one(future.client) if failed else nullcontext():
                    value = await future
                return (None, value.error) if isinstance(value, Raised) else (value, None)
            return None, error.with_traceback(await future.traceback())
        except CancelledError as lost:  # the cluster has let go of it
            return None, CouplingError(str(lost))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # somebody else has given up what was fetched with it
        except Exception as raised:  # a value that no worker can send; nobody may be left who takes it
            # what Dask has fetched with it has failed by it, too
            failed += 1
            if failed > _APART:
                return None, raised


def _one_by_one(client: Client) -> asyncio.Lock:
    return _asks.setdefault(client, asyncio.Lock())


def is_cancelled() -> bool:
    """Whether the task that this runs in is being cancelled: Dask raises the same for what it lets go of."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
