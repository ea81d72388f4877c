"""Clusters of the tests on shrinking: workers in this process, counted at the source."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Status
from elastic_work import Tally, make, through
from waits import Gate, until

import dask_hpc
from dask_hpc.deploy import scaling

#: Workers keep the status that a test gives them.
_CONFIG = {"distributed.worker.memory.pause": False, "distributed.scheduler.worker-ttl": None}


@dataclass
class Shrinkable:
    """A cluster with a client, and counts of what ran."""

    cluster: Any
    client: Client
    tally: Tally

    @property
    def scheduler(self) -> Any:
        """The scheduler, in this process."""
        return self.cluster.scheduler

    def names(self) -> set[str]:
        """Names of the workers that are connected."""
        return {str(ws.name) for ws in self.scheduler.workers.values()}

    def address(self, name: int | str) -> str:
        """Address of a worker."""
        return next(a for a, ws in self.scheduler.workers.items() if str(ws.name) == str(name))

    def pause(self, name: int, paused: bool = True) -> None:
        """Let a worker take no more tasks and data, or let it again."""
        self.cluster.workers[name].status = Status.paused if paused else Status.running

    async def results(self, count: int = 20, **options: Any) -> list[Any]:
        """So many results in memory."""
        futures = self.client.map(make, range(count), key=[f"make-{n}" for n in range(count)], **options)
        for future in futures:
            await future
        return futures

    async def held(self, count: int, gate: Gate, busy: int | None = None) -> list[Any]:
        """So many tasks at a gate; returns when every worker, or `busy` of them, has one."""
        futures = [
            self.client.submit(through, number, gate, self.tally.effects, key=f"through-{number}")
            for number in range(count)
        ]
        wanted = min(count, len(self.scheduler.workers)) if busy is None else busy
        await until(lambda: self.tally.side_effects().total() == wanted, f"{wanted} tasks execute")
        return futures

    async def size(self, count: int) -> None:
        """Wait until there are so many workers, in the scheduler and in the cluster."""
        await until(
            lambda: len(self.scheduler.workers) == count == len(self.cluster.workers), f"{count} workers"
        )


def local(cls: Any = dask_hpc.LocalCluster, **options: Any) -> Any:
    """A cluster of workers of one thread in this process, asynchronous; `options` are those of `cls`."""
    usual = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0", "silence_logs": 50}
    return cls(asynchronous=True, **{**usual, **options})


@asynccontextmanager
async def shrinkable(workers: int = 4, again_s: float = 0.5, **options: Any) -> AsyncIterator[Shrinkable]:
    """A cluster of ours with workers of one thread in this process; `options` are those of the class.

    Nodes that could not be released are left alone for `again_s` seconds.
    """
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as folder,
        dask.config.set(_CONFIG),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(scaling, "_AGAIN_S", again_s)
        async with (
            local(n_workers=workers, **options) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            tally = Tally(Path(folder))
            await client.register_plugin(tally.plugin)
            yield Shrinkable(cluster, client, tally)
