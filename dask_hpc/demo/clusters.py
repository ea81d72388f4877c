"""The clusters that the demo runs on, and a client of each that leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import distributed
from distributed import utils

import dask_hpc
from dask_hpc.demo.progress import ProgressDisplay
from dask_hpc.demo.stage import NODES
from dask_hpc.errors import ConfigError
from dask_hpc.terminal import interrupts_later

#: Of each worker process.
MEMORY_LIMIT = "1 GiB"
#: Above all that is logged.
SILENT = logging.CRITICAL + 1
_CLUSTER: dict[str, Any] = {
    "n_workers": NODES,
    "threads_per_worker": 1,
    "processes": True,
    "memory_limit": MEMORY_LIMIT,
    "dashboard_address": ":0",
    # Both clusters are closed while their logs would tell of every connection that ends; of one that ends in
    # the middle of a message Dask tells as critical.
    "silence_logs": SILENT,
}
_SCHEDULER = {"dashboard_address": ":0"}
#: What the process that workers are forked from imports: it starts no thread by that. Arrays of Dask, because
#: each worker would import them when xarray asks for the first time whether an array is one.
_IMPORTED = ("distributed.nanny", "dask_hpc.worker.carried", "dask_hpc.demo.stepping", "dask.array")
#: How long the demo waits for its jobs to come through Slurm's queue.
_SLURM_PATIENCE_S = 600

#: A plain cluster, and one of ours, of worker processes on this machine.
stock_cluster = partial(distributed.LocalCluster, **_CLUSTER)
local_cluster = partial(dask_hpc.LocalCluster, **_CLUSTER)


def slurm_cluster(progress: ProgressDisplay) -> Any:
    """A cluster of as many Slurm jobs as the demo needs nodes, all of them running.

    Raises
    ------
    ConfigError
        When Slurm does not give them in ten minutes.
    """
    cluster = dask_hpc.SLURMCluster(silence_logs=SILENT, scheduler_options=_SCHEDULER)
    try:
        progress.say(f"     waiting for {NODES} jobs of Slurm")
        cluster.scale(jobs=NODES)
        with cluster.get_client() as client:
            client.wait_for_workers(NODES, timeout=_SLURM_PATIENCE_S)
    except TimeoutError:
        cluster.close()
        raise ConfigError(
            f"Slurm did not start {NODES} jobs within {_SLURM_PATIENCE_S} s; squeue tells why they wait"
        ) from None
    return cluster


def check_slurm() -> None:
    """Raise ConfigError unless Dask's configuration describes jobs of Slurm."""
    from dask_hpc.deploy.slurm.jobs import SLURMJob

    try:
        SLURMJob("tcp://127.0.0.1:0", name="check")
    except ValueError as error:
        raise ConfigError(f"jobqueue.slurm in Dask's configuration: {error}") from None


@contextlib.contextmanager
def client_of(make: Callable[[], Any]) -> Iterator[distributed.Client]:
    """A client of a new cluster; both are closed at the end, whatever ends it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_thread_each())
        stack.enter_context(_forked())
        with interrupts_later():
            cluster = stack.enter_context(make())
            client = stack.enter_context(cluster.get_client())
        yield client


@contextlib.contextmanager
def _forked() -> Iterator[None]:
    """Have worker processes forked within from one process that has imported what they need.

    Each that starts anew imports it again: that is most of what a short demo takes. The first of them starts
    that process, so that it has the environment and the blocked signals of a worker; it ends with this one.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_IMPORTED))
    # else Dask imports all that its workers might use, here and there
    before, utils._forkserver_preload_set = utils._forkserver_preload_set, True
    try:
        with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
            yield
    finally:
        utils._forkserver_preload_set = before


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Give the worker processes started within one thread each for numerical libraries."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
