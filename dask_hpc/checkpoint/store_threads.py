"""Threads of a process for what is asked of a store, which may never answer.

A mount that hangs keeps the thread that asks it. These threads do nothing else, so that all else that needs
one goes on: versions in memory, what `rt.status` says of them, and Ctrl-C. Nor does the process wait for them
when it ends. They come when something is asked, and go when there is nothing more.

Whether a call gets on is seen by the time that the processor has given its thread: one that waits in the
kernel for a mount has none. Who looks late had no processor itself, and what it missed does not count.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Generic, ParamSpec, TypeVar

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Stores answer several at once. Threads that do not get on are not counted, for they may wait for a mount
#: that hangs, and others ask another store; with these there are no more than so many.
_MOST, _WITH_STILL = 16, 128
#: A thread does not get on that has not for so long, in seconds: less than `PATIENCE_S`.
_STILL_S = 2.0
#: Who needs no store does not wait longer for one, in seconds.
PATIENCE_S = 5.0
#: Less time of the processor is none, in ns: some file systems wake who waits for them now and then.
_NONE_NS = 1_000_000
#: How often one looks whether a call gets on, in seconds.
_LOOK_S = 1.0
#: Who looks after so many times that time is late.
_LATE = 2.0


class SilentStoreError(CheckpointError):
    """A store has not answered: nobody knows what is in it."""


class _Answer(Future[T], Generic[T]):
    """What a thread will find."""

    #: Clock of the processor's time for that thread; None: it has not begun.
    clock: int | None = None

    def used_ns(self) -> int | None:
        """Time that the processor has given it; None: it has not begun, or has ended."""
        try:
            return None if self.clock is None else time.clock_gettime_ns(self.clock)
        except OSError:
            return None


class _Threads:
    """At most so many that get on, which take what waits in order."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waiting: deque[tuple[_Answer[Any], Callable[[], Any]]] = deque()
        self._count = 0
        #: Of the threads that have something, by their numbers.
        self._having: dict[int, _Watch] = {}
        #: Whether somebody looks for threads that do not get on.
        self._watched = False

    def begin(self, call: Callable[[], T]) -> _Answer[T]:
        """What a thread will find."""
        answer: _Answer[T] = _Answer()
        with self._turn:
            self._waiting.append((answer, call))
            self._more()
        return answer

    def _more(self) -> None:
        """One more thread, if there may be one; else somebody looks for those that do not get on."""
        still = sum([watch.still_s() >= _STILL_S for watch in self._having.values()])
        if self._count < min(_MOST + still, _WITH_STILL):
            self._count += 1
            threading.Thread(target=self._work, name="hpc-store", daemon=True).start()
        elif not self._watched:
            self._watched = True
            threading.Thread(target=self._look, name="hpc-store-watch", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._turn:
                if not self._waiting:
                    self._watched = False
                    return
                self._more()

    def _work(self) -> None:
        thread = threading.get_ident()
        while True:
            with self._turn:
                self._having.pop(thread, None)
                if not self._waiting:
                    self._count -= 1
                    return
                answer, call = self._waiting.popleft()
                self._having[thread] = _Watch(answer, _LATE * _LOOK_S)
            if answer.set_running_or_notify_cancel():
                answer.clock = time.pthread_getcpuclockid(thread)
                try:
                    answer.set_result(call())
                except BaseException as error:
                    answer.set_exception(error)
            # an error has this frame: in there its answer would keep it, and all frames that it comes through
            del answer, call


_threads = _Threads()


def begin(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> _Answer[T]:
    """Have a thread of these run a function, for who need not wait for what it gives."""
    return _threads.begin(lambda: function(*args, **more))


def wait_for(answer: _Answer[Any], patience_s: float) -> bool:
    """Wait for what a thread that `begin` has asked finds, as long as it gets on; gives whether it has."""
    look_s = _look_s(patience_s)
    watch = _Watch(answer, _LATE * look_s)
    while not wait([answer], look_s).done:
        if watch.still_s() >= patience_s:
            return False
    return True


async def in_store(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """What a function gives that a thread of these runs; raises what it raises.

    What has begun goes on when whoever waits is cancelled.
    """
    return await asyncio.wrap_future(begin(function, *args, **more))


async def soon(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """The same, for who does without an answer that takes long.

    Raises
    ------
    TimeoutError
        When there is none within `PATIENCE_S`; it says so.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await in_store(function, *args, **more)
    except TimeoutError:
        raise TimeoutError(f"it has not answered within {PATIENCE_S:g} s") from None


class Asked:
    """One who asks a store, and waits as long as it gets on.

    Parameters
    ----------
    store
        The store, as it is called where it does not.
    patience_s
        So long without getting on is too long (``hpc.checkpoint.silence``).
    """

    def __init__(self, store: object, patience_s: float) -> None:
        self._store, self._patience_s = store, patience_s

    def __call__(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """What a function gives that reads the store; raises what it raises.

        Raises
        ------
        SilentStoreError
            When it does not get on.
        """
        answer = begin(function, *args, **more)
        try:
            if not wait_for(answer, self._patience_s):
                raise self._silent()
            return answer.result()
        finally:
            del answer  # as in the thread

    def to_end(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """The same, however long it takes, for what is to be written there and nowhere else.

        Whoever waits can be interrupted; what has begun goes on then.
        """
        answer = begin(function, *args, **more)
        try:
            if not wait_for(answer, self._patience_s):
                logger.warning("Goes on waiting: %s", self._silent())
            return answer.result()
        finally:
            del answer  # as in the thread

    async def soon(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """The same on a loop, which goes on meanwhile."""
        answer, look_s = begin(function, *args, **more), _look_s(self._patience_s)
        watch, waiting = _Watch(answer, _LATE * look_s), asyncio.wrap_future(answer)
        try:
            while not (await asyncio.wait([waiting], timeout=look_s))[0]:
                if watch.still_s() >= self._patience_s:
                    raise self._silent()
            return waiting.result()
        finally:
            waiting.cancel()
            del answer, watch, waiting

    def _silent(self) -> SilentStoreError:
        return SilentStoreError(
            f"the store {self._store} has not answered for {self._patience_s:g} s: its mount may hang; "
            "see that ls shows it, give another store, or raise hpc.checkpoint.silence"
        )


def _look_s(patience_s: float) -> float:
    return min(_LOOK_S, patience_s / 4)


class _Watch:
    """Whether a call gets on.

    Parameters
    ----------
    late_s
        What is between two looks counts up to here.
    """

    def __init__(self, answer: _Answer[Any], late_s: float) -> None:
        self._answer, self._late_s = answer, late_s
        self._used_ns: int | None = None
        self._since_s = self._looked_s = stopwatch_s()

    def still_s(self) -> float:
        """For how long it has not, in seconds."""
        used_ns, now_s = self._answer.used_ns(), stopwatch_s()
        self._since_s += max(0.0, now_s - self._looked_s - self._late_s)
        self._looked_s = now_s
        if used_ns is not None and (self._used_ns is None or used_ns - self._used_ns >= _NONE_NS):
            self._used_ns, self._since_s = used_ns, now_s
        return now_s - self._since_s
