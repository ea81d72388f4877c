"""What some allocation of a machine does: asked of formulas, and of all allocations one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import power_worlds
import pytest

from dask_hpc_policies.power.allocation import Case, drawn, make_case
from dask_hpc_policies.power.guarantees import guaranteed_lower, guaranteed_upper
from dask_hpc_policies.power.possible import some_inside
from dask_hpc_policies.power.problem import PowerJob, Problem


def watts(case: Case) -> Iterator[tuple[float, float]]:
    """Least and most watts of every allocation."""
    for picks in product(*(range(len(side.choices)) for side in case.sides)):
        used = sum(side.choices[pick][0] for side, pick in zip(case.sides, picks, strict=True))
        for off in range(min(case.free_nodes - used, case.problem.max_off_nodes) + 1):
            yield drawn(case, picks, off)


def bounded(problem: Problem, lower_w: float, upper_w: float) -> Problem:
    return replace(problem, lower_w=lower_w, upper_w=upper_w, margin_w=0.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_guarantees_are_as_sharp_as_all_allocations(seed: int) -> None:
    problem = power_worlds.problem(seed, jobs=3, nodes=16)
    case = make_case(problem)
    every = list(watts(case))
    if not every:
        assert not guaranteed_upper(case)
        assert not guaranteed_lower(case)
        return
    least_w, most_w = min(high for _, high in every), max(low for low, _ in every)
    for share, found in ((1.0, True), (1.001, False)):
        assert guaranteed_upper(make_case(bounded(problem, 0.0, least_w / share))) == found
        assert guaranteed_lower(make_case(bounded(problem, most_w * share, 2 * most_w))) == found


@pytest.mark.parametrize("seed", range(20))
def test_an_outside_time_was_avoidable_where_any_of_the_waiting_jobs_might_have_started(seed: int) -> None:
    problem = replace(power_worlds.problem(seed, jobs=2, nodes=10), max_off_nodes=0)
    asks = power_worlds.problem(seed + 100, jobs=2, nodes=10).jobs
    waiting = tuple(replace(job, id=f"asks-{at}") for at, job in enumerate(asks))
    cases = [
        make_case(problem, starting)
        for starting in ((), waiting[:1], waiting[1:], waiting)
    ]  # fmt: skip
    every = [row for case in cases for row in watts(case)]
    for middle_w in sorted({(low + high) / 2 for low, high in every})[::7]:
        asked = bounded(replace(problem, waiting=waiting), middle_w * 0.98, middle_w * 1.02)
        inside = any(asked.lower_w <= low and high <= asked.upper_w for low, high in every)
        assert some_inside(asked) == inside


def test_of_a_table_those_sizes_are_legal_that_the_bounds_leave() -> None:
    table = tuple((nodes, 100.0 * nodes, 110.0 * nodes) for nodes in (1, 2, 4, 5, 8))
    one = PowerJob(id="m", nodes=2, min_nodes=2, max_nodes=6, table=table)
    assert [nodes for nodes, *_ in one.choices(14)] == [2, 4, 5]
    assert [nodes for nodes, *_ in one.choices(4)] == [2, 4]
    assert [nodes for nodes, *_ in replace(one, constraint="odd").choices(14)] == [5]
