"""A restart of the cluster by its user does what it does in stock, beside a job and inside one.

What waits for futures to complete is told of those that the restart cancels, and can go on with new ones.
Workers are processes of their own, which a restart replaces; or in this process, where a restart ends them
and the test starts others.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from distributed import Nanny, Worker, as_completed, wait
from distributed.utils_test import gen_test
from helpers import Gate, through, until
from tasks import inc, slow_inc
from three_ways import Way, outcome, same


async def restarted(w: Way):
    """What is done, under way and waited for is cancelled; the cluster goes on."""
    done = w.c.map(inc, range(4), key="done")
    await wait(done)
    slow = w.c.submit(slow_inc, 1, delay_s=20, key="slow")
    after = w.c.submit(inc, slow, key="after-slow")
    await w.known("after-slow")
    seen = asyncio.create_task(_statuses([slow, after]))
    await w.c.restart(timeout=30)
    ends = [await outcome(future) for future in (done[0], slow, after)]
    left = len(w.s.tasks), sorted((await w.c.nthreads()).values())
    return ends, await seen, left, await w.c.gather(w.c.map(inc, range(8), pure=False))


async def _statuses(futures):
    return sorted([(future.key, future.status) async for future in as_completed(futures)])


async def completed(w: Way):
    """As futures complete: some before a restart, some cancelled by it, some of after it."""
    gate = Gate()
    first = w.c.map(inc, range(3), key=[f"first-{i}" for i in range(3)])
    held = w.c.map(through, range(12), gate=gate, key=[f"held-{i}" for i in range(12)])
    after = w.c.submit(inc, held[0], key="after-held")
    sequence = as_completed([*first, *held, after])
    before = sorted([(await anext(sequence)).key for _ in first])
    await until(lambda: gate.arrived == 4, "a third of the others execute")
    results = as_completed([*held, after], with_results=True, raise_errors=False)
    told = asyncio.create_task(_all(results))
    await w.c.restart(timeout=20, wait_for_workers=False)
    gate.open()
    cancelled = sorted([(future.key, future.status) async for future in sequence])
    await until(lambda: not w.s.workers, "the workers have gone")
    async with AsyncExitStack() as stack:
        for name in ("new-0", "new-1"):
            await stack.enter_async_context(Worker(w.s.address, name=name, nthreads=2, validate=True))
        more = w.c.map(inc, range(12), key=[f"more-{i}" for i in range(12)])
        sequence.update(more[:2])
        sequence.add(more[2])
        later = sorted([(future.key, await future) async for future in sequence])
        for future in more:
            future.release()
        await w.forgotten(*(future.key for future in more))
    kinds = [(future.key, type(value).__name__) for future, value in await told]
    return before, cancelled, sorted(kinds), sequence.count(), later


async def _all(sequence):
    return [one async for one in sequence]


@gen_test(timeout=60, clean_kwargs={"threads": False})
async def test_what_completes_before_during_and_after_a_restart_is_the_same():
    await same([completed])


@pytest.mark.slow
@gen_test(timeout=120, clean_kwargs={"threads": False, "processes": False})
async def test_users_see_the_same():
    await same([restarted], Nanny, validate=False)
