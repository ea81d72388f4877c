"""How long a job takes beside a backlog of plain tasks, against the same job alone.

Real worker processes: four, one thread each, two nodes for the job. The time runs from before the job
is declared to its last result, so that starting it (and, beside a backlog, taking the backlog over) is
part of it.
"""

from __future__ import annotations

import statistics
import time

from distributed import Client, wait
from harness import Options, Row, local_cluster, main, row

import dask_hpc

BAR = 1.5
WORKERS = 4
NODES = 2
TASKS = 200
TASK_S = 0.020
BACKLOG = 4000
BACKLOG_TASKS_S = (0.020, 0.002)


def run(options: Options) -> list[Row]:
    tasks, backlog = options.pick((TASKS, BACKLOG), (TASKS, BACKLOG), (20, 200))
    repetitions = options.pick(5, 3, 1)
    rows = []
    with local_cluster(WORKERS) as client:
        for backlog_s in options.pick(BACKLOG_TASKS_S, BACKLOG_TASKS_S, BACKLOG_TASKS_S[1:]):
            stock_alone = _once(client, tasks, 0, backlog_s)
            stock_runs = options.pick(3, 1, 1) if backlog_s < TASK_S else 1
            stock_beside = [_once(client, tasks, backlog, backlog_s) for _ in range(stock_runs)]
            runtime = dask_hpc.install(client, policy="fcfs")
            alone, beside = [], []
            for repetition in range(repetitions + 1):
                samples = [(alone, 0), (beside, backlog)]
                for figures, size in samples if repetition % 2 else reversed(samples):
                    took_s = _once(client, tasks, size, backlog_s, runtime)
                    if repetition:
                        figures.append(took_s)
            runtime.uninstall()
            text = f"{tasks} tasks of {TASK_S * 1e3:g} ms, backlog {backlog} of {backlog_s * 1e3:g} ms"
            ratios = [b / a for a, b in zip(alone, beside, strict=True)]
            behind_s = statistics.median(stock_beside)
            on_all = f"stock: on {WORKERS} nodes, no job"
            rows.append(row(f"{text}: job alone", alone, "s", stock=stock_alone, note=on_all))
            rows.append(row(f"{text}: job beside it", beside, "s", stock=behind_s, note=on_all))
            ratio = statistics.median(beside) / statistics.median(alone)
            low, high = min(ratios), max(ratios)
            rows.append(
                Row(
                    name=f"{text}: ratio",
                    value=ratio,
                    unit="",
                    low=low,
                    high=high,
                    bar=BAR,
                    stock=behind_s / stock_alone,
                    note=f"ratio of medians of {len(alone)}; in brackets least and largest of the pairs",
                )
            )
    return rows


def _once(client: Client, tasks: int, backlog: int, backlog_s: float, runtime: object = None) -> float:
    """Seconds from before the job is declared to its last result."""
    plain = client.map(time.sleep, [backlog_s] * backlog, pure=False, key="plain") if backlog else []
    if plain:
        # the backlog is known to the scheduler and under way
        wait(plain[:WORKERS], timeout=60, return_when="FIRST_COMPLETED")
    began_s = time.perf_counter()
    if runtime is None:
        results = client.map(time.sleep, [TASK_S] * tasks, pure=False, key="own", fifo_timeout=0)
        wait(results, timeout=300)
    else:
        with runtime.job("timed", nodes=NODES) as job:  # type: ignore[attr-defined]
            results = client.map(time.sleep, [TASK_S] * tasks, pure=False, key="own", fifo_timeout=0)
        wait(results, timeout=300)
    took_s = time.perf_counter() - began_s
    if runtime is not None:
        assert job.wait(30)["state"] == "completed"
    client.cancel(plain)
    del plain, results
    _quiet(client)
    return took_s


def _quiet(client: Client) -> None:
    """Wait until the scheduler knows no task and no worker runs one."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if client.run_on_scheduler(_is_quiet):
            return
        time.sleep(0.05)
    raise TimeoutError("tasks are left 60 s after they were cancelled")


def _is_quiet(dask_scheduler: object) -> bool:
    return not dask_scheduler.tasks  # type: ignore[attr-defined]


if __name__ == "__main__":
    main("fairness", "A job beside a backlog of plain tasks, against the job alone", run)
