"""Small graphs of every shape that is placed differently, with the values they must give.

Every builder submits through the client it is given and returns pairs of a future and what its result
must be. Keys are numbered, so that a failing sequence can be read.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask import config
from distributed import Client, rejoin, secede, worker_client


class TaskFailedOnPurpose(Exception):
    """What a task raises that is meant to fail."""


def nap(x: int, seconds: float) -> int:
    """One more than `x`, after a nap."""
    time.sleep(seconds)
    return x + 1


def total(values: list[int], seconds: float) -> int:
    """Sum of `values`, after a nap."""
    time.sleep(seconds)
    return sum(values)


def add(x: int, y: int) -> int:
    """A task with two dependencies."""
    return x + y


def fail(x: int) -> int:
    """A task that is meant to fail."""
    raise TaskFailedOnPurpose(x)


def step_aside(x: int, seconds: float) -> int:
    """Leave the thread pool for a while and come back."""
    secede()
    time.sleep(seconds)
    rejoin()
    return x + 1


def submit_more(x: int, count: int, seconds: float) -> int:
    """A task that submits tasks and waits for them."""
    with worker_client(timeout=20) as client:
        # A key of their own for every run: a second run must not meet what the first left behind
        futures = [client.submit(nap, x + i, seconds, pure=False) for i in range(count)]
        return sum(client.gather(futures))


#: What takes long takes so many seconds: more than a busy machine delays anything else.
LONG_S = 0.7


@dataclass(frozen=True)
class Goal:
    """One future and what has to become of it."""

    future: Any
    value: Any
    #: It raises `TaskFailedOnPurpose` instead of giving `value`.
    fails: bool = False
    #: A P2P shuffle makes it.
    shuffles: bool = False


@dataclass
class Maker:
    """What a builder works with."""

    client: Client
    rng: random.Random
    #: Addresses of connected workers.
    addresses: list[str]
    #: Finished results of other graphs that may be used: (future, value). A job that waited for another
    #: one's unfinished tasks could hold the nodes that those need: no scheduler can help that.
    earlier: list[tuple[Any, Any]]
    numbers: itertools.count[int]

    def keys(self, name: str, count: int) -> list[str]:
        """New keys."""
        number = next(self.numbers)
        return [f"{name}-{number}-{i}" if i else f"{name}-{number}" for i in range(count)]

    def nap_s(self) -> float:
        """How long a task takes."""
        return self.rng.choice((0.0, 0.001, 0.003, 0.01, 0.03))

    def map(self, count: int, **kwargs: Any) -> list[Any]:
        """A row of root tasks; task i gives i + 1."""
        seconds = self.nap_s()
        return self.client.map(nap, range(count), seconds=seconds, key=self.keys("root", count), **kwargs)


def roots(maker: Maker) -> list[Goal]:
    """Many tasks without dependencies: the kind that stock queues."""
    futures = maker.map(maker.rng.randint(5, 60))
    return [Goal(future, i + 1) for i, future in enumerate(futures)]


def long(maker: Maker) -> list[Goal]:
    """A few that take long: whether a drain waits for one shows."""
    count = maker.rng.randint(1, 3)
    futures = maker.client.map(nap, range(count), seconds=LONG_S, key=maker.keys("long", count))
    return [Goal(future, i + 1) for i, future in enumerate(futures)]


def pairs(maker: Maker) -> list[Goal]:
    """Roots with one dependent each; only the dependents are wanted."""
    count = maker.rng.randint(4, 25)
    first = maker.map(count)
    second = maker.client.map(nap, first, seconds=maker.nap_s(), key=maker.keys("dependent", count))
    return [Goal(future, i + 2) for i, future in enumerate(second)]


def tree(maker: Maker) -> list[Goal]:
    """A reduction by twos."""
    count = 2 ** maker.rng.randint(2, 4)
    level = maker.map(count)
    while len(level) > 1:
        keys = maker.keys("tree", len(level) // 2)
        level = maker.client.map(add, level[::2], level[1::2], key=keys)
    return [Goal(level[0], count * (count + 1) // 2)]


def shared(maker: Maker) -> list[Goal]:
    """Root-like tasks that share one dependency."""
    count = maker.rng.randint(10, 40)
    first = maker.client.submit(nap, 0, maker.nap_s(), key=maker.keys("shared", 1)[0])
    second = maker.client.map(add, [first] * count, range(count), key=maker.keys("sharing", count))
    return [Goal(future, i + 1) for i, future in enumerate(second)]


def rechunk(maker: Maker) -> list[Goal]:
    """A P2P rechunk: its outputs are pinned by the shuffle, never held."""
    side, number = maker.rng.choice((8, 12)), next(maker.numbers)
    first = number * 1000
    with config.set({"array.rechunk.method": "p2p"}):
        # Values of their own, so that no key is known from another graph
        rows = da.arange(first, first + side * side, chunks=side).reshape(side, side)
        future = maker.client.compute(rows.rechunk((side, 2)).sum(axis=0))
    expected = np.arange(first, first + side * side).reshape(side, side).sum(axis=0)
    return [Goal(future, expected, shuffles=True)]


def restricted(maker: Maker) -> list[Goal]:
    """Tasks that the user tied to some workers, or to the host that all of them are on."""
    where: Any = maker.rng.choice(("127.0.0.1", maker.rng.choice(maker.addresses)))
    futures = maker.map(
        maker.rng.randint(2, 10), workers=[where], allow_other_workers=maker.rng.random() < 0.3
    )
    return [Goal(future, i + 1) for i, future in enumerate(futures)]


def seceding(maker: Maker) -> list[Goal]:
    """Tasks that leave their thread for a while."""
    count = maker.rng.randint(2, 8)
    futures = maker.client.map(
        step_aside, range(count), seconds=maker.nap_s(), key=maker.keys("secede", count)
    )
    return [Goal(future, i + 1) for i, future in enumerate(futures)]


def submitting(maker: Maker) -> list[Goal]:
    """Tasks that submit tasks."""
    count, inner, seconds = maker.rng.randint(1, 4), maker.rng.randint(1, 4), maker.nap_s()
    futures = maker.client.map(
        submit_more, range(count), count=inner, seconds=seconds, key=maker.keys("submit-more", count)
    )
    return [Goal(future, sum(x + i + 1 for i in range(inner))) for x, future in enumerate(futures)]


def failing(maker: Maker) -> list[Goal]:
    """A task that fails, and one that depends on it."""
    first = maker.client.submit(fail, 1, key=maker.keys("fail", 1)[0], retries=maker.rng.randint(0, 1))
    second = maker.client.submit(nap, first, 0.0, key=maker.keys("after-fail", 1)[0])
    return [Goal(second, None, fails=True)]


def consuming(maker: Maker) -> list[Goal]:
    """A task that uses results of other graphs, whichever job they belong to."""
    if not maker.earlier:
        return roots(maker)
    chosen = maker.rng.sample(maker.earlier, min(6, len(maker.earlier)))
    future = maker.client.submit(
        total, [future for future, _ in chosen], maker.nap_s(), key=maker.keys("consume", 1)[0]
    )
    return [Goal(future, sum(value for _, value in chosen))]


#: Builders by name, with their weight in a random sequence.
GRAPHS: dict[str, tuple[Callable[[Maker], list[Goal]], int]] = {
    "roots": (roots, 4),
    "long": (long, 1),
    "pairs": (pairs, 3),
    "tree": (tree, 3),
    "shared": (shared, 2),
    "rechunk": (rechunk, 2),
    "restricted": (restricted, 1),
    "seceding": (seceding, 2),
    "submitting": (submitting, 2),
    "failing": (failing, 1),
    "consuming": (consuming, 2),
}
