"""What `panel.py` has a Jupyter kernel do: each function is awaited in a cell and gives plain data."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ipywidgets
import many_jobs
import psutil
from distributed import Client
from ipykernel.comm.comm import BaseComm

import dask_hpc
from dask_hpc.demo.clusters import MEMORY_LIMIT
from dask_hpc.demo.rounds import run_managed
from dask_hpc.demo.stage import NODES
from dask_hpc_widgets.live import questions

logging.getLogger("distributed").setLevel(logging.CRITICAL)


class _Silent:
    """Takes the progress of the demo."""

    def say(self, text: str) -> None:
        pass

    def show(self, now_s: float, jobs: Any) -> None:
        pass


class _Kept:
    """A cluster that the demo uses and does not close."""

    def __init__(self, cluster: Any) -> None:
        self.get_client = cluster.get_client

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _cluster(processes: bool, nodes: int = NODES) -> Any:
    return dask_hpc.LocalCluster(
        n_workers=nodes,
        threads_per_worker=1,
        processes=processes,
        memory_limit=MEMORY_LIMIT if processes else None,
        # processes that are closed tell of every connection that ends
        silence_logs=logging.CRITICAL,
        dashboard_address=":0",
    )


def _all_views(panel: Any) -> None:
    for tick in panel.ticks.values():
        tick.value = True


# ---------------------------------------------------------------- CPU seconds


async def demo(scale: float, processes: bool, opened: bool) -> dict[str, float]:
    """CPU seconds of this process while the demo runs in a thread, so that the kernel's loop is free.

    With the panel `opened` it shows all its views; opening it is timed apart.
    """
    gc.collect()
    cluster = _cluster(processes)
    client = cluster.get_client()
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    panel, open_s, updates = None, 0.0, 0
    if opened:
        began_s = time.thread_time()
        panel = runtime.panel()
        _all_views(panel)
        open_s = time.thread_time() - began_s
        shown = _counted(panel)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    await asyncio.to_thread(run_managed, scale, "pwma-fpsma", _Silent(), functools.partial(_Kept, cluster))
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    if panel is not None:
        updates = shown()
        panel.close()
    client.close()
    cluster.close()
    return {"cpu_s": cpu_s, "wall_s": wall_s, "open_s": open_s, "updates": updates}


async def steady(pairs: int, window_s: float) -> list[dict[str, float]]:
    """CPU seconds a second of this process, panel open and closed in turn, beside jobs that do not change."""
    cluster = _cluster(True)
    client = cluster.get_client()
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    futures = []
    for i in range(4):
        with runtime.job(f"job-{i}", min_nodes=1, max_nodes=2):
            futures.append(client.map(time.sleep, [0.1] * 20_000, pure=False, key=f"nap-{i}"))
    await asyncio.sleep(2)
    found = []
    for pair in range(pairs):
        one = {}
        for opened in (True, False) if pair % 2 else (False, True):
            panel = runtime.panel() if opened else None
            if panel is not None:
                _all_views(panel)
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            await asyncio.sleep(window_s)
            one["open" if opened else "closed"] = (time.process_time() - cpu_s) / (
                time.perf_counter() - wall_s
            )
            if panel is not None:
                panel.close()
        found.append(one)
    del futures
    client.close()
    cluster.close()
    return found


def _counted(panel: Any) -> Callable[[], int]:
    """Counts the updates from now on."""
    count = 0
    link, show = panel._link, panel._link._show

    def counted(shown: Any) -> None:
        nonlocal count
        count += 1
        show(shown)

    link._show = counted
    return lambda: count


# ------------------------------------------------------------------ callbacks

#: Seconds of each callback of ours, by what it is: on the clock, of these waiting for a core, and of CPU.
_took: dict[str, list[tuple[float, float, float]]] = {}
_phase = ""


def _is_ours(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith("dask_hpc")


@contextmanager
def _timed(what: str) -> Iterator[None]:
    before = time.perf_counter(), _waited_s(), time.thread_time()
    yield
    after = time.perf_counter(), _waited_s(), time.thread_time()
    _took.setdefault(f"{_phase}: {what}", []).append(
        tuple(end_s - begin_s for begin_s, end_s in zip(before, after, strict=True))  # type: ignore[arg-type]
    )


def _waited_s() -> float:
    """How long this thread has been ready to run while other processes had the cores."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0  # not on Linux: the machine must be quiet


def watch_callbacks() -> None:
    """Time everything of ours that this thread's loop calls, and every message of a page to a widget."""
    here = asyncio.get_running_loop()
    run, handle = asyncio.Handle._run, ipywidgets.Widget._handle_msg

    def timed_run(self: Any) -> None:
        if self._loop is here and _is_ours(self._callback):
            with _timed("updates and answers"):
                run(self)
        else:
            run(self)

    def timed_handle(self: Any, message: Any) -> None:
        with _timed("clicks and typing"):
            handle(self, message)

    asyncio.Handle._run = timed_run  # type: ignore[method-assign]
    ipywidgets.Widget._handle_msg = timed_handle


def phase(name: str) -> None:
    """What is timed from now on belongs to `name`."""
    global _phase
    _phase = name


def took() -> dict[str, list[tuple[float, float, float]]]:
    """What was timed."""
    return _took


def busy_cluster(jobs: int, nodes: int) -> tuple[Any, Any, Any, list[Any]]:
    """A cluster with so many jobs that run or wait, with tasks that change what the panel shows."""
    cluster = _cluster(False, nodes)
    client = cluster.get_client()
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    futures = []
    for i in range(jobs):
        with runtime.job(f"job-{i}", min_nodes=1, max_nodes=4, walltime=600):
            futures.append(client.map(time.sleep, [0.05 + 0.001 * i] * 50, pure=False, key=f"nap-{i}"))
    return cluster, client, runtime, futures


# ------------------------------------------------------------------- the wire


async def many(updates: int) -> dict[str, Any]:
    """Bytes to the page, and ms of CPU of each update, at 100 jobs on 500 nodes, all views filled."""
    sent, uncounted = 0, []
    publish = BaseComm.publish_msg

    def noted(self: Any, msg_type: str, data: Any = None, *rest: Any, **more: Any) -> None:
        uncounted.append(data or {})
        publish(self, msg_type, data, *rest, **more)

    def counted() -> int:
        # between updates: counting is no part of them
        nonlocal sent
        sent += sum(len(json.dumps(data, default=str, separators=(",", ":"))) for data in uncounted)
        uncounted.clear()
        return sent

    BaseComm.publish_msg = noted
    cluster = _cluster(False, 1)
    client = cluster.get_client()
    began_s = time.thread_time()
    panel = many_jobs.opened(dask_hpc.install(client), all_views=False)
    open_ms = 1e3 * (time.thread_time() - began_s)
    first = counted()
    _all_views(panel)
    whole = counted()
    # driven from here
    panel._link.close()
    panel._link.closed = False
    sizes, took_ms = [], []
    for step in range(1, updates + 1):
        picture = many_jobs.picture(step, panel.picture.status)
        before, began_s = counted(), time.thread_time()
        panel._heard(picture)
        panel._show(picture)
        took_ms.append(1e3 * (time.thread_time() - began_s))
        sizes.append(counted() - before)
        await asyncio.sleep(0)
    BaseComm.publish_msg = publish
    panel.close()
    client.close()
    cluster.close()
    return {
        "first_bytes": first,
        "whole_bytes": whole,
        "bytes": sizes,
        "took_ms": took_ms,
        "open_ms": open_ms,
    }


# -------------------------------------------------------------- resident size


async def grow(address: str, updates: int, warm: int) -> dict[str, float]:
    """Growth of the resident size over so many updates with new pictures, after `warm` of them."""
    process = psutil.Process(os.getpid())
    async with Client(address, asynchronous=True) as client:
        runtime = await dask_hpc.runtime(client)
        panel = await runtime.panel()
        _all_views(panel)
        # driven from here, as fast as it goes
        panel._link.close()
        panel._link.closed = False
        changed, sizes = 0, []
        before = panel.tables.number
        began_s = time.perf_counter()
        for i in range(warm + updates):
            if i % max(1, updates // 10) == warm % max(1, updates // 10) and i >= warm:
                gc.collect()
                sizes.append(process.memory_info().rss)
            answer = await questions.picture(runtime, panel.timeline.number)
            panel._heard(answer)
            panel._show(answer)
            changed += panel.tables.number != before
            before = panel.tables.number
        took_s = time.perf_counter() - began_s
        gc.collect()
        sizes.append(process.memory_info().rss)
        page_bytes = len(json.dumps(panel.tables.whole()))
        panel.close()
    return {
        "growth_bytes": sizes[-1] - sizes[0],
        "sizes_bytes": sizes,
        "changed": changed,
        "took_s": took_s,
        "page_bytes": page_bytes,
    }
