"""What the demo prints at its end: as text for people, as JSON for programs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_hpc.demo.parts import DemoRun, Verdict
from dask_hpc.demo.workloads import WORKLOADS
from dask_hpc.report.page import resizes_by_job
from dask_hpc.report.timeline import PLAIN_WORK, Timeline, build_timeline
from dask_hpc.terminal import echo_table
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies.metrics import summarize


def as_json(
    policy: str, run: DemoRun, found: Sequence[Verdict], wall_s: float, report: Path, trace: Path | None
) -> dict[str, Any]:
    """The run as JSON data: the metrics of the jobs, and what every part has found."""
    return {
        "policy": policy,
        **summarize(job_runs(run.records), pool_steps(run.records)),
        **{name: value for part in found for name, value in part.summary.items()},
        "wall_s": wall_s,
        "report": str(report),
        "trace": None if trace is None else str(trace),
    }


def print_text(run: DemoRun, found: Sequence[Verdict], wall_s: float, report: Path) -> None:
    """Print the results, the jobs, their resizes with reasons, and the figures of merit."""
    timeline = build_timeline(run.records)
    print("\nResults")
    for name, text in (row for part in found for row in part.results.items()):
        print(f"  {name:<14} {text}")
    print("\nJobs (times in seconds)")
    echo_table(
        _job_rows(timeline, run),
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


def _job_rows(timeline: Timeline, run: DemoRun) -> list[dict[str, Any]]:
    stock_s = {name: finished.turnaround_s for name, finished in run.stock.items()}
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
            "name": name,
            "kind": PLAIN_WORK,
            "turnaround_s": finished.turnaround_s,
            "stock_s": stock_s.get(name),
            "sizes": "those that no job holds",
        }
        for name, finished in run.managed.items()
        if name in WORKLOADS and name not in declared
    ]
    return rows
