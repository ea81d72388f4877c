"""Malleable EASY backfilling against EASY in the simulator: the published mixes."""

from __future__ import annotations

from statistics import fmean

import pytest

from dask_hpc.sim import Result, simulate
from dask_hpc.sim.workloads import sources

#: Published largest reduction of the mean execution time, in per cent (ADMIRE 2023, D3.3, section 4.1.2).
PUBLISHED = {"compute": 30.4, "read": 29.27, "write": 27.1, "mixed": 28.9}


def execution_s(result: Result) -> float:
    """Mean time from start to end."""
    return fmean((row.end_s or 0.0) - (row.start_s or 0.0) for row in result.rows)


def jobs_per_node(result: Result) -> float:
    """How often a node was given to a job, in the mean."""
    given = 0
    for run in result.runs:
        before = 0
        for _, nodes in run.nodes:
            given += max(0, nodes - before)
            before = nodes
    return given / result.machine.nodes


def compare(mix: str, jobs: int, seed: int) -> None:
    work = sources.load(f"builtin:mebf-{mix}", seed=seed, jobs=jobs)
    easy, mebf = simulate(work, "easy"), simulate(work, "mebf")
    turnaround = [result.metrics(jobs=False)["mean_turnaround_s"] for result in (easy, mebf)]
    shorter = 100 * (1 - execution_s(mebf) / execution_s(easy))
    print(
        f"{mix}, {jobs} jobs, seed {seed}: execution time -{shorter:.1f} % (published up to "
        f"-{PUBLISHED[mix]} %), turnaround {100 * (turnaround[1] / turnaround[0] - 1):+.1f} %, jobs per node "
        f"{jobs_per_node(easy):.2f} to {jobs_per_node(mebf):.2f} (published 4.1 to 6.4 with 300 jobs)"
    )
    assert mebf.counts.refused == 0
    assert shorter > 0
    assert jobs_per_node(mebf) > jobs_per_node(easy)
    assert turnaround[1] < turnaround[0]


def test_mebf_beats_easy_on_the_mixed_workload() -> None:
    compare("mixed", 100, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("mix", PUBLISHED)
@pytest.mark.parametrize(("jobs", "seed"), [(100, 0), (200, 1), (300, 2)])
def test_mebf_beats_easy_at_every_published_size(mix: str, jobs: int, seed: int) -> None:
    compare(mix, jobs, seed)
