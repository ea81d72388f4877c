"""Intensities over time: what a run left behind agrees with what its policy saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_worlds import queued_mix, running_mix

from dask_hpc.sim import Options, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.results.outputs import write
from dask_hpc.sim.results.tracking import intensity
from dask_hpc.sim.workloads import sources
from dask_hpc.trace.records import Pass
from dask_hpc_policies.registry import create


@pytest.mark.parametrize("policy", ["io-aware", "fcfs-malleable"])
def test_the_intensities_are_those_of_every_picture(policy: str) -> None:
    work = sources.load("builtin:io-aware", seed=3, jobs=80, mean_gap_s=2.0)
    assert work.machine is not None
    seen: dict[float, tuple[float, float]] = {}

    engine = Engine(work, create(policy), work.machine, Options(snapshots=True, node_ids=True))
    for record in recorded(engine):
        if isinstance(record, Pass):
            # The first picture of a moment is taken before the policy changes anything.
            view = record.snapshot
            running = running_mix(view.jobs)
            workload = running.joined(queued_mix(view.pending))
            seen.setdefault(view.now_s, (running.intensity, workload.intensity))
    result = simulate(work, policy)
    steps = list(intensity(result))
    assert [t_s for t_s, _, _ in steps] == sorted({t_s for t_s, _, _ in steps})
    assert steps[-1][1:] == (0.0, 0.0)
    # Just before a moment at which a job is only submitted, what runs is what ran since the last step.
    submits = {job.submit_s for job in work.jobs}
    changes = {t_s for run in result.runs for t_s, _ in run.nodes}
    quiet = [t_s for t_s in submits - changes if t_s in seen]
    assert len(quiet) > 20
    found = {t_s: (running, whole) for t_s, running, whole in steps}
    for t_s in quiet:
        assert found[t_s] == pytest.approx(seen[t_s], abs=1e-9)


def test_jobs_without_an_intensity_have_none_to_track() -> None:
    assert list(intensity(simulate(sources.load("builtin:five-jobs"), "easy"))) == []


def test_the_outputs_of_a_run_hold_its_intensities(tmp_path: Path) -> None:
    work = sources.load("builtin:io-aware", seed=3, jobs=20, mean_gap_s=2.0)
    result = simulate(work, "io-aware", options=Options(node_ids=True, file_system_series=True))
    assert {"intensity.csv", "intensity.png", "pfs_utilization.csv"} <= set(write(result, tmp_path))
    lines = (tmp_path / "intensity.csv").read_text().splitlines()
    assert lines[0] == "time_s,running_intensity,workload_intensity"
    assert [tuple(map(float, line.split(","))) for line in lines[1:]] == list(intensity(result))


def test_what_lies_together_is_of_one_run(tmp_path: Path) -> None:
    options = Options(node_ids=True, file_system_series=True)
    first = simulate(sources.load("builtin:io-aware", seed=3, jobs=5), "fcfs", options=options)
    (tmp_path / "of-the-user.txt").write_text("stays")
    write(first, tmp_path)
    second = write(simulate(sources.load("builtin:five-jobs"), "fcfs"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*second, "of-the-user.txt"}
