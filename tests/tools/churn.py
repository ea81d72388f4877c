"""Grow and shrink at random under load: ``python tests/tools/churn.py --rounds 50 --seed 0``.

Every round asks six workers at most for another size, while tasks with side effects execute, depend on
each other, and are shuffled. Exits with 1 when a result was wrong or lost, or a task ran twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
from distributed import Client
from elastic_clusters import local
from elastic_work import Tally, result_of, shuffled, work
from waits import until, within

WORKERS = 6
#: A shuffle begins every so many rounds.
_SHUFFLE_EVERY = 6
#: How long all results of the end may take.
_END_S = 120.0


@dataclass
class Churn:
    """What came of all rounds."""

    seed: int
    rounds: int
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every result is right, and nothing was lost or ran twice."""
        return not (self.wrong or self.lost or self.twice)

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        return asdict(self)


def combined(numbers: list[int]) -> int:
    """A task that needs results of several workers."""
    return sum(numbers)


def churn(rounds: int, seed: int, *, processes: bool = False, most_s: float = 0.4) -> Churn:
    """Run so many rounds; tasks take `most_s` at most."""
    with tempfile.TemporaryDirectory(prefix="churn-") as folder:
        return asyncio.run(_churn(Churn(seed, rounds), processes, most_s, Tally(Path(folder))))


class _Moves(distributed.SchedulerPlugin):
    name = "moves"

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self._counts["workers joined"] += 1

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self._counts["workers left"] += 1


async def _churn(report: Churn, processes: bool, most_s: float, tally: Tally) -> Churn:
    rng = random.Random(report.seed)
    expected: dict[Any, Any] = {}
    began_s = time.monotonic()
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        async with (
            local(n_workers=WORKERS, processes=processes) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.register_plugin(tally.plugin)
            moves = _Moves(report.counts)
            cluster.scheduler.add_plugin(moves)
            size = WORKERS
            for number in range(report.rounds):
                expected |= await _load(client, number, rng, most_s, tally, report.counts)
                wanted = rng.randint(1, WORKERS)
                report.counts["shrinks" if wanted < size else "grows" if wanted > size else "same"] += 1
                size = wanted
                cluster.scale(size)
                # now and then the next one comes before this one has ended
                await asyncio.sleep(rng.uniform(0, 2 * most_s))
                if rng.random() < 0.5:
                    await _size(cluster, size)
            await _compare(report, expected)
            cluster.scheduler.remove_plugin(moves.name)
            report.twice = [f"{key}: {', '.join(tally.story(key))}" for key in tally.twice()]
            report.counts["tasks executed"] = tally.starts().total()
    report.duration_s = round(time.monotonic() - began_s, 1)
    return report


async def _size(cluster: Any, size: int) -> None:
    await until(lambda: len(cluster.scheduler.workers) == size, f"{size} workers", _END_S)


async def _load(
    client: Client, number: int, rng: random.Random, most_s: float, tally: Tally, counts: Counter[str]
) -> dict[Any, Any]:
    """Submit the work of one round; gives the futures and what they must be."""
    expected: dict[Any, Any] = {}
    tasks = []
    for place in range(rng.randint(6, 12)):
        value = 100 * number + place
        seconds = rng.uniform(0.1, 1) * most_s
        task = client.submit(work, value, seconds, tally.effects, key=f"work-{value}")
        tasks.append(task)
        expected[task] = value + 1
    chosen = rng.sample(tasks, 4)
    total = client.submit(combined, chosen, key=f"combined-{number}")
    expected[total] = sum(expected[task] for task in chosen)
    scattered = await client.scatter([result_of(number)], hash=False)
    expected[scattered[0]] = result_of(number)
    if number % _SHUFFLE_EVERY == 0:
        side = 10 * (8 + number)
        array, value = shuffled(side, side // 10, most_s / 8, tally.effects)
        expected[client.compute(array)] = value
        counts["shuffles"] += 1
    counts["tasks"] += len(tasks) + 1
    counts["scattered"] += 1
    return expected


async def _compare(report: Churn, expected: dict[Any, Any]) -> None:
    for future, value in expected.items():
        try:
            found = await within(future.result(), _END_S)
        except (Exception, asyncio.CancelledError) as error:
            report.lost.append(f"{future.key}: {error!r}")
            continue
        if not np.array_equal(found, value):
            report.wrong.append(str(future.key))


def main() -> int:
    parser = argparse.ArgumentParser(description="Random sizes under load.")
    parser.add_argument("--rounds", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random (default 0)")
    parser.add_argument("--processes", action="store_true", help="workers are processes: slower")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    report = churn(options.rounds, options.seed, processes=options.processes)
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        rows = {"seed": report.seed, "rounds": report.rounds, **report.counts}
        rows |= {name: len(getattr(report, name)) for name in ("wrong", "lost", "twice")}
        for name, value in {**rows, "duration_s": report.duration_s}.items():
            print(f"{name:20}{value:>10,}")
        for fault in (*report.wrong, *report.lost, *report.twice):
            print(fault)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
