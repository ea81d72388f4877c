"""Jobs on clusters with TLS and with worker processes, by ordinary and by asynchronous clients."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import encrypted
import numpy as np
import pandas as pd
import pytest
from distributed import (
    Client,
    LocalCluster,
    Lock,
    Queue,
    Scheduler,
    Semaphore,
    Variable,
    Worker,
    as_completed,
    get_worker,
    wait,
)
from distributed.utils_test import gen_test
from tasks import Counter, add_to, fan_out, fan_out_seceding, inc

import dask_hpc
from dask_hpc.demo.heat import Heat

P2P = {"array.rechunk.method": "p2p", "dataframe.shuffle.method": "p2p"}
#: What the job asks for; None: outside of jobs. Clusters have three workers.
SHAPES = {
    "outside": None,
    "all nodes": {"nodes": 3},
    "two of three": {"nodes": 2},
    "resized": {"nodes": 3, "min_nodes": 1, "max_nodes": 3},
}


@pytest.fixture(scope="module")
def security(tmp_path_factory):
    """Keys for a cluster that talks encrypted only."""
    return encrypted.keys(tmp_path_factory.mktemp("tls"))


def computing(n):
    """A task that computes a collection."""
    return int(da.ones(n, chunks=1).sum().compute())


NESTED = (fan_out, fan_out_seceding, computing)


def share(variable, queue, i):
    """A task that works with others through a lock, a semaphore, a variable and a queue."""
    with Lock("one"), Semaphore(max_leases=1, name="also-one"):
        variable.set(variable.get() + i)
    queue.put(i)


def collections():
    """An array that is rechunked and a dataframe that is shuffled, by P2P, with their values."""
    x = da.arange(900, chunks=100).reshape(30, 30).rechunk((5, 30)).rechunk((30, 5), method="p2p")
    data = pd.DataFrame({"key": np.arange(60) % 7, "value": np.arange(60.0)})
    frame = dd.from_pandas(data, npartitions=4).shuffle("key", shuffle_method="p2p")
    return (x, frame.value), (np.arange(900).reshape(30, 30), data.value)


def check(found, expected):
    """Compare what `collections` gave."""
    np.testing.assert_array_equal(found[0], expected[0])
    pd.testing.assert_series_equal(found[1].sort_index(), expected[1])


def everything(client, resize):
    """Use one feature after the other with an ordinary client; `resize` is called in between."""
    with dask.config.set(P2P):
        asked, expected = collections()
        futures = [client.compute(x) for x in asked]
        resize()
        check(client.gather(futures), expected)
    nested = [client.submit(f, 5, pure=False) for f in NESTED for _ in range(2)]
    resize()
    assert client.gather(nested) == [15, 15, 15, 15, 5, 5]
    counter = client.submit(Counter, actor=True).result()
    assert counter.add(1).result() == 1
    resize()
    assert max(client.gather([client.submit(add_to, counter, 1, pure=False) for _ in range(6)])) == 7
    variable, queue = Variable("sum", client=client), Queue("all", client=client)
    variable.set(0)
    shared = [client.submit(share, variable, queue, i, pure=False) for i in range(6)]
    resize()
    wait(shared)
    assert (variable.get(), sorted(queue.get(batch=True))) == (15, list(range(6)))
    data = client.scatter(list(range(6)))
    client.replicate(data, n=3)
    results = [value for _, value in as_completed(client.map(inc, data), with_results=True)]
    assert sorted(results) == list(range(1, 7))
    assert client.submit(os.getpid, pure=False).result() > 0


def ours_on(client):
    """Whether workers have our plugin, and heartbeats of ours: what there is of both."""
    found = client.run(lambda dask_worker: ("dask-hpc" in dask_worker.plugins, "hpc" in dask_worker.metrics))
    return set(found.values())


def all_on(client):
    """Names of whatever is registered on workers."""

    def names(dask_worker):
        kinds = ("plugins", "metrics", "handlers", "stream_handlers", "extensions", "periodic_callbacks")
        return {kind: sorted(map(str, getattr(dask_worker, kind))) for kind in kinds}

    return {repr(found) for found in client.run(names).values()}


def first_task():
    """Whether a worker has our plugin when its first task runs."""
    return "dask-hpc" in get_worker().plugins and "hpc" in get_worker().metrics


def killed_and_started_anew(client, cluster):
    """A worker process is killed, and another one comes: both run their first task with our plugin."""
    there = client.run(os.getpid)
    os.kill(min(there.values()), signal.SIGKILL)
    cluster.scale(len(there) + 1)
    deadline_s, new = time.monotonic() + 30, {}
    while len(new) < 2:
        assert time.monotonic() < deadline_s
        for address in client.scheduler_info(n_workers=-1)["workers"].keys() - there.keys() - new.keys():
            # nobody has sent it any
            new[address] = client.submit(first_task, workers=[address], pure=False)
    assert all(task.result(20) for task in new.values())


def in_shapes(client, shapes, cluster=None):
    """`everything` outside of jobs and in jobs of these shapes."""
    before = all_on(client)
    rt = dask_hpc.install(client, "fcfs")
    deadline_s = time.monotonic() + 20
    while ours_on(client) != {(True, True)}:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    for shape in shapes:
        fields = SHAPES[shape]
        if fields is None:
            everything(client, lambda: None)
            continue
        with rt.job(shape, **fields) as job:
            sizes = iter((2, 3, 1, 3))
            resize = (lambda job=job, sizes=sizes: job.resize(next(sizes))) if shape == "resized" else int
            while job.status()["state"] != "running":
                time.sleep(0.01)
            everything(client, resize)
        row = job.wait(20)
        assert row["state"] == "completed"
        assert (row["shrinks"], row["expansions"]) == ((2, 2) if shape == "resized" else (0, 0))
    if cluster is not None:
        killed_and_started_anew(client, cluster)
    rt.uninstall()
    assert ours_on(client) == {(False, False)}
    assert all_on(client) == before
    assert client.submit(inc, 1, pure=False).result() == 2


@pytest.mark.parametrize("processes", [True, False])
def test_everything_is_the_same_in_jobs_of_a_local_cluster_with_tls(loop, security, processes):
    with (
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=processes,
            security=security,
            protocol="tls",
            dashboard_address=":0",
            loop=loop,
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        if processes:  # what each shape does to tasks is the same as in threads
            in_shapes(client, ("outside", "resized"), cluster)
        else:
            in_shapes(client, SHAPES)


@pytest.mark.parametrize("shape", SHAPES)
@gen_test(timeout=60)
async def test_everything_is_the_same_in_jobs_of_an_asynchronous_client_with_tls(security, shape):
    async with (
        Scheduler(
            host="tls://127.0.0.1", port=0, dashboard_address=":0", security=security, validate=True
        ) as s,
        Worker(s.address, security=security, nthreads=1, name="a"),
        Worker(s.address, security=security, nthreads=1, name="b"),
        Worker(s.address, security=security, nthreads=1, name="c"),
        Client(s.address, security=security, asynchronous=True) as c,
    ):
        assert all(address.startswith("tls://") for address in s.workers)
        if SHAPES[shape] is None:
            await in_memory(c)
            await everything_async(c, None)
            return
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job(shape, **SHAPES[shape]) as job:
            while (await job.status())["state"] != "running":
                await asyncio.sleep(0.01)
            await everything_async(c, job if shape == "resized" else None)
        row = await job.wait(20)
        assert (row["state"], row["shrinks"]) == ("completed", 2 if shape == "resized" else 0)
        s.validate_state()


async def in_memory(c):
    """Keep results in the memory of the host, whose manager has the same certificates."""
    rt = await dask_hpc.install(c)
    data = await c.scatter([1, 2, 3])
    row = await (await rt.checkpoint(data, "data", levels=["L1"])).status()
    assert (row["state"], row["levels"]) == ("complete", ["L1"])
    told = await c.run(lambda dask_worker: dask_worker.metrics["hpc"].section("manager")())
    assert all(section["address"].startswith("tls://") for section in told.values())
    await rt.uninstall()


async def everything_async(c, job):
    """Use one feature after the other with an asynchronous client; `job` is resized in between."""
    sizes = iter((2, 3, 1))

    async def resize():
        if job is not None:
            assert (await job.resize(next(sizes)))["result"] == "done"

    with dask.config.set(P2P):
        asked, expected = collections()
        futures = [c.compute(x) for x in asked]
        await resize()
        check(await c.gather(futures), expected)
    nested = [c.submit(f, 5, pure=False) for f in NESTED for _ in range(2)]
    await resize()
    assert await c.gather(nested) == [15, 15, 15, 15, 5, 5]
    counter = await c.submit(Counter, actor=True)
    assert await counter.add(1) == 1
    await resize()
    assert max(await c.gather([c.submit(add_to, counter, 1, pure=False) for _ in range(4)])) == 5
    queue = await Queue(client=c)
    await queue.put(c.submit(inc, 1, pure=False))
    assert await (await queue.get(timeout=10)) == 2


def test_a_program_is_resized_on_a_cluster_with_tls(security):
    heat = Heat(24, 8)
    outcomes = []
    with (
        dask_hpc.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, security=security, dashboard_address=":0"
        ) as cluster,
        cluster.get_client() as client,
    ):
        assert client.scheduler.address.startswith("tls://")
        rt = dask_hpc.install(client, policy="fcfs")
        with rt.job("heat", nodes=1, min_nodes=1, max_nodes=3) as job:
            threads = [threading.Thread(target=lambda n=n: outcomes.append(job.resize(n))) for n in (3, 2)]

            def resize(program):
                if program.step in (3, 20):
                    threads[program.step // 20].start()

            def steps(program):
                return program.step < 30 or any(thread.is_alive() for thread in threads)

            program = job.program(heat.rows, "y").init(heat.start)
            program.elastic(heat.step, steps, halo=1, after=resize)
            program.run(timeout=20)
            for thread in threads:
                thread.join(20)
            assert [outcome["result"] for outcome in outcomes] == ["done", "done"]
            assert len(program.blocks) == 2
            assert heat.undisturbed(program.step).identical(program.field())
        assert job.wait(20)["state"] == "completed"
