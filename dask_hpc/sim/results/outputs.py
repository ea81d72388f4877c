"""What a run leaves in a folder: tables for other tools, the result as JSON, plots where they can be made.

Rules of the file: plain CSV, times in seconds, one header line. The columns of ``job_statistics.csv`` and
``pfs_utilization.csv`` are those of ElastiSim (Özden et al. 2022), so that its scripts read them.

=====================  ==================================================================================
result.json            everything that `dask hpc simulate --json` prints
jobs.csv               one line a job: times, size, resizes, restarts, time in input and output
job_statistics.csv     ElastiSim: ID, Type, Submit Time, Start Time, ..., Status
node_map.csv           which job held which node from when to when
utilization.csv        nodes held and jobs running and waiting, at every change
pfs_utilization.csv    ElastiSim: Time, Read, Write, Read (relative), Write (relative); when there was I/O
intensity.csv          I/O intensity of the running mix and of the workload, when jobs have one
=====================  ==================================================================================
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.results.series import utilization
from dask_hpc.sim.results.tracking import intensity

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result

#: More jobs than that make no readable plot.
PLOTTED_JOBS = 2000
#: Every file that a run may leave.
NAMES = (
    "result.json", "jobs.csv", "job_statistics.csv", "utilization.csv", "node_map.csv", "pfs_utilization.csv",
    "intensity.csv", "jobs.png", "node_map.png", "intensity.png",
)  # fmt: skip


def write(result: Result, folder: Path) -> list[str]:
    """Write everything about `result` into `folder`, which is made; returns the names of the files.

    Files of these names that an earlier run left there, and this one does not write, are removed: what lies
    together is of one run. There are no plots without matplotlib, and none of more than 2,000 jobs.

    Raises
    ------
    WorkloadError
        When the folder cannot be written to.
    """
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {
        "jobs.csv": (_JOB_COLUMNS, _jobs(result)),
        "job_statistics.csv": (_ELASTISIM_COLUMNS, _elastisim_jobs(result)),
        "utilization.csv": (("time_s", "held_nodes", "running_jobs", "waiting_jobs"), utilization(result)),
    }
    if result.options.node_ids:
        rows = ((node, result.workload.jobs[key].id, a, b) for node, key, a, b in result.node_log)
        tables["node_map.csv"] = (("node", "job", "from_s", "to_s"), rows)
    if result.file_system:
        tables["pfs_utilization.csv"] = (
            ("Time", "Read", "Write", "Read (relative)", "Write (relative)"),
            _file_system(result),
        )
    if tracked := list(intensity(result)):
        tables["intensity.csv"] = (("time_s", "running_intensity", "workload_intensity"), tracked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
        for name, (columns, table) in tables.items():
            with (folder / name).open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(table)
        text = json.dumps(result.to_json(), indent=1, allow_nan=False)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{folder}: cannot be written to: {error.strerror or error}") from None
    return [*tables, "result.json", *_plots(result, folder)]


_JOB_COLUMNS = (
    "id", "name", "kind", "state", "submit_s", "start_s", "end_s", "wait_s", "turnaround_s",
    "bounded_slowdown", "nodes", "expansions", "shrinks", "restarts", "resize_s", "io_s", "checkpoint_s",
    "checkpoints", "wasted_node_s",
)  # fmt: skip
_ELASTISIM_COLUMNS = (
    "ID", "Type", "Submit Time", "Start Time", "End Time", "Wait Time", "Makespan", "Turnaround Time",
    "Status",
)  # fmt: skip


def _jobs(result: Result) -> Iterator[Sequence[Any]]:
    for run, row in zip(result.runs, result.rows, strict=True):
        job = result.workload.jobs[row.key]
        yield (
            run.id, run.name, job.kind, run.state, run.submit_s, run.start_s, run.end_s, run.wait_s,
            run.turnaround_s, run.bounded_slowdown, run.nodes[0][1] if run.nodes else 0, run.expansions,
            run.shrinks, row.restarts, row.resize_s, row.io_s, row.checkpoint_s, row.checkpoints,
            row.wasted_node_s,
        )  # fmt: skip


def _elastisim_jobs(result: Result) -> Iterator[Sequence[Any]]:
    for run, row in zip(result.runs, result.rows, strict=True):
        ran_s = None if run.end_s is None or run.start_s is None else run.end_s - run.start_s
        yield (
            row.key, result.workload.jobs[row.key].kind, run.submit_s, run.start_s, run.end_s, run.wait_s,
            ran_s, run.turnaround_s, run.state,
        )  # fmt: skip


def _file_system(result: Result) -> Iterator[Sequence[float]]:
    limit = result.machine.file_system_bytes_s
    last: tuple[float, float, float] | None = None
    for t_s, read, written in result.file_system:
        if last is not None and last[0] != t_s:
            yield (*last, *((rate / limit if limit else 0.0) for rate in last[1:]))
        last = (t_s, read, written)
    if last is not None:
        yield (*last, *((rate / limit if limit else 0.0) for rate in last[1:]))


def _plots(result: Result, folder: Path) -> list[str]:
    """Plots, when matplotlib is there and the jobs are not too many to be told apart."""
    try:
        from dask_hpc.sim.results import plots
    except ImportError:
        return []
    if not 0 < len(result.runs) <= PLOTTED_JOBS:
        return []
    return plots.run_figures(result, folder)
