"""Hosts of a live scheduler in this process: a worker each, whose manager is a process that can be lost."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, Worker
from helpers import until
from losses import kill

from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker import host_memory
from dask_hpc.worker.managers import listening


async def host(stack: AsyncExitStack, scheduler: Scheduler, name: str, **more: Any) -> Worker:
    """A host that joins; `more` is for its worker."""
    with dask.config.set({"hpc.node.host": name}):
        worker = await stack.enter_async_context(Worker(scheduler.address, nthreads=1, name=name, **more))
        await until(lambda: HEARTBEAT in worker.metrics, "it has the runtime")
        # where it is is said by the configuration, which is that of all of them later
        host_memory._manager(worker)
    return worker


async def lose(scheduler: Scheduler, worker: Worker) -> None:
    """The host of a worker goes, and what it holds."""
    folder = host_memory.manager_folder(worker)
    assert folder is not None
    os.kill(listening(Path(folder))["pid"], signal.SIGKILL)
    shutil.rmtree(folder)
    await kill(scheduler, [worker])
    await worker.close()


def records(scheduler: Scheduler) -> dict[str, Any]:
    """The versions in memory, by id."""
    return dict(of(scheduler).commits._memory.records)


def repairs(scheduler: Scheduler) -> dict[str, tuple[int, str, str]]:
    """Which version of each name was made again last, what has become of that, and why."""
    rows = of(scheduler).commits._held.status()
    return {row["name"]: (row["version"], row["state"], row["reason"]) for row in rows}
