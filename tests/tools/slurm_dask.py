"""Dask clusters on the private Slurm, and work on them that must not be lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, wait
from outside import Marks, environment, lost, until

import dask_hpc


class Work:
    """Results, scattered data and tasks that execute, on a cluster that is about to change."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.marks = Marks(client, folder)
        self.done = self.marks.submit("done", 40, 0.0)
        wait(self.done)
        self.data = client.scatter(list(range(30)), hash=False)
        self.busy = self.marks.submit("busy", 12, 0.5)
        until(lambda: any(name.startswith("busy") for name in self.marks.started()), "tasks execute")

    def check(self) -> None:
        """Every result is right, nothing was lost, and no task has started twice."""
        assert len(self.client.gather([*self.done, *self.busy])) == 52
        assert self.client.gather(self.data) == list(range(30))
        found = lost(self.client)
        told = Counter(row.get("action") for _, row in self.client.get_events("all"))
        assert found == (0, 0, {True}), f"lost computed and scattered, expected ends: {found}; events: {told}"
        assert set(self.marks.started().values()) == {1}


@contextmanager
def dask_on(slurm: Any, folder: Path, **options: Any) -> Iterator[tuple[Any, Client]]:
    """A cluster on the private Slurm and a client of it."""
    processes = options.get("processes", 1)
    defaults = {
        "cores": processes,
        "processes": processes,
        "memory": "1 GB",
        "job_mem": "0",
        "walltime": "00:10:00",
        "interface": "lo",
        "local_directory": str(folder),
        "log_directory": str(folder / "logs"),
        "scheduler_options": {"dashboard_address": ":0"},
        "silence_logs": False,
    }
    with (
        environment(slurm.environment),
        dask.config.set({"hpc.slurm.poll": "500 ms"}),
        dask_hpc.SLURMCluster(**{**defaults, **options}) as made,
        Client(made) as client,
    ):
        yield made, client
