"""Grow and shrink rules against the numbers and the errata of their sources."""

from __future__ import annotations

from typing import Any

import pytest

from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.sizing import (
    Limits,
    Resizes,
    equal_sizes,
    grow_equally,
    grow_in_order,
    reclaimable_nodes,
    shrink_equally,
    shrink_in_order,
)


def job(name: str, nodes: int, lo: int = 1, hi: int = 64, constraint: str = "any", **more: Any) -> JobView:
    return JobView(
        id=name, state="running", nodes=nodes, min_nodes=lo, max_nodes=hi, constraint=constraint, **more
    )


def targets(resizes: Resizes | None) -> dict[str, int] | None:
    if resizes is None:
        return None
    return {action.job: action.nodes for action in (*resizes.shrinks, *resizes.expands)}


MAX, NEXT = Limits(), Limits(step="next")


@pytest.mark.parametrize(
    ("constraint", "n", "idle", "limits", "target"),
    [
        ("pof2", 2, 10, MAX, 8),  # the source's example: reachable is the total, not the idle count
        ("even", 2, 8, NEXT, 4),
        ("even", 2, 8, MAX, 10),
        ("odd", 9, 3, MAX, 11),
        ("cube", 1, 10, MAX, 8),
        ("square", 16, 10, MAX, 25),
        ("any", 3, 2, MAX, 5),
    ],
)
def test_growth_of_one_job(constraint: str, n: int, idle: int, limits: Limits, target: int) -> None:
    grown = grow_in_order([job("a", n, constraint=constraint)], idle, limits)
    assert targets(grown) == {"a": target}
    assert grown.taken_nodes == target - n


@pytest.mark.parametrize(
    ("constraint", "n", "need", "limits", "target"),
    [
        ("even", 10, 8, MAX, 2),  # several constraint steps at once
        ("odd", 9, 1, NEXT, 7),
        ("pof2", 4, 1, MAX, 2),
        ("any", 16, 6, MAX, 10),
    ],
)
def test_shrink_of_one_job(constraint: str, n: int, need: int, limits: Limits, target: int) -> None:
    assert targets(shrink_in_order([job("a", n, constraint=constraint)], need, limits, "h")) == {"a": target}


def test_oldest_takes_all_it_may_and_the_rest_goes_on_as_a_difference() -> None:
    # Subtracting the target (10) instead of the difference (6) would leave nothing for the second job.
    grown = grow_in_order([job("a", 4, hi=10), job("b", 2)], 9, MAX)
    assert targets(grown) == {"a": 10, "b": 5}


def test_growth_never_passes_the_maximum() -> None:
    assert targets(grow_in_order([job("a", 4, hi=6)], 10, MAX)) == {"a": 6}


def test_five_job_study_takes_two_from_the_third_and_six_from_the_fourth() -> None:
    # J3 holds 6 and J4 10, both at least 4; J5 needs 8. Youngest first: J4 is younger.
    three, four = job("J3", 6, lo=4, start_s=400.0), job("J4", 10, lo=4, start_s=900.0)
    assert targets(shrink_in_order([four, three], 8, MAX, "J5")) == {"J4": 4, "J3": 4}


def test_equal_shrink_cannot_split_eight_over_a_job_that_has_only_two_to_give() -> None:
    assert shrink_equally([job("J4", 10, lo=4), job("J3", 6, lo=4)], 8, MAX, "J5") is None


@pytest.mark.parametrize("shrink", [shrink_in_order, shrink_equally])
def test_shrink_is_all_or_nothing(shrink: Any) -> None:
    # The study's first arrival: shrinking J1 frees 12, the head lacks 16.
    assert shrink([job("J1", 16, lo=4)], 16, MAX, "J2") is None
    assert targets(shrink([job("J1", 16, lo=4)], 12, MAX, "J2")) == {"J1": 4}


def test_shrink_frees_no_more_than_legal_sizes_force_it_to() -> None:
    # b alone (8 to 4) covers a need of 4; taking 1 from a first must be handed back.
    young, old = job("a", 2), job("b", 8, constraint="pof2")
    freed = shrink_in_order([young, old], 4, MAX, "h")
    assert targets(freed) == {"b": 4}
    assert freed is not None
    assert freed.freed_nodes == 4
    # also of one that has lost a node, and a size that it may not have
    hurt = job("a", 5, lo=4, constraint="even")
    assert targets(shrink_in_order([hurt, old], 4, MAX, "h")) == {"b": 4}


def test_equal_growth_is_floor_plus_remainder_oldest_first() -> None:
    # The ceiling of 5/3 and a remainder would hand out 8 nodes.
    grown = grow_equally([job("a", 1), job("b", 1), job("c", 1)], 5, MAX)
    assert targets(grown) == {"a": 3, "b": 3, "c": 2}
    assert grown.taken_nodes == 5


def test_only_eligible_jobs_count_in_the_divisor() -> None:
    jobs = [job("a", 4, hi=4), job("b", 1), job("c", 1, remaining_s=10.0), job("d", 1)]
    grown = grow_equally(jobs, 6, Limits(min_remaining_s=60.0))
    assert targets(grown) == {"b": 4, "d": 4}
    assert [s.reason.code for s in grown.suppressed] == [ReasonCode.ALMOST_DONE]


def test_equal_growth_floors_to_legal_sizes_and_leaves_the_rest_idle() -> None:
    grown = grow_equally([job("a", 4, constraint="pof2"), job("b", 2, constraint="even")], 7, MAX)
    assert targets(grown) == {"a": 8, "b": 4}
    assert (
        targets(grow_equally([job("a", 4, constraint="pof2"), job("b", 4, constraint="pof2")], 6, MAX)) == {}
    )


def test_guards() -> None:
    soon, capped = job("a", 4, remaining_s=60.0), job("b", 4, expansions=2)
    limits = Limits(min_remaining_s=60.0, max_expansions=2)
    grown = grow_in_order([soon, capped], 4, limits)
    assert targets(grown) == {}
    assert [s.reason.code for s in grown.suppressed] == [ReasonCode.ALMOST_DONE, ReasonCode.EXPANSION_CAP]
    assert shrink_in_order([soon], 1, limits, "h") is None
    assert reclaimable_nodes([soon, job("c", 4)], limits) == 3
    # An unknown remaining time is infinite, and without a guard nobody is almost done.
    assert targets(grow_in_order([job("d", 4)], 1, limits)) == {"d": 5}
    assert targets(grow_in_order([job("e", 4, remaining_s=0.0)], 1, MAX)) == {"e": 5}


@pytest.mark.parametrize(
    ("jobs", "nodes", "sizes"),
    [
        ([job("a", 4), job("b", 4), job("c", 4)], 11, [4, 4, 3]),
        ([job("a", 2, hi=2), job("b", 4), job("c", 4)], 12, [2, 5, 5]),
        ([job("a", 6, lo=6), job("b", 1), job("c", 1)], 10, [6, 2, 2]),
        # At level 8 the first job would need 8 and both together 16: it stays at 4.
        ([job("a", 8, constraint="pof2"), job("b", 4)], 12, [4, 8]),
        ([job("a", 4, constraint="pof2"), job("b", 4)], 10, [4, 6]),
        ([job("a", 4, constraint="pof2"), job("b", 4, constraint="pof2")], 15, [8, 4]),
        ([job("a", 4, lo=4), job("b", 4, lo=4)], 7, None),
        ([], 5, []),
    ],
)
def test_equipartition(jobs: list[JobView], nodes: int, sizes: list[int] | None) -> None:
    assert equal_sizes(jobs, nodes) == sizes
