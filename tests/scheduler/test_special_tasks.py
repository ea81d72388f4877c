"""Tasks that Dask treats specially go on working inside jobs: P2P, actors, worker clients."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import SchedulerPlugin
from helpers import (
    Gate,
    Starts,
    addresses_of,
    asleep,
    engine,
    live,
    record,
    started,
    state_of,
    through,
    until,
)
from tasks import Counter, fan_out, fan_out_seceding, inc

import dask_hpc
from dask_hpc.scheduler.internals.reads import is_barrier

P2P = {"array.rechunk.method": "p2p", "dataframe.shuffle.method": "p2p"}


def _source(n=400):
    return da.arange(n * n, chunks=n * n // 16).reshape(n, n).rechunk((n // 16, n), method="tasks")


def _p2p(x):
    with dask.config.set({"array.rechunk.method": "p2p", "optimization.fuse.active": False}):
        return x.rechunk((x.shape[0], x.shape[1] // 16), method="p2p")


def _expected(n=400):
    return np.arange(n * n).reshape(n, n)


@live()
async def test_a_p2p_rechunk_gives_the_same_result_on_the_nodes_of_its_job_only(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    async with rt.job("rechunk", nodes=2) as job:
        await started(s, job, 2)
        allowed = addresses_of(s, job)
        y = c.compute(_p2p(_source()))
    np.testing.assert_array_equal(await y, _expected())
    assert starts.places(starts.count) <= allowed
    assert any("p2p" in str(k) for k in starts.count)
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)


@live()
async def test_a_shrink_waits_for_a_p2p_rechunk(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("rechunk", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        x = _source().map_blocks(through, gate, meta=np.empty((0, 0), int))
        y = c.compute(_p2p(x))
        await until(lambda: gate.arrived >= 1, "sources run")
        resize = asyncio.ensure_future(job.resize(2))
        await until(lambda: record(s, job).state == "adapting", "adapts")
        gate.open()
        np.testing.assert_array_equal(await y, _expected())
        out = await asyncio.wait_for(resize, 20)
        assert out["result"] == "done", out
    assert max(starts.completed.values()) == 1
    await job.wait(10)


@live()
async def test_a_p2p_rechunk_survives_the_death_of_a_participant(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("rechunk", nodes=3) as job:
        await started(s, job, 3)
        allowed = addresses_of(s, job)
        x = _p2p(_source()).map_blocks(through, gate, meta=np.empty((0, 0), int))
        y = c.compute(x)
        await until(lambda: gate.arrived >= 2, "unpack runs", 30)
        victim = next(w for w in workers if w.address in allowed)
        closing = asyncio.ensure_future(victim.close(reason="gone"))
        await until(lambda: victim.address not in s.workers, "gone")
        gate.open()
        await closing
    np.testing.assert_array_equal(await y, _expected())
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)


@live(workers=2)
async def test_a_p2p_rechunk_that_begins_on_the_last_node_of_plain_work_ends_there(c, s, *workers):
    """Plain work loses all its nodes while inputs of the shuffle execute and none has arrived."""
    rt = await dask_hpc.install(c, default_job_min_nodes=0, shrink_deadline_s=1.0)
    stock = s.handlers["shuffle_get_or_create"]
    asked, go_on = asyncio.Event(), asyncio.Event()

    async with rt.job("first", nodes=1) as first:
        await started(s, first, 1)
        begin = s.handlers["shuffle_get_or_create"]

        async def later(**message):
            asked.set()
            await go_on.wait()
            return begin(**message)

        s.handlers["shuffle_get_or_create"] = later
        with dask.annotate(hpc_job="default"):
            y = c.compute(_p2p(_source()))
        await asked.wait()
        async with rt.job("second", nodes=1) as second:
            nodes = engine(s).state.nodes.nodes.values()
            await until(lambda: any(node.reserved for node in nodes), "drains")
            s.handlers["shuffle_get_or_create"] = begin
            go_on.set()
            await started(s, second, 1)
            result = c.submit(inc, 1)
        assert await result == 2
    np.testing.assert_array_equal(await asyncio.wait_for(y, 20), _expected())
    await asleep(s)
    assert s.handlers["shuffle_get_or_create"] == stock


@pytest.mark.parametrize("when", ["a job comes", "the last job goes"])
@live(workers=2)
async def test_a_p2p_rechunk_goes_on_when_its_barrier_had_to_wait_for_a_worker(c, s, a, b, when):
    """Stock ends a shuffle whose barrier is released, and what has been sent so far is lost."""
    rt = await dask_hpc.install(c)

    class PauseAtTheBarrier(SchedulerPlugin):
        """Has no worker running in the moment the barrier is to be placed."""

        def transition(self, key, start, finish, *args, **kwargs):
            barriers = [ts for ts in s.tasks[key].dependents if is_barrier(ts.key)]
            if finish == "memory" and barriers and all(ts.who_has for ts in barriers[0].dependencies):
                for worker in (a, b):
                    s.handle_worker_status_change("paused", worker.address, "test-pause")

    s.add_plugin(PauseAtTheBarrier())

    async def stranded():
        await until(lambda: any(is_barrier(ts.key) for ts in s.unrunnable), "barrier waits")

    def go_on():
        for worker in (a, b):
            s.handle_worker_status_change("running", worker.address, "test-run")

    if when == "a job comes":
        y = c.compute(_p2p(_source()))
        await stranded()
        async with rt.job("late", nodes=1) as job:
            await until(lambda: engine(s).state.owner, "adopted")
            go_on()
            await started(s, job, 1)
    else:
        async with rt.job("early", nodes=1) as job:
            await started(s, job, 1)
            with dask.annotate(hpc_job="default"):
                y = c.compute(_p2p(_source()))
            await stranded()
        await asleep(s)
        go_on()
    np.testing.assert_array_equal(await asyncio.wait_for(y, 20), _expected())
    await asleep(s)


@live()
async def test_an_actor_lives_in_its_job(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("actor", nodes=2) as job:
        await started(s, job, 2)
        allowed = addresses_of(s, job)
        future = c.submit(Counter, actor=True)
        counter = await future
        assert await counter.add(1) == 1
        assert await counter.add(1) == 2
        assert {ws.address for ws in s.workers.values() if ws.actors} <= allowed
        assert await c.submit(lambda a: a.add(1).result(), counter) == 3
        del counter
        future.release()
    await job.wait(10)
    await asleep(s)


@live(workers=2, worker_kwargs={"resources": {"gpu": 1}})
async def test_an_actor_in_a_job_that_asked_for_no_nodes_lives_where_its_user_says(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("other"), rt.job("actors") as job:
        await started(s, job)
        places = {}
        for key, only in {"a": {"workers": [a.address]}, "b": {"workers": [b.address]}}.items():
            places[key] = await asyncio.wait_for(c.submit(Counter, actor=True, key=key, **only), 20)
            assert [ws.address for ws in s.tasks[key].who_has] == only["workers"]
        await asyncio.wait_for(c.submit(Counter, actor=True, key="gpu", resources={"gpu": 1}), 20)
        assert s.tasks["gpu"].resource_restrictions == {"gpu": 1}
        del places
    await asleep(s)


@pytest.mark.parametrize("function", [fan_out, fan_out_seceding])
@live(workers=2)
async def test_tasks_that_wait_for_tasks_do_not_block_a_job_that_holds_every_node(c, s, a, b, function):
    rt = await dask_hpc.install(c)
    async with rt.job("nested", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(function, [10] * 8, pure=False)
        assert await asyncio.wait_for(c.gather(futures), 30) == [55] * 8
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)


@live(workers=2)
async def test_a_late_notice_of_secession_does_not_block_a_job(c, s, a, b):
    """Seceding tasks free their slots; the message that says so may come after all else is quiet."""
    rt = await dask_hpc.install(c)
    async with rt.job("nested", nodes=2) as job:
        await started(s, job, 2)
        handler = s.stream_handlers["long-running"]
        loop = asyncio.get_running_loop()

        def late(**message):
            loop.call_later(0.3, lambda: handler(**message))

        s.stream_handlers["long-running"] = late
        futures = c.map(fan_out, [5] * 4, pure=False)
        assert await asyncio.wait_for(c.gather(futures), 25) == [15] * 4
        s.stream_handlers["long-running"] = handler
    assert (await job.wait(10))["state"] == "completed"


@live(workers=2)
async def test_tasks_of_tasks_belong_to_their_job(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("nested", nodes=1) as job:
        await started(s, job, 1)
        allowed = addresses_of(s, job)
        starts = Starts()
        await starts.watch([a, b])
        assert await c.submit(fan_out, 5) == 15
        assert len(starts.count) == 6
        assert starts.places(starts.count) == allowed
    await job.wait(10)


@live(workers=2)
async def test_an_actor_of_a_pending_job_and_what_uses_it_wait_for_the_job(c, s, a, b):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        held = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("second", nodes=2) as second:
            counter = c.submit(Counter, actor=True)
            used = c.submit(use_actor, counter)
            await until(lambda: record(s, second).unfinished, "submitted")
            assert state_of(s, second) == "pending"
        gate.open()
    assert await asyncio.wait_for(used, 15) == 1
    assert await held == 1
    assert (await second.wait(10))["state"] == "completed"


def use_actor(counter):
    return counter.add(1).result()
