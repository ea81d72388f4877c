"""What a study can show of a run, by name.

Rules of the file: one table of names; lists (a value for each job) are for small workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from dask_hpc_policies.metrics import JobRun

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run."""

    #: Heading in a table.
    heading: str
    #: Which of two values is the better one; empty: neither.
    better: Literal["lower", "higher", ""] = "lower"
    #: A value for each job rather than one for the run.
    by_job: bool = False


#: What can be asked for; see `dask_hpc_policies.metrics` for definitions.
METRICS: Mapping[str, Metric] = {
    "makespan_s": Metric("MAKESPAN (s)"),
    "mean_wait_s": Metric("WAIT (s)"),
    "mean_turnaround_s": Metric("TURNAROUND (s)"),
    "p95_turnaround_s": Metric("TURNAROUND 95 % (s)"),
    "mean_execution_s": Metric("EXECUTION (s)"),
    "mean_bounded_slowdown": Metric("SLOWDOWN"),
    "max_flow_s": Metric("LONGEST FLOW (s)"),
    "weighted_mean_flow_s": Metric("WEIGHTED FLOW (s)"),
    "utilization": Metric("UTILIZATION", "higher"),
    "useful_utilization": Metric("USEFUL", "higher"),
    "idle_node_s": Metric("IDLE (node-s)"),
    "throughput_per_h": Metric("JOBS PER HOUR", "higher"),
    "jobs_per_node": Metric("JOBS PER NODE", "higher"),
    "energy_j": Metric("ENERGY (J)"),
    "mean_checkpoint_s": Metric("CHECKPOINT (s)"),
    "io_s": Metric("I/O (s)"),
    "resize_s": Metric("RESIZING (s)"),
    "restarts": Metric("RESTARTS"),
    "lost_node_s": Metric("LOST (node-s)"),
    "commits": Metric("COMMITS", ""),
    "expansions": Metric("EXPANSIONS", ""),
    "shrinks": Metric("SHRINKS", ""),
    "completed": Metric("COMPLETED", "higher"),
    "failed": Metric("FAILED"),
    "refused": Metric("REFUSED"),
    "starts_s": Metric("STARTS (s)", "", by_job=True),
    "flows_s": Metric("FLOWS (s)", "", by_job=True),
}


def measured(result: Result, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics `names` of a run; None for what the run does not have."""
    found = result.metrics(jobs=False)
    found["refused"] = result.counts.refused
    found["mean_execution_s"] = _mean_execution_s(result.runs)
    if "jobs_per_node" in names:
        found["jobs_per_node"] = jobs_per_node(result.runs, result.machine.nodes)
    if "starts_s" in names:
        found["starts_s"] = [run.start_s for run in result.runs]
    if "flows_s" in names:
        found["flows_s"] = [run.turnaround_s for run in result.runs]
    return {name: found.get(name) for name in names}


def jobs_per_node(runs: tuple[JobRun, ...], nodes: int) -> float:
    """How often a node was given to a job, in the mean over `nodes` (ADMIRE 2023, D3.3, section 4.1.2)."""
    given = 0
    for run in runs:
        before = 0
        for _, now in run.nodes:
            given += max(0, now - before)
            before = now
    return given / nodes


def _mean_execution_s(runs: tuple[JobRun, ...]) -> float | None:
    """Mean time from start to end (ADMIRE 2023, D3.3, section 4.1.2) of the jobs that have both."""
    lengths = [run.end_s - run.start_s for run in runs if run.start_s is not None and run.end_s is not None]
    return fmean(lengths) if lengths else None
