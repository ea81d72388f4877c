"""Workloads under `fair`: small jobs soon, nobody pays with the makespan, and service is counted right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_worlds import application, malleable, rigid, run, workload

from dask_hpc.sim import load, simulate
from dask_hpc.sim.model.job import Compute
from dask_hpc.sim.model.machine import Failures, NodeFailure, Options
from dask_hpc.sim.study.study import load_study, run_study
from dask_hpc.sim.what_if import engine_from
from dask_hpc.trace.files import read_trace
from dask_hpc_policies import registry
from dask_hpc_policies.metrics import node_seconds
from dask_hpc_policies.model import ClusterSnapshot


def turnaround_s(policy: str, **params: Any) -> float:
    """Mean turnaround of the three users, with a decision each second as on a live cluster."""
    result = simulate(
        load("builtin:three-users"), registry.create(policy, **params), options=Options(tick_s=1.0)
    )
    metrics = result.metrics(jobs=False)
    assert metrics["makespan_s"] == pytest.approx(31.0), "no node is idle while there is work"
    mean_s: float = metrics["mean_turnaround_s"]
    return mean_s


def shortest_remaining_first_s() -> float:
    """The least mean turnaround of the three users: all nodes to the job with the least work left."""
    work = load("builtin:three-users")
    left = {job.id: job.runtime_s for job in work.jobs}
    submit_s = {job.id: job.submit_s for job in work.jobs}
    now_s = total_s = 0.0
    while left:
        present = [id for id in left if submit_s[id] <= now_s]
        coming = [s for id, s in submit_s.items() if id in left and s > now_s]
        first = min(present, key=lambda id: left[id])
        step_s = min([left[first], *[s - now_s for s in coming]])
        left[first] -= step_s
        now_s += step_s
        if left[first] <= 1e-9:
            del left[first]
            total_s += now_s - submit_s[first]
    return total_s / len(submit_s)


def test_three_users_with_unequal_jobs() -> None:
    least_s = shortest_remaining_first_s()
    found = {name: turnaround_s(name) for name in ("fcfs", "pwma-fpsma", "equipartition", "fair")}
    print(f"mean turnaround: {found}, least {least_s:.2f} s")
    assert least_s == pytest.approx(7.2)
    assert found["fcfs"] == pytest.approx(20.8)
    assert least_s < found["fair"] < found["equipartition"] < found["pwma-fpsma"] < found["fcfs"]
    assert found["fair"] <= 8.1
    assert found["fair"] <= 1.15 * least_s


@pytest.mark.parametrize(
    "params", [{"quantum_node_s": 1}, {"quantum_node_s": 30}, {"level_factor": 4}, {"cooldown_s": 0}]
)
def test_the_gain_does_not_hang_on_a_parameter(params: dict[str, Any]) -> None:
    assert turnaround_s("fair", **params) <= 8.1


def test_a_user_with_ten_jobs_does_not_slow_down_another_with_one() -> None:
    one = malleable("one", 6, 1, 12, 10.0, user="bob", walltime_s=None, start_nodes=None, reference_nodes=6)
    many = [replace(one, id=f"m{i}", user="ada") for i in range(10)]
    end_s = {}
    for users in (True, False):
        jobs = [*many, one] if users else [replace(job, user="") for job in (*many, one)]
        result = run(workload(*jobs, nodes=12), "fair", tick_s=1.0)
        end_s[users] = next(done.end_s for done in result.runs if done.id == "one")
    assert end_s == {True: pytest.approx(10.0), False: pytest.approx(55.0)}, (
        "on half of the nodes it takes 10 s"
    )


# ------------------------------------------------------------------ attained service


def seen(path: Path) -> list[ClusterSnapshot]:
    return [one.snapshot for one in read_trace(path).passes]


def test_attained_service_is_what_a_job_has_held(tmp_path: Path) -> None:
    # resized at points, interrupted by a failure, started again
    work = workload(
        malleable("a", 8, 2, 16, 60.0, checkpoint_interval_s=5.0),
        rigid("b", 10, 20.0, submit_s=3.0),
        application("c", 4, Compute(work=100.0), submit_s=7.0),
        nodes=16,
        failures=Failures(listed=(NodeFailure(t_s=12.0, node=15, downtime_s=30.0),)),
    )
    path = tmp_path / "t.jsonl"
    result = simulate(work, "pwma-fpsma", options=Options(tick_s=2.0, snapshots=True), trace=path)
    held = {done.id: done.nodes for done in result.runs}
    checked = {job.state for view in seen(path) for job in view.jobs if job.attained_node_s > 0}
    assert checked >= {"pending", "running"}, "also one that waits again"
    for view in seen(path):
        for job in view.jobs:
            assert job.attained_node_s == pytest.approx(node_seconds(held[job.id], 0.0, view.now_s))


def test_a_run_that_goes_on_from_a_state_goes_on_counting() -> None:
    work = workload(malleable("a", 8, 2, 16, 100.0), nodes=16)
    views: list[ClusterSnapshot] = []

    class Watching:
        name = "watching"

        def initial_state(self) -> None:
            return None

        def decide(self, view: ClusterSnapshot, state: None) -> Any:
            views.append(view)
            return registry.create("fcfs").decide(view, None)

    run(work, Watching(), tick_s=10.0, snapshots=True)
    at = next(view for view in views if view.now_s == 30.0)
    assert at.jobs[0].attained_node_s == 240.0
    views.clear()
    engine = engine_from(at, Watching(), options=Options(tick_s=10.0))
    engine.run()
    assert next(view for view in views if view.now_s == 50.0).jobs[0].attained_node_s == 400.0


# ------------------------------------------------------------------------ real trace

KTH = """
workload: {{source: {path}, set: {{nodes: 100, wide: clip}}}}
policies: {policies}
vary: {{malleable_share: [0.5, 1]}}
baseline: easy
metrics: [mean_turnaround_s, p95_turnaround_s, mean_bounded_slowdown, max_flow_s, makespan_s]
expect:
  - at: {{policy: fair}}
    that:
      - change(mean_turnaround_s) < -40
      - change(p95_turnaround_s) < -20
      - mean_turnaround_s < mean_turnaround_s of equipartition
      - p95_turnaround_s < p95_turnaround_s of equipartition
      - mean_turnaround_s < mean_turnaround_s of pwma-fpsma
      - mean_turnaround_s < mean_turnaround_s of mebf
      - p95_turnaround_s < p95_turnaround_s of mebf
"""


@pytest.mark.slow
def test_fair_on_a_real_trace(data_folder: Path, tmp_path: Path) -> None:
    # those that come closest to it; all of them: tests/benchmarks/README.md
    names = ["easy", "pwma-fpsma", "equipartition", "mebf", "fair"]
    path = tmp_path / "kth.yaml"
    path.write_text(
        KTH.format(path=data_folder / "KTH-SP2-easy.swf.gz", policies={name: name for name in names})
    )
    found = run_study(load_study(path), jobs=2)
    print(found.table())
    assert found.failures == []
    assert all(one.ok is True for one in found.conditions)
