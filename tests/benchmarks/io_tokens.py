"""Writers that share a saturated file system, and work beside them: tokens, pairs of jobs, cost of counting.

The file system is `throttled.ThrottledStore`: 20 MiB/s for one, a tenth less for each further one.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import zarr
from distributed import Client, LocalCluster, wait
from distributed.metrics import context_meter
from distributed.threadpoolexecutor import ThreadPoolExecutor
from harness import Options, Row, main, row
from throttled import ThrottledStore
from zarr.storage import MemoryStore

import dask_hpc
from dask_hpc.wire import COUNTED_SPAN
from dask_hpc.worker.io.tasks import Counting

MIB = 1 << 20
BYTES_S = 20 * MIB
CHUNK = 4 * MIB
NAMES = ("writes-1", "writes-2", "naps-1", "naps-2")
#: What policies are compared with: by themselves, and beside tokens and lending, which do as much for `fcfs`.
ALONE: dict[str, dict[str, str]] = {
    "": {"io_tokens": "never", "lend": "0 s"},
    ", tokens and lending on": {"lend": "5 s"},
}


def write(store: Any, number: int) -> int:
    """Write one chunk, not of zeros, which are not written."""
    zarr.open_array(store, mode="r+")[number : number + 1] = np.full((1, CHUNK), 1 + number % 255, "u1")
    return number


def nap(seconds: float, number: int) -> int:
    time.sleep(seconds)
    return number


def note(number: int) -> int:
    return number


def array(folder: Path, chunks: int) -> ThrottledStore:
    store = ThrottledStore(folder, BYTES_S)
    zarr.create_array(
        store, shape=(chunks, CHUNK), chunks=(1, CHUNK), dtype="u1", compressors=None, overwrite=True
    )
    store.reset()
    return store


def run(options: Options) -> list[Row]:
    parts: list[Callable[[Options, Path], list[Row]]] = [_tokens, _pairs, _law, _cost]
    only = getattr(options.given, "only", None)
    rows = []
    for part in parts:
        if only in (None, part.__name__.removeprefix("_")):
            with tempfile.TemporaryDirectory() as folder:
                rows += part(options, Path(folder))
    return rows


# ------------------------------------------------------------------------ tokens


def _tokens(options: Options, folder: Path) -> list[Row]:
    """24 writes and 144 naps in one job on four threads, beside the same in stock Dask."""
    writes, naps, nap_s = options.pick((24, 144, 0.1), (24, 144, 0.1), (4, 8, 0.02))
    first, later, over, tokens, last_nap = [], [], [], [], []
    for round_ in range(options.pick(5, 3, 1)):
        store = array(folder / f"a{round_}", writes)
        size = {"n_workers": 1, "threads_per_worker": 4, "dashboard_address": None}
        with LocalCluster(**size) as cluster, Client(cluster) as client:
            stock_s, stock_nap_s = _work(client, store, writes, naps, nap_s)
        with dask_hpc.LocalCluster(**size) as cluster, cluster.get_client() as client:
            rt = dask_hpc.install(client)
            metered = dask_hpc.metered(store, "shared")
            for taken in (first, later):
                store.reset()
                allowed = [1]
                with rt.job("writer", nodes=1) as job:
                    ours_s, nap_done_s = _work(client, metered, writes, naps, nap_s, rt, allowed)
                job.wait()
                taken.append(ours_s / stock_s)
            over.append(float(store.most - max(allowed)))
            last_nap.append(nap_done_s / stock_nap_s)
            tokens.append(float(allowed[-1]))
        shutil.rmtree(folder / f"a{round_}")
    what = f"{writes} writes of 4 MiB, {naps} naps"
    return [
        row(f"{what}: time over stock's, nothing known yet", first, "ratio", bar=0.8, limit=0.9),
        row(f"{what}: time over stock's, again", later, "ratio", bar=0.8),
        row("time until the last nap over stock's, again", last_nap, "ratio", bar=1.0),
        row("tokens that were learned", tokens, "tasks"),
        row("most writers at once less the most tokens, again", over, "tasks", bar=0.0),
    ]


def _work(
    client: Client, store: Any, writes: int, naps: int, nap_s: float, rt: Any = None, allowed: Any = None
) -> tuple[float, float]:
    """Seconds until all is done, and until the last nap is; notes how many tokens there were meanwhile."""
    began_s = time.perf_counter()
    written = client.map(write, [store] * writes, range(writes), pure=False, key="write")
    rested = client.map(nap, [nap_s] * naps, range(naps), pure=False, key="nap")
    while not all(future.done() for future in rested):
        if rt is not None:
            allowed += [row["tokens"] or writes for row in rt.io()["targets"]]
        time.sleep(0.1)
    rested_s = time.perf_counter() - began_s
    wait(written)
    took_s = time.perf_counter() - began_s
    assert client.gather(written) == list(range(writes))
    return took_s, rested_s


# ------------------------------------------------------------------------- pairs


def _pairs(options: Options, folder: Path) -> list[Row]:
    """Two jobs that write, two that compute, two at a time, each recorded once: `io-aware` and `fcfs`."""
    count = options.pick(24, 16, 2)
    ratios: dict[str, list[float]] = {name: [] for name in options.pick(ALONE, ALONE, [""])}
    for round_ in range(options.pick(5, 3, 1)):
        stores = [array(folder / f"p{round_}-{i}", count) for i in range(2)]
        # one file system: both count in one place
        for store in stores:
            (folder / f"p{round_}-{0}.at-it").touch()
            if store is not stores[0]:
                (store.folder.with_suffix(".at-it")).unlink()
                (store.folder.with_suffix(".at-it")).symlink_to(folder / f"p{round_}-0.at-it")
                store._map = None
        policies = ("fcfs", "io-aware") if round_ % 2 else ("io-aware", "fcfs")
        for name in ratios:
            took = {}
            for policy in policies:
                size = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": None}
                with dask_hpc.LocalCluster(**size) as cluster, cluster.get_client() as client:
                    rt = dask_hpc.install(client, policy="fcfs", **ALONE[name])
                    _record(client, rt, stores, count)
                    rt.update(policy=policy)
                    took[policy] = _four(client, rt, stores, count)
            ratios[name].append(took["io-aware"] / took["fcfs"])
    what = "two jobs that write, two that compute: io-aware over fcfs"
    return [
        row(f"{what}{name}", found, "ratio", bar=None if name else 0.8) for name, found in ratios.items()
    ]


def _submit(client: Client, name: str, store: Any, count: int) -> list[Any]:
    if name.startswith("writes"):
        metered = dask_hpc.metered(store, "shared")
        return client.map(write, [metered] * count, range(count), pure=False)
    # as long as one job of writes takes alone
    return client.map(nap, [CHUNK * 2 / BYTES_S] * count, range(count), pure=False)


def _record(client: Client, rt: Any, stores: list[Any], count: int) -> None:
    for name, store in zip(NAMES, (*stores, None, None), strict=True):
        with rt.job(name, nodes=1) as job:
            wait(_submit(client, name, store, count))
        job.wait()
    time.sleep(2)  # the last heartbeats


def _four(client: Client, rt: Any, stores: list[Any], count: int) -> float:
    """Seconds of the four together, which all wait when the nodes become idle."""
    jobs, futures = [], []
    with rt.job("before", nodes=2) as before:
        wait(client.map(note, range(2), pure=False))  # it runs
        held = client.submit(nap, 1.0, 0, pure=False)
        for name, store in zip(NAMES, (*stores, None, None), strict=True):
            with rt.job(name, nodes=1) as job:
                futures += _submit(client, name, store, count)
            jobs.append(job)
        wait(held)
    before.wait()
    began_s = time.perf_counter()
    for job in jobs:
        job.wait()
    return time.perf_counter() - began_s


# --------------------------------------------------------------------------- law


def _law(options: Options, folder: Path) -> list[Row]:
    """Jobs of one name on one, two and four nodes: what their law says of three, beside one on three."""
    count = options.pick(24, 16, 6)
    off = []
    for round_ in range(options.pick(5, 3, 1)):
        store = array(folder / f"l{round_}", count)
        size = {"n_workers": 4, "threads_per_worker": 1, "dashboard_address": None}
        with dask_hpc.LocalCluster(**size) as cluster, cluster.get_client() as client:
            rt = dask_hpc.install(client, policy="fcfs", io_tokens="never", lend="0 s")
            for nodes in (1, 2, 4, 3):
                with rt.job("writes", nodes=nodes, exclusive=True) as job:
                    wait(_submit(client, "writes", store, count))
                job.wait()
                if nodes == 4:
                    law = _heard(rt, job.id, lambda row: row["law"] and len(row["law"]["io_s"]["sizes"]) == 3)
                    law = law["law"]["io_s"]
            measured_s = _heard(rt, job.id, lambda row: row["write_bytes"] >= count * CHUNK)["io_s"]
        a, b = law["a"], law["b"]
        told_s = a * 3**b if law["kind"] == "power" else a + b / 3
        off.append(abs(told_s / measured_s - 1))
    return [row("seconds in I/O on a size that has not been: off by", off, "share", bar=0.1)]


def _heard(rt: Any, id: str, enough: Callable[[Any], Any]) -> Any:
    """The row of a job once heartbeats have told enough of it."""
    deadline_s = time.monotonic() + 30
    while not (rows := [row for row in rt.io()["jobs"] if row["id"] == id and enough(row)]):
        assert time.monotonic() < deadline_s, "the workers do not tell what they have measured"
        time.sleep(0.1)
    return rows[0]


# -------------------------------------------------------------------------- cost


def _cost(options: Options, folder: Path) -> list[Row]:
    """What counting adds to a task that writes one file, and to one beside it that has not asked."""
    count, rounds = options.pick((3000, 15), (2000, 9), (50, 1))
    path = folder / "written"

    def work() -> None:
        path.write_bytes(bytes(8192))

    async def stock(key: str, *, stimulus_id: str) -> None:
        annotations = worker.state.tasks[key].annotations
        threads = worker.executors[annotations.get("executor", "default")]
        await asyncio.get_running_loop().run_in_executor(threads, work)

    async def each(key: str) -> float:
        began_s = time.process_time()
        for _ in range(count):
            await worker.execute(key, stimulus_id="")
        return (time.process_time() - began_s) / count * 1e6

    async def measure() -> tuple[list[float], list[float]]:
        asked, others = [], []
        for _ in range(rounds):
            plain_us = await each("asks")
            counting = Counting(worker)
            asked.append(await each("asks") - plain_us)
            others.append(await each("others") - plain_us)
            counting.stop()
            worker.execute = stock
        return asked, others

    tasks = {"asks": f"a{COUNTED_SPAN}", "others": "b"}
    with ThreadPoolExecutor(1) as threads:
        worker = SimpleNamespace(
            execute=stock,
            executors={"default": threads},
            state=SimpleNamespace(
                tasks={k: SimpleNamespace(span_id=s, annotations={}) for k, s in tasks.items()}
            ),
        )
        asked, others = asyncio.run(measure())
    return [
        row("CPU time of a task whose job is counted, over one in stock", asked, "us", bar=50.0),
        row("of one beside it that has not asked", others, "us"),
        row("of one that reads a chunk of a metered store", _metered(count // 5, rounds), "us", bar=50.0),
    ]


def _metered(count: int, rounds: int) -> list[float]:
    """Microseconds of CPU by which reading a chunk of 8 KiB takes longer where it is counted."""
    store = MemoryStore()
    values = zarr.create_array(store, shape=(1, 1024), chunks=(1, 1024), dtype="f8", compressors=None)
    values[:] = 1.0
    ways = [zarr.open_array(one, mode="r") for one in (store, dask_hpc.metered(store, "memory"))]
    told: list[float] = []

    def each(array: Any) -> float:
        began_s = time.process_time()
        for _ in range(count):
            array[:]
        return (time.process_time() - began_s) / count * 1e6

    # as a worker has it while it executes a task
    with context_meter.add_callback(lambda label, value, unit: told.append(value)):
        more = [counted - plain for plain, counted in ([each(way) for way in ways] for _ in range(rounds))]
    assert len(told) >= rounds * count
    return more


if __name__ == "__main__":
    main(
        "io_tokens",
        "Writers that share a saturated file system, and work beside them",
        run,
        lambda parser: parser.add_argument("--only", choices=("tokens", "pairs", "law", "cost")),
    )
