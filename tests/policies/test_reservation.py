"""Reservations: the shadow of EASY and the profile of conservative backfilling."""

from __future__ import annotations

from math import inf, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.reservation import Profile, expected_s, releases, shadow


def running(id: str, nodes: int, remaining_s: float | None) -> JobView:
    return JobView(id=id, state="running", nodes=nodes, remaining_s=remaining_s)


def test_shadow_is_the_first_time_enough_nodes_are_free() -> None:
    found = shadow(6, 1, [(10.0, 2), (20.0, 4), (30.0, 8)])
    assert (found.start_s, found.extra_nodes) == (20.0, 1)


def test_all_that_ends_at_the_shadow_time_is_extra() -> None:
    found = shadow(3, 1, [(10.0, 2), (10.0, 4), (11.0, 1)])
    assert (found.start_s, found.extra_nodes) == (10.0, 4)


def test_a_job_that_never_fits_has_no_shadow() -> None:
    assert shadow(9, 1, [(10.0, 2)]).start_s == inf


def test_releases_leave_out_what_has_no_known_end() -> None:
    view = ClusterSnapshot(
        now_s=5.0,
        jobs=(running("a", 2, 10.0), running("b", 1, None), running("c", 4, 0.0)),
        returns_s=(7.0,),
    )
    late, back, ends = releases(view)
    assert late[0] > 5.0, "a job that is over its time does not free its nodes now"
    assert late[0] < 5.0001
    assert (late[1], back, ends) == (4, (7.0, 1), (15.0, 2))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (JobView(id="a", walltime_s=30.0), 30.0),
        (JobView(id="a", walltime_s=30.0, recorded_s=20.0), 20.0),
        (JobView(id="a", walltime_s=30.0, recorded_s=20.0, remaining_s=0.0), 0.0),
        (JobView(id="a"), inf),
    ],
)
def test_estimates_come_from_what_is_known_best(job: JobView, expected: float) -> None:
    assert expected_s(job) == expected


lengths = st.one_of(st.integers(1, 50).map(float), st.just(inf))
jobs = st.lists(st.tuples(st.integers(1, 8), lengths), min_size=1, max_size=12)


@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.floats(0.5, 60), st.integers(1, 4)), max_size=6).map(sorted),
    jobs,
)
def test_reservations_never_overlap_and_none_could_be_earlier(
    idle: int, ends: list[tuple[float, int]], asked: list[tuple[int, float]]
) -> None:
    profile = Profile(0.0, idle, ends)
    taken: list[tuple[float, float, int]] = []

    def free_at(t_s: float) -> int:
        there = idle + sum(nodes for end_s, nodes in ends if end_s <= t_s)
        return there - sum(n for start_s, end_s, n in taken if start_s <= t_s < max(end_s, start_s + 1e-9))

    for nodes, duration_s in asked:
        edges = sorted({0.0, *(t for t, _ in ends), *(t for s, e, _ in taken for t in (s, e) if isfinite(t))})
        start_s = profile.earliest_s(nodes, duration_s)
        fitting = [
            at_s
            for at_s in edges
            if all(free_at(t) >= nodes for t in [at_s, *(t for t in edges if at_s <= t < at_s + duration_s)])
        ]
        assert start_s == (fitting[0] if fitting else inf)
        if start_s < inf:
            assert profile.least_nodes(start_s, duration_s) >= nodes
            profile.take(start_s, duration_s, nodes)
            taken.append((start_s, start_s + duration_s, nodes))
    assert all(free_at(t) >= 0 for t in [0.0, *(s for s, _, _ in taken)])
