"""Estimates of a workload from runs, and the seeded choice of malleable jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim import Machine, Options, load, simulate
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.views import pending_view, running_view
from dask_hpc.sim.model.job import Job, power_law
from dask_hpc.sim.model.workload import Workload, ordered, with_malleable_share
from dask_hpc.sim.workloads.recorded import recorded_runs, with_recorded
from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.jobs.estimates import remaining_s
from dask_hpc_policies.metrics import JobRun
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.reservation import expected_s


def job(id: str, nodes: int = 4, **more: object) -> Job:
    base = Job(id=id, submit_s=0, start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, runtime_s=10)
    return replace(base, **more)  # type: ignore[arg-type]


def run(id: str, seconds: float, *sizes: int, **more: object) -> JobRun:
    steps = tuple((10.0 * place, nodes) for place, nodes in enumerate((*sizes, 0)))
    return replace(JobRun(id=id, submit_s=0, start_s=0, end_s=seconds, nodes=steps), **more)  # type: ignore[arg-type]


def test_completed_runs_of_one_size_become_estimates() -> None:
    workload = Workload(
        name="w",
        jobs=(
            job("1", application="heat"), job("2", name="heat"), job("3", 8, application="heat"),
            job("4", application="other", recorded_s=7), job("5"),
        ),
    )  # fmt: skip
    book = recorded_runs(
        [
            run("1", 100, 4), run("2", 140, 4), run("3", 999, 8, 4), run("4", 5, 4, state="failed"),
            run("5", 5, 4), run("1", 5, 4, end_s=None),
        ],
        workload,
    )  # fmt: skip
    assert book.totals == {("heat", 4): (2, 240)}
    estimated = with_recorded(workload, book)
    assert [one.recorded_s for one in estimated.jobs] == [120, 120, 60, 7, None]
    assert estimated.notes == ("3 of 5 jobs have estimates from recorded runs",)


JOBS = st.lists(
    st.tuples(st.integers(1, 64), st.sampled_from(constraints.CONSTRAINTS)), min_size=1, max_size=40
).map(
    lambda rows: Workload(
        name="w",
        jobs=tuple(
            job(
                str(place),
                constraints.smallest_at_least(constraint, nodes, 10**6) or 1,
                constraint=constraint,
            )
            for place, (nodes, constraint) in enumerate(rows)
        ),
    )
)


@given(JOBS, st.floats(0, 1), st.integers(0, 99), st.none() | st.floats(1, 16))
def test_declared_jobs_have_legal_bounds_around_their_size(
    workload: Workload, share: float, seed: int, spread: float | None
) -> None:
    declared = with_malleable_share(workload, share, seed, 64, spread=spread)
    assert declared == with_malleable_share(workload, share, seed, 64, spread=spread)
    kinds = [one.kind for one in declared.jobs]
    assert kinds.count("malleable") == round(share * len(kinds))
    for before, after in zip(workload.jobs, declared.jobs, strict=True):
        assert (after.nodes, after.runtime_s, after.id) == (before.nodes, before.runtime_s, before.id)
        if after.kind == "rigid":
            assert after == before
            continue
        size = before.nodes or 0
        assert after.min_nodes <= size <= after.max_nodes <= max(64, size)
        assert constraints.is_legal(after.constraint, after.min_nodes)
        assert constraints.is_legal(after.constraint, after.max_nodes)
        if spread is not None:
            assert after.min_nodes >= size / spread
            assert after.max_nodes <= size * spread


@given(st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_the_jobs_of_a_smaller_one(seed: int, one: float, other: float) -> None:
    workload = Workload(name="w", jobs=tuple(job(str(place)) for place in range(30)))

    def chosen(share: float) -> set[str]:
        declared = with_malleable_share(workload, share, seed, 16).jobs
        return {one.id for one in declared if one.kind == "malleable"}

    assert chosen(min(one, other)) <= chosen(max(one, other))


def test_every_job_is_chosen_about_equally_often() -> None:
    workload = Workload(name="w", jobs=tuple(job(str(place)) for place in range(10)))
    counts = dict.fromkeys(map(str, range(10)), 0)
    for seed in range(1000):
        for one in with_malleable_share(workload, 0.3, seed, 16).jobs:
            counts[one.id] += one.kind == "malleable"
    # 300 expected, standard deviation 14.5
    assert all(230 < count < 370 for count in counts.values()), counts


def test_the_speed_up_can_be_chosen_and_only_rigid_jobs_are_declared() -> None:
    workload = Workload(name="w", jobs=(job("a"), job("b", kind="moldable", min_nodes=1)))
    declared = with_malleable_share(workload, 1.0, 0, 16, speed=power_law(0.5))
    assert [one.kind for one in declared.jobs] == ["malleable", "moldable"]
    assert declared.jobs[0].speed == power_law(0.5)
    assert declared.notes == ("1 of 1 rigid jobs declared malleable (seed 0)",)


def test_bad_shares_and_spreads_are_refused() -> None:
    workload = Workload(name="w", jobs=(job("a"),))
    for share, spread in ((-0.1, None), (1.1, None), (float("nan"), None), (0.5, 0.5), (0.5, float("inf"))):
        with pytest.raises(ValueError, match="must be"):
            with_malleable_share(workload, share, 0, 16, spread=spread)


def test_a_policy_sees_the_remaining_time_that_a_live_scheduler_would_say() -> None:
    base = job("1", recorded_s=10.0, walltime_s=30.0, kind="malleable", min_nodes=1, max_nodes=8)
    active = ActiveJob(base, 0)
    active.state, active.nodes, active.start_s = "running", 4, 100.0
    for elapsed_s in (0.0, 4.0, 9.5, 10.0, 12.0, 30.0, 40.0):
        found = running_view(active, 100.0 + elapsed_s).remaining_s
        assert found == pytest.approx(remaining_s(elapsed_s, 10.0, 30.0))
    # what is recorded is about jobs of one size, and the walltime is a limit whatever the size
    active.shrinks, active.nodes = 1, 2
    assert running_view(active, 104.0).remaining_s == pytest.approx(remaining_s(4.0, None, 30.0)) == 26.0
    # without a walltime
    lone = ActiveJob(replace(base, walltime_s=None), 0)
    lone.state, lone.nodes, lone.start_s = "running", 4, 100.0
    assert running_view(lone, 112.0).remaining_s == remaining_s(12.0, 10.0, None) == 0.0


def test_a_job_that_waits_is_expected_to_take_what_a_live_scheduler_would_say() -> None:
    for recorded_s, walltime_s in ((100.0, 60.0), (10.0, 60.0), (None, 60.0), (100.0, None)):
        waiting = pending_view(ActiveJob(job("1", recorded_s=recorded_s, walltime_s=walltime_s), 0))
        assert expected_s(waiting) == remaining_s(0.0, recorded_s, walltime_s)
    # one that was interrupted has the rest of either before it
    again = ActiveJob(job("1", runtime_s=20.0, recorded_s=24.0, walltime_s=60.0), 0)
    again.interruption, again.kept = "failure", 0.5
    assert expected_s(pending_view(again)) == 14.0
    # the walltime ends it, whatever is recorded: it may be backfilled beside a reservation in 78 s
    jobs = (
        job("long", 3, runtime_s=80.0, walltime_s=80.0),
        job("head", 4, submit_s=1.0, runtime_s=10.0, walltime_s=10.0),
        job("short", 1, submit_s=2.0, runtime_s=50.0, walltime_s=60.0, recorded_s=100.0),
    )
    work = Workload(name="w", jobs=jobs, machine=Machine(nodes=4))
    for options in (Options(), Options(snapshots=True)):
        assert [run.start_s for run in simulate(work, "easy", options=options).runs] == [0.0, 80.0, 2.0]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(st.lists(st.tuples(*[st.integers(0, 8)] * 5), min_size=2, max_size=15))
def test_estimates_that_are_outlived_are_corrected_in_both_forms_of_a_policy(
    policy: str, rows: list[tuple[int, int, int, int, int]]
) -> None:
    jobs = []
    for number, (submit_s, nodes, run_s, over_s, shift_s) in enumerate(rows):
        one = job(
            str(number), max(1, nodes), submit_s=float(submit_s), runtime_s=run_s + 1.0,
            walltime_s=run_s + 1.0 + over_s, recorded_s=max(1.0, run_s + 5.0 - shift_s),
        )  # fmt: skip
        jobs.append(one)
    work = Workload(name="w", jobs=ordered(jobs), machine=Machine(nodes=8))
    assert simulate(work, policy).runs == simulate(work, policy, options=Options(snapshots=True)).runs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("malleable", [0.0, 0.5])
@pytest.mark.parametrize("params", [{}, {"pick": "best-fit"}, {"order": "area"}, {"events": "single"}])
def test_a_deep_queue_is_backfilled_alike_in_both_forms_of_a_policy(
    params: dict[str, str], malleable: float, seed: int
) -> None:
    work = load("builtin:poisson", seed=seed, jobs=250, nodes=32, load=4.0, malleable=malleable)
    work = replace(
        work,
        jobs=tuple(replace(one, start_nodes=None) if one.kind == "malleable" else one for one in work.jobs),
    )
    policy = create("easy", **params)
    found = simulate(work, policy)
    assert found.counts.queue_scans > 100
    assert found.runs == simulate(work, policy, options=Options(snapshots=True)).runs
