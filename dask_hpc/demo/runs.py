"""The scenario on stock Dask, and under a policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask_hpc
from dask_hpc.demo import simulation
from dask_hpc.demo.clusters import client_of, stock_cluster
from dask_hpc.demo.progress import JobProgress, ProgressDisplay, Tally
from dask_hpc.demo.scenario import Arrival, Finished, play, unfinished_tasks
from dask_hpc.demo.simulation import Simulation
from dask_hpc.report.timeline import PLAIN_WORK
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.records import Record
from dask_hpc_policies.model import DEFAULT_JOB


def run_stock(scale: float, progress: ProgressDisplay) -> dict[str, Finished]:
    """Run the scenario on a plain LocalCluster."""
    with client_of(stock_cluster) as client:
        tally = Tally()

        def submit(_: Arrival, collection: Any, heat: Simulation) -> Any:
            return heat.start_stock(client) if collection is None else client.compute(collection)

        def watch(now_s: float, active: Sequence[str], _: Simulation) -> Sequence[str]:
            tally.see(unfinished_tasks(client))
            state = f"{len(active)} active"
            line = JobProgress(
                name="all workloads", state=state, nodes=None, done=tally.done, total=tally.total
            )
            progress.show(now_s, [line])
            return ()

        return play(scale, submit, watch)


def run_managed(
    scale: float, policy: str, progress: ProgressDisplay, make: Callable[[], Any]
) -> tuple[dict[str, Finished], list[Record]]:
    """Run the scenario under `policy` on the cluster that `make` gives.

    Returns its results, and the records of its trace, the header first.
    """
    with client_of(make) as client:
        runtime = dask_hpc.install(client, policy=policy)
        tallies: dict[str, Tally] = defaultdict(Tally)
        jobs: list[Any] = []

        def submit(arrival: Arrival, collection: Any, heat: Simulation) -> Any:
            if collection is None:
                return heat.start_managed(runtime, arrival.request or {}, jobs)
            if arrival.request is None:
                return client.compute(collection)
            with runtime.job(arrival.workload, **arrival.request) as job:
                future = client.compute(collection)
            jobs.append(job)
            return future

        def watch(now_s: float, _: Sequence[str], heat: Simulation) -> list[str]:
            rows = runtime.jobs()
            progress.show(now_s, [_job_progress(row, tallies[row["id"]], heat) for row in rows])
            return [row["name"] for row in rows if row["state"] == "pending"]

        finished = play(scale, submit, watch)
        for job in jobs:
            job.wait(timeout=30)
        read = parse_trace(runtime.trace())
        return finished, [read.header, *read.records]


def _job_progress(row: Mapping[str, Any], tally: Tally, heat: Simulation) -> JobProgress:
    tally.see(row["unfinished_tasks"])
    text = f"step {heat.steps}" if row["name"] == simulation.NAME else ""
    name = PLAIN_WORK if row["name"] == DEFAULT_JOB else row["name"]
    return JobProgress(
        name=name, state=row["state"], nodes=row["nodes"], done=tally.done, total=tally.total, text=text
    )
