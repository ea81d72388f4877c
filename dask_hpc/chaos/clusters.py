"""Clusters for runs: one of workers that come back, on two labelled hosts, and one that is killed whole."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import numpy as np
from distributed import Client

import dask_hpc
from dask_hpc.chaos import work
from dask_hpc.chaos.plan import Plan
from dask_hpc.chaos.run import Outcome
from dask_hpc.chaos.work import BLOCKS

#: Workers of a cluster that is killed.
WORKERS = 2


@contextmanager
def own(workers: int = 4) -> Iterator[dask_hpc.LocalCluster]:
    """A cluster of processes on this machine, half of them labelled as one host, half as another."""
    settings = {
        "distributed.scheduler.allowed-failures": 100,
        # a worker that takes longer than this to come back would be given up, which is not what is tried
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(settings),
        dask_hpc.LocalCluster(
            n_workers=workers - workers // 2,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
            env={"DASK_HPC__NODE__HOST": "host-a"},
            pools={"more": {"n_workers": workers // 2, "env": {"DASK_HPC__NODE__HOST": "host-b"}}},
        ) as cluster,
    ):
        yield cluster


def kill_all(client: Client, plan: Plan, folder: Path) -> Outcome:
    """Kill scheduler and workers of another cluster, and have its newest whole version back on this one."""
    outcome = Outcome(plan)
    store = folder / "store"
    command = [sys.executable, "-m", "dask_hpc.chaos.victim", str(store), str(plan.elements)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as victim:
        assert victim.stdout is not None
        try:
            whole = _whole(victim.stdout.readline())
            end_s = time.monotonic() + plan.after_s * 4
            while time.monotonic() < end_s:
                time.sleep(0.005)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
        # what it had said before it was killed
        whole = max([whole, *(_whole(line) for line in victim.stdout)])
    outcome.killed = WORKERS
    _hold(client, store, whole, plan, outcome)
    return outcome


def _hold(client: Client, store: Path, whole: int, plan: Plan, outcome: Outcome) -> None:
    found = client.gather(dask_hpc.restore("versions", client, store=store))
    outcome.restored = len(found)
    version = int(found[0][0] // 1e9) // 100
    if version < whole:
        outcome.lost = whole - version
        outcome.faults.append(f"version {whole} was whole, the newest is {version}")
    for block, values in enumerate(found):
        if not np.array_equal(values, work.values(100 * version + block, plan.elements)):
            outcome.wrong += 1
            outcome.faults.append(f"block {block} of version {version} has other values")
    if len(found) != BLOCKS:
        outcome.lost += BLOCKS - len(found)
        outcome.faults.append(f"version {version} has {len(found)} of {BLOCKS} blocks")


def _whole(line: str) -> int:
    return int(line.split()[1]) if line.startswith("whole ") else 0
