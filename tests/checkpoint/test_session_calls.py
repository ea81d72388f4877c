"""Calls of a program without a loop: what is closed leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from distributed import Security, Status

from dask_hpc.session.calls import Calls


def test_what_is_closed_leaves_no_connection_and_no_thread() -> None:
    calls = Calls(Security())

    async def used(pool: Any) -> tuple[Any, threading.Thread]:
        return pool, threading.current_thread()

    pool, thread = calls(used)
    assert pool.status == Status.running
    assert thread.is_alive()
    calls.close()
    assert pool.status == Status.closed
    thread.join(10)
    assert not thread.is_alive()
    # closed again, and used again
    calls.close()
    other, _ = calls(used)
    assert other is not pool
    assert other.status == Status.running
    calls.close()


def test_what_is_interrupted_before_it_has_begun_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, begun = Calls(Security()), threading.Event()

    async def given(pool: Any) -> None:
        return None

    async def begins(pool: Any) -> None:
        begun.set()

    calls(given)
    submit, goes_on = asyncio.run_coroutine_threadsafe, threading.Event()

    def interrupted(work: Any, loop: Any) -> Any:
        loop.call_soon_threadsafe(goes_on.wait)  # it has other things to do
        submit(work, loop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calls(begins)
    goes_on.set()
    calls(given)
    assert not begun.is_set()
    calls.close()
