"""The law of I/O seconds over nodes says what a size takes that has not been, and how far it may be off."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.rules.io import law

SIZES = (1, 2, 4, 8)


@given(
    st.floats(0.01, 1000), st.floats(-1.5, 1.5), st.floats(0.01, 1000), st.floats(0, 1000),
    st.sampled_from((3, 6, 16, 32)), st.integers(0, 1 << 30),
)  # fmt: skip
def test_an_unseen_size_is_told_within_ten_percent(scale, exponent, own, shared, unseen, seed):
    chance = random.Random(seed)
    for kind, value in (
        ("power", lambda n: scale * n**exponent),
        ("amdahl", lambda n: own + shared / n),
    ):
        runs = {n: [value(n) * chance.uniform(0.99, 1.01) for _ in range(5)] for n in SIZES}
        found = law.fit(runs)
        assert found.sizes == SIZES
        best = law.fit({n: [value(n)] for n in SIZES})
        assert best.at(unseen) == pytest.approx(value(unseen), rel=0.1), kind
        if unseen < 2 * SIZES[-1]:  # not extrapolated with noise
            assert found.at(unseen) == pytest.approx(value(unseen), rel=0.1), kind
        assert found.error < 0.1


def test_two_sizes_are_met_and_their_error_is_not_known():
    found = law.fit({1: [10.0], 4: [4.0]})
    assert (found.kind, found.at(1), found.at(4), found.error) == ("amdahl", 10, pytest.approx(4), None)
    # as Amdahl's it would fall below nothing
    found = law.fit({1: [10.0], 4: [1.0]})
    assert (found.kind, found.at(1), found.at(4)) == ("power", pytest.approx(10), pytest.approx(1))
    # what grows with the nodes
    found = law.fit({1: [1.0], 2: [2.0]})
    assert (found.kind, found.at(8)) == ("power", pytest.approx(8))
    assert law.fit({3: [5.0, 6.0]}) is None


@pytest.mark.parametrize("ratio", [1.01, 2, 15, 1e6])
@pytest.mark.parametrize("nodes", [63, 255, 1000])
@pytest.mark.parametrize("more", [{}, {1: [100.0]}, {1: [100.0], 2: [50.0]}])
def test_neighbouring_sizes_that_differ_by_chance_are_no_law_that_no_number_holds(more, nodes, ratio):
    request = JobRequest(name="j", min_nodes=1, max_nodes=4096)
    for low, high in ((nodes, nodes + 1), (nodes + 1, nodes)):
        io_s = more | {low: [10.0], high: [10.0 * ratio]}
        task_s = {n: [1e9] for n in io_s}
        shares = law.shares_by_size(request, io_s, task_s)
        assert {n: shares[n] for n in io_s} == {n: value / 1e9 for n, (value,) in io_s.items()}
        assert all(0 <= share <= 1 for share in shares.values())
    # what no nodes account for says nothing of other sizes
    assert law.fit({63: [1.0], 64: [2.0]}) is None


def test_one_slow_run_does_not_count_for_more_than_one():
    runs = {n: [8 / n, 8 / n, 8 / n] for n in SIZES}
    runs[2].append(400.0)
    assert law.fit(runs).at(6) == pytest.approx(8 / 6, rel=0.01)


def test_shares_are_measured_where_they_can_be_and_told_by_the_laws_elsewhere():
    request = JobRequest(name="j", min_nodes=1, max_nodes=8, constraint="pof2")
    io_s = {1: [2.0], 4: [4.0]}  # as n ** 0.5
    task_s = {1: [10.0], 4: [10.0]}
    shares = law.shares_by_size(request, io_s, task_s)
    assert shares == {1: 0.2, 2: pytest.approx(0.2 * 2**0.5), 4: 0.4, 8: pytest.approx(0.2 * 8**0.5)}
    # more than all of its time is none
    assert law.shares_by_size(request, {1: [9.0], 4: [36.0]}, task_s)[8] == 1.0
    assert law.shares_by_size(request, {2: [3.0]}, {2: [10.0]}) == {2: 0.3}
    assert law.shares_by_size(request, {}, {}) == {}


def test_a_wide_job_is_tabulated_at_few_sizes():
    request = JobRequest(name="j", min_nodes=1, max_nodes=5000)
    shares = law.shares_by_size(request, {1: [1.0], 8: [4.0]}, {1: [10.0], 8: [10.0]})
    assert (min(shares), max(shares), len(shares) <= 70) == (1, 5000, True)
