"""Calls of a program without a loop: what is closed leaves nothing."""

from __future__ import annotations

import threading
from typing import Any

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
