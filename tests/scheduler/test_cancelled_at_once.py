"""A job that is cancelled takes along what was submitted to it a moment before, and waits for nobody."""

from __future__ import annotations

from contextlib import suppress

import pytest
from distributed import Client
from helpers import Gate, asleep, live, started, state_of, through, until, within

import dask_hpc


@pytest.mark.parametrize("how", ["exception", "cancel", "cancel behind the context"])
@live()
async def test_what_was_submitted_a_moment_before_is_cancelled_too(c, s, *workers, how):
    rt = await dask_hpc.install(c)
    gate = Gate()
    with suppress(ZeroDivisionError):
        async with rt.job("main", nodes=2) as job:
            futures = c.map(through, range(20), gate=gate, pure=False)
            if how == "exception":
                raise ZeroDivisionError
            if how == "cancel":
                await job.cancel()
    if how == "cancel behind the context":
        await job.cancel()
    assert state_of(s, job) == "cancelled"
    assert not any(ws.processing for ws in s.workers.values())
    await until(lambda: {future.status for future in futures} == {"cancelled"}, "nobody waits for them")
    gate.open()
    await asleep(s)


@live(workers=1)
async def test_a_cancel_waits_for_no_word_of_a_client_that_is_gone(c, s, a):
    await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        async with (await dask_hpc.runtime(other)).job("main", nodes=1) as job:
            await started(s, job)
            other.status = "closing"  # or it would come back
            other.scheduler_comm.abort()
            await until(lambda: other.id not in s.clients, "its client has gone")
        assert (await within(job.cancel(), 5))["state"] == "cancelled"
