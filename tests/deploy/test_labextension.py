"""The manager of the JupyterLab extension makes, scales, adapts and closes our clusters; nothing is lost."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask
from distributed import Client
from distributed.utils_test import gen_test

import dask_hpc
from dask_hpc.deploy.adaptive import PolicyAdaptive

with warnings.catch_warnings():
    # it looks for a loop as it is imported, of which Python 3.12 and later warn
    warnings.simplefilter("ignore", DeprecationWarning)
    from dask_labextension.manager import DaskClusterManager

FACTORY = {
    "labextension.factory.module": "dask_hpc",
    "labextension.factory.class": "LocalCluster",
    "labextension.factory.args": [],
    "labextension.factory.kwargs": {
        "n-workers": 0,
        "threads-per-worker": 1,
        "processes": False,
        "dashboard-address": ":0",
    },
    "labextension.initial": [],
    "labextension.default": {"workers": 3, "adapt": None},
}


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, f"not within 20 s: {what}"
        await asyncio.sleep(0.01)


@gen_test(timeout=60)
async def test_its_manager_drives_a_cluster_and_loses_nothing():
    with dask.config.set(FACTORY):
        async with DaskClusterManager() as manager:
            model = await manager.start_cluster()
            cluster = manager._clusters[model["id"]]
            assert isinstance(cluster, dask_hpc.LocalCluster)
            async with Client(cluster, asynchronous=True) as client:
                await client.wait_for_workers(3)
                data = await client.scatter(list(range(30)), hash=False)
                results = client.map(str, range(30))
                await client.gather(results)
                await manager.scale_cluster(model["id"], 1)
                await until(lambda: len(cluster.scheduler.workers) == 1, "one is left")
                assert await client.gather(data) == list(range(30))
                assert all(future.status == "finished" for future in results)
                adapted = manager.adapt_cluster(model["id"], 2, 3)
                assert adapted["adapt"] == {"minimum": 2, "maximum": 3}
                assert isinstance(manager._adaptives[model["id"]], PolicyAdaptive)
                await until(lambda: len(cluster.scheduler.workers) >= 2, "two at least")
                assert await client.gather(data) == list(range(30))
            assert [row["id"] for row in manager.list_clusters()] == [model["id"]]
            await manager.close_cluster(model["id"])
            assert manager.list_clusters() == []
            assert cluster.status.name == "closed"
