"""Threads of the scheduler's process for what is asked of a store, which may never answer.

A mount that hangs keeps the thread that asks it. These threads do nothing else, so that all else that needs
one goes on: versions in memory, and what `rt.status` says of them. Nor does the process wait for them when
it ends. They come when something is asked, and go when there is nothing more.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Stores answer several at once; who asks when so many wait for a mount that hangs waits, too.
_MOST = 16
#: Who needs no store does not wait longer for one, in seconds.
PATIENCE_S = 5.0


class _Threads:
    """At most so many, which take what waits in order."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._count = 0

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """What a thread will find."""
        answer: Future[T] = Future()
        with self._turn:
            self._waiting.append((answer, call))
            if new := self._count < _MOST:
                self._count += 1
        if new:
            threading.Thread(target=self._work, name="hpc-store", daemon=True).start()
        return answer

    def _work(self) -> None:
        while True:
            with self._turn:
                if not self._waiting:
                    self._count -= 1
                    return
                answer, call = self._waiting.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(call())
                except BaseException as error:
                    answer.set_exception(error)


_threads = _Threads()


async def in_store(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """What a function gives that a thread of these runs; raises what it raises.

    What has begun goes on when whoever waits is cancelled.
    """
    return await asyncio.wrap_future(_threads.begin(lambda: function(*args, **more)))


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
