"""One user alone on a cluster: what our runtime costs when nobody contends.

Eight shapes of work, on stock Dask, inside a job, and as plain work beside a job of somebody else that has no
tasks. The three take turns in shuffled order; each repetition gives one ratio of times, and one of the most
memory that the workers' processes held meanwhile (Linux tells and forgets it: proc(5), clear_refs). CPU
seconds are those of the workers and of this process, which has the schedulers and clients of both, over all
shapes.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import shapes
from distributed import Client, wait
from harness import Options, Row, row
from machine import SEED

import dask_hpc

BAR = 1.02
MEMORY_BAR = 1.05
#: The work takes the CPU seconds that it takes under stock.
CPU_BAR = 1.0
STOCK, INSIDE, BESIDE = "stock", "inside a job", "beside an idle job"

#: Shape, tasks and seconds of each: about a second on six nodes.
SHAPES: dict[str, tuple[Callable[..., Any], int, float]] = {
    "tiny tasks": (shapes.sleeps, 1000, 0.0),
    "medium tasks": (shapes.sleeps, 120, 0.05),
    "tree reduction": (shapes.tree, 256, 0.03),
    "array": (shapes.array, 60, 0.05),
    "dataframe": (shapes.dataframe, 60, 0.05),
    "chain": (shapes.chain, 20, 0.05),
    "pairs": (shapes.pairs, 240, 0.02),
    "wide with data": (shapes.wide_with_data, 120, 0.03),
}


def rows(options: Options, stock: Client, ours: Client, policy: str) -> list[Row]:
    """Ratio to stock, in both ways, of every shape's time, of the memory where it is largest, of all CPU."""
    repetitions = options.pick(15, 7, 1)
    chance = random.Random(SEED)
    found: list[Row] = []
    memory: list[Row] = []
    # of each repetition, over all shapes
    cpu_s: dict[str, list[float]] = {way: [0.0] * repetitions for way in (STOCK, INSIDE, BESIDE)}
    runtime = dask_hpc.install(ours, policy=policy)
    try:
        for name, (shape, tasks, task_s) in SHAPES.items():
            submit = partial(shape, tasks=options.pick(tasks, tasks, 6), task_s=task_s)
            ways: dict[str, Callable[[], float]] = {
                STOCK: partial(_plain, stock, submit),
                INSIDE: partial(_inside, ours, runtime, submit),
                BESIDE: partial(_beside, ours, submit),
            }
            clients = {STOCK: stock, INSIDE: ours, BESIDE: ours}
            took_s: dict[str, list[float]] = {way: [] for way in ways}
            peaks: dict[str, list[float]] = {way: [] for way in ways}
            # the first repetition warms up and is dropped, unless it is the only one
            for repetition in range(repetitions + (repetitions > 1)):
                for way in chance.sample(list(ways), len(ways)):
                    clients[way].run(_forget_peak)
                    gc.collect()  # one that falls into a sample is up to a sixth of it, whoever's it is
                    before_s = _cpu_s(clients[way])
                    sample_s = ways[way]()
                    if repetition or repetitions == 1:
                        cpu_s[way][len(took_s[way])] += _cpu_s(clients[way]) - before_s
                        took_s[way].append(sample_s)
                        peaks[way].append(sum(clients[way].run(_peak_mib).values()))
            for way in (INSIDE, BESIDE):
                found.append(_row(f"{policy}: {name} {way}", took_s[way], took_s[STOCK], "s", BAR))
                what = f"{policy}: {name} {way}, peak memory"
                memory.append(_row(what, peaks[way], peaks[STOCK], "MiB", MEMORY_BAR))
            print(f"{name}: {found[-2].value:.3f}, {found[-1].value:.3f}", file=sys.stderr)
    finally:
        runtime.uninstall()
    cpu = [
        _row(f"{policy}: all shapes {way}, CPU time", cpu_s[way], cpu_s[STOCK], "s", CPU_BAR)
        for way in (INSIDE, BESIDE)
    ]
    return [*found, max(memory, key=lambda row: row.value), *cpu]


def _row(name: str, ours: Sequence[float], stock: Sequence[float], unit: str, bar: float) -> Row:
    ratios = [mine / other for mine, other in zip(ours, stock, strict=True)]
    middle = statistics.median(stock)
    note = f"median of {len(ratios)} pairs, quartiles in brackets; stock {middle:.4g} {unit}"
    return row(f"{name}, ratio to stock", ratios, "", bar=bar, note=note)


def _cpu_s(client: Client) -> float:
    """CPU seconds that the workers and this process have had."""
    return time.process_time() + sum(client.run(time.process_time).values())


def _forget_peak() -> None:
    """Called on a worker: from now on its process has held no more memory than it holds."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_mib() -> float:
    """Called on a worker: the most memory that its process has held."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _plain(client: Client, submit: Callable[[Client], Any]) -> float:
    """Seconds to the last result."""
    began_s = time.perf_counter()
    with client.as_current():
        futures = submit(client)
        wait(futures, timeout=120)
    return time.perf_counter() - began_s


def _inside(client: Client, runtime: Any, submit: Callable[[Client], Any]) -> float:
    """The same as a job, whose declaration counts."""
    began_s = time.perf_counter()
    with client.as_current():
        with runtime.job("alone") as job:
            futures = submit(client)
        wait(futures, timeout=120)
        took_s = time.perf_counter() - began_s
    job.wait(60)
    return took_s


def _beside(client: Client, submit: Callable[[Client], Any]) -> float:
    """The same as plain work while somebody else's job is open and has nothing to do."""
    with contextlib.ExitStack() as stack:
        assert client.scheduler is not None
        other = stack.enter_context(Client(client.scheduler.address, set_as_default=False))
        idle = dask_hpc.runtime(other).job("idle").activate()
        took_s = _plain(client, submit)
        idle.close()
        idle.wait(60)
    return took_s
