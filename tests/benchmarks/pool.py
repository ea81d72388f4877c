"""How long nodes take to come and to go: from the request to a usable node, and to a released one.

On a LocalCluster beside stock's, and on a private Slurm of several virtual nodes where Debian's packages
``slurm-wlm`` and ``munge`` are installed. Workers hold data when they leave, and nothing executes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import dask
import distributed
from distributed import Client
from harness import Options, Row, main, row
from outside import environment
from private_slurm import PrivateSlurm, missing

import dask_hpc

#: Results on the cluster when a node leaves: so many, of that size.
BLOCKS, BLOCK_BYTES = 40, 1 << 20


def run(options: Options) -> list[Row]:
    repetitions = options.pick(7, 3, 1)
    ours = _measure(_local(dask_hpc.LocalCluster), repetitions)
    stock = _measure(_local(distributed.LocalCluster), repetitions)
    rows = []
    for text, mine, theirs in zip(("usable node", "released node"), ours, stock, strict=True):
        rows.append(
            row(f"LocalCluster: request to {text}", mine, "ms", stock=sorted(theirs)[len(theirs) // 2])
        )
    if why := missing():
        print(f"without Slurm: {why}", file=sys.stderr)
        return rows
    with (
        PrivateSlurm(nodes=4, staging_nodes=1) as slurm,
        environment(slurm.environment),
        dask.config.set({"hpc.slurm.poll": "1 s"}),
    ):
        figures = _measure(_slurm(), repetitions)
    for text, mine in zip(("usable node", "released node"), figures, strict=True):
        rows.append(row(f"Slurm, one job a node: request to {text}", mine, "ms"))
    return rows


def _local(make: Callable[..., Any]) -> Any:
    return make(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs="ERROR")


def _slurm() -> Any:
    folder = tempfile.mkdtemp()
    return dask_hpc.SLURMCluster(
        n_workers=2,
        cores=1,
        processes=1,
        memory="1 GB",
        job_mem="0",
        walltime="00:30:00",
        interface="lo",
        local_directory=folder,
        log_directory=folder,
        scheduler_options={"dashboard_address": ":0"},
    )


def _measure(cluster: Any, repetitions: int) -> tuple[list[float], list[float]]:
    """Milliseconds from `scale` up by one to the third worker, and from `scale` down to two again."""
    comes, goes = [], []
    with cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        for i in range(repetitions):
            comes.append(_until(client, cluster, 3))
            blocks = client.map(_block, range(BLOCKS), key=f"block-{i}")
            distributed.wait(blocks)
            goes.append(_until(client, cluster, 2))
            del blocks
    return comes, goes


def _block(i: int) -> bytes:
    return bytes(BLOCK_BYTES)


def _until(client: Client, cluster: Any, workers: int) -> float:
    began_s = time.perf_counter()
    cluster.scale(workers)
    while len(client.sync(client.scheduler.identity, n_workers=-1)["workers"]) != workers:
        if time.perf_counter() - began_s > 120:
            raise TimeoutError(f"not {workers} workers within 120 s")
        time.sleep(0.002)
    return (time.perf_counter() - began_s) * 1e3


if __name__ == "__main__":
    main("pool", "Time for a node to come and to go", run)
