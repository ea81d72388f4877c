"""Whoever reads values: a loop that has ended is not waited for, and one that is to end does.

What has been handed out is nowhere else any more.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coupled import opened, sent, started
from helpers import live, until
from sources import nothing_left, producers

from dask_hpc.client.readers import Reader, why_gone
from dask_hpc.errors import CouplingError


def test_a_reader_is_gone_whose_loop_has_ended_though_somebody_keeps_its_error() -> None:
    class Channel:
        client = SimpleNamespace(asynchronous=False)

        def run(self, function: Any) -> Any:
            if stopped:
                function().close()
                raise KeyboardInterrupt
            return asyncio.run(function())

    class Gives:
        outcome = "it has failed"

        async def changes(self) -> None:
            await asyncio.Event().wait()

        def taken(self) -> None: ...

        def unread(self) -> str:
            return "somebody does not read"

    def read(timeout_s: float | None, error: BaseException | None = None) -> BaseException:
        reader = Reader(Channel(), gives, 0, timeout_s)  # type: ignore[arg-type]
        if error is not None:
            reader.put(0, 0, None, error)
        there = weakref.ref(reader)
        try:
            next(reader)
        except BaseException as found:
            del reader
            kept.append(found)
        assert there() is None
        return kept[-1]

    kept: list[BaseException] = []
    stopped, gives = False, Gives()
    assert isinstance(read(None), CouplingError)
    assert isinstance(read(None, ZeroDivisionError()), ZeroDivisionError)
    # whoever reads would take these for the end
    for error in (StopIteration(), StopAsyncIteration()):
        assert isinstance(read(None, error), RuntimeError)
    gives.outcome = None  # type: ignore[assignment]
    late = read(0.01)
    assert isinstance(late, TimeoutError)
    assert str(late) == "no value within 0.01 s: somebody does not read"
    stopped = True
    assert isinstance(read(None), KeyboardInterrupt)


class Rung:
    """What rings, and has nothing to give; by the loop of its client."""

    outcome = None
    client = SimpleNamespace(asynchronous=True)

    def __init__(self) -> None:
        self.bell = asyncio.Event()

    def run(self, function: Any) -> Any:
        return function()

    def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    def changes(self) -> Awaitable[Any]:
        return self.bell.wait()

    def taken(self) -> None: ...

    def unread(self) -> str:
        return ""


def test_a_reader_that_is_cancelled_ends_whatever_has_changed_at_that_moment() -> None:
    async def cancelled_after(turns: int) -> bool:
        gives = Rung()
        reading = asyncio.ensure_future(anext(Reader(gives, gives, 0, 60.0)))  # type: ignore[arg-type]
        for _ in range(3):
            await asyncio.sleep(0)
        gives.ring()
        for _ in range(turns):
            await asyncio.sleep(0)
        # as a notebook does for a cell that is interrupted, once
        reading.cancel()
        await asyncio.wait([reading], timeout=0.5)
        return reading.cancelled()

    async def main() -> None:
        assert [await cancelled_after(turns) for turns in range(5)] == [True] * 5

    asyncio.run(main())


def test_a_reader_that_is_read_in_the_form_of_another_client_says_which_is_right() -> None:
    async def main() -> None:
        gives = Rung()
        reader = Reader(gives, gives, 0, 60.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"asynchronous client.* 'async for'"):
            next(reader)
        gives.client = SimpleNamespace(asynchronous=False)
        with pytest.raises(TypeError, match=r"ordinary client.* 'for'"):
            await anext(reader)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (None, "its client is closed"),
        (SimpleNamespace(status="closing"), "its client is closed"),
        (SimpleNamespace(status="running"), "the cluster was restarted"),
    ],
)
def test_a_client_that_closes_amid_steps_is_not_taken_for_somebody_else(client: Any, said: str) -> None:
    assert said in why_gone(client)


@live(workers=1, timeout=60)
async def test_a_value_is_not_kept_as_long_as_the_blocks_that_later_windows_need(c, s, a):
    flow, values = await started(c)
    # too large to come with the word that it is there
    await flow.analyse(lambda ds: np.repeat(ds["T"].values, 1000), name="large")
    await flow.analyse(lambda ds: ds.sizes["step"], name="wide", window=20)
    large = flow.results("large", timeout=30)

    def held(name):
        return [key for key, ts in s.tasks.items() if key.startswith(f"{name}-") and ts.state == "memory"]

    async with producers(s, (0, 8)) as made:
        await opened(made)
        for step in range(4):
            await sent(made, step)
            assert await anext(values) == (step, float(step))
            assert (await anext(large))[1].size == 48_000
        await until(lambda: not held("first") + held("large"), "values that were handed out are let go of")
        assert len(held("hpc-flow")) == 4
        await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_reader_whose_client_had_no_connection_for_a_moment_is_told_so(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        await sent(made, 0)
        assert await anext(values) == (0, 0.0)
        # the client connects again by itself
        c.scheduler_comm.comm.abort()
        with pytest.raises(CouplingError, match="its client is gone, or had no connection"):
            await anext(values)
    await until(lambda: c.status == "running", "the client is connected again")
    await flow.close()
    await nothing_left(s, a)
