"""The main job: run the scenario on stock Dask and under a policy, compare, show, report."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import distributed

import dask_hpc
from dask_hpc.demo import simulation
from dask_hpc.demo.progress import JobProgress, Progress, Tally
from dask_hpc.demo.scenario import (
    ARRIVALS,
    FAST_SCALE,
    MEMORY_LIMIT,
    NODES,
    Arrival,
    Finished,
    play,
    unfinished_tasks,
)
from dask_hpc.demo.simulation import Simulated, Simulation
from dask_hpc.demo.workloads import WORKLOADS, digest
from dask_hpc.errors import ConfigError
from dask_hpc.report.page import resizes_by_job, write_report
from dask_hpc.report.timeline import PLAIN_WORK, Timeline, build_timeline
from dask_hpc.terminal import echo_json, echo_table
from dask_hpc.trace.files import parse_trace, write_trace
from dask_hpc.trace.records import Record
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies import registry
from dask_hpc_policies.metrics import summarize
from dask_hpc_policies.model import DEFAULT_JOB

DEFAULT_POLICY = "pwma-fpsma"
DEFAULT_REPORT = Path("dask-hpc-demo.html")
#: Exit code of a command that was interrupted from the keyboard.
INTERRUPTED = 130

_CLUSTER = {
    "n_workers": NODES,
    "threads_per_worker": 1,
    "processes": True,
    "memory_limit": MEMORY_LIMIT,
    "dashboard_address": ":0",
    # Both clusters are closed while their logs would tell of every connection that ends.
    "silence_logs": logging.CRITICAL,
}
_SCHEDULER = {"dashboard_address": ":0"}
#: How long the demo waits for its jobs to come through Slurm's queue.
_SLURM_PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on stock Dask and under the policy."""

    name: str
    stock: Finished
    managed: Finished

    @property
    def equal(self) -> bool:
        """Whether the two results are the same in every bit."""
        return digest(self.stock.result) == digest(self.managed.result)


@dataclass(frozen=True, slots=True)
class HeatCheck:
    """The simulation on stock Dask and under the policy, each held against an undisturbed run."""

    stock: Finished
    managed: Finished
    stock_identical: bool
    identical: bool

    @classmethod
    def of(cls, stock: Finished, managed: Finished) -> HeatCheck:
        """Compute the undisturbed runs and compare."""
        return cls(stock, managed, stock.result.identical, managed.result.identical)

    @property
    def ok(self) -> bool:
        """Whether both fields are right and analytics ran where they should."""
        simulated: Simulated = self.managed.result
        return self.identical and self.stock_identical and simulated.in_situ

    def describe(self) -> str:
        """The run under the policy in one line."""
        return simulation.describe(self.managed.result, self.identical)


def main(
    policy: str | None = None,
    fast: bool = False,
    report: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    as_json: bool = False,
    slurm: bool = False,
) -> int:
    """Run the demo; progress goes to stderr, the summary to stdout.

    Parameters
    ----------
    policy
        Name or YAML file of the policy; ``pwma-fpsma`` when None.
    fast
        A fifth of the work.
    report, trace
        Where the HTML report and the trace go; ``dask-hpc-demo.html`` and nowhere when None.
    as_json
        Print the summary as one JSON value instead of a table.
    slurm
        Run the workloads under the policy on jobs of Slurm, as ``jobqueue.slurm`` of Dask's configuration
        describes them; stock Dask runs on this machine all the same.

    Returns
    -------
    int
        Exit code: 0; 1 when a result differs from that of stock Dask, or the field of the simulation from
        that of an undisturbed run; 130 when interrupted.

    Raises
    ------
    ConfigError
        Before anything is started, for an unknown policy or a path that cannot be written.
    DemoError
        When a workload fails or does not end.
    """
    policy = policy or DEFAULT_POLICY
    report = Path(report or DEFAULT_REPORT)
    _check_policy(policy)
    trace = None if trace is None else Path(trace)
    for path in (report, trace):
        if path is not None:
            _check_writable(path)
    if slurm:
        _check_slurm()
    progress = Progress(sys.stderr)
    scale = FAST_SCALE if fast else 1.0
    begin = time.monotonic()
    try:
        progress.say(f"1/2  stock Dask: {len(ARRIVALS)} workloads share {NODES} worker processes")
        stock = run_stock(scale, progress)
        progress.say(f"2/2  the same under the policy {policy}")
        make = partial(slurm_cluster, progress) if slurm else partial(dask_hpc.LocalCluster, **_CLUSTER)
        managed, records = run_managed(scale, policy, progress, make)
    except KeyboardInterrupt:
        progress.say("interrupted; all processes are stopped")
        return INTERRUPTED
    compared = [Comparison(name, stock[name], managed[name]) for name in stock if name in WORKLOADS]
    heat = HeatCheck.of(stock[simulation.NAME], managed[simulation.NAME])
    wall_s = time.monotonic() - begin
    write_report(report, records, title=f"dask hpc demo: {policy}", notes=_notes(compared, heat))
    if trace is not None:
        write_trace(trace, records)
    if as_json:
        echo_json(summary(policy, records, compared, heat, wall_s, report, trace))
    else:
        print_summary(records, compared, heat, wall_s, report)
    different = [entry.name for entry in compared if not entry.equal]
    if different:
        print(
            f"Error: the results of {', '.join(different)} differ from those of stock Dask; the report "
            f"{report} shows the run",
            file=sys.stderr,
        )
    if not heat.ok:
        print(
            f"Error: {simulation.NAME}: {heat.describe()}; the report {report} shows the run", file=sys.stderr
        )
    return 1 if different or not heat.ok else 0


def run_stock(scale: float, progress: Progress) -> dict[str, Finished]:
    """Run the scenario on a plain LocalCluster."""
    with _client(partial(distributed.LocalCluster, **_CLUSTER)) as client:
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


def slurm_cluster(progress: Progress) -> Any:
    """A cluster of as many Slurm jobs as the demo needs nodes, all of them running.

    Raises
    ------
    ConfigError
        When Slurm does not give them in ten minutes.
    """
    cluster = dask_hpc.SLURMCluster(silence_logs=logging.CRITICAL, scheduler_options=_SCHEDULER)
    try:
        progress.say(f"     waiting for {NODES} jobs of Slurm")
        cluster.scale(jobs=NODES)
        with cluster.get_client() as client:
            client.wait_for_workers(NODES, timeout=_SLURM_PATIENCE_S)
    except TimeoutError:
        cluster.close()
        raise ConfigError(
            f"Slurm did not start {NODES} jobs within {_SLURM_PATIENCE_S} s; squeue tells why they wait"
        ) from None
    return cluster


def run_managed(
    scale: float, policy: str, progress: Progress, make: Callable[[], Any]
) -> tuple[dict[str, Finished], list[Record]]:
    """Run the scenario under `policy` on the cluster that `make` gives.

    Returns its results, and the records of its trace, the header first.
    """
    with _client(make) as client:
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


@contextlib.contextmanager
def _client(make: Callable[[], Any]) -> Iterator[distributed.Client]:
    """A client of a new cluster; both are closed at the end, whatever ends it."""
    # The tracker unblocks the signal in the thread that starts it, which must not be the cluster's.
    resource_tracker.ensure_running()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_thread_each())
        # A terminal interrupts the worker processes too; they would die with tracebacks instead of being
        # closed. They inherit the blocked signal; this thread gets its own as soon as it can close them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            cluster = stack.enter_context(make())
            client = stack.enter_context(cluster.get_client())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield client


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Give the worker processes started within one thread each for numerical libraries."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_slurm() -> None:
    from dask_hpc.deploy.slurm.jobs import SLURMJob

    try:
        SLURMJob("tcp://127.0.0.1:0", name="check")
    except ValueError as error:
        raise ConfigError(f"jobqueue.slurm in Dask's configuration: {error}") from None


def _check_policy(policy: str) -> None:
    try:
        registry.create(policy)
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError(str(error.args[0] if error.args else error)) from None


def _check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise ConfigError(f"cannot write {path}: choose a file in a folder that exists and can be written")


def _notes(compared: Sequence[Comparison], heat: HeatCheck) -> dict[str, str]:
    notes = {}
    for entry in compared:
        workload = WORKLOADS[entry.name]
        verdict = "equal to stock Dask in every bit" if entry.equal else "NOT equal to stock Dask"
        notes[workload.title] = f"{workload.describe(entry.managed.result)}; {verdict}"
    notes[simulation.TITLE] = heat.describe()
    return notes


def summary(
    policy: str,
    records: Sequence[Record],
    compared: Sequence[Comparison],
    heat: HeatCheck,
    wall_s: float,
    report: Path,
    trace: Path | None,
) -> dict[str, Any]:
    """The run as JSON data: the metrics of the jobs, and the comparison with stock Dask."""
    simulated: Simulated = heat.managed.result
    return {
        "policy": policy,
        **summarize(job_runs(records), pool_steps(records)),
        "results_equal": all(entry.equal for entry in compared),
        "workloads": [
            {
                "name": entry.name,
                "equal": entry.equal,
                "sha256": digest(entry.managed.result),
                "turnaround_s": entry.managed.turnaround_s,
                "stock_turnaround_s": entry.stock.turnaround_s,
                "result": WORKLOADS[entry.name].describe(entry.managed.result),
            }
            for entry in compared
        ],
        simulation.NAME: {
            "resized": simulated.resizes,
            "field_identical": heat.identical,
            "stock_field_identical": heat.stock_identical,
            "steps": simulated.steps,
            "looks": len(simulated.looks),
            "looks_in_situ": simulated.in_situ,
            "turnaround_s": heat.managed.turnaround_s,
            "stock_turnaround_s": heat.stock.turnaround_s,
            "sha256": digest(simulated.field),
            "windows": [dict(window) for window in simulated.windows],
        },
        "wall_s": wall_s,
        "report": str(report),
        "trace": None if trace is None else str(trace),
    }


def print_summary(
    records: Sequence[Record],
    compared: Sequence[Comparison],
    heat: HeatCheck,
    wall_s: float,
    report: Path,
) -> None:
    """Print the results, the jobs, their resizes with reasons, and the figures of merit."""
    timeline = build_timeline(records)
    print("\nResults")
    for entry in compared:
        mark = "equal to stock" if entry.equal else "DIFFERS"
        print(f"  {entry.name:<14} {mark}: {WORKLOADS[entry.name].describe(entry.managed.result)}")
    print(f"  {simulation.NAME:<14} {heat.describe()}")
    print("\nJobs (times in seconds)")
    echo_table(
        _job_rows(timeline, compared, heat),
        {
            "name": "job",
            "kind": "kind",
            "wait_s": "wait",
            "turnaround_s": "turnaround",
            "stock_s": "on stock Dask",
            "sizes": "nodes over time",
        },
        empty="no jobs",
    )
    print("\nResizes")
    resizes = sorted(itertools.chain(*resizes_by_job(timeline).values()), key=lambda resize: resize.t_s)
    for resize in resizes:
        print(
            f"  {resize.t_s:5.1f} s  {timeline.labels.get(resize.job, resize.job):<14} "
            f"{resize.action} to {resize.nodes}: {resize.text}"
        )
    if not resizes:
        print("  none")
    figures = timeline.summary
    used = "n/a" if figures["utilization"] is None else f"{figures['utilization']:.0%}"
    span = "n/a" if figures["makespan_s"] is None else f"{figures['makespan_s']:.1f} s"
    print(f"\nMakespan {span}, utilization {used}, whole demo {wall_s:.0f} s")
    print(f"Report: {report}")


def _job_rows(timeline: Timeline, compared: Sequence[Comparison], heat: HeatCheck) -> list[dict[str, Any]]:
    stock_s = {entry.name: entry.stock.turnaround_s for entry in compared}
    stock_s[simulation.NAME] = heat.stock.turnaround_s
    rows: list[dict[str, Any]] = [
        {
            "name": job.label,
            "kind": job.kind,
            "wait_s": job.run.wait_s,
            "turnaround_s": job.run.turnaround_s,
            "stock_s": stock_s.get(job.label),
            "sizes": " > ".join(f"{n} at {t_s:.1f}" for t_s, n in job.run.nodes if n),
        }
        for job in timeline.jobs
    ]
    declared = {row["name"] for row in rows}
    rows += [
        {
            "name": entry.name,
            "kind": PLAIN_WORK,
            "turnaround_s": entry.managed.turnaround_s,
            "stock_s": entry.stock.turnaround_s,
            "sizes": "those that no job holds",
        }
        for entry in compared
        if entry.name not in declared
    ]
    return rows
