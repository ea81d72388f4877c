"""A job goes on with what a shrink, a cancellation, a restart or plain work has left behind."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Nanny
from helpers import (
    Gate,
    addresses_of,
    asleep,
    live,
    owner_of,
    record,
    started,
    state_of,
    through,
    until,
    within,
)
from peer_to_peer import P2P
from tasks import Counter, add_to, fan_out, inc, slow_inc

import dask_hpc


@live()
async def test_actors_on_nodes_that_a_shrink_leaves_go_on_and_serve_their_job(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("actors", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        counters = await c.gather([c.submit(Counter, i, actor=True) for i in range(4)])
        assert all(ws.actors for ws in s.workers.values())
        assert (await job.resize(1))["result"] == "done"
        (home,) = addresses_of(s, job)
        calls = [c.submit(add_to, counter, 10, pure=False) for counter in counters]
        assert await c.gather(calls) == [10, 11, 12, 13]
        assert {next(iter(s.tasks[f.key].who_has)).address for f in calls} == {home}
        assert [await counter.add(1) for counter in counters] == [11, 12, 13, 14]
        # and when another job has taken those nodes
        async with rt.job("other", nodes=3) as other:
            await started(s, other, 3)
            assert [await counter.add(1) for counter in counters] == [12, 13, 14, 15]
            assert await c.gather([c.submit(add_to, a, 1, pure=False) for a in counters]) == [13, 14, 15, 16]
    await job.wait(10)
    await other.wait(10)
    await asleep(s)
    assert [await counter.add(1) for counter in counters] == [14, 15, 16, 17]


@pytest.mark.parametrize("cancel", ["job", "future"])
@live()
async def test_a_shuffle_that_is_cancelled_while_it_runs_can_be_begun_again(c, s, *workers, cancel):
    rt = await dask_hpc.install(c)
    gate = Gate()
    with dask.config.set(P2P):
        x = da.arange(1600, chunks=100).reshape(40, 40).rechunk((5, 40), method="tasks").rechunk((40, 5))
        held = x.map_blocks(through, gate, meta=np.empty((0, 0), int))
    async with rt.job("first", nodes=2) as job:
        await started(s, job, 2)
        future = c.compute(held)
        await until(lambda: gate.arrived >= 2, "outputs are being made")
        await (job.cancel() if cancel == "job" else c.cancel([future]))
        async with rt.job("second", nodes=2) as second:
            await started(s, second, 2)
            again = c.compute(held + 1)
            gate.open()
            np.testing.assert_array_equal(await within(again), np.arange(1600).reshape(40, 40) + 1)
    assert future.cancelled()
    await second.wait(10)
    await asleep(s)


@live(workers=2, Worker=Nanny, timeout=60)
async def test_after_a_restart_amid_a_shrink_an_open_job_computes_again_and_can_be_resized(c, s, *nannies):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("open", nodes=2, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 2)
        lost = c.map(slow_inc, range(20), delay_s=2, pure=False)
        await until(lambda: record(s, job).processing, "some run")
        resize = asyncio.ensure_future(job.resize(1))
        await until(lambda: state_of(s, job) == "adapting", "adapts")
        async with rt.job("late", nodes=1) as late:
            waiting = c.submit(inc, 1, pure=False)
            await c.restart()
            assert {f.status for f in (*lost, waiting)} == {"cancelled"}
            outcome = await within(resize)
            assert outcome["result"] in ("done", "aborted"), outcome
            assert await within(c.submit(inc, 1, pure=False)) == 2
        with dask.annotate(hpc_job=job.id):
            assert await c.submit(fan_out, 5, pure=False) == 15
        await late.wait(20)
        assert record(s, job).unfinished == 0
        await job.resize(2)
        await started(s, job, 2)
        assert await c.gather(c.map(inc, range(10), pure=False)) == list(range(1, 11))
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)


@pytest.mark.parametrize("now", ["released", "held"])
@live(workers=2)
async def test_a_job_computes_a_key_that_plain_work_left_and_does_not_compute(c, s, *workers, now):
    rt = await dask_hpc.install(c)
    if now == "released":
        first = c.submit(inc, 1, key="first")
        second = c.submit(inc, first, key="second")
        assert await second == 3
        first.release()
        await until(lambda: s.tasks["first"].state == "released", "nobody wants it")
    async with rt.job("all", nodes=2) as job:
        await started(s, job, 2)
        if now == "held":
            with dask.annotate(hpc_job="default"):
                plain = c.submit(inc, 1, key="first")
            await until(lambda: "first" in s.tasks, "submitted")
            assert plain.status == "pending"
        # a client that has the future already sends no graph
        async with Client(s.address, asynchronous=True) as other:
            again = other.submit(inc, 1, key="first")
            assert await within(again) == 2
            assert owner_of(s, "first") == job.id
    await job.wait(10)


@live(workers=3)
async def test_plain_work_gets_what_it_needs_of_a_job_that_was_cancelled(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("stays", nodes=1) as stays, rt.job("main", nodes=1) as job:
        await started(s, stays, 1)
        await started(s, job, 1)
        first = c.submit(through, 1, gate=gate, pure=False)
        second = c.submit(inc, first, pure=False)
        with dask.annotate(hpc_job="default"):
            needs = c.submit(inc, second, pure=False)
        await until(lambda: gate.arrived and needs.key in s.tasks, "the first runs, all are known")
        await job.cancel("enough")
        # the second has not been placed yet, and the nodes of its job are gone
        assert s.tasks[second.key].state == "waiting"
        gate.open()
        assert await within(needs) == 3
        assert first.cancelled()
        assert second.cancelled()
