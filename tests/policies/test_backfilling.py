"""What `easy` and `conservative` start, hold and promise."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.decision import Decision, Hold, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create

NOW_S = 100.0


def running(name: str, nodes: int, left_s: float | None) -> JobView:
    return JobView(
        id=name, state="running", kind="rigid", nodes=nodes, min_nodes=nodes, max_nodes=nodes,
        start_nodes=nodes, start_s=0.0, remaining_s=left_s,
    )  # fmt: skip


def waiting(name: str, nodes: int, walltime_s: float | None, **more: Any) -> JobView:
    return JobView(
        id=name,
        kind="rigid",
        start_nodes=nodes,
        min_nodes=nodes,
        max_nodes=nodes,
        walltime_s=walltime_s,
        **more,
    )


def decide(name: str, idle: int, *jobs: JobView, **params: Any) -> Decision:
    policy = create(name, **params)
    view = ClusterSnapshot(now_s=NOW_S, jobs=jobs, idle_nodes=idle)
    return policy.decide(view, policy.initial_state())[0]


def started(decision: Decision) -> list[str]:
    return [action.job for action in decision.actions if isinstance(action, Start)]


def why(decision: Decision, job: str) -> str:
    holds = {a.job: a.reason.code.value for a in decision.actions if isinstance(a, Hold)}
    return holds[job]


# 10 nodes: 6 are held for 50 s more, 4 are idle; the head needs 8, can start in 50 s and leaves 2 over.
HELD = running("r", 6, 50.0)
HEAD = waiting("head", 8, 100.0)


@pytest.mark.parametrize("name", ["easy", "conservative"])
def test_figure_5_1_the_third_job_overtakes_the_second(name: str) -> None:
    jobs = [waiting(f"J{i}", n, 4.0) for i, n in enumerate((8, 4, 2, 8), start=1)]
    decision = decide(name, 10, *jobs)
    assert started(decision) == ["J1", "J3"]
    assert why(decision, "J2") == "reserved"


def test_easy_starts_what_ends_before_the_reservation_or_needs_only_extra_nodes() -> None:
    decision = decide(
        "easy", 4, HELD, HEAD,
        waiting("too-long", 3, 51.0), waiting("just-in-time", 2, 50.0), waiting("extra", 2, 1000.0),
        waiting("no-extra-left", 1, 1000.0),
    )  # fmt: skip
    assert started(decision) == ["just-in-time", "extra"]
    assert why(decision, "head") == "reserved"
    assert why(decision, "too-long") == "not-enough-nodes"


@pytest.mark.parametrize("name", ["easy", "conservative"])
def test_a_job_may_end_at_the_very_moment_at_which_a_reservation_begins(name: str) -> None:
    assert started(decide(name, 4, HELD, HEAD, waiting("in-time", 4, 50.0))) == ["in-time"]


@pytest.mark.parametrize("name", ["easy", "conservative"])
def test_a_job_that_starts_in_this_moment_holds_its_nodes_for_as_long_as_it_takes(name: str) -> None:
    first, head = waiting("first", 8, 50.0), waiting("head", 10, 10.0)
    assert started(decide(name, 10, first, head, waiting("c", 2, 50.0))) == ["first", "c"]
    assert started(decide(name, 10, first, head, waiting("c", 2, 51.0))) == ["first"]


def test_a_job_that_fits_but_would_delay_the_head_is_told_so() -> None:
    decision = decide("easy", 4, HELD, HEAD, waiting("long", 3, 51.0))
    assert started(decision) == []
    assert why(decision, "long") == "would-delay"
    held = next(a for a in decision.actions if isinstance(a, Hold) and a.job == "head")
    assert held.reason.data["reserved_in_s"] == 50.0


def test_conservative_delays_no_waiting_job_where_easy_delays_the_second() -> None:
    # The second job is reserved the 2 extra nodes as soon as the first 50 s are over.
    jobs = (HELD, HEAD, waiting("second", 2, 1000.0), waiting("third", 2, 1000.0))
    blocked = (HELD, HEAD, waiting("second", 5, 10.0), waiting("third", 2, 200.0))
    assert started(decide("easy", 4, *jobs)) == ["second"]
    assert started(decide("easy", 4, *blocked)) == ["third"]
    # Third would keep second from its place at 150 s, beside nobody, and at 250 s.
    late = (
        running("r", 8, 50.0),
        waiting("head", 9, 100.0),
        waiting("second", 9, 10.0),
        waiting("t", 1, 160.0),
    )
    assert started(decide("easy", 2, *late)) == ["t"]
    assert started(decide("conservative", 2, *late)) == ["t"]
    wide = (
        running("r", 8, 50.0),
        waiting("head", 9, 100.0),
        waiting("second", 10, 10.0),
        waiting("t", 1, 160.0),
    )
    assert started(decide("easy", 2, *wide)) == ["t"]
    assert started(decide("conservative", 2, *wide)) == []


def test_front_is_first_come_first_served_and_depth_zero_reserves_nothing() -> None:
    jobs = (HELD, HEAD, waiting("long", 3, 1000.0), waiting("small", 1, 10.0))
    assert started(decide("easy", 4, *jobs, pick="front")) == started(decide("fcfs", 4, *jobs)) == []
    assert started(decide("easy", 4, *jobs, reservation_depth=0)) == ["long", "small"]


def test_best_fit_takes_the_largest_that_may_start() -> None:
    jobs = (HELD, HEAD, waiting("one", 1, 10.0), waiting("three", 3, 10.0), waiting("four", 4, 10.0))
    assert started(decide("easy", 4, *jobs)) == ["one", "three"]
    assert started(decide("easy", 4, *jobs, pick="best-fit")) == ["four"]


@pytest.mark.parametrize(
    ("order", "first"),
    [("arrival", "a"), ("area", "b"), ("shortest", "c"), ("longest", "a"), ("weight", "d")],
)
def test_queue_orders(order: str, first: str) -> None:
    jobs = (
        waiting("a", 4, 90.0),
        waiting("b", 2, 20.0),
        waiting("c", 9, 10.0),
        waiting("d", 3, 80.0, priority=5),
    )
    assert started(decide("easy", 9, *jobs, order=order, pick="front"))[0] == first


def test_nothing_is_promised_on_estimates_that_do_not_exist() -> None:
    decision = decide("easy", 4, running("r", 6, None), HEAD, waiting("small", 1, None))
    assert started(decision) == ["small"]
    assert why(decision, "head") == "not-enough-nodes"
    # Somebody else's end is known: the head has a place, and an endless job may only use what it leaves over.
    decision = decide("easy", 4, HELD, HEAD, waiting("wide", 3, None), waiting("small", 2, None))
    assert started(decision) == ["small"]


def test_an_overdue_job_ends_the_next_moment_and_not_now() -> None:
    decision = decide(
        "easy", 4, running("r", 6, 0.0), HEAD, waiting("long", 3, 10.0), waiting("two", 2, 10.0)
    )
    assert started(decision) == ["two"]


@st.composite
def pictures(draw: st.DrawFn) -> tuple[int, list[JobView]]:
    whole = st.integers(1, 8)
    seconds = st.integers(0, 30).map(float)
    jobs = [running(f"r{i}", draw(whole), draw(seconds)) for i in range(draw(st.integers(0, 4)))]
    jobs += [waiting(f"w{i}", draw(whole), draw(seconds)) for i in range(draw(st.integers(1, 6)))]
    return draw(st.integers(0, 8)), jobs


def ends(jobs: list[JobView], decision: Decision) -> list[tuple[float, int]]:
    """When nodes are expected back: of what ran, and of what the decision starts."""
    walltime = {job.id: job.walltime_s or 0.0 for job in jobs}
    found = [(max(job.remaining_s or 0.0, 1e-9), job.nodes) for job in jobs if job.state == "running"]
    return found + [(max(walltime[a.job], 1e-9), a.nodes) for a in decision.actions if isinstance(a, Start)]


@examples(300)
@given(pictures())
def test_easy_never_delays_the_reservation_of_the_head(picture: tuple[int, list[JobView]]) -> None:
    idle, jobs = picture
    decision = decide("easy", idle, *jobs)
    alone = decide("easy", idle, *jobs, pick="front")
    head = next((j for j in jobs if j.state == "pending" and j.id not in started(alone)), None)
    assert started(decision)[: len(started(alone))] == started(alone)
    if head is None:
        return

    def place(picked: Decision) -> float:
        free = idle - sum(a.nodes for a in picked.actions if isinstance(a, Start))
        for t, nodes in sorted(ends(jobs, picked)):
            free += nodes
            if free >= head.max_nodes:
                return t
        return float("inf")

    assert place(decision) <= place(alone)


@examples(200)
@given(pictures())
def test_whatever_is_reserved_what_fits_in_order_starts(picture: tuple[int, list[JobView]]) -> None:
    idle, jobs = picture
    sets = [set(started(decide("easy", idle, *jobs, reservation_depth=d))) for d in (0, 1)]
    front = set(started(decide("fcfs", idle, *jobs)))
    assert front <= sets[0]
    assert front <= sets[1]
    assert front <= set(started(decide("conservative", idle, *jobs)))
