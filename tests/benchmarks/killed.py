"""A worker is killed: how long until all results are there again, protected beside stock.

A field less its mean, over as many chunks as a day of a regional model has, all of it in memory on four
workers. The worker that holds the most is ended by SIGKILL; the clock runs until the scheduler has every
chunk in memory again. Stock computes what was lost, and what that was made from, the mean over all chunks
included; what `Runtime.checkpoint` has written is read back. A nanny starts the worker again in both.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster, futures_of, wait
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc

WORKERS = 4
#: Elements along a side of a chunk: tasks are counted here, not bytes.
SIDE = 16
#: The most of stock's time.
BAR = 0.2
_PATIENCE_S = 300.0


async def whole(dask_scheduler: Any, keys: list[Any], gone: str, until_s: float) -> None:
    """Wait until that worker is missed and every result is in memory; `TimeoutError` when that is late."""
    tasks = dask_scheduler.tasks
    while gone in dask_scheduler.workers or any(tasks[key].state != "memory" for key in keys):
        if time.time() > until_s:
            raise TimeoutError(f"not whole {_PATIENCE_S:g} s after the worker was killed")
        await asyncio.sleep(0.005)


def recovered(folder: str, chunks: int, protect: bool) -> tuple[float, int]:
    """Seconds until all chunks are there again, and how many were lost."""
    kind = dask_hpc.LocalCluster if protect else LocalCluster
    with (
        kind(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        field = da.ones((chunks * SIDE, chunks * SIDE), chunks=SIDE)
        made = client.persist((field - field.mean()) * 2 + 1, optimize_graph=False)
        wait(made)
        if protect:
            dask_hpc.install(client).checkpoint(made, "field", store=folder)
        keys = [future.key for future in futures_of(made)]
        pids = client.run(os.getpid)
        holds = {address: len(set(found) & set(keys)) for address, found in client.has_what().items()}
        victim = max(sorted(holds), key=lambda address: holds[address])
        began_s = time.perf_counter()
        os.kill(pids[victim], signal.SIGKILL)
        client.run_on_scheduler(whole, keys=keys, gone=victim, until_s=time.time() + _PATIENCE_S)
        took_s = time.perf_counter() - began_s
        assert float(made.sum().compute()) == float(made.size)
        return took_s, holds[victim]


def run(options: Options) -> list[Row]:
    chunks, rounds = options.pick(72, 36, 6), options.pick(5, 3, 1)
    chance = random.Random(SEED)
    ratios, ours, stock, lost = [], [], [], []
    for number in range(rounds):
        took_s = {}
        for protect in chance.sample([True, False], 2):
            # not /tmp: that may be memory
            with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
                took_s[protect], count = recovered(os.path.join(folder, str(number)), chunks, protect)
            lost.append(float(count))
        ours.append(took_s[True])
        stock.append(took_s[False])
        ratios.append(took_s[True] / took_s[False])
    return [
        row(f"{chunks**2} chunks: time until whole again over stock's, ratio", ratios, "", bar=BAR),
        row("protected", ours, "s", note=f"{min(lost):g} to {max(lost):g} chunks were lost"),
        row("stock", stock, "s"),
    ]


if __name__ == "__main__":
    main("killed", __doc__.splitlines()[0], run)
