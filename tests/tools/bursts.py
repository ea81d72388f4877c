"""`adapt` under bursts of tasks, ours and stock in pairs: ``python tests/tools/bursts.py``.

For every seed a `dask_hpc.LocalCluster` and a `distributed.LocalCluster` run the same load at the same time
on this machine, each in a process of its own, with ``adapt(minimum=0, maximum=6)`` and all defaults but a
hold of `HOLD`, for pauses that are longer than workers take to come. Workers are in the process of their
cluster and come `START_S` after they were asked for, about what a process takes: sixty processes that start
and end on a few cores would measure the cores. ``--processes`` has them nevertheless.

The load is a list of bursts: so many tasks that sleep, all of one duration, and then a pause before the next
burst is submitted, as somebody does who looks at the result first. Numbers are drawn from the seed, each
evenly on a logarithmic scale, so that no length of a pause is favoured; there are as many bursts as take the
minutes that are asked for when six workers are always there.

A *reversal* is the arrival or departure of a worker, as the scheduler sees it, whose predecessor among
arrivals and departures went the other way at most 60 s before. Workers that come, or go, together are thus
one change of direction. What happens after the last result does not count.

Makespan is the time from the first submission to the last result, node-seconds the sum of the times that
workers were connected: what is paid for keeping them. Exits with 1 unless the median of reversals is at most
half of stock's, the median ratio of makespans, ours to stock's, at most 1.02, and every result came.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import dask
import distributed
from distributed import Client

import dask_hpc

WORKERS = 6
REVERSAL_S = 60.0
#: How long a worker takes to come, in seconds.
START_S = 2.0
#: How long ours keeps workers.
HOLD = "1 min"
MOST_REVERSALS, MOST_MAKESPAN = 0.5, 1.02
#: A burst whose results have not come by then counts as failed.
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Burst:
    """Tasks that are submitted together, and the pause after their results."""

    tasks: int
    task_s: float
    pause_s: float

    @property
    def ideal_s(self) -> float:
        """How long it takes, pause included, with all workers there."""
        return math.ceil(self.tasks / WORKERS) * self.task_s + self.pause_s


@dataclass
class Run:
    """What one cluster did under the load of one seed."""

    seed: int
    ours: bool
    bursts: int = 0
    makespan_s: float = 0.0
    reversals: int = 0
    arrivals: int = 0
    departures: int = 0
    node_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def load(seed: int, minutes: float) -> list[Burst]:
    """The bursts of a seed."""
    rng = random.Random(seed)

    def draw(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    bursts: list[Burst] = []
    while sum(burst.ideal_s for burst in bursts) < 60 * minutes:
        bursts.append(Burst(round(draw(6, 120)), round(draw(0.2, 4), 3), round(draw(1, 120), 1)))
    return bursts


def reversals(moves: list[tuple[float, int]]) -> int:
    """Reversals among moves: times in seconds, with 1 for an arrival and -1 for a departure."""
    return sum(
        way != other and at_s - before_s <= REVERSAL_S
        for (before_s, other), (at_s, way) in itertools.pairwise(moves)
    )


class Moves(distributed.SchedulerPlugin):
    """Notes when workers come and go."""

    name = "moves"

    def __init__(self) -> None:
        self.moves: list[tuple[float, int]] = []

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.moves.append((time.monotonic(), 1))

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self.moves.append((time.monotonic(), -1))


class Late(distributed.Worker):
    """A worker that takes a while to come."""

    async def start_unsafe(self) -> Any:
        """Wait, then start."""
        await asyncio.sleep(START_S)
        return await super().start_unsafe()


async def run(seed: int, ours: bool, minutes: float, processes: bool) -> Run:
    """One cluster under the load of one seed."""
    report = Run(seed, ours)
    kind: Any = dask_hpc.LocalCluster if ours else distributed.LocalCluster
    async with (
        kind(
            n_workers=0,
            threads_per_worker=1,
            processes=processes,
            worker_class=None if processes else Late,
            dashboard_address=":0",
            asynchronous=True,
            silence_logs=50,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        moves = Moves()
        cluster.scheduler.add_plugin(moves)
        cluster.adapt(minimum=0, maximum=WORKERS)
        began_s = time.monotonic()
        bursts = load(seed, minutes)
        for number, burst in enumerate(bursts):
            futures = client.map(time.sleep, [burst.task_s] * burst.tasks, pure=False)
            try:
                await asyncio.wait_for(client.gather(futures), _PATIENCE_S)
            except (Exception, asyncio.CancelledError) as error:
                report.failures.append(f"burst {number}: {type(error).__name__}: {error}"[:200])
            del futures
            report.bursts += 1
            end_s = time.monotonic()
            done = list(moves.moves)
            _say(f"seed {seed} {'ours' if ours else 'stock'}: burst {number}, {end_s - began_s:.0f} s")
            if burst is not bursts[-1]:
                await asyncio.sleep(burst.pause_s)
        report.makespan_s = round(end_s - began_s, 2)
        report.reversals = reversals(done)
        report.arrivals = sum(way > 0 for _, way in done)
        report.departures = sum(way < 0 for _, way in done)
        report.node_s = round(sum(way * (end_s - at_s) for at_s, way in done), 1)
        cluster.scheduler.remove_plugin(moves.name)
    return report


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start(seed: int, ours: bool, options: argparse.Namespace) -> subprocess.Popen[str]:
    """Run one cluster in a process of its own."""
    command = [sys.executable, __file__, "--one", "ours" if ours else "stock", "--seeds", str(seed)]
    command += ["--minutes", str(options.minutes), *(["--processes"] if options.processes else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def pairs(options: argparse.Namespace) -> list[tuple[Run, Run]]:
    """Ours and stock for every seed, so many seeds at once as asked for."""
    found = []
    seeds = list(options.seeds)
    while seeds:
        now, seeds = seeds[: options.at_once], seeds[options.at_once :]
        started = [(start(seed, True, options), start(seed, False, options)) for seed in now]
        for pair in started:
            ours, stock = (Run(**json.loads(process.communicate()[0])) for process in pair)
            found.append((ours, stock))
    return found


@dataclass
class Verdict:
    """Medians over the seeds, and whether the bars hold."""

    reversals_ours: float
    reversals_stock: float
    makespan_ratios: list[float]
    failures: list[str]

    @classmethod
    def of(cls, found: list[tuple[Run, Run]]) -> Verdict:
        """The verdict on pairs of runs: ours, stock."""
        return cls(
            statistics.median(ours.reversals for ours, _ in found),
            statistics.median(stock.reversals for _, stock in found),
            [ours.makespan_s / stock.makespan_s for ours, stock in found],
            [failure for ours, _ in found for failure in ours.failures],
        )

    @property
    def makespan(self) -> float:
        """Median ratio of makespans."""
        return statistics.median(self.makespan_ratios)

    @property
    def holds(self) -> bool:
        """Whether the bars of the module's docstring are met."""
        few = self.reversals_ours <= MOST_REVERSALS * self.reversals_stock
        return few and self.makespan <= MOST_MAKESPAN and not self.failures


def main() -> int:
    parser = argparse.ArgumentParser(description="adapt under bursts, ours and stock in pairs.")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load for each seed (default 10)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="default 0 to 4")
    parser.add_argument("--at-once", type=int, default=5, help="seeds that run side by side (default 5)")
    parser.add_argument("--processes", action="store_true", help="workers are processes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--one", choices=("ours", "stock"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if options.one is not None:
        one = run(options.seeds[0], options.one == "ours", options.minutes, options.processes)
        with dask.config.set({"hpc.pool.hold": HOLD}):
            print(json.dumps(asdict(asyncio.run(one))))
        return 0
    found = pairs(options)
    verdict = Verdict.of(found)
    if options.json:
        runs = [asdict(run) for pair in found for run in pair]
        print(json.dumps({"runs": runs, "makespan_ratio": verdict.makespan, "holds": verdict.holds}))
    else:
        _show(found, verdict)
    return int(not verdict.holds)


def _show(found: list[tuple[Run, Run]], verdict: Verdict) -> None:
    print("seed cluster  bursts  reversals  arrivals  departures  makespan    node-seconds  failed")
    for pair in found:
        for one in pair:
            print(
                f"{one.seed:<4} {'ours' if one.ours else 'stock':8} {one.bursts:6} {one.reversals:10} "
                f"{one.arrivals:9} {one.departures:11} {one.makespan_s:9.1f} s {one.node_s:13,.0f}  "
                f"{len(one.failures):6}"
            )
    ratios = verdict.makespan_ratios
    ours, stock = verdict.reversals_ours, verdict.reversals_stock
    print(f"reversals: median {ours:g} of ours, {stock:g} of stock's (at most {MOST_REVERSALS:g} of it)")
    spread = f"from {min(ratios):.3f} to {max(ratios):.3f}"
    print(f"makespan, ours to stock's: median {verdict.makespan:.3f} (at most {MOST_MAKESPAN}), {spread}")
    paid = [ours.node_s / stock.node_s for ours, stock in found]
    spread = f"from {min(paid):.2f} to {max(paid):.2f}"
    print(f"node-seconds, ours to stock's: median {statistics.median(paid):.2f}, {spread}")
    for failure in verdict.failures:
        print(failure)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
