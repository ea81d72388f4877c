"""A cluster of five hosts on this machine: what is on which, and how to lose some of them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dask
from distributed import Client

import dask_hpc
from dask_hpc.worker.host_memory import manager_folder
from dask_hpc.worker.managers import listening
from dask_hpc.worker.node import node_settings

HOSTS = ("alpha", "beta", "gamma", "delta", "epsilon")


@contextmanager
def five_hosts(hosts: Sequence[str] = HOSTS) -> Iterator[Client]:
    """Five hosts, or so many, with a worker each; where they are is said by their environment."""
    first, *others = hosts
    # workers are forked from a process that may be older than what a test has set
    ours = {name: value for name, value in os.environ.items() if name.startswith("DASK_HPC__")}
    with (
        # one that takes longer than this to come back is given up, which is not what is tried here
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        dask_hpc.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            env={**ours, "DASK_HPC__NODE__HOST": first},
            pools={name: {"n_workers": 1, "env": {**ours, "DASK_HPC__NODE__HOST": name}} for name in others},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def before(condition, what, within_s=60.0):
    """Wait until something is so."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not after {within_s:g} s: {what}"
        time.sleep(0.02)


def _place(dask_worker):
    folder = manager_folder(dask_worker)
    return node_settings().node_host, os.getpid(), None if folder is None else str(folder)


def places(client):
    """Process of its worker, folder of its manager and address, by host."""
    found = client.run(_place, on_error="ignore")
    return {host: (pid, folder, address) for address, (host, pid, folder) in found.items()}


def lose(client, *hosts, memory=True):
    """Kill the workers of hosts; with their memories, their managers too."""
    there = places(client)
    for host in hosts:
        pid, folder, _ = there[host]
        if memory:
            os.kill(listening(Path(folder))["pid"], signal.SIGKILL)
            shutil.rmtree(folder)
        os.kill(pid, signal.SIGKILL)
