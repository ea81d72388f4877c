"""A producer hears of every window from its start on, and whatever ends it or its job frees everything."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Client
from helpers import asleep, engine, live, record, started, until
from producers import BOUNDS, ask, lay_out, pending, producing

import dask_hpc
from dask_hpc.errors import JobError, WindowError


@live(timeout=60)
async def test_a_window_that_opens_right_after_the_start_is_heard(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", window_timeout_s=2)
    for _ in range(5):
        async with rt.job("main", **BOUNDS) as job:
            await started(s, job, 2)
            producer = job.producer()
            await producer.start()
            # on the way to the scheduler at once, past everything that is buffered
            resize = ask(job, 1)
            await lay_out(producer)
            assert (await resize)["result"] == "done"
            await producer.stop()
        await job.wait(10)


@live(timeout=60)
async def test_a_second_producer_is_refused_and_the_first_still_hears(c, s, *workers):
    async with producing(c) as (job, producer):
        with pytest.raises(WindowError, match="has a producer already"):
            await job.producer().start(10)
        resize = ask(job, 1)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_a_producer_on_another_client_hears_of_its_windows(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", window_timeout_s=3)
    async with rt.job("main", **BOUNDS) as job, Client(s.address, asynchronous=True) as other:
        await started(s, job, 2)
        found = (await dask_hpc.runtime(other)).find(job.id)
        producer = found.producer()
        await producer.start(10)
        resize = ask(job, 1)
        await lay_out(producer)
        assert (await resize)["result"] == "done"
        await producer.stop()
    await job.wait(10)


@live(timeout=60)
async def test_a_producer_whose_client_is_gone_for_good_is_one_no_more(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", client_timeout_s=0.3)
    async with rt.job("main", **BOUNDS) as job:
        await started(s, job, 2)
        async with Client(s.address, asynchronous=True) as other:
            found = (await dask_hpc.runtime(other)).find(job.id)
            await found.producer().start(10)
        assert job.id in engine(s).rounds.windows.producers
        await until(lambda: job.id not in engine(s).rounds.windows.producers, "it is forgotten")
        # nobody is asked, and there may be another one
        assert (await job.resize(1))["result"] == "done"
        producer = job.producer()
        await producer.start(10)
        with pytest.raises(WindowError, match=r"has a producer already.*producer\.stop\(\)"):
            await job.producer().start(10)
        await producer.stop()
    await job.wait(10)


@live(timeout=60)
async def test_without_a_producer_resizes_need_no_window_again(c, s, *workers):
    async with producing(c) as (job, producer):
        resize = ask(job, 1)
        await pending(producer)
        await producer.stop()
        # nobody keeps state there any more, so it may go
        assert (await resize)["result"] == "done"
        assert producer.nodes == ()
        assert (await job.resize(3))["result"] == "done"
        assert len(await producer.start(10)) == 3
        assert producer.probe() is None
        resize = ask(job, 4)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_start_waits_for_the_job_and_says_when_it_is_in_vain(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("first", nodes=4) as first:
        await started(s, first, 4)
        async with rt.job("second", nodes=2) as second:
            producer = second.producer()
            with pytest.raises(TimeoutError, match=r"is pending after 0\.1 s"):
                await producer.start(0.1)
            for wrong in ("x", -1, True):
                with pytest.raises(ValueError, match=f"timeout is {wrong!r}; allowed: seconds"):
                    await producer.start(wrong)
            waiting = asyncio.ensure_future(producer.start())
            await first.close()
            assert len(await asyncio.wait_for(waiting, 20)) == 2
            await producer.stop()
        await second.wait(10)
        with pytest.raises(JobError, match=r"second-3 has ended .*declare another one"):
            await second.producer().start()


@live(timeout=60)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("nodes", [4, 1])
@pytest.mark.parametrize("end", ["cancel", "close", "uninstall"])
async def test_whatever_ends_the_job_inside_a_window_frees_everything(c, s, *workers, begun, nodes, end):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", **BOUNDS) as job:
        producer = job.producer()
        await producer.start(20)
        resize = ask(job, nodes)
        await pending(producer)
        if begun:
            await producer.begin()
        if end == "cancel":
            await job.cancel("enough")
        elif end == "close":
            await job.close()
        else:
            await rt.uninstall()
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] in (("done", "aborted") if end != "uninstall" else ("aborted",))
        if begun:
            with pytest.raises(dask_hpc.errors.DaskHPCError):
                await producer.commit()
        else:
            await until(lambda: producer._pending is None or producer._over, "it has heard")
    if end == "uninstall":
        assert not [name for name in s.handlers if name == "hpc"]
    else:
        await asleep(s)
    assert await asyncio.gather(*c.map(int, range(8))) == list(range(8))


@live(timeout=60)
async def test_a_client_that_closes_inside_a_window_leaves_nothing_locked(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with Client(s.address, asynchronous=True) as other:
        job = (await dask_hpc.runtime(other)).job("main", **BOUNDS)
        await job.activate()
        producer = job.producer()
        await producer.start(20)
        resize = asyncio.ensure_future(rt.find(job.id).resize(4))
        await pending(producer)
        await producer.begin()
    outcome = await asyncio.wait_for(resize, 20)
    assert outcome["result"] == "aborted"
    await until(lambda: not record(s, job).active, "the job ends with its client")
    await asleep(s)
