"""A job that is cancelled takes along what was submitted to it a moment before, and waits for nobody."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from distributed import Client
from helpers import Gate, asleep, live, started, state_of, through, until, within

import dask_hpc
from dask_hpc.scheduler.rpc.service import of
from dask_hpc_widgets.live import questions


@pytest.mark.parametrize(
    "how", ["exception", "cancel", "by its name", "by its id", "in the panel", "behind the context"]
)
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
            elif how == "by its name":
                await rt.cancel("main")
            elif how == "by its id":
                await rt.cancel(job.id)
            elif how == "in the panel":
                await questions.cancel(rt, job.id)
    if how == "behind the context":
        await rt.cancel("main")
    assert state_of(s, job) == "cancelled"
    assert not any(ws.processing for ws in s.workers.values())
    await until(lambda: {future.status for future in futures} == {"cancelled"}, "nobody waits for them")
    gate.open()
    await asleep(s)


@live(workers=2)
async def test_who_cancel_a_job_at_once_wait_for_what_was_submitted_and_not_for_each_other(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job)
        rows = await within(asyncio.gather(job.cancel(), rt.cancel("main"), job.cancel()), 10)
        assert [row["state"] for row in rows] == ["cancelled"] * 3
    await until(lambda: not of(s).jobs.marks, "its closing message is the last word")
    async with Client(s.address, asynchronous=True) as other:
        left = await (await dask_hpc.runtime(other)).job("left", nodes=1).activate()
        await left.cancel()
        assert of(s).jobs.marks == {left.id: 1}
    await until(lambda: other.id not in s.clients, "it is never closed")
    async with rt.job("next", nodes=1):
        assert not of(s).jobs.marks


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
