"""An activated job gets everything its client submits: from any thread, by any collection, and by tasks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_client, secede, worker_client
from helpers import Gate, Starts, addresses_of, live, owner_of, started, through, until
from submissions import Graphs, blank_context, bound, here, plain, pool, task, thread
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import OPEN

ELSEWHERE = [thread, pool, blank_context, task]


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("where", [here, *ELSEWHERE])
@live()
async def test_all_that_the_client_submits_is_the_jobs_until_it_is_deactivated(c, s, *workers, where, block):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)

    async def submitted():
        futures = await where(lambda: c.map(inc, range(8), pure=False))
        assert await c.gather(futures) == list(range(1, 9))
        return futures

    async def story(job):
        assert await job.activate() is job
        await started(s, job, 2)
        inside = await submitted()
        assert {owner_of(s, f.key) for f in inside} == {job.id}
        assert starts.places(f.key for f in inside) <= addresses_of(s, job)
        assert bound(s) == {c.id: job.id}
        await job.deactivate()
        outside = await submitted()
        # the thread that is inside the `with` block goes on submitting to the job
        stays = block and where is here
        assert all((owner_of(s, f.key) == job.id) if stays else plain(s, f.key) for f in outside)
        assert bound(s) == {}

    job = rt.job("main", nodes=2)
    if block:
        async with job:
            await story(job)
    else:
        await story(job)
        await job.close()
    assert (await job.wait(10))["state"] == "completed"


def frame():
    data = pd.DataFrame({"key": np.arange(60) % 7, "value": np.arange(60.0)})
    return dd.from_pandas(data, npartitions=4).shuffle("key", shuffle_method="p2p").value.sum()


COLLECTIONS = {
    "array": (lambda: da.ones((60, 60), chunks=20).sum(), 3600),
    "rechunk": (lambda: da.ones((60, 60), chunks=(60, 5)).rechunk((5, 60)).sum(), 3600),
    "frame": (frame, 1770),
    "bag": (lambda: db.from_sequence(range(20), npartitions=4).map(inc).sum(), 210),
    "delayed": (lambda: dask.delayed(sum)([dask.delayed(inc)(i) for i in range(20)]), 210),
}


@pytest.mark.parametrize("name", COLLECTIONS)
@live(workers=3)
async def test_every_task_of_a_collection_computed_in_another_thread_is_the_jobs(c, s, *workers, name):
    make, expected = COLLECTIONS[name]
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    collection = make()
    job = await rt.job("main", nodes=2).activate()
    await started(s, job, 2)
    graphs = Graphs(s)
    allowed = addresses_of(s, job)
    assert await (await pool(lambda: c.compute(collection))) == expected
    assert set().union(*(owners for _, owners in graphs.seen)) == {job.id}
    assert starts.places(starts.count) <= allowed
    await job.close()
    await job.wait(10)


def by_worker_client(n):
    with worker_client() as client:
        return client.gather(client.map(inc, range(n), pure=False))


def by_get_client(n):
    client = get_client()
    futures = client.map(inc, range(n), pure=False)
    secede()
    return client.gather(futures)


def by_compute(n):
    with worker_client():
        return list(dask.compute(*[dask.delayed(inc, pure=False)(i) for i in range(n)]))


def by_tasks_of_tasks(n):
    with worker_client() as client:
        return client.submit(by_worker_client, n, pure=False).result()


NESTED = [by_worker_client, by_get_client, by_compute, by_tasks_of_tasks]


@pytest.mark.parametrize("function", NESTED)
@live()
async def test_what_tasks_of_a_bound_client_submit_is_the_jobs_also_when_it_is_unbound(
    c, s, *workers, function
):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    async with rt.job("other", nodes=1) as other:
        await started(s, other)
    job = await rt.job("main", nodes=2).activate()
    await started(s, job, 2)
    gate = Gate()
    first = await pool(lambda: c.submit(through, 5, gate=gate, pure=False))
    nested = await pool(lambda: c.submit(function, first, pure=False))
    await until(lambda: gate.arrived, "it runs")
    await job.deactivate()
    await until(lambda: not bound(s), "unbound")
    gate.open()
    assert await nested == [1, 2, 3, 4, 5]
    assert len(starts.count) >= 7
    assert starts.places(starts.count) <= addresses_of(s, job)
    await job.close()
    assert (await job.wait(10))["state"] == "completed"


@live(workers=2)
async def test_activating_a_new_job_twice_at_once_opens_one(c, s, *workers):
    rt = await dask_hpc.install(c)
    job = rt.job("main", nodes=1)
    assert await asyncio.gather(job.activate(), job.activate()) == [job, job]
    assert [row["id"] for row in await rt.jobs()] == [job.id]
    async with job as same:  # an activated job can still be entered, once
        assert same is job
        assert await c.submit(inc, 1, pure=False) == 2
    assert (await job.wait(10))["state"] == "completed"
    assert OPEN in s.stream_handlers


@live(1)
async def test_of_several_that_enter_a_job_at_once_one_does(c, s, a):
    """As threads that were given the same handle: there is one job, and it ends."""
    rt = await dask_hpc.install(c)
    for activated in (False, True):
        job = rt.job("main")
        if activated:
            await job.activate()
        entered = await asyncio.gather(*[job.__aenter__() for _ in range(3)], return_exceptions=True)
        assert sorted(type(one).__name__ for one in entered) == ["Job", "RuntimeError", "RuntimeError"]
        await job.__aexit__(None, None, None)
        await job.wait(10)
        assert [row["state"] for row in await rt.jobs()] == ["completed"] * (1 + activated)


@pytest.mark.parametrize("processes", [False, True])
def test_the_same_with_an_ordinary_client_as_in_a_notebook(loop, processes):
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=processes, dashboard_address=":0", loop=loop
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        rt = dask_hpc.install(client)

        def owner(key, dask_scheduler=None):
            lane = of(dask_scheduler).engine.state.owner.get(key)
            return lane and lane.job.id

        def owners(futures):
            return {client.run_on_scheduler(owner, f.key) for f in futures}

        job = rt.job("heat", nodes=2).activate()
        with ThreadPoolExecutor(2) as executor:
            futures = list(executor.map(lambda i: client.submit(inc, i, pure=False), range(6)))
            assert client.gather(futures) == list(range(1, 7))
            assert owners(futures) == {job.id}
            nested = executor.submit(lambda: client.submit(by_tasks_of_tasks, 4, pure=False)).result()
            assert nested.result() == [1, 2, 3, 4]
            total = executor.submit(lambda: da.ones((40, 40), chunks=10).sum().compute()).result()
            assert total == 1600
            with pytest.raises(RuntimeError, match="or it is closed"):
                job.wait()
            with pytest.raises(TimeoutError):
                job.wait(0.01)
            assert job.deactivate() is None
            future = executor.submit(lambda: client.submit(inc, 1, pure=False)).result()
            assert future.result() == 2
            assert next(iter(owners([future]))).startswith("default")
            data = job.scatter({"x": 1, "y": 2}, broadcast=True)
            places = client.who_has(list(data.values()))
            assert all(len(set(there)) == 2 for there in places.values())
        assert job.close() is None
        # closed by who has opened it, so it may be waited for without end
        assert job.wait()["state"] == "completed"
        with rt.job("block", nodes=1) as job:
            job.activate()
            with ThreadPoolExecutor(1) as executor:
                future = executor.submit(lambda: client.submit(inc, 1, pure=False)).result()
            assert future.result() == 2
            assert owners([future]) == {job.id}
        assert job.wait(20)["state"] == "completed"
        assert client.submit(inc, 5, pure=False).result() == 6
        bad = rt.job("left", nodes=1).activate()
    assert bad.close() is None
    assert bad.deactivate() is None
