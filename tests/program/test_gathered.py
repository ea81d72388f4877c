"""Blocks that a program asks for: who is cancelled meanwhile leaves nothing that logs an error later."""

from __future__ import annotations

import asyncio

import pytest
from helpers import Gate, live, through, until

from dask_hpc.program.block_tasks import gathered


@live(workers=1)
async def test_what_is_gathered_is_all_of_it_or_the_error_of_what_failed(c, s, a):
    assert await gathered(c.map(lambda x: x + 1, range(3))) == [1, 2, 3]
    assert await gathered([]) == []
    with pytest.raises(ZeroDivisionError):
        await gathered([c.submit(int), c.submit(lambda: 1 / 0)])


# an error that is logged by what is collected afterwards fails it
@live(workers=1)
async def test_cancelling_it_leaves_no_task_that_fails_when_results_are_lost(c, s, a):
    gate = Gate()
    futures = [c.submit(through, number, gate) for number in range(3)]
    waiting = asyncio.ensure_future(gathered(futures))
    await until(lambda: gate.arrived, "the first is computed")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await c.cancel(futures)
    gate.open()
