"""An iterator over values as they come, in the form of the client.

Steps wait for a reader as long as it is there, and interactive sessions keep the last error: what a reader
raises does not refer to it, so that one whose loop has ended, by Ctrl-C too, is not waited for any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, Self

from distributed import Client

from dask_hpc.channel import Channel
from dask_hpc.errors import CouplingError

#: A step and its value, or what is raised in its place; None: no value comes any more.
_Item = tuple[int, Any, BaseException | None] | None


class Gives(Protocol):
    """What gives the values."""

    @property
    def outcome(self) -> str | None:
        """Why no value comes any more, an empty text when all have; None: some may come."""
        ...

    def taken(self) -> None:
        """A value was taken."""
        ...

    def unread(self) -> str:
        """What the oldest step in flight waits for, if that is somebody who does not read; else empty."""
        ...

    def changes(self) -> Awaitable[Any]:
        """What waits for the next change of anything from this call on, whenever it is awaited."""
        ...


class Reader:
    """An iterator over ``(step, value)``; with an asynchronous client one for ``async for``."""

    def __init__(self, channel: Channel, gives: Gives, first: int, timeout_s: float | None) -> None:
        self._channel, self._gives, self._timeout_s = channel, gives, timeout_s
        self._first = first
        self._items: deque[tuple[int, int, Any, BaseException | None]] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Any]:
        try:
            self._check_form(False, "with an asynchronous client it is read by 'async for', or await anext()")
            item = self._channel.run(self._next)
        except BaseException as error:
            del self
            raise error.with_traceback(None) from None
        del self
        return _given(item, StopIteration)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        try:
            self._check_form(True, "with an ordinary client it is read by 'for', or next()")
            item = await self._channel.run(self._next)
        except BaseException as error:
            del self
            raise error.with_traceback(None) from None
        del self
        return _given(item, StopAsyncIteration)

    def _check_form(self, awaited: bool, text: str) -> None:
        if self._channel.client.asynchronous is not awaited:
            raise TypeError(f"values are awaited or not as the client is: {text}")

    def wants(self, turn: int) -> bool:
        """Whether it is to get the value of a turn, which are those from its first one on."""
        return turn >= self._first

    def put(self, turn: int, step: int, value: Any, error: BaseException | None) -> None:
        """There is a value, or what was raised in its place; those that it does not want are passed over."""
        if self.wants(turn):
            self._items.append((turn, step, value, error))

    def has(self, turn: int) -> bool:
        """Whether the value of a turn was not taken."""
        return any(item[0] == turn for item in self._items)

    def drop(self, turn: int) -> None:
        """The value of a turn has to make room."""
        self._items = deque(item for item in self._items if item[0] != turn)

    async def _next(self) -> _Item:
        loop = asyncio.get_running_loop()
        deadline_s = None if self._timeout_s is None else loop.time() + self._timeout_s
        while not self._items:
            if (outcome := self._gives.outcome) is not None:
                return (-1, None, CouplingError(outcome)) if outcome else None
            left_s = None if deadline_s is None else deadline_s - loop.time()
            try:
                # not by `wait_for`: on Python 3.11 it swallows a cancellation that comes with a change
                async with asyncio.timeout(left_s):
                    await self._gives.changes()
            except TimeoutError:
                if not self._items:
                    why = self._gives.unread()
                    return -1, None, TimeoutError(f"no value within {self._timeout_s:g} s{why and ': '}{why}")
        _, step, value, error = self._items.popleft()
        self._gives.taken()
        return step, value, error


def held_by(number: int, analyses: Mapping[str, Iterable[Reader]]) -> str:
    """Whose readers have not taken their values of a turn, in words; empty: nobody's."""
    names = [name for name, readers in analyses.items() if any(reader.has(number) for reader in readers)]
    if not names:
        return ""
    return f"a step waits until a reader of {', '.join(map(repr, names))} takes its value, or is deleted"


def why_gone(client: Client | None) -> str:
    """Why no step can come any more whose tasks their flow has not let go of: a client that closes does."""
    if client is None or client.status in ("closing", "closed"):
        return "its client is closed"
    return "the cluster was restarted, or somebody has cancelled the tasks of steps that come"


def _given(item: _Item, end: type[Exception]) -> tuple[int, Any]:
    """A step and its value; raises what there is in its place, or `end`."""
    if item is None:
        raise end
    step, value, error = item
    if isinstance(error, StopIteration | StopAsyncIteration):
        # whoever reads would take it for the end
        raise RuntimeError(f"the analysis has raised {error!r} at step {step}") from error
    if error is not None:
        raise error
    return step, value
