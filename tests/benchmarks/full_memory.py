"""Workers whose memory is nearly full write checkpoints of all they hold: how near they come to pausing.

A worker process is filled with results to 90 % of its memory limit, of which Dask has put a third on disk by
then, or to 90 % of what it holds in memory at most (``distributed.worker.memory.target``). Once its memory is
at rest it is looked at for a while, and then while all results are written to the memory of its host, that of
another one, and the disk. Kinds of values, fills and levels take turns; sizes of blocks are drawn. Process
memory is what the kernel says, which is what Dask compares with its thresholds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, Future, wait
from harness import Options, Row, main, quartiles
from machine import SEED

import dask_hpc

LIMIT_BYTES = 2**29
#: Shares of the memory limit: what Dask keeps in memory, from where on it spills, and pauses.
TARGET, SPILL, PAUSE = (
    dask.config.get(f"distributed.worker.memory.{name}") for name in ("target", "spill", "pause")
)
#: Bytes of results over the memory limit.
FILLS = {"90 % of the limit": 0.9, "90 % of the target": 0.9 * TARGET}
HOSTS = ("full", "other")
LEVELS = (("L1",), ("L1", "L2"), ("L3",), ("L1", "L2", "L3"))
#: Blocks have between these many bytes.
SMALLEST, LARGEST = 2**18, 2**24
#: How often process memory is looked at, how long without writing, and it is at rest by then, in seconds.
LOOK_S, IDLE_S, REST_S = 0.003, 0.5, 60.0


def array(nbytes: int, seed: int) -> np.ndarray:
    """Bytes that nothing makes smaller, which look no further back than this."""
    return np.resize(np.random.default_rng(seed).integers(0, 256, min(nbytes, 2**20), np.uint8), nbytes)


def transposed(nbytes: int, seed: int) -> np.ndarray:
    """An array that lies in memory in another order than it is written in."""
    return array(nbytes, seed)[: nbytes // 64 * 64].reshape(64, -1).T


def python(nbytes: int, seed: int) -> list[bytes]:
    """A Python value, which is pickled as a whole."""
    return [array(nbytes, seed).tobytes()]


KINDS = (array, transposed, python)


@dataclass(frozen=True)
class Case:
    """What one run writes."""

    seed: int
    kind: Any
    fill: str
    levels: tuple[str, ...]
    block_bytes: int


def cases(runs: int, seed: int) -> Iterator[Case]:
    """All combinations in a drawn order, again and again."""
    chance, combinations = random.Random(seed), list(itertools.product(KINDS, FILLS, LEVELS))
    chance.shuffle(combinations)
    for number, (kind, fill, levels) in zip(range(runs), itertools.cycle(combinations), strict=False):
        block_bytes = int(SMALLEST * (LARGEST / SMALLEST) ** chance.random())
        yield Case(seed + number, kind, fill, levels, block_bytes)


class Worker:
    """The worker that is filled."""

    def __init__(self, client: Client, address: str) -> None:
        self.client, self.address = client, address
        self._process = psutil.Process(client.run(os.getpid, workers=[address])[address])

    @property
    def memory(self) -> float:
        """Process memory over the pause threshold."""
        return float(self._process.memory_info().rss / (PAUSE * LIMIT_BYTES))

    @property
    def there(self) -> bool:
        """Whether its process runs."""
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    @property
    def pauses(self) -> int:
        """How often it has paused."""
        told = [event for _, event in self.client.get_events(self.address)]
        return sum(isinstance(event, dict) and event.get("status") == "paused" for event in told)

    def rest(self) -> None:
        """Wait until it has spilled all it is to, and its memory stays what it is."""
        deadline_s, last, since_s = time.monotonic() + REST_S, 0.0, time.monotonic()
        while time.monotonic() - since_s < IDLE_S:
            now_s, now = time.monotonic(), self.memory
            assert now_s < deadline_s, f"memory is {now:.2f} of the pause threshold, and changes"
            if abs(now - last) > 0.01 or now > SPILL / PAUSE:
                last, since_s = now, now_s
            time.sleep(0.02)

    @contextmanager
    def watched(self) -> Iterator[Looked]:
        """Looks at its memory meanwhile."""
        looked, stop, before = Looked(), threading.Event(), self.pauses

        def look() -> None:
            with suppress(psutil.NoSuchProcess):
                while not stop.wait(LOOK_S):
                    looked.most = max(looked.most, self.memory)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield looked
        finally:
            stop.set()
            thread.join()
            assert self.there, f"it was killed by its nanny, at {looked.most:.2f} of the pause threshold"
            looked.paused = self.pauses > before


@dataclass
class Looked:
    """What was seen: the most process memory over the pause threshold, and whether the worker paused."""

    most: float = 0.0
    paused: bool = False


def filled(client: Client, worker: Worker, case: Case) -> list[Future]:
    """Results on the worker."""
    count = max(1, round(FILLS[case.fill] * LIMIT_BYTES / case.block_bytes))
    seeds = range(1000 * case.seed, 1000 * case.seed + count)
    made = client.map(case.kind, [case.block_bytes] * count, seeds, workers=[worker.address], pure=False)
    wait(made)
    return list(made)


def one(client: Client, runtime: Any, worker: Worker, case: Case) -> tuple[Looked, Looked]:
    """A run: what was seen without writing, and with."""
    made = filled(client, worker, case)
    worker.rest()
    with worker.watched() as idle:
        time.sleep(IDLE_S)
    with worker.watched() as writing:
        commit = runtime.checkpoint(made, "full", levels=case.levels, wait=False)
        while worker.there and commit.status()["state"] not in ("complete", "failed"):
            time.sleep(LOOK_S)
    told = commit.status()
    assert told["levels"] == list(case.levels), told["reason"]
    client.cancel(made)
    return idle, writing


def _host() -> str:
    return os.environ["DASK_HPC__NODE__HOST"]


@contextmanager
def cluster() -> Iterator[tuple[Client, Any, Worker]]:
    """The worker that is filled, and another one on another host."""
    first, other = ({"DASK_HPC__NODE__HOST": name} for name in HOSTS)
    # not /tmp: that may be memory
    with (
        tempfile.TemporaryDirectory(dir=os.getcwd()) as folder,
        dask.config.set({"hpc.checkpoint.store": folder}),
        dask_hpc.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit=LIMIT_BYTES,
            dashboard_address=":0",
            env=first,
            pools={"other": {"n_workers": 1, "env": other}},
        ) as made,
        Client(made) as client,
    ):
        client.wait_for_workers(2)
        runtime, told = dask_hpc.install(client, policy="fcfs"), client.run(_host)
        yield client, runtime, Worker(client, next(each for each in told if told[each] == HOSTS[0]))


def arguments(parser: argparse.ArgumentParser) -> None:
    """How many runs, and which."""
    parser.add_argument("--runs", type=int, metavar="N", help="runs (100; --fast 24, --tiny 4)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first run")


def run(options: Options) -> list[Row]:
    runs = options.given.runs or options.pick(100, 24, 4)
    with cluster() as (client, runtime, worker):
        seen = [(case, *one(client, runtime, worker, case)) for case in cases(runs, options.given.seed)]
    idle, writing = [first for _, first, _ in seen], [second for _, _, second in seen]
    rows = [
        most("while writing", writing, bar=1.0),
        paused("while writing", writing, bar=0.0),
        most("without", idle),
        paused("without", idle),
    ]
    for kind, fill in itertools.product(KINDS, FILLS):
        if found := [looked for case, _, looked in seen if (case.kind, case.fill) == (kind, fill)]:
            rows.append(most(f"while writing: {kind.__name__}, {fill}", found))
    return rows


def most(name: str, looked: list[Looked], bar: float | None = None) -> Row:
    """The most of all runs, and quartiles of them."""
    low, high = quartiles([one.most for one in looked])
    name = f"{name}: most process memory over the pause threshold, ratio"
    note = f"of {len(looked)} runs; the limit is {LIMIT_BYTES >> 20} MiB"
    return Row(
        name=name, value=max(one.most for one in looked), unit="", low=low, high=high, bar=bar, note=note
    )


def paused(name: str, looked: list[Looked], bar: float | None = None) -> Row:
    """Runs in which the worker paused."""
    return Row(
        name=f"{name}: the worker paused", value=sum(one.paused for one in looked), unit="runs", bar=bar
    )


if __name__ == "__main__":
    main("full_memory", __doc__.splitlines()[0], run, arguments)
