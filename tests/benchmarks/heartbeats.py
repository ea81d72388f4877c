"""What our plugin on every worker costs its heartbeats: bytes of the message, and time of the event loops.

Real workers on sockets of this machine, in one event loop with their scheduler: stock, with the runtime
installed and nothing switched on, and (information) with a job that does nothing. Configurations take turns,
in a shuffled order, each on a cluster of its own; a repetition gives one ratio to stock. A message is
measured as the scheduler gets it; what it has more is what stock's have no name for, since numbers take more
or fewer bytes from one message to the next. Time is CPU of the loop's thread, of the worker that makes the
message and the scheduler that takes it in together.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import Client, Scheduler, Worker
from distributed.protocol import dumps
from harness import Options, Row, main, row
from machine import DEADLINE_S, SEED, without_gc

import dask_hpc
from dask_hpc.wire import WORKER_PLUGIN

#: Bytes that a heartbeat may have which stock's have not.
BAR_BYTES = 0.0
#: The most of stock's time.
BAR_RATIO = 1.03
#: Nothing else than what is counted sends heartbeats, and nothing else looks around.
QUIET = {
    "distributed.scheduler.worker-ttl": None,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "1 h",
}


@dataclass
class Sample:
    """One cluster of one configuration."""

    us: float
    #: What the scheduler got.
    messages: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Of all metrics and extensions that a message had."""
        parts = [part for message in self.messages for part in (message["metrics"], message["extensions"])]
        return set().union(*parts)

    @property
    def size(self) -> float:
        """Bytes of a message."""
        return statistics.median(_bytes(message) for message in self.messages)

    def more(self, names: set[str]) -> float:
        """Bytes of a message that are not of these metrics and extensions."""
        found = []
        for message in self.messages:
            known = dict(message)
            for part in ("metrics", "extensions"):
                known[part] = {name: value for name, value in message[part].items() if name in names}
            found.append(_bytes(message) - _bytes(known))
        return float(max(found))


def _bytes(message: Mapping[str, Any]) -> int:
    return sum(map(len, dumps(dict(message))))


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not come within {DEADLINE_S:g} s")
        await asyncio.sleep(0.01)


async def sample(workers: int, beats: int, installed: bool, job: bool) -> Sample:
    """Heartbeats, and microseconds that the loop works for each."""
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            Scheduler(dashboard=False, dashboard_address=":0", host="127.0.0.1", validate=False)
        )
        made = [
            await stack.enter_async_context(Worker(scheduler.address, nthreads=1, name=str(number)))
            for number in range(workers)
        ]
        for worker in made:
            worker.periodic_callbacks["heartbeat"].stop()
        if installed:
            client = await stack.enter_async_context(Client(scheduler.address, asynchronous=True))
            runtime = await dask_hpc.install(client)
            await _until(lambda: all(WORKER_PLUGIN in one.plugins for one in made), "the plugin")
            if job:
                declared = await stack.enter_async_context(runtime.job("idle", nodes=1))
                await _until(lambda: bool(scheduler.plugins.get("dask-hpc")), f"the start of {declared}")
        messages: list[Mapping[str, Any]] = []
        taken = scheduler.handlers["heartbeat_worker"]

        def take(**message: Any) -> Any:
            messages.append(message)
            return taken(**message)

        scheduler.handlers["heartbeat_worker"] = take
        for worker in made:
            await worker.heartbeat()
        messages.clear()
        with without_gc():
            began_s = time.thread_time()
            for _ in range(beats):
                for worker in made:
                    await worker.heartbeat()
            took_s = time.thread_time() - began_s
        assert len(messages) == beats * workers
        return Sample(took_s * 1e6 / len(messages), messages)


CASES = {
    "stock": (False, False),
    "stock again": (False, False),
    "asleep": (True, False),
    "awake": (True, True),
}


def run(options: Options) -> list[Row]:
    workers, beats, rounds = options.pick((8, 60, 11), (8, 30, 5), (2, 3, 2))
    chance = random.Random(SEED)
    samples: dict[str, list[Sample]] = {name: [] for name in CASES}
    with dask.config.set(QUIET):
        # the first warms caches
        for number in range(rounds + 1):
            for name in chance.sample(list(CASES), len(CASES)):
                installed, job = CASES[name]
                found = asyncio.run(sample(workers, beats, installed, job))
                if number:
                    samples[name].append(found)
    stock = samples["stock"]
    names = set().union(*(one.names for one in stock))
    stock_bytes = statistics.median(one.size for one in stock)
    rows = []
    for name, text, held in (
        ("stock again", "stock against itself", False),
        ("asleep", "installed, nothing switched on", True),
        ("awake", "an idle job", False),
    ):
        bar_bytes, bar_ratio = (BAR_BYTES, BAR_RATIO) if held else (None, None)
        more = [one.more(names) for one in samples[name]]
        ratios = [ours.us / its.us for ours, its in zip(samples[name], stock, strict=True)]
        rows += [
            row(f"{text}: more than stock", more, "bytes", bar=bar_bytes, stock=stock_bytes),
            row(f"{text}: loop time, ratio to stock", ratios, "", bar=bar_ratio),
        ]
    return [*rows, row("loop time of a heartbeat, stock", [one.us for one in stock], "us")]


if __name__ == "__main__":
    main("heartbeats", __doc__.splitlines()[0], run)
