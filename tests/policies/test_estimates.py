"""Expected run times: recorded runs first, walltimes otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.jobs.estimates import Estimate, RecordedRuns, remaining_s

RUNS = RecordedRuns().with_run("heat", 4, 100).with_run("heat", 4, 140).with_run("heat", 8, 70)


def test_the_mean_of_the_same_size_comes_first() -> None:
    assert RUNS.mean_s("heat", 4) == 120
    assert RUNS.estimate("heat", 4, 900) == Estimate(seconds=120, source="recorded", runs=2)


def test_other_sizes_do_the_same_node_seconds() -> None:
    assert RUNS.estimate("heat", 2, None) == Estimate(seconds=240, source="scaled", runs=2)
    assert RUNS.estimate("heat", 16, None) == Estimate(seconds=35, source="scaled", runs=1)
    # 6 is as far from 4 as from 8
    assert RUNS.estimate("heat", 6, None) == Estimate(seconds=80, source="scaled", runs=2)
    assert RUNS.mean_s("heat", 6) is None


def test_without_a_record_the_walltime_is_taken() -> None:
    assert RUNS.estimate("other", 4, 900) == Estimate(seconds=900, source="walltime")
    assert RUNS.estimate("other", 4, None) is None
    assert RecordedRuns().estimate("heat", 4, None) is None


def test_no_estimate_is_beyond_the_walltime() -> None:
    estimate = RUNS.estimate("heat", 1, 200)
    assert estimate is not None
    assert estimate.seconds == 200


def test_what_teaches_nothing_is_not_recorded() -> None:
    assert RUNS.with_run("", 4, 10) is RUNS
    assert RUNS.with_run("heat", 4, 0) is RUNS
    for nodes, seconds in ((0, 1.0), (1, -1.0), (1, float("inf")), (1, float("nan"))):
        with pytest.raises(ValueError, match="must be positive and finite"):
            RUNS.with_run("heat", nodes, seconds)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.floats(0.1, 1e6)), max_size=30))
def test_a_book_is_the_mean_of_its_runs_in_any_order(runs: list[tuple[str, int, float]]) -> None:
    book, backwards = RecordedRuns(), RecordedRuns()
    for run in runs:
        book = book.with_run(*run)
    for run in reversed(runs):
        backwards = backwards.with_run(*run)
    for application, nodes in {run[:2] for run in runs}:
        times = [seconds for name, n, seconds in runs if (name, n) == (application, nodes)]
        assert book.mean_s(application, nodes) == pytest.approx(sum(times) / len(times))
        assert backwards.mean_s(application, nodes) == pytest.approx(book.mean_s(application, nodes))


def test_only_the_latest_runs_are_kept() -> None:
    book = RUNS.with_run("heat", 4, 10).with_run("new", 1, 5)
    assert list(book.latest(2).totals) == [("heat", 4), ("new", 1)]
    assert book.latest(9) is book


@pytest.mark.parametrize(
    ("elapsed_s", "recorded_s", "walltime_s", "left_s"),
    [
        (10, 60, 100, 50),
        (70, 60, 100, 30),
        (120, 60, 100, 0),
        (10, None, 100, 90),
        (10, 60, None, 50),
        (70, 60, None, 0),
        (10, None, None, None),
        # a record of other circumstances is no promise beyond the walltime
        (10, 200, 100, 90),
        (120, 200, 100, 0),
    ],
)
def test_what_is_left_is_recorded_until_the_job_outlasts_it(
    elapsed_s: float, recorded_s: float | None, walltime_s: float | None, left_s: float | None
) -> None:
    assert remaining_s(elapsed_s, recorded_s, walltime_s) == left_s
