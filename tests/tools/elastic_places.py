"""Where the cells of the loss matrix happen: clusters of nodes, and what makes each of them smaller.

The nodes of a cluster are the workers of a LocalCluster, ``dask worker`` processes as started from a shell,
or the jobs of a SLURMCluster. Stock Dask and ours get the same arguments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed import Client
from elastic_clusters import local
from outside import PATHS, environment
from waits import until

import dask_hpc

#: How long a worker lives that has a lifetime, as a process and as a thread: setting everything up has to
#: take less.
_LIFETIME_S = {True: 9.0, False: 2.0}
#: Slurm knows walltimes of whole minutes: our workers leave half a minute before the end of the shortest.
NOTICE_S, MARGIN_S = 22, 8
#: Slurm looks for jobs out of time twice a minute only.
_OVERTIME_S = 30.0
#: How long workers may take to come on a busy machine.
START_S = 90.0
_AGENT = ("--preload", "dask_hpc.agent", "--preload-nanny", "dask_hpc.agent")


@dataclass(frozen=True)
class Row:
    """What makes a cluster smaller, and the cluster."""

    name: str
    #: ``local`` (LocalCluster), ``shell`` (processes) or ``slurm`` (jobs).
    where: str = "local"
    nodes: int = 4
    #: Nodes that the trigger names, or as many as it takes away.
    victims: tuple[int, ...] = (2, 3)
    #: Workers of a node.
    processes: int = 1
    #: Whether a node can stay that should have gone.
    refusable: bool = True
    #: Whether it fires by itself, after a while.
    timed: bool = False

    @property
    def left(self) -> int:
        """How many workers are left of those at the start."""
        return self.processes * (self.nodes - len(self.victims))

    @property
    def by_name(self) -> bool:
        """Whether the trigger names its victims and they can stay: no other goes in their place."""
        return self.name in ("retire", "all but one", "actor host")

    @property
    def replaced(self) -> bool:
        """Whether our cluster keeps its size: jobs that are ended from outside are asked for anew."""
        return self.where == "slurm" and not self.refusable


ROWS = {
    row.name: row
    for row in (
        Row("scale"),
        Row("adapt"),
        Row("retire"),
        Row("all but one", victims=(1, 2, 3)),
        Row("actor host"),
        Row("lifetime", refusable=False, timed=True),
        Row("SIGTERM", "shell", refusable=False),
        Row("SIGUSR1", "shell", refusable=False),
        Row("Slurm: scale", "slurm", 3, (1, 2)),
        Row("Slurm: grouped adapt", "slurm", 2, (1,), processes=2),
        Row("Slurm: scancel", "slurm", 3, (2,), refusable=False),
        Row("Slurm: SIGUSR1", "slurm", 3, (2,), refusable=False),
        Row("Slurm: walltime", "slurm", 3, (2,), refusable=False, timed=True),
    )
}


class Place(ABC):
    """A cluster whose nodes are there, and what makes it smaller."""

    def __init__(self, row: Row, cluster: Any) -> None:
        self.row = row
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        #: Names of the nodes: their workers are called the same, or the same with a suffix.
        self.nodes: list[Any] = list(cluster.worker_spec)
        #: When the workers of a node that will end are told, on the monotonic clock, if that is known before.
        self.noticed_s: float | None = None

    def workers(self, node: int) -> list[str]:
        """Addresses of the workers of a node."""
        name = str(self.nodes[node])
        there = self.scheduler.workers.items()
        return [a for a, ws in there if str(ws.name) == name or str(ws.name).startswith(f"{name}-")]

    def left_s(self) -> float:
        """Seconds until the trigger fires at the latest; 0 when it is pulled."""
        return 0.0

    @abstractmethod
    async def pull(self, client: Client) -> None:
        """Make the cluster smaller; returns when that has been asked for, or has been done."""

    async def all_there(self) -> None:
        """Wait for the workers of all nodes."""
        wanted = self.row.nodes * self.row.processes
        await until(lambda: len(self.scheduler.workers) == wanted, f"{wanted} workers", START_S)


class _Local(Place):
    lifetime_s = 0.0

    def left_s(self) -> float:
        return self.lifetime_s

    async def pull(self, client: Client) -> None:
        cluster, row = self.cluster, self.row
        if row.name == "scale":
            cluster.scale(row.left)
        elif row.name == "adapt":
            cluster.adapt(minimum=row.left, maximum=row.left, interval="100 ms", wait_count=1)
        elif row.name in ("retire", "all but one"):
            await client.retire_workers([address for node in row.victims for address in self.workers(node)])
        elif row.name == "actor host":
            # what `adapt` does when these are its choice
            adaptive = cluster.adapt(minimum=row.nodes, maximum=row.nodes, interval="1 h")
            await adaptive.scale_down([self.nodes[node] for node in row.victims])


class _Shell(Place):
    processes: list[subprocess.Popen[bytes]]

    async def pull(self, client: Client) -> None:
        for node in self.row.victims:
            self.processes[node].send_signal(getattr(signal, self.row.name))


class _Slurm(Place):
    slurm: Any
    ours: bool
    ends_s = 0.0

    def left_s(self) -> float:
        if not self.row.timed:
            return 0.0
        early_s = NOTICE_S + MARGIN_S if self.ours else -_OVERTIME_S
        return max(1.0, self.ends_s - early_s - time.time())

    async def pull(self, client: Client) -> None:
        row = self.row
        jobs = row.nodes - len(row.victims)
        if row.name == "Slurm: scale":
            self.cluster.scale(jobs=jobs)
        elif row.name == "Slurm: grouped adapt":
            self.cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs, interval="100 ms", wait_count=1)
        elif not row.timed:
            how = ("--signal=USR1", "--full") if row.name == "Slurm: SIGUSR1" else ()
            await asyncio.to_thread(self.slurm.run, "scancel", *how, *map(self.job, row.victims))

    def job(self, node: int) -> str:
        """The number that Slurm gave a job."""
        return str(self.cluster.workers[self.nodes[node]].job_id)


@asynccontextmanager
async def placed(row: Row, *, ours: bool, processes: bool, folder: Path, slurm: Any) -> AsyncIterator[Place]:
    """The cluster of a row with all its workers; `processes` is for workers of a LocalCluster."""
    if row.where == "slurm":
        made = _on_slurm(row, ours, folder, slurm)
    elif row.where == "shell":
        made = _from_shell(row, ours, folder)
    else:
        made = _local(row, ours, processes)
    async with made as place:
        await place.all_there()
        yield place


@asynccontextmanager
async def _local(row: Row, ours: bool, processes: bool) -> AsyncIterator[Place]:
    cluster = _local_cluster(ours, row.nodes, processes)
    place = _Local(row, cluster)
    if row.timed:
        place.lifetime_s = _LIFETIME_S[processes]
        for node in row.victims:
            spec = cluster.worker_spec[node]
            options = {**spec["options"], "lifetime": f"{place.lifetime_s} s", "lifetime_restart": False}
            cluster.worker_spec[node] = {**spec, "options": options}
    async with cluster:
        place.scheduler = cluster.scheduler
        yield place


def _local_cluster(ours: bool, workers: int, processes: bool = True) -> Any:
    cls = dask_hpc.LocalCluster if ours else distributed.LocalCluster
    return local(cls, n_workers=workers, processes=processes)


@asynccontextmanager
async def _from_shell(row: Row, ours: bool, folder: Path) -> AsyncIterator[Place]:
    async with _local_cluster(ours, 0) as cluster:
        place = _Shell(row, cluster)
        place.nodes = list(range(row.nodes))
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]
        command += _AGENT if ours else ()
        with open(folder / "workers.log", "wb") as log:
            place.processes = [
                subprocess.Popen(
                    [*command, "--name", str(node)],
                    env={**os.environ, "PYTHONPATH": PATHS},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for node in place.nodes
            ]
        try:
            yield place
        finally:
            for process in place.processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@asynccontextmanager
async def _on_slurm(row: Row, ours: bool, folder: Path, slurm: Any) -> AsyncIterator[Place]:
    from dask_jobqueue import SLURMCluster

    times = {"notice": f"{NOTICE_S} s", "margin": f"{MARGIN_S} s"}
    variables = {f"DASK_HPC__WALLTIME__{name.upper()}": value for name, value in times.items()}
    settings = {f"hpc.walltime.{name}": value for name, value in times.items()}
    cls = dask_hpc.SLURMCluster if ours else SLURMCluster
    with (
        environment({**slurm.environment, **(variables if row.timed else {})}),
        dask.config.set({"hpc.slurm.poll": "500 ms", **(settings if row.timed else {})}),
    ):
        async with cls(
            cores=row.processes,
            processes=row.processes,
            memory="1 GB",
            job_mem="0",
            walltime="00:10:00",
            interface="lo",
            local_directory=str(folder),
            log_directory=str(folder / "logs"),
            scheduler_options={"dashboard_address": ":0"},
            silence_logs=50,
            asynchronous=True,
        ) as cluster:
            cluster.scale(jobs=row.nodes)
            place = _Slurm(row, cluster)
            place.slurm, place.ours = slurm, ours
            if row.timed:
                for node in row.victims:
                    spec = cluster.worker_spec[place.nodes[node]]
                    options = {**spec["options"], "walltime": "00:01:00"}
                    cluster.worker_spec[place.nodes[node]] = {**spec, "options": options}
            await place.all_there()
            if row.timed:
                ask = ("squeue", "-h", "-o", "%e", "-j", place.job(row.victims[0]))
                place.ends_s = time.mktime(time.strptime(slurm.run(*ask).strip(), "%Y-%m-%dT%H:%M:%S"))
                if ours:
                    place.noticed_s = time.monotonic() + place.left_s()
            yield place
    await asyncio.to_thread(slurm.cancel_all)
