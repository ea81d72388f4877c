"""What an open panel costs the kernel that it is open in: CPU, turns of the loop, memory.

A real kernel, started as JupyterLab starts one, with a client that plays the page: widgets send it all
that they would send a browser. The panel shows all its views.

- CPU: CPU seconds of the kernel's process while the demo's workloads run, with the panel open less
  without, as a share of the time that the run takes, in pairs whose order changes. The demo runs in a
  thread, so that the kernel's loop is free and the panel shows everything it can. The demo does not take the
  same time twice, so the same is measured beside jobs that always do the same.
- Callbacks: time of everything of ours that the kernel's loop calls, and of every message from the page,
  with many jobs, while Simulate runs, while every policy is chosen, applied and reverted. It is that on the
  clock, waiting for other threads of the kernel included, less the time in which other processes had the
  cores.
- Try all: time from the click until every policy was simulated, beside a cluster in the same kernel that runs
  20 jobs, and the longest time that the kernel took to answer meanwhile.
- The wire: bytes of every message to the page, and CPU of the kernel for each update, with 100 jobs on 500
  nodes and 80 changes a job, as a scheduler would tell of them; all views are open and have more to show than
  they have rows: jobs draw power, are at files and are protected, and programs are coupled.
- Memory: resident size of a kernel that shows so many updates as fast as they come, with a scheduler in
  another process whose jobs start, resize and end all the time.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import many_jobs
from harness import Options, Row, listed, main, percentile, row
from real_kernel import started

import dask_hpc

_HERE = Path(__file__).resolve().parent

CPU_BAR = 3.0
CALLBACK_BAR_MS = 50.0
GROWTH_BAR_MIB = 5.0
TRY_ALL_BAR_S = 5.0
#: What a person takes for an answer at once, with room for a cell that runs beside it.
ANSWER_BAR_MS = 500.0
FIRST_BAR_KB, UPDATE_BAR_KB, UPDATE_BAR_MS = 300.0, 8.0, 5.0
#: Updates that the bar of the growth is for, and those before the first look at the size.
UPDATES, WARM = 10_000, 500
JOBS, NODES, TRIED_JOBS = 100, 6, 20
_CELL_S = 1800.0


def run(options: Options) -> list[Row]:
    """All rows, or those that ``--only`` names."""
    all_parts = [part for part in _PARTS if (part, options.size) != ("steady", "tiny")]
    only = getattr(options.given, "only", None) or all_parts
    return [row for part in only for row in _PARTS[part](options)]


def _wire(options: Options) -> list[Row]:
    updates = options.pick(600, 200, 20)
    with started(str(_HERE)) as kernel:
        kernel.run("import in_kernel")
        found = kernel.value(f"await in_kernel.many({updates})", _CELL_S)
    at = f"{many_jobs.JOBS} jobs, {many_jobs.NODES} nodes, {many_jobs.CHANGES} changes a job"
    sizes = [one / 1000 for one in found["bytes"]]
    largest = Row(name="largest update", value=max(sizes), unit="kB", bar=UPDATE_BAR_KB, note=at)
    first, whole = found["first_bytes"] / 1000, found["whole_bytes"] / 1000
    note = f"{at}; opening took {found['open_ms']:.0f} ms of CPU"
    return [
        Row(name="first load", value=first, unit="kB", bar=FIRST_BAR_KB, note=note),
        Row(name="first load, every view open", value=whole, unit="kB", bar=FIRST_BAR_KB, note=at),
        row("an update", sizes, "kB", bar=UPDATE_BAR_KB, note=f"{at}; {updates} updates, all views filled"),
        largest,
        row("an update, CPU of the kernel", found["took_ms"], "ms", bar=UPDATE_BAR_MS, note=at),
    ]


def _cpu(options: Options) -> list[Row]:
    pairs = options.pick(5, 3, 1)
    scale = options.pick(1.0, 0.2, 0.05)
    rows = []
    for processes in (True, False) if options.size != "tiny" else (False,):
        where = "in processes" if processes else "in the kernel"
        shares: list[float] = []
        rates: list[float] = []
        runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        with started(str(_HERE)) as kernel:
            kernel.run("import in_kernel")
            for pair in range(-1 if options.size != "tiny" else 0, pairs):
                found = {}
                for opened in (True, False) if pair % 2 else (False, True):
                    found[opened] = kernel.value(
                        f"await in_kernel.demo({scale}, {processes}, {opened})", _CELL_S
                    )
                if pair < 0:
                    continue  # imports, caches
                for opened, one in found.items():
                    runs[opened].append(one)
                more_s = found[True]["cpu_s"] - found[False]["cpu_s"]
                shares.append(100 * more_s / found[True]["wall_s"])
                with_it, without = (
                    100 * found[opened]["cpu_s"] / found[opened]["wall_s"] for opened in (True, False)
                )
                rates.append(with_it - without)
        note = f"CPU seconds with {_median(runs[True], 'cpu_s')}, without {_median(runs[False], 'cpu_s')}; "
        note += f"{_median(runs[True], 'wall_s')} s a run, {_median(runs[True], 'updates')} updates"
        bar = CPU_BAR if processes else None
        rows.append(row(f"panel open, demo, workers {where}", shares, "% of the time", bar=bar, note=note))
        note = "CPU seconds a second, with less without: how long the demo takes differs from run to run"
        rows.append(row(f"the same by rates, workers {where}", rates, "% of the time", note=note))
        rows.append(
            row(f"opening it, workers {where}", [1e3 * one["open_s"] for one in runs[True]], "ms of CPU")
        )
    return rows


def _steady(options: Options) -> list[Row]:
    pairs, window_s = options.pick((5, 20.0), (3, 10.0), None)
    with started(str(_HERE)) as kernel:
        kernel.run("import in_kernel")
        found = kernel.value(f"await in_kernel.steady({pairs}, {window_s})", _CELL_S)
    more = [100 * (one["open"] - one["closed"]) for one in found]
    closed = 100 * statistics.median(one["closed"] for one in found)
    note = f"windows of {window_s:g} s; closed {closed:.1f} %"
    return [row("panel open, jobs that always do the same", more, "% of the time", note=note)]


def _median(runs: list[dict[str, float]], key: str) -> str:
    return f"{statistics.median(one[key] for one in runs):.3g}"


def _callbacks(options: Options) -> list[Row]:
    jobs, wait_s, times = options.pick((JOBS, 20, 3), (JOBS, 10, 2), (8, 2, 1))
    with started(str(_HERE)) as kernel:
        kernel.run("import asyncio, in_kernel\nin_kernel.watch_callbacks()")
        kernel.run(f"cluster, client, rt, futures = in_kernel.busy_cluster({jobs}, {NODES})", _CELL_S)
        kernel.run("panel = rt.panel()\nin_kernel._all_views(panel)\npanel", _CELL_S)
        kernel.run(f"in_kernel.phase('{jobs} jobs')\nawait asyncio.sleep({wait_s})", _CELL_S)
        kernel.run(f"in_kernel.phase('{jobs} jobs, Simulate')")
        for _ in range(times):
            kernel.click("panel.tuning.simulate")
            kernel.until("panel.tuning._found is not None and not panel.tuning._busy", _CELL_S)
        kernel.run(f"in_kernel.phase('{jobs} jobs, the form')")
        _use_the_form(kernel, options.pick(None, None, 2))
        took = kernel.value("in_kernel.took()")
        kernel.run("panel.close()\nclient.close()\ncluster.close()", _CELL_S)
    rows = []
    for name, times_s in took.items():
        if not name.startswith(":"):
            rows.append(_callback(name, times_s))
    return rows


def _use_the_form(kernel: Any, most: int | None) -> None:
    """Choose every policy, type in every field, apply, and take it back."""
    choices = kernel.value("[value for _, value in panel.tuning.form.policy.options]")
    for index in range(1, len(choices))[:most]:
        kernel.type("panel.tuning.form.policy", index, "index")
        for name in kernel.value(
            "[n for n, c in panel.tuning.form.controls.items() if hasattr(c, 'placeholder')]"
        ):
            control = f"panel.tuning.form.controls[{name!r}]"
            text = kernel.value(f"{control}.value")
            kernel.type(control, "x")
            kernel.type(control, text)
        for button in ("apply", "revert"):
            if kernel.value(f"panel.tuning.{button}.disabled"):
                continue
            kernel.click(f"panel.tuning.{button}")
            kernel.until("not panel.tuning._busy")
            if kernel.value("panel.tuning._agree is not None"):
                kernel.click("panel.tuning.go")
                kernel.until("not panel.tuning._busy")


def _try_all(options: Options) -> list[Row]:
    jobs, times = options.pick((TRIED_JOBS, 5), (TRIED_JOBS, 3), (4, 1))
    took_s, answers_ms = [], []
    with started(str(_HERE)) as kernel:
        kernel.run("import in_kernel")
        kernel.run(f"cluster, client, rt, futures = in_kernel.busy_cluster({jobs}, {NODES})", _CELL_S)
        kernel.run("panel = rt.panel()\nin_kernel._all_views(panel)", _CELL_S)
        for _ in range(times):
            began_s = time.perf_counter()
            kernel.click("panel.trial.start")
            tries = True  # all may be tried before the first question
            while tries:
                asked_s = time.perf_counter()
                kernel.value("1")
                answers_ms.append(1e3 * (time.perf_counter() - asked_s))
                tries = kernel.value("panel.trial.start.disabled")
            took_s.append(time.perf_counter() - began_s)
        tried, failed = kernel.value(
            "[len(panel.trial._found.tried), sum(bool(one.failure) for one in panel.trial._found.tried)]"
        )
        kernel.run("panel.close()\nclient.close()\ncluster.close()", _CELL_S)
    note = f"{tried} policies, {failed} of which cannot be run from there; {jobs} jobs"
    return [
        row("try all", took_s, "s", bar=TRY_ALL_BAR_S, note=note),
        Row(
            name="longest answer of the kernel meanwhile",
            value=max(answers_ms),
            unit="ms",
            bar=ANSWER_BAR_MS,
            note=note,
        ),
    ]


def _callback(name: str, times_s: list[list[float]]) -> Row:
    own_ms = [1e3 * (wall_s - waited_s) for wall_s, waited_s, _ in times_s]
    wall_ms, cpu_ms = (max(1e3 * one[i] for one in times_s) for i in (0, 2))
    return Row(
        name=f"longest callback, {name}",
        value=max(own_ms),
        unit="ms",
        bar=CALLBACK_BAR_MS,
        note=f"p99 {percentile(own_ms, 0.99):.1f} ms, median {statistics.median(own_ms):.2f} ms of "
        f"{len(own_ms)}; longest on the clock {wall_ms:.1f} ms, of CPU {cpu_ms:.1f} ms",
    )


def _growth(options: Options) -> list[Row]:
    updates, warm = options.pick((UPDATES, WARM), (3000, WARM), (50, 10))
    done = threading.Event()
    with (
        dask_hpc.LocalCluster(
            n_workers=NODES,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            dashboard_address=":0",
        ) as cluster,
        cluster.get_client() as client,
        started(str(_HERE)) as kernel,
    ):
        runtime = dask_hpc.install(client, policy="pwma-fpsma")
        churn = threading.Thread(target=_churn, args=(client, runtime, done))
        churn.start()
        try:
            kernel.keeps = False
            kernel.run("import in_kernel")
            address = cluster.scheduler_address
            found = kernel.value(f"await in_kernel.grow({address!r}, {updates}, {warm})", _CELL_S)
        finally:
            done.set()
            churn.join()
    growth = found["growth_bytes"] / 2**20
    sizes = ", ".join(f"{size / 2**20:.1f}" for size in found["sizes_bytes"])
    return [
        Row(
            name=f"resident size, {updates} updates",
            value=growth,
            unit="MiB more",
            bar=GROWTH_BAR_MIB,
            note=f"after {warm} to warm up; {found['changed']} of {warm + updates} told the page; tables of "
            f"{found['page_bytes'] / 1024:.0f} KiB; {found['took_s']:.0f} s; sizes on the way {sizes} MiB",
        )
    ]


def _churn(client: Any, runtime: Any, done: threading.Event) -> None:
    """Jobs that come, grow and go all the time."""
    begun = 0
    while not done.is_set():
        going = [job for job in runtime.jobs() if job["state"] in ("pending", "running")]
        if len(going) < 12:
            begun += 1
            with runtime.job(f"job-{begun}", min_nodes=1, max_nodes=4):
                futures = client.map(time.sleep, [0.05] * 12, pure=False, key=f"nap-{begun}")
            for future in futures:
                future.release()
            del futures
        done.wait(0.1)


#: What may be asked for alone.
_PARTS: dict[str, Callable[[Options], list[Row]]] = {
    "wire": _wire,
    "cpu": _cpu,
    "steady": _steady,
    "callbacks": _callbacks,
    "try_all": _try_all,
    "growth": _growth,
}


if __name__ == "__main__":
    main(
        "panel",
        "What an open panel costs the kernel that it is open in",
        run,
        lambda parser: parser.add_argument("--only", type=listed(_PARTS)),
    )
