"""What is done now and then has its turn, however often settings are changed."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from dask_hpc.scheduler.core.periodic import Periodic


def test_an_update_that_does_not_change_how_often_does_not_put_it_off() -> None:
    async def run() -> None:
        calls: list[float] = []
        scheduler: Any = SimpleNamespace(periodic_callbacks={})
        periodic = Periodic(scheduler)
        periodic.start("look", 0.05, lambda: calls.append(time.monotonic()))
        deadline_s = time.monotonic() + 5
        while not calls and time.monotonic() < deadline_s:
            periodic.change("look", 0.05)
            await asyncio.sleep(0.005)
        assert calls, "its turn has come"
        periodic.change("look", 0.01)
        assert scheduler.periodic_callbacks["look"].callback_time == 10
        periodic.stop()
        assert not scheduler.periodic_callbacks
        periodic.change("look", 1)  # nothing is called any more

    asyncio.run(run())
