"""Steps of an MPI program: from `send` to a callback and to a value on the client, beside deisa-dask.

The ranks are real ones (packages ``mpich`` and ``mpi4py``), each sends its block of a field when it is told
to, and the next step is sent when the last one has arrived: one step in flight. Both ways have a cluster of
one worker process of their own, in turns within a round, and the same analysis (the field's maximum).
The clock runs from the moment the first rank calls `send`, to the beginning of the callback, or to the value
on the client, which with deisa-dask its callback computes. Large blocks go through ADIOS2's SST as well, from
the program to the process that reads: to the array, or to the value. What is not installed is said, and left
out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import psutil
from coupling_keys import measured
from coupling_rank import END, NEXT
from coupling_ranks import FLOWS, PATIENCE_S, Case, Ranks, Took, closed_loop, installed, mpiexec
from distributed import Client
from harness import Options, Row, listed, local_cluster, main, percentile, row
from machine import SEED

import dask_hpc

SST = "ADIOS2 SST"
PARTS = ["beside", "keys", "growth"]
#: Loop time of one key, keys and messages a step, growth of a process in MiB.
KEY_US, KEYS, GROWTH_MIB = 60.0, 4.0, 4.0
#: Rows and columns of the field whose steps are to leave nothing behind.
FLAT = (16, 64)


CASES = (
    Case("1 rank, 8 B", 1, 1, 1, (0.5, 0.4, 0.5), 3.0),
    Case("4 ranks, 8 B", 4, 1, 1, (0.5, 0.25, 0.25), 6.0),
    Case("1 rank, 8 MiB", 1, 1024, 1024, (0.5, 0.35, 0.3), None, sst=True),
)


def most(ds: Any) -> float:
    """The analysis."""
    return float(ds["T"].max())


def ours(client: Client, case: Case, steps: int) -> Took:
    """Seconds of each step, by what it was timed to."""
    took: Took = {name: [] for name in (*FLOWS, "held")}
    runtime = dask_hpc.install(client)
    field = {"T": (("y", "x"), (case.ranks * case.rows, case.columns), "float64")}
    ranks = Ranks("ours", client.scheduler.address, case)
    called: queue.SimpleQueue[float] = queue.SimpleQueue()
    try:
        flow = runtime.couple("callback", field)
        flow.on_step(lambda step, ds: called.put(time.monotonic()))
        closed_loop(ranks, steps, partial(called.get, timeout=PATIENCE_S), took, "callback")
        later = runtime.couple("value", field)
        later.analyse(most, name="most")
        values = later.results("most", timeout=PATIENCE_S)
        ranks.say(NEXT)

        def value() -> float:
            next(values)
            return time.monotonic()

        closed_loop(ranks, steps, value, took, "value")
        ranks.say(END)
    finally:
        ranks.end()
    flow.close()
    later.close()
    return took


def deisa(client: Client, case: Case, steps: int) -> Took:
    """The same of deisa-dask."""
    os.environ["DEISA_DASK_SCHEDULER_ADDRESS"] = client.scheduler.address
    from deisa.dask import Deisa

    took: Took = {name: [] for name in (*FLOWS, "held")}
    ranks = Ranks("deisa", client.scheduler.address, case)
    consumer = Deisa()
    called: queue.SimpleQueue[float] = queue.SimpleQueue()

    def callback(window: list[Any]) -> None:
        called.put(time.monotonic())

    def value(window: list[Any]) -> None:
        float(window[-1].max().compute(scheduler=consumer.client))
        called.put(time.monotonic())

    try:
        for name, function in (("callback", callback), ("value", value)):
            consumer.register_callback(function, "T")
            closed_loop(ranks, steps, partial(called.get, timeout=PATIENCE_S), took, name)
            consumer.unregister_callback(function.callback_id)  # type: ignore[attr-defined]
            ranks.say(NEXT if name == "callback" else END)
    finally:
        ranks.end()
        consumer.client.close()
    return took


def sst(client: Client, case: Case, steps: int) -> Took:
    """The same of ADIOS2's SST; this process reads, and no cluster has a part in it."""
    from adios2 import Adios, Stream

    took: Took = {name: [] for name in (*FLOWS, "held")}
    adios = Adios()

    def arrived(stream: Any, function: Callable[[Any], Any]) -> float:
        stream.begin_step()
        function(stream.read("T"))
        at_s = time.monotonic()
        stream.end_step()
        return at_s

    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks("adios2", f"{folder}/steps", case)
        try:
            for name, function in (("callback", lambda array: None), ("value", np.max)):
                io = adios.declare_io(f"read {name}")
                io.set_engine("SST")
                with Stream(io, f"{folder}/steps-{name}", "r") as stream:
                    closed_loop(ranks, steps, partial(arrived, stream, function), took, name)
                    ranks.say(NEXT if name == "callback" else END)
        finally:
            ranks.end()
    return took


def beside(case: Case, options: Options, ways: dict[str, Callable[..., Took]]) -> Iterator[Row]:
    """Times of each way, and ours over deisa-dask's, round by round."""
    rounds, steps = options.pick((3, 60), (2, 30), (1, 4))
    chance = random.Random(SEED)
    ways = {way: its for way, its in ways.items() if way != SST or case.sst}
    found: dict[str, list[Took]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in chance.sample(list(ways), len(ways)):
            with local_cluster(1) as client:
                found[way].append(ways[way](client, case, steps))
    for name, bar in zip((*FLOWS, "held"), case.bars, strict=True):
        what = f"{case.name}: " + {"held": "seconds that send holds"}.get(name, f"send to {name}")
        medians = {way: [statistics.median(each[name]) for each in took] for way, took in found.items()}
        for way, took in found.items():
            samples = [s * 1000 for each in took for s in each[name]]
            quiet = case.quiet_ms if (way, name) == ("ours", "callback") else None
            yield row(
                f"{what}, {way}", samples, "ms", bar=quiet, limit=None if quiet is None else float("inf"),
                note=f"p99 {percentile(samples, 0.99):.1f}",
            )  # fmt: skip
        for way, highest in (("deisa-dask", bar), (SST, 1.0)):
            if way in medians:
                ratios = [mine / its for mine, its in zip(medians["ours"], medians[way], strict=True)]
                yield row(f"{what}, ratio to {way}", ratios, "", bar=highest)


# ---------------------------------------------------------------------- alone


@contextmanager
def sources(name: str, scheduler: str, ranks: int, shape: tuple[int, int]) -> Iterator[Callable[..., None]]:
    """Ranks in threads of this process; gives what has all of them send so many steps."""
    made: list[Any] = [None] * ranks
    sent = 0

    def each(function: Callable[[int], Any]) -> None:
        threads = [threading.Thread(target=function, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def join(rank: int) -> None:
        made[rank] = dask_hpc.Source(name, scheduler, rank=rank, size=ranks)

    def send(steps: int) -> None:
        nonlocal sent
        block = np.ones(shape)

        def work(rank: int) -> None:
            for step in range(sent, sent + steps):
                made[rank].send(step, {"T": block}, at={"y": rank * shape[0]})

        each(work)
        sent += steps

    each(join)
    yield send
    each(lambda rank: made[rank].close())


def many_ranks(options: Options) -> Iterator[Row]:
    """Keys and messages of a step of many ranks, and what a key costs the scheduler's loop.

    Each run has processes of its own: the same code takes longer in some than in others.
    """
    ranks, steps, runs = options.pick((64, 60, 5), (64, 60, 2), (8, 10, 1))
    each_us: list[list[float]] = []
    shares_us, wholes_us, stocks_us, ratios = [], [], [], []
    keys_a_step, messages = [], []
    for _ in range(runs):
        found = measured(ranks, 4, steps)
        keys, asked = found.took_us["flow_whole"], found.took_us["flow_begin"]
        keys_a_step.append(len(keys) / found.steps)
        messages.append((len(keys) + len(asked)) / found.steps)
        # what a step costs besides is shared by its keys
        others = ("flow_begin", "flow_events", "flow_done")
        shares_us.append(sum(sum(found.took_us[name]) for name in others) / len(keys))
        each_us.append([us + shares_us[-1] for us in keys])
        wholes_us.append(statistics.median(found.loop_us) / keys_a_step[-1])
        stocks_us.append(statistics.median(found.stock_us))
        ratios.append(statistics.median(each_us[-1]) / stocks_us[-1])
    yield row(f"{ranks} ranks on 4 workers: keys a step", keys_a_step, "keys", bar=KEYS)
    yield row(f"{ranks} ranks on 4 workers: messages a step", messages, "messages", bar=KEYS)
    all_us = [us for run in each_us for us in run]
    least_us, most_us = percentile(all_us, 0.25), percentile(all_us, 0.75)
    note = "medians of runs with processes of their own, from the call to the answer, what they wait for "
    note += f"left out; of it {statistics.median(shares_us):.0f} us a share of what the client asks and says "
    note += f"of the step; half of the keys take {least_us:.0f} to {most_us:.0f} us"
    medians_us = [statistics.median(us) for us in each_us]
    name = "loop time for a key: handlers of all messages of a step"
    yield row(name, medians_us, "us", bar=KEY_US, note=note)
    note = "also to read and to answer its messages, what the client asks, tasks of coming steps, "
    note += "to let go of earlier ones, heartbeats"
    yield row("loop time for a key: all that the loop does meanwhile", wholes_us, "us", note=note)
    yield row("loop time of stock's handler for a key that is scattered", stocks_us, "us")
    yield row("handlers for a key, ratio to stock's for one that is scattered", ratios, "")


def flat(options: Options) -> Iterator[Row]:
    """How much more memory the processes have after many steps, and after as many tasks of stock Dask.

    Each way has processes of its own: what one has let go of is not there for the other.
    """
    steps = options.pick(10_000, 3_000, 60)
    found = {}
    for way in ("ours", "stock"):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found[way] = pool.submit(grown, way, steps).result()
    note = f"from step {steps // 5:,} to {steps:,}"
    for name, mib in found["ours"].items():
        stock = found["stock"][name]
        yield row(f"growth of the {name}", [mib], "MiB", stock=stock, note=note)
        yield row(f"growth of the {name} above stock's", [mib - stock], "MiB", bar=GROWTH_MIB, note=note)


def grown(way: str, steps: int) -> dict[str, float]:
    """MiB by which each process grows, the first fifth of the steps left out."""
    with local_cluster(1) as client:
        pids = {"worker": next(iter(client.run(os.getpid).values())), "client and scheduler": os.getpid()}
        before: dict[str, float] = {}
        with (stepping if way == "ours" else computing)(client) as go:
            for count in (steps // 5, steps - steps // 5):
                go(count)
                used = {name: psutil.Process(pid).memory_info().rss / 2**20 for name, pid in pids.items()}
                before = before or used
        return {name: now - before[name] for name, now in used.items()}


@contextmanager
def stepping(client: Client) -> Iterator[Callable[[int], None]]:
    """Gives what sends so many steps, of which an analysis of the last two is read."""
    flow = dask_hpc.install(client).couple("flat", {"T": (("y", "x"), FLAT, "float64")})
    flow.analyse(most, name="most", window=2)
    values = flow.results("most", timeout=PATIENCE_S)
    read = threading.Thread(target=lambda: [None for _ in values])
    read.start()
    with sources("flat", client.scheduler.address, 1, FLAT) as send:
        yield send
    read.join()
    flow.close()


@contextmanager
def computing(client: Client) -> Iterator[Callable[[int], None]]:
    """Gives what has as many tasks computed by stock Dask: a block, and a value of the last two."""
    blocks: deque[Any] = deque([client.submit(np.ones, FLAT, pure=False)], maxlen=2)

    def go(steps: int) -> None:
        for _ in range(steps):
            blocks.append(client.submit(np.ones, FLAT, pure=False))
            client.submit(larger, *blocks, pure=False).result()

    yield go


def larger(*blocks: np.ndarray) -> float:
    """The same analysis of plain arrays."""
    return float(np.stack(blocks).max())


def run(options: Options) -> list[Row]:
    ways: dict[str, Callable[..., Took]] = {"ours": ours}
    missing = [*installed("mpi4py", "deisa"), *([] if mpiexec() else ["mpiexec"])]
    if missing:
        print(f"not installed: {', '.join(missing)}; ours alone", file=sys.stderr)
    else:
        ways["deisa-dask"] = deisa
    if installed("adios2"):
        print("not installed: adios2; its rows are left out", file=sys.stderr)
    else:
        ways[SST] = sst
    parts: dict[str, Callable[[Options], Iterator[Row]]] = {"keys": many_ranks, "growth": flat}
    cases = options.pick(CASES, CASES, CASES[:1])
    found = [row for case in cases if "beside" in options.given.only for row in beside(case, options, ways)]
    return [*found, *(row for name in options.given.only if name in parts for row in parts[name](options))]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark alone."""
    parser.add_argument("--only", type=listed(PARTS), default=PARTS, help=f"of {', '.join(PARTS)}")


if __name__ == "__main__":
    main("coupling", __doc__.splitlines()[0], run, arguments)
