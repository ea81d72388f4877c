"""An actor that waits for the nodes of its job is released, cancelled and used like any task."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import dask
import pytest
from distributed import Client, Nanny, Status, wait
from helpers import Gate, asleep, engine, live, record, started, through, until, within
from tasks import Counter, add_to, inc

import dask_hpc
from dask_hpc.scheduler.internals import actor_homes, data


@asynccontextmanager
async def _actor_waits(c, s, rt, client=None):
    """A job of one of two nodes runs; another that needs both is to make an actor. Gives gate, job, actor."""
    client = client or c
    gate = Gate()
    async with rt.job("first", nodes=1) as first:
        await started(s, first, 1)
        held = c.submit(through, 1, gate=gate, pure=False)
        try:
            async with rt.job("second", nodes=2) as second:
                await until(lambda: second.id in engine(s).state.jobs.active, "queued")
                actor = client.submit(Counter, 7, actor=True, key="actor")
                await until(lambda: record(s, second).unfinished, "its graph has come", 5)
                yield gate, second, actor
        finally:
            gate.open()
        assert await held == 1


@live(workers=2)
async def test_an_actor_of_a_cancelled_job_is_not_made_and_is_not_counted(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        await second.cancel()
        await until(lambda: "actor" in s.tasks or actor.cancelled(), "it is known what becomes of it", 5)
        assert actor.cancelled()
    assert not engine(s).state.plain_busy()


@live(workers=2)
async def test_a_job_for_the_whole_pool_starts_after_one_with_a_waiting_actor_was_cancelled(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (gate, second, actor):
        await second.cancel()
        actor.release()
        async with rt.job("whole", nodes=2):
            future = c.submit(inc, 1, pure=False)
        gate.open()
    assert await within(future) == 2


@live(workers=2)
async def test_an_actor_that_is_released_while_it_waits_is_not_kept(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        actor.release()
    await second.wait(10)
    await asleep(s)
    assert "actor" not in s.tasks


@live(workers=2)
async def test_work_outside_the_job_may_depend_on_actors_that_wait(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        another = c.submit(Counter, 1, actor=True, key="another")
        with dask.annotate(hpc_job="default"):
            used = [c.submit(add_to, one, 1, pure=False) for one in (actor, another)]
    assert [await within(future) for future in used] == [8, 2]
    await second.wait(10)


@live(workers=2)
async def test_an_actor_whose_client_closes_while_it_waits_is_not_made(c, s, *workers):
    rt = await dask_hpc.install(c)
    clients = set(s.clients)
    other = await Client(s.address, asynchronous=True)
    async with _actor_waits(c, s, rt, other) as (_, second, _actor):
        await other.close()
        assert set(s.clients) == clients
        await second.cancel()
        await until(lambda: "actor" in s.tasks or not engine(s).state.plain_busy(), "settled", 5)
        assert "actor" not in s.tasks
        assert set(s.clients) == clients


@live(workers=2, Worker=Nanny, timeout=60)
async def test_an_actor_that_waits_when_the_cluster_is_restarted_is_not_made(c, s, *nannies):
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=1) as first:
        await started(s, first, 1)
        async with rt.job("second", nodes=2) as second:
            actor = c.submit(Counter, actor=True, key="actor")
            await until(lambda: record(s, second).stranded, "it waits for a node")
            await c.restart()
            assert actor.cancelled()
            assert not record(s, second).stranded
            await first.cancel()
            await started(s, second, 2)
            # graphs of a job keep their order: this one follows the actor's
            assert await within(c.submit(inc, 1, pure=False)) == 2
            assert "actor" not in s.tasks


class Slow(Counter):
    """An actor that is made when a gate opens."""

    def __init__(self, gate, start=0):
        super().__init__(gate.wait(start))


@live(workers=2)
async def test_an_actor_that_was_released_while_it_was_made_keeps_no_node(c, s, a, b):
    await dask_hpc.install(c)
    gate = Gate()
    actor = c.submit(Slow, gate, actor=True, key="actor")
    await until(lambda: gate.arrived, "it is made")
    address = s.tasks["actor"].processing_on.address
    assert actor_homes.actors_on(s, address) == ["actor"]
    actor.release()
    await until(lambda: "actor" not in s.tasks, "nobody wants it")
    gate.open()
    assert actor_homes.actors_on(s, address) == []
    await data.retire(s, [address], "test")
    assert address not in s.workers


@live(workers=3, threads=2)
async def test_an_actor_that_is_made_elsewhere_as_its_data_is_lost_lives_there_alone(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    holder, *others = workers
    gate, asked, lost = Gate(), asyncio.Event(), asyncio.Event()

    async def get_data(comm, **message):
        asked.set()
        await lost.wait()
        comm.abort()

    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        start = c.submit(inc, 6, workers=[holder.address], allow_other_workers=True)
        await wait(start)
        holder.handlers["get_data"] = get_data
        actor = c.submit(
            Slow, gate, start, actor=True, key="actor", workers=[other.address for other in others]
        )
        await within(asked.wait())
        first = s.tasks["actor"].processing_on
        [there] = [other for other in others if other.address == first.address]
        there.status = Status.paused
        await until(lambda: first not in s.running, "it takes no tasks")
        holder.batched_stream.comm.abort()
        await until(lambda: gate.arrived, "it is made again")
        second = s.tasks["actor"].processing_on
        there.status = Status.running
        lost.set()
        gate.open()
        assert first is not second
        assert await within(c.submit(add_to, actor, 1, workers=[first.address])) == 8
        assert [ws for ws in s.workers.values() if ws.actors] == [second]
        s.validate_state()


class Broken:
    """An actor that cannot be made."""

    def __init__(self):
        raise ValueError("cannot be made")


async def stolen(c, s, a, b, kind=Counter):
    """An actor that another worker has taken from one that was to make it."""
    gate = Gate()
    first = c.submit(through, 1, gate, workers=[a.address], pure=False)
    await until(lambda: gate.arrived, "a worker is busy")
    actor = c.submit(kind, actor=True, workers=[a.address], allow_other_workers=True, key="actor")
    await until(lambda: "actor" in a.state.tasks, "the actor waits there")
    victim, thief = s.workers[a.address], s.workers[b.address]
    s.extensions["stealing"].move_task_request(s.tasks["actor"], victim, thief)
    await within(wait(actor))
    gate.open()
    await within(wait(first))
    return actor


@pytest.mark.parametrize("how", ["it stays", "it retires", "it is lost"])
@live(workers=3)
async def test_an_actor_that_was_stolen_before_it_began_lives_where_it_is(c, s, a, b, d, how):
    await dask_hpc.install(c)
    actor = await stolen(c, s, a, b)
    counter = await within(actor)
    # who has a handle of it is not where it is
    assert await within(c.submit(add_to, actor, 1, workers=[d.address])) == 1
    assert [list(s.workers[each.address].actors) for each in (a, b, d)] == [[], [s.tasks["actor"]], []]
    assert actor_homes.home(s, "actor") == b.address
    if how == "it retires":
        await data.retire(s, [a.address], "test")
    elif how == "it is lost":
        await a.close()
    await data.retire(s, [b.address], "test")
    assert b.address in s.workers
    assert await within(counter.add(1)) == 2


# stock's own check of its state finds what it does here
@live(workers=2, scheduler_kwargs={"validate": False})
async def test_an_actor_that_was_stolen_before_the_runtime_came_lives_where_it_is(c, s, a, b):
    _actor = await stolen(c, s, a, b)
    listed = [s.workers[each.address].actors for each in (a, b)]
    assert [*map(len, listed)] == [1, 0]
    await dask_hpc.install(c)
    assert [*map(len, listed)] == [0, 1]


@live(workers=2)
async def test_an_actor_that_fails_where_it_was_stolen_to_takes_no_worker_with_it(c, s, a, b):
    await dask_hpc.install(c)
    actor = await stolen(c, s, a, b, Broken)
    with pytest.raises(ValueError, match="cannot be made"):
        await within(actor)
    assert {*s.workers} == {a.address, b.address}
