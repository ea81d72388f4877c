"""Waits that end: for a state, for an answer, of tasks at a gate. Light: processes of workers import it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

#: No wait for a state takes longer than this on a machine that is alive.
PATIENCE_S = 40.0


async def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait until `condition()` is true and return its value; fail with `what` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.005)
    return value


async def within(awaitable: Awaitable[Any], seconds: float = PATIENCE_S) -> Any:
    """What is awaited, or a failure: a `TimeoutError` that leaves a test is taken for the cluster's own."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s") from None


class Gate:
    """Holds tasks until the test opens it. Goes to workers of this process by reference."""

    _all: ClassVar[dict[int, Gate]] = {}
    _numbers = itertools.count()

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self._all[self._number] = self
        self._open = threading.Event()
        self._lock = threading.Lock()
        #: Tasks that have come to the gate so far.
        self.arrived = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _gate, (self._number,)

    def __dask_tokenize__(self) -> tuple[str, int]:
        return ("gate", self._number)

    def wait(self, value: Any = None) -> Any:
        """Come to the gate, wait until it is open, return `value`."""
        with self._lock:
            self.arrived += 1
        if not self._open.wait(PATIENCE_S):
            raise TimeoutError("nobody opened the gate")
        return value

    def open(self) -> None:
        """Let everybody pass."""
        self._open.set()

    @classmethod
    def open_all(cls) -> None:
        """Let everybody pass everywhere."""
        for gate in cls._all.values():
            gate.open()


def _gate(number: int) -> Gate:
    return Gate._all[number]
