"""Calls to managers from a program that has no loop of its own: a thread with a loop and its connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from distributed import Security
from distributed.core import ConnectionPool

T = TypeVar("T")


class _Call:
    """One call, which is given up also where whoever waits is interrupted before it has begun."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._over = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What is to be done."""
        self._task = asyncio.current_task()
        if self._over:
            work.close()
            raise asyncio.CancelledError
        return await work

    def give_up(self) -> None:
        """Have it end where it is, or never begin; one that has ended has. Called on the loop."""
        self._over = True
        if self._task is not None:
            self._task.cancel()


class Calls:
    """The thread; it begins with the first call, and ends with `close`."""

    def __init__(self, security: Security) -> None:
        self._arguments = security.get_connection_args("worker")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ConnectionPool | None = None

    def __call__(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """What `work` gives for the connections; raises what it raises.

        Work that nobody waits for any more (Ctrl-C) is given up: it would end behind what comes next.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="hpc-session", daemon=True).start()
        loop, call = self._loop, _Call()
        try:
            return asyncio.run_coroutine_threadsafe(call.run(self._work(work)), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(call.give_up)
            raise

    def close(self) -> None:
        """End the thread, and all connections."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    async def _work(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        if self._pool is None:
            # it belongs to the loop
            self._pool = ConnectionPool(connection_args=self._arguments)
            await self._pool.start()
        return await work(self._pool)

    async def _end(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()
