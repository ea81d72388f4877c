"""A simulation that goes on from a picture of a cluster."""

from __future__ import annotations

import pytest

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.what_if import engine_from
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView

RUNNING = JobView(
    id="r", state="running", kind="malleable", nodes=6, start_nodes=4, min_nodes=2, max_nodes=8, submit_s=1.0,
    start_s=40.0, walltime_s=110.0, remaining_s=50.0, expansions=1,
)  # fmt: skip
WAITING = JobView(
    id="w", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, submit_s=90.0, walltime_s=10.0
)
VIEW = ClusterSnapshot(now_s=100.0, jobs=(RUNNING, WAITING), idle_nodes=2)


def ends(policy: str, view: ClusterSnapshot = VIEW) -> dict[str, tuple[float | None, float | None]]:
    engine = engine_from(view, policy)
    engine.run()
    return {run.id: (run.start_s, run.end_s) for run in engine.table.runs(engine.workload.jobs)}


def test_what_runs_goes_on_and_what_waits_starts_when_there_is_room() -> None:
    assert ends("fcfs") == {"r": (100.0, pytest.approx(150.0)), "w": (150.0, pytest.approx(160.0))}


def test_a_policy_may_shrink_what_runs_for_what_waits() -> None:
    found = ends("pwma-fpsma")
    assert found["w"] == (100.0, 110.0)
    # 300 node-seconds are left: 4 nodes for 10 s, then 8.
    assert found["r"][1] == pytest.approx(110 + (300 - 40) / 8)


def test_forks_compare_policies_from_the_same_moment() -> None:
    engine = engine_from(VIEW, "fcfs")
    other = engine.fork(registry.create("pwma-fpsma"))
    engine.run()
    other.run()
    last = [max(row.end_s or 0.0 for row in one.table.rows) for one in (engine, other)]
    assert last[1] < last[0]


def test_a_job_of_unknown_length_needs_a_default() -> None:
    view = ClusterSnapshot(now_s=0.0, jobs=(JobView(id="x", start_nodes=1),), idle_nodes=1)
    with pytest.raises(WorkloadError, match=r"'x'.*give default_s"):
        engine_from(view, "fcfs")
    engine = engine_from(view, "fcfs", default_s=7.0)
    engine.run()
    assert engine.table.rows[0].end_s == 7.0
    with pytest.raises(WorkloadError, match="neither idle nodes"):
        engine_from(ClusterSnapshot(now_s=0.0), "fcfs")
