"""Several pools in one cluster, on a real Slurm: each keeps its own size, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client
from outside import PATIENCE_S, held, until, where, workers
from slurm_dask import Work, dask_on

pytestmark = pytest.mark.slow

STAGING = {"queue": "staging", "cores": 2, "processes": 2, "walltime": "00:30:00"}


def pools_of(client: Client) -> tuple[int, int]:
    """Workers of the default pool and of staging."""
    names = list(workers(client))
    staging = sum("-staging-" in name for name in names)
    return len(names) - staging, staging


def partitions(cluster: Any, made: Any) -> dict[str, list[str]]:
    """Partitions of the jobs of each pool."""
    found: dict[str, list[str]] = {"": [], "staging": []}
    for spec, job in made.workers.items():
        found[made.worker_spec[spec]["pool"]].append(
            cluster.run("squeue", "-h", "-o", "%P %l", "-j", job.job_id).strip()
        )
    return found


def test_each_pool_has_its_own_partition_resources_and_size(cluster: Any, tmp_path: Path) -> None:
    pools = {"staging": STAGING | {"jobs": 1}}
    with dask.config.set({"hpc.pool.hold": "1 s"}), dask_on(cluster, tmp_path, pools=pools) as (made, client):
        made.scale(jobs=2)
        until(lambda: pools_of(client) == (2, 2), "both pools are there")
        assert partitions(cluster, made) == {"": ["compute 10:00"] * 2, "staging": ["staging 30:00"]}
        placed = client.map(where, range(10), resources={"staging": 1}, pure=False)
        assert all("-staging-" in name for name in client.gather(placed))

        # the pool that is not asked keeps its size, although it would cost less to let its workers go
        work = Work(client, tmp_path)
        plan = made.scale(jobs=1, dry_run=True)
        assert [len(names) for names in plan["release"].values()] == [1]
        assert "-staging-" not in next(iter(plan["release"]))
        made.scale(jobs=1)
        until(lambda: pools_of(client) == (1, 2), "one of the default pool has gone")
        work.check()

        # what dies is replaced where it was
        [victim] = [spec for spec in made.workers if "-staging-" in spec]
        cluster.run("scancel", "--signal=KILL", "--full", made.workers[victim].job_id)
        until(lambda: victim not in made.workers and pools_of(client) == (1, 2), "it is replaced")
        assert partitions(cluster, made) == {"": ["compute 10:00"], "staging": ["staging 30:00"]}

        # only the default pool follows the load
        made.adapt(minimum_jobs=0, maximum_jobs=2, interval="200 ms", wait_count=2, target_duration="1 s")
        until(lambda: pools_of(client) == (0, 2), "the default pool is idle")
        gate = tmp_path / "gate"
        busy = client.map(held, [str(gate)] * 20, range(20))
        until(lambda: pools_of(client)[0] > 0, "it grows")
        gate.touch()
        assert client.gather(busy) == list(range(20))
        del busy
        until(lambda: pools_of(client) == (0, 2), "it shrinks again")
        assert client.gather(work.data) == list(range(30))

        made._adaptive.stop()
        made.scale(jobs=1)
        client.wait_for_workers(3, timeout=PATIENCE_S)
        made.scale(jobs=0, pool="staging")
        until(lambda: pools_of(client) == (1, 0), "staging has gone")
        assert client.gather(work.data) == list(range(30))
