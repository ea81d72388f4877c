"""The corridor's program: every solver finds what looking at all allocations finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import power_worlds
import pytest

from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.power import program_lp
from dask_hpc_policies.power.allocation import Found
from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.problem import PowerJob, Problem, Rigid
from dask_hpc_policies.power.program import Solver, solve


def job(id: str, nodes: int, min_w: float, max_w: float | None = None, **more: object) -> PowerJob:
    bounds = {"min_nodes": 1, "max_nodes": 32, **more}
    return PowerJob(id=id, nodes=nodes, min_w=min_w, max_w=min_w if max_w is None else max_w, **bounds)  # type: ignore[arg-type]


def agree(seed: int, *solvers: Solver) -> str:
    problem = power_worlds.problem(seed)
    exact = solve(problem, "enumerate")
    for solver in solvers:
        assert power_worlds.merits(solve(problem, solver)) == power_worlds.merits(exact), (
            f"seed {seed}, {solver}"
        )
    return exact.status


def test_solvers_agree_with_looking_at_every_allocation() -> None:
    seen = {agree(seed, "highs", *(["cbc"] if seed % 8 == 0 else [])) for seed in range(64)}  # type: ignore[list-item]
    assert seen == {"optimal", "infeasible"}


def test_cbc_finds_the_best_where_its_preprocessing_loses_it() -> None:
    agree(660, "highs", "cbc")


@pytest.mark.slow
def test_a_thousand_programs_agree() -> None:
    for seed in range(1000):
        agree(seed, "highs", *(["cbc"] if seed % 4 == 0 else []))  # type: ignore[list-item]


@pytest.mark.parametrize("seed", range(100, 130))
def test_a_plan_is_what_it_says(seed: int) -> None:
    problem = power_worlds.problem(seed)
    plan = solve(problem)
    if not plan.nodes:
        assert plan.reason
        return
    jobs = {one.id: one for one in (*problem.jobs, *problem.waiting)}
    assert set(plan.nodes) == {one.id for one in problem.jobs} | set(plan.start)
    low_w, high_w = problem.rigid.min_w, problem.rigid.max_w
    for id, nodes in plan.nodes.items():
        one = jobs[id]
        assert one.min_nodes <= nodes <= one.max_nodes
        assert is_legal(one.constraint, nodes)
        if one.table:
            ((_, least_w, most_w),) = [row for row in one.table if row[0] == nodes]
        else:
            least_w, most_w = nodes * one.min_w, nodes * one.max_w
        low_w, high_w = low_w + least_w, high_w + most_w
    unused_w = plan.idle_nodes * problem.idle_w + plan.off_nodes * problem.off_w
    assert plan.off_nodes <= problem.max_off_nodes
    assert problem.rigid.nodes + sum(plan.nodes.values()) + plan.idle_nodes + plan.off_nodes == problem.nodes
    assert (plan.min_w, plan.max_w) == pytest.approx((low_w + unused_w, high_w + unused_w))
    outside_w = max(0.0, problem.lower_w + problem.margin_w - low_w - unused_w)
    outside_w += max(0.0, high_w + unused_w - problem.upper_w + problem.margin_w)
    assert plan.violation_w == pytest.approx(outside_w, abs=problem.tolerance_w)
    assert (plan.status == "optimal") == (plan.violation_w == 0) == (plan.reason is None)
    if plan.status == "optimal" and not plan.start:
        assert plan.guaranteed_upper
        assert plan.guaranteed_lower


# ------------------------------------------------------------------ published counts


@pytest.mark.parametrize("solver", ["highs", "cbc", "enumerate"])
@pytest.mark.parametrize("watts", [128.0, 130.0, 132.0])
def test_published_counts(solver: Solver, watts: float) -> None:
    for what, (found, printed) in power_worlds.published(solver, watts).items():
        assert found == printed, what


# ------------------------------------------------------------------- who may start


PI, HEAT = job("pi", 2, 170), job("heat", 2, 250)


def machine(**more: object) -> Problem:
    base = {"nodes": 14, "lower_w": 2500, "upper_w": 3500, "idle_w": 71}
    return Problem(**{**base, **more})  # type: ignore[arg-type]


def test_the_first_waiting_job_that_fits_starts_and_then_nobody_else() -> None:
    plan = solve(machine(jobs=(job("1", 4, 170),), waiting=(PI, HEAT, replace(HEAT, id="heat-2"))))
    # two Pi jobs on all nodes draw 2,380 W
    assert (plan.status, plan.start) == ("optimal", ("heat",))


def test_nobody_starts_when_nobody_fits_and_the_running_jobs_do() -> None:
    hungry = job("hungry", 8, 900, min_nodes=8)
    plan = solve(machine(jobs=(job("1", 4, 250),), waiting=(hungry,)))
    assert (plan.status, plan.start, plan.nodes) == ("optimal", (), {"1": 14})


def test_several_start_in_turn_while_they_fit() -> None:
    problem = machine(jobs=(job("1", 4, 250),), waiting=(PI, job("wide", 14, 200, min_nodes=14), HEAT))
    assert solve(problem).start == ("pi",)
    assert solve(replace(problem, several=True)).start == ("pi", "heat")


def test_a_job_starts_when_that_lessens_a_violation_and_not_otherwise() -> None:
    # only Pi jobs: 14 nodes draw 2,380 W, below 2,500; idle ones 994 W
    plan = solve(machine(waiting=(PI,)))
    assert (plan.status, plan.start, plan.nodes, plan.violation_w) == (
        "infeasible",
        ("pi",),
        {"pi": 14},
        120.0,
    )
    over = machine(lower_w=0, upper_w=1000, jobs=(job("1", 2, 250, min_nodes=2),), waiting=(PI,))
    assert solve(over).start == ()


def test_a_moldable_job_starts_smaller_than_it_asked() -> None:
    plan = solve(machine(lower_w=994, upper_w=1300, jobs=(), waiting=(job("pi", 8, 170, max_nodes=8),)))
    assert (plan.status, plan.nodes) == ("optimal", {"pi": 3})


# ------------------------------------------------------------- order of what counts


def test_all_nodes_are_used_before_movement_is_spared() -> None:
    plan = solve(machine(lower_w=0, jobs=(job("1", 4, 100), job("2", 4, 100, max_nodes=6))))
    assert sum(plan.nodes.values()) == 14
    assert plan.score is not None
    assert plan.score.moved_nodes == 6


def test_a_size_that_is_not_legal_any_more_moves_to_the_nearest() -> None:
    plan = solve(machine(lower_w=0, nodes=5, jobs=(job("1", 5, 100, constraint="even"),)))
    assert (plan.nodes, plan.idle_nodes) == ({"1": 4}, 1)


def test_nodes_are_switched_off_only_to_stay_below_the_upper_bound() -> None:
    fixed = (job("1", 2, 100, max_nodes=2),)
    tight = machine(lower_w=0, upper_w=500, jobs=fixed, max_off_nodes=12)
    assert (solve(tight).status, solve(tight).off_nodes, solve(tight).idle_nodes) == ("optimal", 8, 4)
    assert solve(replace(tight, upper_w=2000)).off_nodes == 0


def test_rigid_jobs_hold_their_nodes_and_draw_their_watts() -> None:
    plan = solve(machine(lower_w=0, upper_w=2000, rigid=Rigid(nodes=4, min_w=500, max_w=600), jobs=(PI,)))
    assert (plan.nodes, plan.idle_nodes, plan.max_w) == ({"pi": 6}, 4, 600 + 6 * 170 + 4 * 71)
    plan = solve(
        machine(lower_w=0, upper_w=2000, margin_w=100, rigid=Rigid(min_w=500, max_w=600), jobs=(PI,))
    )
    assert plan.max_w is not None
    assert plan.max_w <= 1900


def test_a_table_gives_the_sizes_and_the_watts_of_the_whole_job() -> None:
    measured = PowerJob(
        id="m", nodes=2, min_nodes=1, max_nodes=8, table=((2, 300, 320), (5, 600, 650), (8, 1500, 1600))
    )
    plan = solve(machine(lower_w=0, upper_w=1350, jobs=(measured,)))
    assert (plan.nodes, plan.max_w) == ({"m": 5}, 650 + 9 * 71)


# --------------------------------------------------------------------- no solution


def test_without_an_allocation_the_reason_says_what_to_change() -> None:
    crowded = machine(jobs=tuple(job(str(i), 5, 100, min_nodes=5) for i in range(3)))
    none = machine(jobs=(job("1", 5, 100, min_nodes=5, max_nodes=7, constraint="pof2"),))
    for problem, said in (
        (crowded, "at least 15 nodes and 14 are free; lower their min_nodes"),
        (none, "job 1 has no legal size: pof2 from 5 to 7 nodes; widen its bounds"),
    ):
        for solver in ("highs", "cbc", "enumerate"):
            plan = solve(problem, solver)  # type: ignore[arg-type]
            assert (plan.status, plan.nodes, plan.violation_w) == ("infeasible", {}, None)
            assert said in (plan.reason or "")
            assert not plan.guaranteed_upper
            assert not plan.guaranteed_lower


def test_the_reason_names_the_side_and_by_how_much() -> None:
    below = solve(machine(jobs=(PI,))).reason or ""
    assert "2380 W, 120 W below 2500 W" in below
    above = solve(machine(lower_w=0, upper_w=900, jobs=(PI,))).reason or ""
    assert "1093 W, 193 W above 900 W" in above
    assert "margin_w 600 leaves nothing" in (solve(machine(margin_w=600, jobs=(PI,))).reason or "")


def test_time_that_is_up_is_a_status() -> None:
    for solver in ("highs", "cbc"):
        plan = solve(machine(jobs=(PI, HEAT)), solver, limit_s=0.0)  # type: ignore[arg-type]
        assert (plan.status, plan.nodes) == ("time-limit", {})
        assert "time was up" in (plan.reason or "")


def test_waiting_jobs_leave_the_running_ones_time_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    right, limits = program_lp.least, []

    def slow(case: Any, tight: bool, limit_s: float, solver: Any) -> Any:
        if limit_s > 0 and any(side.starts for side in case.sides):
            limits.append(limit_s)
            return Found("time-limit"), limit_s
        return right(case, tight, limit_s, solver)

    monkeypatch.setattr(program_lp, "least", slow)
    waiting = tuple(job(str(number), 8, 900) for number in range(4))
    plan = solve(machine(lower_w=1000, upper_w=1700, jobs=(PI,), waiting=waiting), limit_s=8.0)
    assert (plan.status, plan.start, limits) == ("time-limit", (), [4.0])
    assert plan.nodes


def test_cbc_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulp

    monkeypatch.setattr(pulp.COIN_CMD, "available", lambda self: False)
    with pytest.raises(ProgramError, match=r"there is no CBC.*choose the solver highs"):
        solve(machine(jobs=(PI,)), "cbc")


def test_too_many_allocations_to_enumerate_are_refused() -> None:
    jobs = tuple(job(str(i), 8, 100, max_nodes=200) for i in range(8))
    with pytest.raises(
        ProgramError, match=r"too many to enumerate; allowed: 5000000; choose the solver highs"
    ):
        solve(machine(nodes=200, jobs=jobs), "enumerate")
    with pytest.raises(ProgramError, match="solver is 'glpk'; allowed: highs, cbc, enumerate"):
        solve(machine(), "glpk")  # type: ignore[arg-type]
