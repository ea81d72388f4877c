"""Malleable EASY backfilling: equations 4.1 to 4.4, the reservation, what grows."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from dask_hpc_policies.decision import Decision, Expand, Hold, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.mebf import runtime_at, stretch


def running(id: str, nodes: int, remaining_s: float | None = 100.0, **fields: Any) -> JobView:
    fields = {"min_nodes": 1, "max_nodes": nodes, **fields}
    return JobView(id=id, state="running", nodes=nodes, remaining_s=remaining_s, start_s=0.0, **fields)


def waiting(id: str, lo: int, preferred: int, seconds: float | None = 100.0, **fields: Any) -> JobView:
    return JobView(
        id=id, min_nodes=lo, max_nodes=64, preferred_nodes=preferred, remaining_s=seconds, **fields
    )


def ask(*jobs: JobView, idle: int, **params: Any) -> Decision:
    view = ClusterSnapshot(now_s=0.0, jobs=jobs, idle_nodes=idle)
    decision, state = create("mebf", **params).decide(view, None)
    assert state is None
    return decision


def acts(decision: Decision) -> list[tuple[str, str, int]]:
    return [(a.TAG, a.job, a.nodes) for a in decision.actions if isinstance(a, (Start, Expand, Shrink))]


# ---------------------------------------------------------------------- equations


@pytest.mark.parametrize(
    ("nodes", "granted", "remaining_s", "cost_s", "factor"),
    [
        (10, 2, 100.0, 0.0, 1.20),
        (10, 2, 100.0, 4.0, 1.24),
        (10, 2, 100.0, 5.0, 1.25),
        (5, 1, 1000.0, 1.0, 1.201),
        (10, 2, None, 4.0, 1.20),
        (10, 2, 0.0, 4.0, inf),
    ],
)
def test_the_stretch_is_that_of_the_equations(
    nodes: int, granted: int, remaining_s: float | None, cost_s: float, factor: float
) -> None:
    assert stretch(running("a", nodes, remaining_s), granted, cost_s) == pytest.approx(factor)


def test_a_job_shrinks_as_long_as_25_times_the_cost_is_left() -> None:
    head = waiting("head", 2, 2, priority=1)
    for remaining_s, shrinks in ((26.0, True), (25.0, True), (24.0, False)):
        decision = ask(running("low", 10, remaining_s), head, idle=0, resize_cost_s=1.0)
        expected = [("shrink", "low", 8), ("start", "head", 2)] if shrinks else []
        assert acts(decision) == expected, remaining_s
        assert [s.reason.code for s in decision.suppressed] == ([] if shrinks else [ReasonCode.TOO_COSTLY])


def test_granted_nodes_are_whole_and_never_more_than_the_factor() -> None:
    head = waiting("head", 1, 4, priority=1)
    assert acts(ask(running("low", 9), head, idle=0)) == [("shrink", "low", 8), ("start", "head", 1)]
    assert acts(ask(running("low", 4), head, idle=0)) == [], "a fifth of four nodes is not a node"
    half = running("low", 8, constraint="pof2")
    assert acts(ask(half, head, idle=0)) == [], "the next legal size is half of it"


def test_nobody_shrinks_in_vain_nor_for_an_equal() -> None:
    low = [running("a", 10), running("b", 10)]
    found = ask(*low, waiting("head", 4, 4, priority=1), idle=0)
    assert acts(found) == [("shrink", "a", 8), ("shrink", "b", 8), ("start", "head", 4)]
    assert acts(ask(*low, waiting("head", 5, 5, priority=1), idle=0)) == []
    assert acts(ask(*low, waiting("head", 4, 4), idle=0)) == []


def test_the_lowest_priority_shrinks_first() -> None:
    low = [running("a", 10, priority=1), running("b", 10, priority=0)]
    assert acts(ask(*low, waiting("head", 2, 2, priority=2), idle=0))[0] == ("shrink", "b", 8)


# -------------------------------------------------------------- starts, backfilling


def test_a_job_starts_at_its_preferred_size_or_the_largest_that_fits() -> None:
    assert acts(ask(waiting("a", 2, 8), idle=16)) == [("start", "a", 8)]
    assert acts(ask(waiting("a", 2, 8), idle=5)) == [("start", "a", 5)]


def test_backfilling_takes_the_smallest_and_never_delays_the_head() -> None:
    until_s = running("r", 10, 50.0, kind="rigid")
    head = waiting("head", 12, 12)
    inside = waiting("inside", 2, 2, 50.0)
    extra = waiting("extra", 1, 1, 500.0)
    late = waiting("late", 3, 3, 51.0)
    # Four are idle; the head needs twelve of fourteen in 50 s, so two are extra.
    found = acts(ask(until_s, head, late, inside, extra, idle=4))
    assert found == [("start", "extra", 1), ("start", "inside", 2)]


def test_what_the_head_leaves_over_is_taken_once() -> None:
    # six of the eight nodes that there are then are kept for the head
    ends, head = running("ends", 4), waiting("head", 6, 6)
    late = [waiting(id, 2, 2, 500.0) for id in "ab"]
    assert acts(ask(ends, head, *late, idle=4)) == [("start", "a", 2)]
    grow = [running(id, 1, 500.0, max_nodes=3) for id in "ab"]
    assert acts(ask(ends, *grow, head, idle=4)) == [("expand", "a", 3)]


def test_a_backfilled_job_gets_fewer_nodes_where_only_these_delay_nobody() -> None:
    until_s = running("r", 10, 50.0, kind="rigid")
    found = acts(ask(until_s, waiting("head", 12, 12), waiting("long", 1, 4, 500.0), idle=4))
    assert found == [("start", "long", 2)]


def test_fewer_nodes_take_longer() -> None:
    assert runtime_at(waiting("a", 1, 8, 100.0), 8) == 100.0
    assert runtime_at(waiting("a", 1, 8, 100.0), 2) == 400.0
    assert runtime_at(waiting("a", 1, 8, 100.0), 16) == 100.0, "no gain is counted on"


def test_without_estimates_nobody_overtakes() -> None:
    until = running("r", 10, None, max_nodes=20)
    decision = ask(until, waiting("head", 12, 12), waiting("small", 1, 1), idle=4)
    assert acts(decision) == []
    assert all(isinstance(a, Hold) for a in decision.actions)


# -------------------------------------------------------------------------- growth


def test_the_longest_grows_first() -> None:
    jobs = [running("a", 2, 100.0, max_nodes=4), running("b", 2, 200.0, max_nodes=4)]
    assert acts(ask(*jobs, idle=3)) == [("expand", "b", 4), ("expand", "a", 3)]


def test_a_job_in_its_last_quarter_does_not_grow() -> None:
    for left_s, grows in ((26.0, True), (25.0, False)):
        job = running("a", 2, left_s, max_nodes=4, recorded_s=100.0)
        assert bool(acts(ask(job, idle=2))) is grows
    assert acts(ask(running("a", 2, 25.0, max_nodes=4, walltime_s=90.0), idle=2)), "walltime without a record"


def test_growth_must_pay_for_itself() -> None:
    job = running("a", 2, 10.0, max_nodes=4)
    assert acts(ask(job, idle=2, resize_cost_s=4.9)) == [("expand", "a", 4)]
    decision = ask(job, idle=2, resize_cost_s=5.0)
    assert acts(decision) == []
    assert decision.suppressed[0].reason.code is ReasonCode.TOO_COSTLY


def test_growth_never_delays_the_head() -> None:
    first = running("r", 10, 50.0, kind="rigid")
    head = waiting("head", 13, 13)
    # It would be over in time with four nodes more.
    quick = running("q", 2, 150.0, max_nodes=6)
    assert acts(ask(first, quick, head, idle=4)) == [("expand", "q", 6)]
    # This one would not: it gets the one node that the head leaves over.
    slow = running("q", 2, 1500.0, max_nodes=6)
    assert acts(ask(first, slow, head, idle=4)) == [("expand", "q", 3)]


def test_jobs_below_the_priority_of_the_head_do_not_grow() -> None:
    low = running("low", 2, 40.0, max_nodes=6)
    assert acts(ask(running("r", 10, 50.0), low, waiting("head", 20, 20, priority=1), idle=4)) == []


def test_plain_work_that_holds_no_node_yet_stands_in_nobodys_way() -> None:
    plain = JobView(id="default-1", is_default=True, start_nodes=0, min_nodes=0, max_nodes=0)
    head, small = waiting("head", 8, 8), waiting("small", 1, 1, seconds=10.0)
    decision = ask(running("a", 6, 50.0), plain, head, small, idle=4)
    assert acts(decision) == [("start", "default-1", 0), ("start", "small", 1)]
