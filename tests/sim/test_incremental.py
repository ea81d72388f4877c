"""Two ways of asking a policy: of what has changed, and on a whole snapshot. They decide the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import (
    ends,
    malleable,
    malleable_workloads,
    mixed_workloads,
    rigid,
    run,
    starts,
    workload,
)

from dask_hpc.sim import Machine, Options, Workload
from dask_hpc.sim.engine.asking import BySession
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Compute, Delay, Program, Repeat, SchedulingPoint
from dask_hpc.sim.model.machine import PUBLISHED
from dask_hpc_policies import registry


@examples(150)
@given(
    mixed_workloads(),
    st.sampled_from(["arrival", "area", "shortest", "longest", "weight"]),
    st.sampled_from(["front", "first-fit", "best-fit"]),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from(["grouped", "single"]),
)
def test_the_incremental_form_decides_as_decide_does(
    work: Workload, order: str, pick: str, depth: int | None, events: str
) -> None:
    policy = registry.create("easy", order=order, pick=pick, reservation_depth=depth, events=events)
    assert run(work, policy).rows == run(work, policy, snapshots=True).rows
    if pick == "front" and order == "arrival":
        assert run(work, "fcfs").rows == run(work, "fcfs", snapshots=True).rows


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("policy", ["fcfs-malleable", "io-aware"])
def test_a_job_that_starts_small_grows_in_that_moment_and_not_at_the_next_event(
    policy: str, snapshots: bool
) -> None:
    # on 2 nodes it would run for 80 s; nothing else happens while it runs
    work = workload(malleable("a", 2, 2, 8, 80.0))
    (row,) = run(work, policy, snapshots=snapshots).rows
    assert (row.nodes, row.end_s) == (((0.0, 8), (20.0, 0)), 20.0)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("policy", ["fcfs-malleable", "io-aware"])
def test_a_job_that_is_resized_at_its_scheduling_points_grows_there_and_nowhere_else(
    policy: str, snapshots: bool
) -> None:
    # "b" ends within the first stage of "a", and "c" within the second
    stages = (Compute(work=40.0), SchedulingPoint(), Compute(work=80.0))
    job = replace(malleable("a", 2, 2, 8, 120.0), program=Program(stages=stages, resize="points"))
    work = workload(job, rigid("b", 2, 10.0), rigid("c", 4, 25.0), nodes=8)
    row, *_ = run(work, policy, snapshots=snapshots).rows
    assert row.nodes == ((0.0, 2), (20.0, 4), (40.0, 0))


def test_what_a_program_does_after_a_resize_takes_its_time_also_what_it_repeats() -> None:
    program = Program(
        stages=(Compute(work=40.0), SchedulingPoint(), Compute(work=80.0)),
        resize="points",
        on_reconfiguration=(Repeat(stages=(Delay(seconds=2.0),), times=3),),
        on_expansion=(Delay(seconds=1.0),),
    )
    job = replace(malleable("a", 2, 2, 8, 120.0), program=program)
    row, *_ = run(workload(job, rigid("b", 2, 10.0), nodes=4), "fcfs-malleable").rows
    assert row.nodes == ((0.0, 2), (20.0, 4), (47.0, 0))


@pytest.mark.parametrize("policy", ["fcfs-malleable", "io-aware"])
def test_nodes_that_join_a_job_while_a_resize_takes_its_time_are_given_to_nobody_else(policy: str) -> None:
    # "a" grows to 8 nodes from 0 on, for longer than a second; "b" comes meanwhile, and waits for its end
    work = workload(
        malleable("a", 2, 2, 8, 80.0), rigid("b", 4, 5.0, submit_s=0.5), nodes=8, adaptation=PUBLISHED
    )
    quick = run(work, policy)
    assert quick.rows == run(work, policy, snapshots=True).rows
    assert starts(quick)["b"] == ends(quick)["a"]


@examples(100)
@given(
    mixed_workloads(),
    st.sampled_from(["fcfs-malleable", "io-aware"]),
    st.sampled_from([{}, {"adaptation": PUBLISHED}]),
)
def test_the_incremental_form_resizes_as_decide_does(work: Workload, policy: str, cost: Any) -> None:
    work = replace(work, machine=replace(work.machine, **cost))
    quick, slow = run(work, policy), run(work, policy, snapshots=True)
    assert quick.rows == slow.rows
    assert quick.counts.policy_calls == slow.counts.policy_calls


@st.composite
def _users(draw: st.DrawFn) -> Workload:
    """Jobs of several users, weights and priorities; of some the time they will take is known."""
    work = draw(st.one_of(mixed_workloads(), malleable_workloads()))
    jobs = []
    for job in work.jobs:
        known_s = draw(st.sampled_from([None, None, 1.0, 1.5]))
        limit_s = draw(st.sampled_from([None, 2.0, 5.0]))
        jobs.append(
            replace(
                job,
                user=draw(st.sampled_from(["", "", "ann", "bob"])),
                weight=draw(st.sampled_from([1.0, 2.0])),
                priority=draw(st.sampled_from([0, 0, 0, 1])),
                recorded_s=None if known_s is None else known_s * job.runtime_s,
                walltime_s=None if limit_s is None else limit_s * job.runtime_s,
            )
        )
    return replace(work, jobs=tuple(jobs))


@examples(200)
@given(
    _users(),
    st.fixed_dictionaries(
        {
            "cooldown_s": st.sampled_from([0.0, 2.0, 20.0]),
            "quantum_node_s": st.sampled_from([1.0, 10.0, 100.0]),
            "resize_cost_s": st.sampled_from([0.0, 0.1, 5.0]),
            "patience_s": st.sampled_from([0.0, 5.0, 60.0]),
        }
    ),
)
def test_fair_shares_told_step_by_step_are_those_of_whole_snapshots(
    work: Workload, params: dict[str, float]
) -> None:
    policy = registry.create("fair", **params)
    quick, slow = run(work, policy), run(work, policy, snapshots=True)
    assert quick.rows == slow.rows
    assert quick.counts == slow.counts


def _fair_engine(work: Workload) -> Engine:
    return Engine(work, registry.create("fair"), work.machine or Machine(nodes=8), Options())


def test_fair_is_told_step_by_step_unless_resizes_wait_for_scheduling_points() -> None:
    stages = (Compute(work=40.0), SchedulingPoint(), Compute(work=40.0))
    work = workload(malleable("a", 2, 1, 8, 80.0), malleable("b", 2, 1, 8, 80.0, submit_s=5.0))
    assert isinstance(_fair_engine(work).enactor.asker, BySession)
    for resize in ("anytime", "points"):
        program = Program(stages=stages, resize=resize)
        changed = replace(work, jobs=(replace(work.jobs[0], program=program), work.jobs[1]))
        assert isinstance(_fair_engine(changed).enactor.asker, BySession) is (resize == "anytime")
        assert run(changed, "fair").rows == run(changed, "fair", snapshots=True).rows


def test_a_copy_of_a_run_under_fair_goes_on_as_the_run_does() -> None:
    jobs = [malleable(f"j{i}", 2, 1, 8, 30.0 + i, submit_s=4.0 * i) for i in range(6)]
    engine = _fair_engine(workload(*jobs, nodes=8))
    engine.run_until(14.0)
    other = engine.fork()
    other.run()
    engine.run()
    assert other.world.table.rows == engine.world.table.rows
