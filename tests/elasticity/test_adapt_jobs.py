"""An adaptive cluster grows for jobs that wait, keeps the nodes of those that run, and shrinks after them."""

from __future__ import annotations

import asyncio
from typing import Any

import dask
import pytest
from distributed import Client
from elastic_clusters import local, shrinkable
from waits import Gate, until, within

import dask_hpc
from dask_hpc.deploy.scaling import DEFAULT_POOL
from dask_hpc_policies.jobs.jobspec import InvalidJob


def test_it_grows_for_a_job_and_shrinks_when_the_job_has_ended() -> None:
    async def run() -> None:
        async with local(n_workers=0) as cluster, Client(cluster, asynchronous=True) as client:
            cluster.adapt(minimum=1, maximum=4, interval="20 ms", wait_count=2)
            await client.wait_for_workers(1)
            runtime = await dask_hpc.install(client, policy="fcfs")
            async with runtime.job("wide", nodes=3) as job:
                await until(lambda: len(cluster.scheduler.workers) >= 3, "it has grown")
                assert await within(client.submit(sum, [1, 2], pure=False)) == 3
                assert (await job.status())["nodes"] == 3
                # no task runs or waits: stock would ask for one worker
                for _ in range(20):
                    await cluster._adaptive.adapt()
                assert len(cluster.scheduler.workers) == 3
            await within(job.wait(20))
            await until(lambda: len(cluster.scheduler.workers) == 1, "it has shrunk")

    with dask.config.set({"hpc.pool.hold": "100 ms"}):
        asyncio.run(run())


def test_a_job_that_rests_gives_nodes_back_and_gets_them_again_with_its_next_tasks() -> None:
    async def wide(client: Client, cluster: dask_hpc.LocalCluster, what: str) -> list[Any]:
        gate = Gate()
        futures = [client.submit(gate.wait, number, pure=False) for number in range(60)]
        await until(lambda: len(cluster.scheduler.workers) == 3, what)
        gate.open()
        return futures

    async def run() -> None:
        async with local(n_workers=0) as cluster, Client(cluster, asynchronous=True) as client:
            cluster.adapt(minimum=0, maximum=3, interval="20 ms", wait_count=1)
            runtime = await dask_hpc.install(client, policy="fair")
            async with runtime.job("now and then") as job:
                futures = await wide(client, cluster, "it has grown")
                assert await within(client.gather(futures)) == list(range(60))
                await until(lambda: len(cluster.scheduler.workers) == 1, "all but its smallest size are back")
                told = await job.status()
                assert (told["state"], told["nodes"]) == ("running", 1)
                assert "it rests: no task for 0.2 s (hpc.lend)" in told["reason"]
                # nothing was lost, and nothing is computed again
                results = [cluster.scheduler.tasks[future.key].state for future in futures]
                assert set(results) == {"memory"}
                futures = await wide(client, cluster, "it has grown again")
                assert await within(client.gather(futures)) == list(range(60))
            await within(job.wait(20))

    with dask.config.set({"hpc.pool.hold": "100 ms", "hpc.lend": "200 ms"}):
        asyncio.run(run())


def test_a_job_wider_than_the_cluster_may_become_is_refused() -> None:
    async def run() -> None:
        async with local(n_workers=0) as cluster, Client(cluster, asynchronous=True) as client:
            cluster.adapt(minimum=1, maximum=2, interval="20 ms")
            await client.wait_for_workers(1)
            runtime = await dask_hpc.install(client, policy="fcfs")
            with pytest.raises(InvalidJob, match="2"):
                async with runtime.job("wide", nodes=3):
                    pass

    asyncio.run(run())


def test_a_node_that_leaves_is_never_counted_as_missing_while_it_is_closed() -> None:
    async def run() -> None:
        async with shrinkable(3) as there:
            cluster, excess = there.cluster, []
            cluster.scale(3)
            opened = cluster._open

            async def looked() -> None:
                # what a look at the jobs of Slurm sees that comes at this moment: below 0 it asks for another
                excess.append(cluster._excess(DEFAULT_POOL))
                await opened()

            cluster._open = looked
            await within(cluster.scale_down([2]))
            await there.size(2)
            assert set(excess) == {0}

    asyncio.run(run())
