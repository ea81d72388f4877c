"""Steps of an MPI program: from `send` to a callback and to a value on the client, beside deisa-dask.

The ranks are real ones (packages ``mpich`` and ``mpi4py``), each sends its block of a field when it is told
to, and the next step is sent when the last one has arrived: one step in flight. Both ways have a cluster of
one worker process of their own, in turns within a round, and the same analysis (the field's maximum).
The clock runs from the moment the first rank calls `send`, to the beginning of the callback, or to the value
on the client, which with deisa-dask its callback computes. What is not installed is said, and left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import random
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from coupling_rank import END, NEXT, STEP, TIMES
from distributed import Client, LocalCluster
from harness import Options, Row, local_cluster, main, percentile, row
from machine import SEED

import dask_hpc
from dask_hpc.scheduler.coupling.flows import Flows
from dask_hpc.wire import RPC

HERE = Path(__file__).resolve().parent
#: What a step is timed to.
FLOWS = ("callback", "value")
PATIENCE_S = 60.0
#: Loop time of one key, keys and messages a step, growth of a process in MiB.
KEY_US, KEYS, GROWTH_MIB = 60.0, 4.0, 4.0


class Case(NamedTuple):
    """A program, and the most of deisa-dask's time: to the callback, to the value, held by `send`."""

    name: str
    ranks: int
    #: Rows and columns of 8 bytes that each rank has.
    rows: int
    columns: int
    bars: tuple[float, float, float]
    #: Milliseconds to the callback that hold on a quiet machine.
    quiet_ms: float | None


CASES = (
    Case("1 rank, 8 B", 1, 1, 1, (0.5, 0.4, 0.5), 3.0),
    Case("4 ranks, 8 B", 4, 1, 1, (0.5, 0.25, 0.25), 6.0),
    Case("1 rank, 8 MiB", 1, 1024, 1024, (0.5, 0.35, 0.3), None),
)


def installed(*modules: str) -> list[str]:
    """Those of them that are not there."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def mpiexec() -> str | None:
    """The launcher that belongs to this environment's MPI."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


# ----------------------------------------------------------------------- ranks


class Ranks:
    """The ranks of a program, told step by step what to do."""

    def __init__(self, way: str, scheduler: str, case: Case) -> None:
        self._listens = socket.create_server(("127.0.0.1", 0))
        host, port = self._listens.getsockname()
        told = {
            "way": way, "scheduler": scheduler, "host": host, "port": port, "rows": case.rows,
            "columns": case.columns, "flows": FLOWS, "mpi": bool(mpiexec() and not installed("mpi4py")),
        }  # fmt: skip
        script = [sys.executable, str(HERE / "coupling_rank.py")]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        if told["mpi"]:
            commands = [[str(mpiexec()), "-n", str(case.ranks), *script, json.dumps(told)]]
        else:
            commands = [
                [*script, json.dumps({**told, "rank": (rank, case.ranks)})] for rank in range(case.ranks)
            ]
        self._processes = [subprocess.Popen(command, env=env) for command in commands]
        self._listens.settimeout(PATIENCE_S)
        self._ways = [self._listens.accept()[0] for _ in range(case.ranks)]

    def ready(self) -> None:
        """Wait until all of them can send."""
        for way in self._ways:
            way.settimeout(PATIENCE_S)
            assert way.recv(1) == STEP

    def step(self) -> None:
        """Have all of them send a step."""
        for way in self._ways:
            way.sendall(STEP)

    def times(self) -> tuple[float, float]:
        """When the first one called `send` for it, and the mean of the seconds that it took."""
        found = [TIMES.unpack(way.recv(TIMES.size, socket.MSG_WAITALL)) for way in self._ways]
        return min(began_s for began_s, _ in found), statistics.mean(ended - began for began, ended in found)

    def say(self, what: bytes) -> None:
        """Tell all of them something else."""
        for way in self._ways:
            way.sendall(what)

    def end(self) -> None:
        """Wait for their end; those that do not come to one are killed."""
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for way in (*self._ways, self._listens):
            way.close()


Took = dict[str, list[float]]


def closed_loop(ranks: Ranks, steps: int, arrived: Callable[[], float], took: Took, name: str) -> None:
    """Send steps one by one; the seconds of each until it has arrived, and that `send` held the ranks."""
    ranks.ready()
    for number in range(steps + steps // 4 + 1):
        ranks.step()
        at_s = arrived()
        began_s, held_s = ranks.times()
        # the first ones make connections and rings
        if number > steps // 4:
            took[name].append(at_s - began_s)
            if name == "callback":
                took["held"].append(held_s)


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


def beside(case: Case, options: Options, ways: dict[str, Callable[..., Took]]) -> Iterator[Row]:
    """Times of each way, and ours over deisa-dask's, round by round."""
    rounds, steps = options.pick((3, 60), (2, 30), (1, 4))
    chance = random.Random(SEED)
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
        if "deisa-dask" in medians:
            ratios = [mine / its for mine, its in zip(medians["ours"], medians["deisa-dask"], strict=True)]
            yield row(f"{what}, ratio to deisa-dask", ratios, "", bar=bar)


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
    """Keys and messages of a step of many ranks, and what a key costs the scheduler's loop."""
    ranks, steps = options.pick((64, 200), (64, 60), (8, 10))
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        runtime = dask_hpc.install(client)
        handlers = cluster.scheduler.handlers
        handler, whole = handlers[RPC], Flows._whole
        said: list[str] = []
        took_us: list[float] = []

        async def counted(*args: Any, method: str, **more: Any) -> Any:
            if method in ("flow_begin", "flow_whole"):
                said.append(method)
            return await handler(*args, method=method, **more)

        async def timed(*args: Any) -> bool:
            # it gives way to nobody
            began_s = time.thread_time()
            kept = await whole(*args)
            took_us.append((time.thread_time() - began_s) * 1e6)
            return kept

        flow = runtime.couple("many", {"T": (("y", "x"), (ranks, 8), "float64")})
        with sources("many", cluster.scheduler_address, ranks, (1, 8)) as send:
            send(4)
            handlers[RPC], Flows._whole = counted, timed  # type: ignore[method-assign]
            for _ in range(steps):
                send(1)
            time_s = time.monotonic()
            while len(took_us) < steps * KEYS and time.monotonic() < time_s + PATIENCE_S:
                time.sleep(0.01)
            handlers[RPC], Flows._whole = handler, whole  # type: ignore[method-assign]
        flow.close()
    yield row(f"{ranks} ranks on 4 workers: keys a step", [len(took_us) / steps], "keys", bar=KEYS)
    yield row(f"{ranks} ranks on 4 workers: messages a step", [len(said) / steps], "messages", bar=KEYS)
    yield row("loop time of the scheduler for a key", took_us, "us", bar=KEY_US)


def flat(options: Options) -> Iterator[Row]:
    """How much more memory the processes have after many steps."""
    steps = options.pick(10_000, 3_000, 60)
    warm = steps // 5
    with local_cluster(1) as client:
        runtime = dask_hpc.install(client)
        scheduler = client.scheduler.address
        pids = {"worker": next(iter(client.run(os.getpid).values())), "client and scheduler": os.getpid()}
        flow = runtime.couple("flat", {"T": (("y", "x"), (16, 64), "float64")})
        flow.analyse(most, name="most", window=2)
        values = flow.results("most", timeout=PATIENCE_S)
        read = threading.Thread(target=lambda: [None for _ in values])
        read.start()
        before: dict[str, float] = {}
        with sources("flat", scheduler, 1, (16, 64)) as send:
            for count in (warm, steps - warm):
                send(count)
                used = {name: psutil.Process(pid).memory_info().rss / 2**20 for name, pid in pids.items()}
                before = before or used
        read.join()
        flow.close()
    for name, now in used.items():
        note = f"from step {warm:,} to {steps:,}"
        yield row(f"growth of the {name}", [now - before[name]], "MiB", bar=GROWTH_MIB, note=note)


def run(options: Options) -> list[Row]:
    ways: dict[str, Callable[..., Took]] = {"ours": ours}
    missing = [*installed("mpi4py", "deisa"), *([] if mpiexec() else ["mpiexec"])]
    if missing:
        print(f"not installed: {', '.join(missing)}; ours alone", file=sys.stderr)
    else:
        ways["deisa-dask"] = deisa
    cases = options.pick(CASES, CASES, CASES[:1])
    rows = [found for case in cases for found in beside(case, options, ways)]
    return [*rows, *many_ranks(options), *flat(options)]


if __name__ == "__main__":
    main("coupling", __doc__.splitlines()[0], run)
