"""What a cluster that shrinks can lose, made on it before and asked for after."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import distributed
import numpy as np
from distributed import Client
from elastic_places import Place
from elastic_work import Ledger, MovingLedger, Tally, make, result_of, shuffled, work
from waits import until

KINDS = ("computed", "scattered", "actor", "moving actor", "p2p")
#: What is there with the kind ``all``; a name of an actor is there once.
_ALL = ("computed", "scattered", "actor", "p2p")
#: How long to wait for results that may be lost.
GIVE_UP_S = 20.0


class Stakes:
    """Results, scattered data, an actor, a shuffle, or all of them; and tasks that execute meanwhile.

    Parameters
    ----------
    place
        Where.
    client, tally
        Of the same cluster, with the plugin of the tally on its workers.
    kind
        One of `KINDS`, or ``all``.
    task_s
        Seconds that a task takes on average.
    """

    def __init__(self, place: Place, client: Client, tally: Tally, kind: str, task_s: float) -> None:
        self.place = place
        self.client = client
        self.tally = tally
        self.kinds = _ALL if kind == "all" else (kind,)
        self.task_s = task_s
        self.computed: list[Any] = []
        self.scattered: list[Any] = []
        self.actor: Any = None
        self.array: Any = None
        self.expected: Any = None
        self.load: list[Any] = []

    async def make(self, rng: random.Random) -> None:
        """Make everything; returns when tasks execute, and the shuffle, if there is one, is under way."""
        row, client, scheduler = self.place.row, self.client, self.place.scheduler
        if "computed" in self.kinds:
            self.computed = client.map(make, range(40), key=[f"make-{number}" for number in range(40)])
            await distributed.wait(self.computed)
        if "scattered" in self.kinds:
            self.scattered = await client.scatter([result_of(number) for number in range(20)], hash=False)
        moving = "moving actor" in self.kinds
        if moving or "actor" in self.kinds or row.name == "actor host":
            host = self.place.workers(row.victims[-1])
            cls = MovingLedger if moving else Ledger
            self.actor = await client.submit(cls, actor=True, key="ledger", workers=host)
            assert await self.actor.add(1) == 1
        if "p2p" in self.kinds:
            self._shuffle()
        self._submit(rng)
        if "p2p" in self.kinds:
            shuffles = scheduler.plugins["shuffle"]
            await until(lambda: shuffles.active_shuffles, "the shuffle is under way")
        if not row.timed:
            await until(
                lambda: all(ws.processing for ws in scheduler.workers.values()) and self.tally.side_effects(),
                "every worker is busy",
            )
        if len(scheduler.workers) < row.nodes * row.processes:
            raise TimeoutError(f"setting up took longer than workers live; {self.place.left_s():.0f} s left")

    def _shuffle(self) -> None:
        """Start a shuffle whose inputs come until after the trigger."""
        workers, left_s = len(self.place.scheduler.workers), self.place.left_s()
        # as few inputs as there can be: each has a shard for each output
        input_s = max(0.6 * self.task_s, workers * left_s / 56)
        pieces = 16 if not left_s else round(workers * left_s / input_s) + 8
        columns, self.expected = shuffled(10 * pieces, pieces, input_s, self.tally.effects)
        self.array = self.client.compute(columns, priority=5)

    def _submit(self, rng: random.Random) -> None:
        """Submit as many tasks as keep all workers busy until after the trigger, whenever that is."""
        workers, task_s = len(self.place.scheduler.workers), self.task_s
        # inputs of a shuffle come first, and keep them busy, too
        left_s = 0.0 if self.array is not None else self.place.left_s()
        tasks = 12 if not left_s else round(workers * left_s / task_s) + 6
        seconds = [rng.uniform(0.8 * task_s, 1.2 * task_s) for _ in range(tasks)]
        self.load = [
            self.client.submit(
                work, number, seconds[number], self.tally.effects, key=f"work-{number}", priority=number % 2
            )
            for number in range(tasks)
        ]

    async def examine(self, cell: Any) -> None:
        """Ask for everything, and count."""
        computed, load = await _all(self.computed), await _all(self.load)
        scattered = await _all(self.scattered)
        array = (await _all([self.array]))[0] if self.array is not None else None
        if self.actor is not None:
            cell.actor_alive = await _alive(self.actor)
        done = self.tally.completions()
        again = [key for key, count in done.items() if count > 1 and key.startswith(("make-", "work-"))]
        cell.lost_computed = sum(value is None for value in (*computed, *load)) + len(again)
        cell.lost_scattered = sum(value is None for value in scattered)
        cell.twice = self.tally.twice()
        cell.right = (
            computed in ([], [result_of(number) for number in range(40)])
            and load == [number + 1 for number in range(len(self.load))]
            and scattered in ([], [result_of(number) for number in range(20)])
            and (self.expected is None or (array is not None and np.array_equal(array, self.expected)))
        )


async def _all(futures: Sequence[Any]) -> list[Any]:
    """The results, None for each that is gone."""
    return list(await asyncio.gather(*(_one(future) for future in futures)))


async def _one(future: Any) -> Any:
    try:
        return await asyncio.wait_for(future.result(), GIVE_UP_S)
    except (Exception, asyncio.CancelledError):
        return None


async def _alive(actor: Any) -> bool:
    try:
        return bool(await asyncio.wait_for(_add(actor), 5) == 2)
    except Exception:
        return False


async def _add(actor: Any) -> Any:
    return await actor.add(1)
