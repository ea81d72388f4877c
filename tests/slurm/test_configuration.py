"""The configuration that ``dask hpc config slurm`` prints makes clusters, also from JupyterLab's panel."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import dask
import dask_jobqueue
import pytest
import yaml
from click.testing import CliRunner
from dask_labextension.manager import DaskClusterManager
from distributed import Client
from outside import PATIENCE_S, environment

import dask_hpc
from dask_hpc.cli import hpc
from dask_hpc.config import settings

#: What differs from site to site.
SITE = {
    "cores": 2,
    "processes": 2,
    "memory": "1 GB",
    "job-mem": "0",
    "interface": "lo",
    "scheduler-options": {"dashboard_address": ":0"},
}


@pytest.fixture
def printed(tmp_path: Path) -> Any:
    """What is printed, as Dask reads it from a folder of configuration files."""
    done = CliRunner().invoke(hpc, ["config", "slurm"])
    assert done.exit_code == 0
    (tmp_path / "slurm.yaml").write_text(done.output)
    # Defaults that it does not name stay, also those of a library that was imported
    # after another test's cluster kept its copy of the configuration.
    return dask.config.merge(
        *dask.config.defaults, dask.config.config, dask.config.collect(paths=[str(tmp_path)], env={})
    )


def test_it_makes_a_cluster_without_arguments(printed: Any) -> None:
    with (
        dask.config.set(printed),
        dask.config.set({"jobqueue.slurm.interface": "lo", "jobqueue.slurm.scheduler-options": {}}),
        dask_hpc.SLURMCluster(scheduler_options={"dashboard_address": ":0"}) as cluster,
    ):
        assert "#SBATCH -p compute" in cluster.job_script()
        assert "#SBATCH --cpus-per-task=16" in cluster.job_script()
        assert "--nworkers 4" in cluster.job_script()
        assert "#SBATCH -p staging" in cluster.job_script(pool="staging")
        assert "--resources staging=4" in cluster.job_script(pool="staging")


def test_all_settings_are_printed_too() -> None:
    done = CliRunner().invoke(hpc, ["config", "hpc"])
    assert settings(yaml.safe_load(done.output)["hpc"]) == settings({})


@pytest.mark.slow
def test_the_panel_of_jupyterlab_makes_scales_adapts_and_closes_such_a_cluster(
    cluster: Any, tmp_path: Path, printed: Any
) -> None:
    site = {**SITE, "log-directory": str(tmp_path), "local-directory": str(tmp_path)}
    overrides = {f"jobqueue.slurm.{name}": value for name, value in site.items()}

    async def run() -> None:
        async with DaskClusterManager() as manager:
            model = await manager.start_cluster()
            made = manager._clusters[model["id"]]
            assert isinstance(made, dask_hpc.SLURMCluster)
            assert isinstance(made, dask_jobqueue.SLURMCluster)
            async with Client(made, asynchronous=True) as client:
                await manager.scale_cluster(model["id"], 4)
                await client.wait_for_workers(4, timeout=PATIENCE_S)
                data = await client.scatter(list(range(10)), hash=False)
                await manager.scale_cluster(model["id"], 2)
                await size(made, 2)
                assert await client.gather(data) == list(range(10))
                manager.adapt_cluster(model["id"], 4, 4)
                await size(made, 4)
                assert await client.gather(data) == list(range(10))
            await manager.close_cluster(model["id"])
            assert manager.list_clusters() == []

    with environment(cluster.environment), dask.config.set(printed), dask.config.set(overrides):
        asyncio.run(run())


async def size(made: Any, count: int) -> None:
    """Wait until there are so many workers."""
    deadline_s = time.monotonic() + PATIENCE_S
    while len(made.scheduler.workers) != count:
        assert time.monotonic() < deadline_s, f"{count} workers; there are {len(made.scheduler.workers)}"
        await asyncio.sleep(0.05)
