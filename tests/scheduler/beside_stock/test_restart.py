"""A restart of the cluster by its user does what it does in stock, beside a job and inside one.

Workers are processes of their own here, which a restart replaces.
"""

from __future__ import annotations

import asyncio

import pytest
from distributed import Nanny, as_completed, wait
from distributed.utils_test import gen_test
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


@pytest.mark.slow
@gen_test(timeout=120, clean_kwargs={"threads": False, "processes": False})
async def test_users_see_the_same():
    await same([restarted], Nanny, validate=False)
