"""How long a resize of a running job takes, from the request to its end, on real worker processes.

The job computes short tasks all the while; a shrink waits for those that execute on the nodes that
leave. The user's request goes straight to the scheduler side, and no policy interferes.
"""

from __future__ import annotations

import time

from distributed import Client, wait
from harness import Options, Row, local_cluster, main, row

import dask_hpc

WORKERS = 4
TASKS_S = (0.010, 0.100)


def run(options: Options) -> list[Row]:
    repetitions = options.pick(15, 5, 2)
    rows = []
    with local_cluster(WORKERS) as client:
        runtime = dask_hpc.install(client, policy="fcfs")
        for task_s in options.pick(TASKS_S, TASKS_S, TASKS_S[:1]):
            shrinks, expands, latencies = _resizes(client, runtime, task_s, repetitions)
            text = f"tasks of {task_s * 1e3:g} ms"
            rows.append(row(f"{text}: shrink {WORKERS} to 2 nodes", shrinks, "ms"))
            rows.append(row(f"{text}: expand 2 to {WORKERS} nodes", expands, "ms"))
            rows.append(row(f"{text}: shrink as the scheduler counts it", latencies, "ms"))
    return rows


def _resizes(
    client: Client, runtime: dask_hpc.Runtime, task_s: float, repetitions: int
) -> tuple[list[float], list[float], list[float]]:
    shrinks, expands, latencies = [], [], []
    # enough to keep all workers busy to the end
    tasks = int((repetitions + 2) * 2 * WORKERS * max(0.5, 4 * task_s) / task_s)
    with runtime.job("resized", nodes=WORKERS, min_nodes=2, max_nodes=WORKERS) as job:
        results = client.map(time.sleep, [task_s] * tasks, pure=False, key="work")
    wait(results[: 2 * WORKERS], timeout=60)
    for _ in range(repetitions):
        for nodes, samples in ((2, shrinks), (WORKERS, expands)):
            began_s = time.perf_counter()
            outcome = job.resize(nodes)
            samples.append((time.perf_counter() - began_s) * 1e3)
            assert outcome["result"] == "done", outcome
            if nodes == 2:
                latencies.append(outcome["latency_s"] * 1e3)
            status = job.status()
            assert status["nodes"] == nodes, status
            assert status["unfinished_tasks"] > WORKERS, "the job ran out of work while it was measured"
            _work_goes_on(job, status["unfinished_tasks"] - 2 * WORKERS)
    job.cancel("measured")
    del results
    return shrinks, expands, latencies


def _work_goes_on(job: dask_hpc.Job, target: int) -> None:
    """Until the job has computed some tasks at its new size."""
    deadline_s = time.monotonic() + 60
    while job.status()["unfinished_tasks"] > target:
        if time.monotonic() > deadline_s:
            raise TimeoutError("the job made no progress within 60 s of its resize")


if __name__ == "__main__":
    main("resize", "Time from the request to resize a running job to its end", run)
