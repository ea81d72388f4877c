"""Tasks without a worker beside a job: ``distributed.scheduler.no-workers-timeout`` and workers that come
count for plain work as on stock Dask.
"""

from __future__ import annotations

import re
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker
from helpers import Gate, asleep, engine, live, record, started, through, until, within
from tasks import inc

import dask_hpc

LIMIT = {"distributed.scheduler.no-workers-timeout": "200 ms"}


async def failure(future: Any) -> str:
    """Type and text of what a task fails with, without its key."""
    error = await within(future.exception())
    return re.sub(re.escape(repr(future.key)) + "|" + re.escape(future.key), "KEY", f"{type(error)} {error}")


async def restricted(c: Client, s: Scheduler) -> list[Any]:
    """Plain tasks that no worker can run, by what their user has said; those are waiting."""
    with dask.annotate(hpc_job=None):
        futures = [
            c.submit(inc, 1, resources={"NOBODY": 1}, pure=False),
            c.submit(inc, 1, workers=["10.255.255.1:1"], pure=False),
            *c.map(inc, range(2), workers=["no-such-host"], pure=False),
        ]
    await until(lambda: all(s.tasks.get(f.key) in s.unrunnable for f in futures), "no worker for them")
    return futures


@pytest.mark.parametrize("when", ["before the job", "beside the job"])
@live(2, config=LIMIT)
async def test_a_plain_task_that_no_worker_can_run_fails_as_on_stock(c, s, a, b, when):
    stock = [await failure(future) for future in await restricted(c, s)]
    assert all("NoValidWorkerError" in text for text in stock)
    rt = await dask_hpc.install(c)
    gate = Gate()
    futures = await restricted(c, s) if when == "before the job" else []
    async with rt.job("all", nodes=2) as job:
        await started(s, job, 2)
        busy = c.map(through, range(6), gate=gate, pure=False)
        with dask.annotate(hpc_job=None):
            held = c.submit(inc, 1, pure=False)
            after = c.submit(inc, held, pure=False)
        await until(lambda: getattr(s.tasks.get(held.key), "state", "") == "no-worker", "plain work is held")
        futures = futures or await restricted(c, s)
        assert [await failure(future) for future in futures] == stock
        # what is held waits its turn, whoever it belongs to
        assert record(s, job).held
        assert not held.done()
        gate.open()
        assert await within(c.gather(busy)) == list(range(6))
    assert await within(after) == 3
    await asleep(s)
    assert "_check_unrunnable_task_timeouts" not in vars(s)
    assert [await failure(future) for future in await restricted(c, s)] == stock


@live(1, config=LIMIT)
async def test_plain_work_without_any_worker_fails_as_on_stock_and_a_job_waits(c, s, a):
    rt = await dask_hpc.install(c, pool_max_nodes=2)
    gate = Gate()
    busy = c.map(through, range(6), gate=gate, pure=False)
    await until(lambda: gate.arrived, "plain work runs")
    job = rt.job("waits", nodes=2, min_nodes=2)
    async with job:
        mine = c.submit(inc, 1, pure=False)
        await until(lambda: engine(s).awake and mine.key in s.tasks, "the job is there")
        with dask.annotate(hpc_job=None):
            after = c.submit(inc, busy[0], pure=False)
        await a.close(executor_wait=False)
        for future in (*busy, after):
            assert "NoWorkerError" in await failure(future)
        assert not mine.done()
        assert engine(s).state.jobs.active[job.id].state == "pending"
        await job.cancel()
    gate.open()
    await asleep(s)
    later = c.map(inc, range(3), pure=False)
    assert ["NoWorkerError" in await failure(future) for future in later] == [True] * 3


@live(1)
async def test_a_worker_that_comes_gets_what_waits_for_it_and_is_weighed_for_nothing_that_is_held(c, s, a):
    rt = await dask_hpc.install(c, policy="fcfs")
    gate = Gate()
    async with rt.job("all", nodes=1) as job:
        await started(s, job)
        busy = c.map(through, range(6), gate=gate, pure=False)
        with dask.annotate(hpc_job=None):
            waits = c.submit(inc, 1, resources={"SOON": 1}, pure=False)
        await until(lambda: s.tasks.get(waits.key) in s.unrunnable, "it has no worker")
        held = {ts.key for ts in s.unrunnable} - {waits.key}
        assert held, "the job holds some"
        weighed, valid_workers = set(), s.valid_workers
        s.valid_workers = lambda ts: weighed.add(ts.key) or valid_workers(ts)
        async with Worker(s.address, resources={"SOON": 1}):
            assert await within(waits) == 2
            assert waits.key in weighed
            assert not weighed & held
            assert {ts.key for ts in s.unrunnable} == held, "those are held as before"
            gate.open()
            assert await within(c.gather(busy)) == list(range(6))
    await asleep(s)
    assert "bulk_schedule_unrunnable_after_adding_worker" not in vars(s)
