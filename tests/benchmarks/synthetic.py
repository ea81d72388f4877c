"""What checkpoints cost the synthetic application that saves an array every so often, live.

That of John (2024, section 8.2.3.1), which the simulator has as ``builtin:synthetic``: an array in each
worker, steps of a fixed length that change all of it, and after each interval a commit of it
(`Runtime.checkpoint`), whose writing the steps do not wait for, or do (``waited for``). A step waits for most
of its length, as one on an accelerator does. Runs without commits, with them and with those that are waited
for take turns on one cluster. The keys are those of the simulator's workload, with its bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import wait
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc
from dask_hpc.sim.generators import synthetic

WORKERS = 2
#: The most of a run's time with commits over one without, where the interval hides the transfer.
BAR = 1.05
#: The most that a call may take that protects so many results, in milliseconds.
KEYS_BAR_MS, BLOCKS = 50.0, 10_000
DTYPES = {"char": "i1", "int": "i4", "float": "f4", "double": "f8"}
#: Keys that mean something here.
KEYS = ("cp_size", "cp_type", "cp_interval", "cp_count", "step_s")
#: How a run commits.
WITHOUT, WITH, WAITED_FOR = "without", "with", "waited for"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The keys of the application."""
    for one in synthetic.synthetic.options:
        if one.name in KEYS:
            parser.add_argument(f"--{one.name.replace('_', '-')}", metavar="VALUE", help=one.help)


def keys(options: Options) -> Mapping[str, Any]:
    """Their values: elements of a worker here, not of a process of a node."""
    given = {
        "cp_size": options.pick(2**24, 2**22, 2**19),
        "cp_type": "double",
        "cp_interval": options.pick(5.0, 2.5, 0.5),
        "cp_count": options.pick(200, 100, 10),
        "step_s": 0.1,
    }
    given |= {name: value for name in KEYS if (value := getattr(options.given, name)) is not None}
    return synthetic.synthetic.options.resolve(given)


def step(block: np.ndarray, step_s: float) -> np.ndarray:
    """The array is changed, and the rest of the step's length waited for."""
    end_s = time.perf_counter() + step_s
    found = block + block.dtype.type(1)
    time.sleep(max(0.0, end_s - time.perf_counter()))
    return found


def timed(runtime: Any, values: Mapping[str, Any], how: str) -> tuple[float, list[float], list[Any]]:
    """Seconds that a run takes, those of each call that began a commit, and how the commits ended."""
    size, dtype = values["cp_size"], DTYPES[values["cp_type"]]
    like = np.empty(0, dtype)  # else a step is tried here, which takes as long as one there
    state = da.ones(WORKERS * size, chunks=size, dtype=dtype).persist()
    wait(state)
    calls_s, commits = [], []
    began_s = last_s = time.perf_counter()
    for number in range(values["cp_count"]):
        # no run has results of another: those are there already, or are read back
        name = f"synthetic-{began_s}-{number}"
        state = da.map_blocks(step, state, values["step_s"], meta=like, name=name).persist()
        wait(state)
        if how != WITHOUT and time.perf_counter() - last_s >= values["cp_interval"]:
            if commits:
                # it must be whole by now (equation 6.3), and holds its array until it is asked
                commits[-1].wait(120)
            before_s = time.perf_counter()
            commits.append(runtime.checkpoint(state, "synthetic", wait=how == WAITED_FOR))
            last_s = time.perf_counter()
            calls_s.append(last_s - before_s)
    took_s = time.perf_counter() - began_s
    return took_s, calls_s, [commit.wait(120).status() for commit in commits]


async def longest_turn(dask_scheduler: Any = None) -> float:
    """Longest turn of the scheduler's loop since this was asked last, in milliseconds."""
    known = getattr(dask_scheduler, "longest_ms", None)
    dask_scheduler.longest_ms = 0.0
    if known is None:

        async def look() -> None:
            last_s = time.perf_counter()
            while dask_scheduler.status.name == "running":
                await asyncio.sleep(0.001)
                now_s = time.perf_counter()
                turn_ms = 1e3 * (now_s - last_s)
                dask_scheduler.longest_ms, last_s = max(dask_scheduler.longest_ms, turn_ms), now_s

        dask_scheduler.looking = asyncio.ensure_future(look())
    return known or 0.0


def many(client: Any, runtime: Any, blocks: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of calls that protect many small chunks, and turns of the scheduler's loop until whole."""
    field = da.ones(blocks, chunks=1).persist()
    wait(field)
    client.run_on_scheduler(longest_turn)
    calls_ms, turns_ms = [], []
    for number in range(rounds):
        client.run_on_scheduler(longest_turn)
        began_s = time.perf_counter()
        commit = runtime.checkpoint(field, f"many-{number}", wait=False)
        calls_ms.append(1e3 * (time.perf_counter() - began_s))
        commit.wait(120)
        turns_ms.append(client.run_on_scheduler(longest_turn))
    return calls_ms, turns_ms


def run(options: Options) -> list[Row]:
    values, rounds, chance = keys(options), options.pick(5, 3, 1), random.Random(SEED)
    ratios: dict[str, list[float]] = {WITH: [], WAITED_FOR: []}
    visible_ms: dict[str, list[float]] = {WITH: [], WAITED_FOR: []}
    calls_ms, moved_s, counts = [], [], []
    # not /tmp: that may be memory
    with (
        tempfile.TemporaryDirectory(dir=os.getcwd()) as folder,
        dask.config.set({"hpc.checkpoint.store": folder}),
        dask_hpc.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        runtime = dask_hpc.install(client, policy="fcfs")
        timed(runtime, {**values, "cp_count": 2}, WITHOUT)
        for _ in range(rounds):
            order = chance.sample([WITHOUT, WITH, WAITED_FOR], 3)
            found = {how: timed(runtime, values, how) for how in order}
            without_s = found[WITHOUT][0]
            for how in (WITH, WAITED_FOR):
                took_s, _, ended = found[how]
                assert ended, "no commit: the interval is longer than the run"
                ratios[how].append(took_s / without_s)
                visible_ms[how].append(1e3 * (took_s - without_s) / len(ended))
            _, calls_s, ended = found[WITH]
            calls_ms += [1e3 * one for one in calls_s]
            moved_s += [one["writing_s"] + one["finishing_s"] for one in ended]
            counts.append(len(ended))
        blocks = options.pick(BLOCKS, BLOCKS, 500)
        many_ms, turns_ms = many(client, runtime, blocks, options.pick(11, 5, 2))
    mib = WORKERS * values["cp_size"] * np.dtype(DTYPES[values["cp_type"]]).itemsize / 2**20
    hidden = sum(one <= values["cp_interval"] for one in moved_s)
    every = f"every {values['cp_interval']:g} s, {statistics.median(counts):g} a run"
    what = f"{mib:g} MiB, {values['cp_count']} steps of {values['step_s']:g} s"
    return [
        row(f"{what}: time with commits over without, ratio", ratios[WITH], "", bar=BAR, note=every),
        row(f"{what}: the same, each waited for, ratio", ratios[WAITED_FOR], "", note=every),
        row("a commit: what the run takes longer for each", visible_ms[WITH], "ms"),
        row("a commit that is waited for: the same", visible_ms[WAITED_FOR], "ms"),
        row("a commit: the call, a message and no copy", calls_ms, "ms"),
        row(f"{blocks:,} results, not waited for: the call", many_ms, "ms", bar=KEYS_BAR_MS),
        row(f"{blocks:,} results: the longest turn of the scheduler's loop until whole", turns_ms, "ms"),
        row(
            "a commit: until it is whole",
            moved_s,
            "s",
            note=f"the interval hides {hidden} of {len(moved_s)}; {WORKERS} workers, beside the steps",
        ),
    ]


if __name__ == "__main__":
    main("synthetic", __doc__.splitlines()[0], run, arguments)
