"""Applications in the simulator: stages, the shared file system, scheduling points, failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import Restless, Scripted, application, ends, malleable, rigid, run, starts, workload

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Workload
from dask_hpc.sim.model.job import (
    CONSTANT,
    Compute,
    Delay,
    Repeat,
    Request,
    SchedulingPoint,
    Stage,
    Transfer,
    amdahl,
    power_law,
    speed_table,
)
from dask_hpc.sim.model.machine import Failures, NodeFailure
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot

GB = 1e9
#: 10 GB/s for all, at most 1 GB/s a node.
IO: dict[str, Any] = {"link_bytes_s": GB, "file_system_bytes_s": 10 * GB}


def test_speed_up_models() -> None:
    assert amdahl(0.5)(4) == pytest.approx(1.6)
    assert power_law(0.5)(16) == pytest.approx(4.0)
    table = speed_table({4: 100.0, 8: 50.0})
    assert 1 / table(4) == 100
    assert table(6) == pytest.approx(0.015)
    assert table(2) == table(4)
    assert table(100) == table(8)
    for wrong in (
        lambda: amdahl(1.5),
        lambda: power_law(-1),
        lambda: speed_table({}),
        lambda: speed_table({0: 1}),
    ):
        with pytest.raises(ValueError, match=r"must|needs"):
            wrong()


def test_stages_one_after_the_other_with_amounts_by_size() -> None:
    job = application(
        "a", 4, Compute(work=40.0), Delay(seconds=5.0),
        Repeat(stages=(Compute(work=lambda n: 2.0 * n, speed=CONSTANT), Delay(seconds=1.0)), times=3),
        Repeat(stages=(Delay(seconds=100.0),), times=0),
    )  # fmt: skip
    assert ends(run(workload(job)))["a"] == pytest.approx(10 + 5 + 3 * (8 + 1))


def test_a_transfer_runs_at_the_links_or_at_its_share_of_the_file_system() -> None:
    alone = application("alone", 4, Transfer(size_bytes=40 * GB))
    assert ends(run(workload(alone, **IO)))["alone"] == pytest.approx(10.0)
    wide = application("wide", 16, Transfer(size_bytes=40 * GB))
    assert ends(run(workload(wide, **IO)))["wide"] == pytest.approx(4.0)
    few = application("few", 16, Transfer(size_bytes=40 * GB, participants=2))
    assert ends(run(workload(few, **IO)))["few"] == pytest.approx(20.0)
    assert ends(run(workload(wide)))["wide"] == 0.0


def test_nodes_share_the_file_system_equally_and_the_rate_changes_when_one_job_is_done() -> None:
    # 20 nodes: 0.5 GB/s each. Small has done its 10 GB after 2 s, big then has 10 nodes at 1 GB/s.
    big = application("big", 10, Transfer(size_bytes=50 * GB))
    small = application("small", 10, Transfer(size_bytes=10 * GB))
    found = ends(run(workload(big, small, nodes=20, **IO)))
    assert found == pytest.approx({"small": 2.0, "big": 2.0 + 40 / 10})


def test_pairing_unlike_jobs_finishes_sooner() -> None:
    # Two slots of 8 nodes; compute for 10 s or move 100 GB, at 10 GB/s for all.
    def job(kind: str, i: int) -> Any:
        stage: Stage = Delay(seconds=10.0) if kind == "c" else Transfer(size_bytes=80 * GB)
        return application(f"{kind}{i}", 8, stage)

    def span(order: str) -> float:
        jobs = [job(kind, i) for i, kind in enumerate(order)]
        found: float = run(workload(*jobs, **IO)).metrics()["makespan_s"]
        return found

    assert span("cici") < span("ccii")


@st.composite
def io_workloads(draw: st.DrawFn) -> Workload:
    jobs = []
    for i in range(draw(st.integers(1, 6))):
        stages: list[Stage] = []
        for _ in range(draw(st.integers(1, 4))):
            stages += draw(
                st.sampled_from(
                    [
                        (Compute(work=17.0),),
                        (Delay(seconds=3.0),),
                        (Transfer(size_bytes=7.5 * GB, purpose="checkpoint"), SchedulingPoint()),
                        (Transfer(size_bytes=lambda n: n * GB, direction="read"),),
                    ]
                )
            )
        job = application(f"j{i}", draw(st.integers(2, 8)), Repeat(stages=tuple(stages), times=2))
        resize: Any = draw(st.sampled_from(["anytime", "points"]))
        assert job.program is not None
        jobs.append(
            replace(
                job, kind="malleable", min_nodes=1, max_nodes=12, program=replace(job.program, resize=resize)
            )
        )
    return workload(*jobs, **IO)


@examples(80)
@given(io_workloads(), st.lists(st.integers(0, 20), min_size=1, max_size=15))
def test_bytes_and_work_are_conserved_however_jobs_are_resized(work: Workload, numbers: list[int]) -> None:
    # The engine compares what the file system moved with what the jobs asked for, and raises otherwise.
    result = run(work, Restless(numbers), file_system_series=True)
    assert all(one.state == "completed" for one in result.runs)
    limit = work.machine.file_system_bytes_s if work.machine else None
    assert limit is not None
    assert all(read + written <= limit * (1 + 1e-9) for _, read, written in result.file_system)


def test_a_resize_waits_for_the_scheduling_point() -> None:
    stages = Repeat(stages=(Compute(work=40.0), SchedulingPoint()), times=3)
    job = replace(application("a", 4, stages, resize="points"), kind="malleable", min_nodes=1, max_nodes=8)
    work = workload(job, rigid("clock", 1, 5.0))
    # Asked for at 5 s, in the middle of a stage; 10 s is the first point.
    assert ends(run(work, Scripted({5.0: {"a": 8}})))["a"] == pytest.approx(10 + 5 + 5)
    assert ends(run(work, Scripted({10.0: {"a": 8}})))["a"] == pytest.approx(10 + 5 + 5)
    assert ends(run(work, "fcfs-malleable"))["a"] == pytest.approx(10 + 5 + 5)


def test_an_evolving_job_asks_and_the_policy_sees_it() -> None:
    seen: list[tuple[float, int | None]] = []

    class Granting(Scripted):
        def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
            wishes = {job.id: job.requested_nodes for job in view.running if job.requested_nodes is not None}
            if view.trigger == "request":
                seen.append((view.now_s, wishes.get("a")))
            return Scripted({view.now_s: {k: n for k, n in wishes.items() if n}}).decide(view, state)

    job = application("a", 4, Compute(work=40.0), Request(nodes=8.0), Compute(work=40.0))
    job = replace(job, kind="evolving", min_nodes=1, max_nodes=16)
    assert ends(run(workload(job), Granting({})))["a"] == pytest.approx(10 + 5)
    assert seen == [(10.0, 8)]
    assert ends(run(workload(job), "fcfs"))["a"] == pytest.approx(10 + 5), "nobody else wants the nodes"
    narrow = replace(job, max_nodes=7)
    assert ends(run(workload(narrow), "fcfs"))["a"] == pytest.approx(20.0), "more than it may have"


def test_checkpoints_are_counted_and_timed() -> None:
    stage = Repeat(stages=(Compute(work=8.0), Transfer(size_bytes=8 * GB, purpose="checkpoint")), times=4)
    found = run(workload(application("a", 8, stage), **IO)).metrics()
    assert found["mean_checkpoint_s"] == pytest.approx(1.0)
    assert found["io_s"] == pytest.approx(4.0)


# ---------------------------------------------------------------------- failures


def failing(*jobs: Any, nodes: int = 8, **failure: Any) -> Workload:
    listed = NodeFailure(**{"t_s": 5.0, "node": 0, "downtime_s": 100.0, **failure})
    return workload(*jobs, nodes=nodes, failures=Failures(listed=(listed,)))


def test_a_rigid_job_begins_again_or_at_its_checkpoint() -> None:
    job = rigid("a", 4, 10.0)
    result = run(failing(job))
    assert ends(result)["a"] == 15.0
    assert result.rows[0].restarts == 1
    assert result.metrics()["useful_utilization"] == pytest.approx(result.metrics()["utilization"] - 20 / 120)
    saved = run(failing(replace(job, checkpoint_interval_s=2.0)))
    assert ends(saved)["a"] == pytest.approx(5 + (10 - 4))


def test_a_program_begins_again_after_its_last_checkpoint() -> None:
    stages = Repeat(stages=(Compute(work=16.0), Transfer(size_bytes=0.0, purpose="checkpoint")), times=3)
    assert ends(run(failing(application("a", 8, stages), nodes=9)))["a"] == pytest.approx(5 + 2)


def test_a_failed_job_is_served_before_all_others() -> None:
    work = failing(rigid("a", 8, 10.0), rigid("b", 8, 10.0, submit_s=1.0), downtime_s=1.0)
    assert ends(run(work)) == {"a": 16.0, "b": 26.0}


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_failed_job_is_served_before_those_that_were_submitted_earlier(snapshots: bool) -> None:
    jobs = rigid("first", 6, 10.0), rigid("head", 8, 10.0, submit_s=1.0), rigid("small", 2, 8.0, submit_s=2.0)
    # small fills a gap beside first; when it begins anew, it is too long for that gap and goes before head
    result = run(failing(*jobs, node=7, downtime_s=1.0), "easy", snapshots=snapshots)
    assert ends(result) == {"first": 10.0, "small": 14.0, "head": 24.0}


def test_a_malleable_job_goes_on_with_what_is_left() -> None:
    result = run(failing(malleable("a", 4, 2, 4, 10.0)))
    assert ends(result)["a"] == pytest.approx(5 + 5 * 4 / 3)
    assert result.rows[0].restarts == 0
    again = run(failing(malleable("a", 4, 4, 4, 10.0)))
    assert again.rows[0].restarts == 1


def test_a_failure_of_an_idle_node_only_takes_it_away() -> None:
    result = run(failing(rigid("a", 4, 10.0), rigid("b", 8, 1.0, submit_s=6.0), node=7, downtime_s=20.0))
    assert starts(result) == {"a": 0.0, "b": 25.0}


def test_random_failures_follow_the_seed() -> None:
    jobs = [rigid(f"j{i}", 4, 50.0, submit_s=10.0 * i) for i in range(20)]
    work = workload(*jobs, failures=Failures(node_mtbf_s=1000.0, downtime_s=30.0))
    one, same, other = (run(work, "easy", seed=seed) for seed in (1, 1, 2))
    assert one.rows == same.rows != other.rows
    assert sum(row.restarts for row in one.rows) > 0
    assert all(run.state == "completed" for run in one.runs)


def test_a_failure_of_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(WorkloadError, match="failure of node 8 at 5 s: nodes are 0 to 7"):
        run(failing(rigid("a", 1, 1.0), node=8))


@pytest.mark.parametrize(
    ("timing", "end_s"), [("now", 10.0), ("proactive-checkpoint", 10.0), ("next-checkpoint", 10.5)]
)
def test_a_victim_is_interrupted_when_the_policy_says(timing: str, end_s: float) -> None:
    # At 5 the node of the big job fails; the small job has its next checkpoint at 5.5.
    big = rigid("big", 6, 10.0, checkpoint_interval_s=5.0)
    small = replace(rigid("small", 2, 50.0), checkpoint_interval_s=5.5)
    policy = registry.create("sfsj", timing=timing)
    result = run(failing(big, small, downtime_s=1000.0), policy)
    assert ends(result)["big"] == pytest.approx(end_s)
    kept_s = {"now": 0.0, "proactive-checkpoint": 5.0, "next-checkpoint": 5.5}[timing]
    assert ends(result)["small"] == pytest.approx(end_s + 50.0 - kept_s)
