"""An annotation, then the task, then the client decide whose a graph is, as they were at submission."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
import pytest
from distributed import Client, wait
from helpers import Gate, live, owner_of, started, through, until, without_validation
from submissions import Graphs, blank_context, bound, plain, pool
from tasks import inc

import dask_hpc


class Users:
    """A client of the user, who is in the process of the workers, and what tasks submit by it."""

    client: Client
    kept: list


def by_users_client(annotation=()):
    with dask.annotate(**dict(annotation)):
        future = Users.client.submit(inc, 1, pure=False)
    Users.kept.append(future)
    return future.key


@live(timeout=60)
async def test_annotation_then_task_then_client_then_default(c, s, *workers, monkeypatch):
    keep = []
    monkeypatch.setattr(Users, "client", c, raising=False)
    monkeypatch.setattr(Users, "kept", keep, raising=False)
    rt = await dask_hpc.install(c)
    async with rt.job("ended", nodes=1) as ended:
        pass
    await ended.wait(10)

    def submit(**annotations):
        with dask.annotate(**annotations):
            keep.append(c.submit(inc, 1, pure=False))
        return keep[-1].key

    async def from_task(job, inner=()):
        with dask.annotate(hpc_job=job):
            return await c.submit(by_users_client, inner, pure=False)

    async def owner(key):
        await until(lambda: key in s.tasks, f"{key} is there")
        return "plain" if plain(s, key) else owner_of(s, key)

    a, b = await rt.job("a", nodes=1).activate(), rt.job("b", nodes=1)
    async with b:
        in_context = submit()
    b2 = rt.job("b2", nodes=1)
    async with b2:
        await started(s, a)
        with dask.annotate(hpc_job=None):
            rest = [await owner(submit(hpc_job=x)) for x in (a.id, b2.id, None, ended.id, "nobody", 17)]
        assert rest == [a.id, b2.id, "plain", "plain", "plain", "plain"]
        # context over client, annotation over context
        assert await owner(submit()) == b2.id
        assert await owner(submit(hpc_job=a.id)) == a.id
        # task over client (of this thread: the client is bound to `a`)
        assert await owner(await from_task(b2.id)) == b2.id
        assert await owner(await from_task(a.id)) == a.id
        assert await owner(await from_task(None)) == "plain"
        # annotation over task
        assert await owner(await from_task(b2.id, {"hpc_job": a.id})) == a.id
        assert await owner(await from_task(a.id, {"hpc_job": b2.id})) == b2.id
        assert await owner(await from_task(a.id, {"hpc_job": None})) == "plain"
        # what the user annotates when building a graph over client
        with dask.annotate(hpc_job=b2.id):
            built = dask.delayed(inc, pure=False)(1)
        future = await pool(lambda: c.compute(built, optimize_graph=False))
        assert await owner(future.key) == b2.id
        # client over default
        assert await owner(await pool(submit)) == a.id
        await a.deactivate()
        assert await owner(await pool(submit)) == "plain"
    assert await owner(in_context) in (b.id, "plain")  # `b` may have ended
    await wait(keep)
    keep.clear()
    await a.close()
    for job in (a, b, b2):
        await job.wait(10)


@pytest.mark.parametrize("elsewhere", [False, True])
@live(timeout=60)
async def test_unbinding_directly_behind_a_large_graph_changes_nothing_of_it(c, s, *workers, elsewhere):
    """The scheduler unpacks the graph in a thread while the message behind it is there already."""
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    async with rt.job("anchor", nodes=1) as anchor:
        await started(s, anchor)
        graphs = Graphs(s)
        job = await rt.job("main", nodes=1).activate()
        large = da.ones((400, 400), chunks=(20, 20)).map_blocks(inc).sum()
        where = pool if elsewhere else blank_context

        def burst():
            future = c.compute(large)
            leaving = job.deactivate()
            return future, leaving, c.submit(inc, 2, pure=False)

        future, leaving, after = await where(burst)
        if not elsewhere:  # in a thread that runs no loop it blocks, as every method of the client does
            await leaving
        assert await future == 320_000
        assert await after == 3
        (n, large_owners), (_, small_owners) = graphs.seen
        assert n > 100
        assert (large_owners, small_owners) == ({job.id}, {"plain"})
        await job.close()
        await job.wait(10)


@live()
async def test_each_of_many_switches_takes_effect_between_the_graphs_around_it(c, s, *workers):
    rt = await dask_hpc.install(c)
    a, b = await rt.job("a", nodes=1).activate(), await rt.job("b", nodes=1).activate()
    futures, expected = [], []
    for i in range(30):
        if i % 3 < 2:
            job = (a, b)[i % 3]
            await job.activate()
            expected.append(job.id)
        else:
            await b.deactivate()
            expected.append("plain")
        futures.append(c.submit(inc, i, pure=False))
    await c.gather(futures)
    assert ["plain" if plain(s, f.key) else owner_of(s, f.key) for f in futures] == expected
    await a.close()
    await b.close()


@live()
async def test_what_was_submitted_before_an_activation_stays_plain(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    before = c.map(through, range(2), gate=gate, pure=False)
    job = await rt.job("main", nodes=1).activate()
    after = c.submit(inc, 1, pure=False)
    assert await after == 2
    assert owner_of(s, after.key) == job.id
    await until(lambda: all(plain(s, f.key) for f in before), "plain")
    gate.open()
    await c.gather(before)
    await job.close()
    await job.wait(10)


@live()
async def test_only_the_client_that_activates_is_bound(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        theirs = await dask_hpc.install(other)
        job = await rt.job("main", nodes=1).activate()
        mine, foreign = c.submit(inc, 1, pure=False), other.submit(inc, 2, pure=False)
        assert (await mine, await foreign) == (2, 3)
        assert owner_of(s, mine.key) == job.id
        assert plain(s, foreign.key)
        second = await theirs.job("second", nodes=1).activate()
        mine, foreign = c.submit(inc, 1, pure=False), other.submit(inc, 2, pure=False)
        assert (await mine, await foreign) == (2, 3)
        assert (owner_of(s, mine.key), owner_of(s, foreign.key)) == (job.id, second.id)
        assert bound(s) == {c.id: job.id, other.id: second.id}
        await second.close()
        await second.wait(10)
        assert bound(s) == {c.id: job.id}
    await job.close()
    await job.wait(10)


@live()
async def test_activating_another_job_ends_the_binding_of_the_first_for_good(c, s, *workers):
    rt = await dask_hpc.install(c)
    a, b = await rt.job("a", nodes=1).activate(), rt.job("b", nodes=1)

    async def owner():
        future = await pool(lambda: c.submit(inc, 1, pure=False))
        await future
        return "plain" if plain(s, future.key) else owner_of(s, future.key)

    assert await owner() == a.id
    await b.activate()
    assert await owner() == b.id
    await a.deactivate()  # it is not active: nothing changes
    assert await owner() == b.id
    await a.close()
    assert await owner() == b.id
    await b.deactivate()
    assert await owner() in ("plain", None)
    await b.close()
    await asyncio.gather(a.wait(10), b.wait(10))
