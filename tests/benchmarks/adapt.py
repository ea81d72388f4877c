"""`adapt` under bursts of tasks, ours beside stock: how long bursts take, and what the workers cost.

For every seed a `dask_hpc.LocalCluster` and a `distributed.LocalCluster` run the same bursts at the same
time with ``adapt(minimum=0, maximum=6)`` and all defaults. Workers come two seconds after they were asked
for, in the process of their cluster. A burst is so many tasks that sleep, all of one duration; the next one
is submitted a pause after the results of the last, as a script does that looks at each. Node-seconds are
those of all workers until the last has gone after the last burst: what the hold costs at the end is paid,
too.

The bars are for bursts that take about half a minute. Those that take a few seconds are told beside them:
no cluster can do without starting workers for each and without keeping them between them.
`tests/tools/bursts.py` has the load with long pauses, and counts reversals.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import distributed
from distributed import Client
from harness import Options, Row, main, row

import dask_hpc

# isort: split
# `harness` has made them importable
from bursts import WORKERS, Burst, Late, Moves

#: Bounds from which numbers are drawn, evenly on a logarithmic scale.
Bounds = tuple[float, float]
PAUSE_S = (2.0, 8.0)
#: What bursts are like: how many, tasks of each, duration of each task in seconds.
LONG: tuple[int, Bounds, Bounds] = (5, (60, 180), (0.5, 1.5))
SHORT: tuple[int, Bounds, Bounds] = (6, (12, 60), (0.2, 2.0))
TINY: tuple[int, Bounds, Bounds] = (1, (6, 6), (0.1, 0.1))
#: Ratios to stock.
BAR_BURST, BAR_NODE_S, BAR_STARTS = 1.0, 1.1, 1 / 3
#: Nothing takes longer than this.
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Figures:
    """What one cluster did under the load of one seed."""

    burst_s: float
    node_s: float
    starts: float


def run(options: Options) -> list[Row]:
    seeds = range(options.pick(5, 3, 1))
    rows = _rows("half a minute", options.pick(LONG, LONG, TINY), seeds, bars=True)
    if options.size == "full":
        rows += _rows("some seconds", SHORT, seeds, bars=False)
    return rows


def _rows(length: str, shape: tuple[int, Bounds, Bounds], seeds: range, *, bars: bool) -> list[Row]:
    pairs = _pairs([load(seed, *shape) for seed in seeds])
    rows = []
    for field, text, unit, bar in (
        ("burst_s", "mean time of a burst", "s", BAR_BURST),
        ("node_s", "node-seconds", "s", BAR_NODE_S),
        ("starts", "workers started", "workers", BAR_STARTS),
    ):
        name = f"bursts of {length}: {text}"
        ours, stock = ([getattr(one, field) for one in side] for side in zip(*pairs, strict=True))
        ratios = [mine / theirs for mine, theirs in zip(ours, stock, strict=True)]
        rows.append(row(name, ours, unit, stock=statistics.median(stock)))
        rows.append(row(f"{name}: ratio to stock's", ratios, "", bar=bar if bars else None))
    return rows


def load(seed: int, count: int, tasks: Bounds, task_s: Bounds) -> list[Burst]:
    """The bursts of a seed."""
    rng = random.Random(seed)

    def draw(bounds: Bounds) -> float:
        low, high = map(math.log, bounds)
        return math.exp(rng.uniform(low, high))

    return [Burst(round(draw(tasks)), draw(task_s), draw(PAUSE_S)) for _ in range(count)]


def _pairs(loads: list[list[Burst]]) -> list[tuple[Figures, Figures]]:
    """Ours and stock under each load, all at the same time, each in a process of its own."""
    with ProcessPoolExecutor(2 * len(loads), multiprocessing.get_context("spawn")) as pool:
        asked = [[pool.submit(_once, ours, bursts) for ours in (True, False)] for bursts in loads]
        return [(ours.result(), stock.result()) for ours, stock in asked]


def _once(ours: bool, bursts: list[Burst]) -> Figures:
    """One cluster under the bursts of a seed."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    return asyncio.run(_run(dask_hpc.LocalCluster if ours else distributed.LocalCluster, bursts))


async def _run(kind: Any, bursts: list[Burst]) -> Figures:
    async with (
        kind(
            n_workers=0,
            threads_per_worker=1,
            processes=False,
            worker_class=Late,
            dashboard_address=":0",
            asynchronous=True,
            silence_logs=50,
        ) as cluster,
        Client(cluster, asynchronous=True, set_as_default=False) as client,
    ):
        moves = Moves()
        cluster.scheduler.add_plugin(moves)
        cluster.adapt(minimum=0, maximum=WORKERS)
        times_s = []
        for burst in bursts:
            began_s = time.monotonic()
            futures = client.map(time.sleep, [burst.task_s] * burst.tasks, pure=False)
            await asyncio.wait_for(client.gather(futures), _PATIENCE_S)
            del futures
            times_s.append(time.monotonic() - began_s)
            if burst is not bursts[-1]:
                await asyncio.sleep(burst.pause_s)
        deadline_s = time.monotonic() + _PATIENCE_S
        while cluster.scheduler.workers:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"workers are there {_PATIENCE_S:g} s after the last burst")
            await asyncio.sleep(0.05)
        cluster.scheduler.remove_plugin(moves.name)
    starts = sum(way > 0 for _, way in moves.moves)
    node_s = -sum(way * at_s for at_s, way in moves.moves)
    return Figures(statistics.mean(times_s), node_s, starts)


if __name__ == "__main__":
    main("adapt", "Bursts under adapt, ours beside stock", run)
