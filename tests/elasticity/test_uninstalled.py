"""A cluster of ours whose runtime was uninstalled: it stays so until somebody asks for a smaller cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Client
from distributed.utils_test import captured_logger
from elastic_clusters import local, shrinkable
from helpers import traces_of_ours
from waits import Gate, until, within

import dask_hpc
from dask_hpc.errors import DaskHPCError

LOGGER = "dask_hpc.deploy.scaling"


def test_a_shrink_that_is_under_way_does_not_bring_the_runtime_back_and_says_so() -> None:
    async def run() -> None:
        async with shrinkable(3, again_s=0.05) as made:
            runtime = await dask_hpc.runtime(made.client)
            gate = Gate()
            busy = await made.held(3, gate)
            made.cluster.scale(1)
            await until(lambda: made.cluster._releases._leaving, "nodes are being drained")
            with captured_logger(LOGGER) as log:
                await runtime.uninstall()
                await until(lambda: "was uninstalled" in log.getvalue(), "it is told")
                gate.open()
                assert await within(made.client.gather(busy)) == list(range(3))
                await within(made.cluster._settled())
            assert "hpc" not in made.scheduler.handlers
            assert "stays as it is, with 2 more than asked for" in log.getvalue()
            assert len(made.scheduler.workers) == len(made.cluster.workers) == 3
            assert made.tally.twice() == []
            # whoever asks again wants it back
            made.cluster.scale(1)
            await made.size(1)
            assert "hpc" in made.scheduler.handlers

    asyncio.run(run())


def test_a_release_that_meets_the_uninstalling_ends() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            gate = Gate()
            busy = await made.held(2, gate)
            # at whatever point of its way it is met
            for turns in range(40):
                runtime = await dask_hpc.install(made.client)
                asked = asyncio.ensure_future(made.cluster.ask("release", count=1))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await within(runtime.uninstall())
                (answer,) = await within(asyncio.gather(asked, return_exceptions=True))
                assert isinstance(answer, DaskHPCError) or not answer["released"]
                assert "hpc" not in made.scheduler.handlers
                await until(lambda: not traces_of_ours(made.scheduler), "nothing of it is left")
            gate.open()
            assert await within(made.client.gather(busy)) == list(range(2))
            assert made.tally.twice() == []

    asyncio.run(run())


def test_a_cluster_that_follows_the_load_goes_on_as_stock() -> None:
    async def run() -> None:
        async with (
            local(n_workers=0) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            adaptive: Any = cluster.adapt(minimum=0, maximum=2, interval="20 ms", wait_count=2)
            await within((await dask_hpc.runtime(client)).uninstall())
            assert await within(client.submit(sum, [1, 2])) == 3
            await until(lambda: not cluster.scheduler.workers, "all have gone")
            assert "hpc" not in cluster.scheduler.handlers
            assert "uninstalled" in adaptive.reason

    asyncio.run(run())
