"""When a job ends by its tasks, and intervals that hold the share of ends that they state."""

from __future__ import annotations

import random
from math import exp

import pytest

from dask_hpc_policies.jobs.forecasts import (
    ASSUMED_FACTOR,
    ERRORS_KEPT,
    LEAST_ERRORS,
    LEVEL,
    Calibration,
    tasks_left_s,
)


def told(calibration: Calibration, took: list[float], category: str = "a") -> Calibration:
    """After forecasts of 100 s that took so long."""
    for seconds in took:
        calibration = calibration.with_end(category, calibration.interval(category, 100.0), seconds)
    return calibration


def test_of_many_tasks_the_slots_share_the_work_and_the_last_one_ends_later_than_the_mean():
    # 40 tasks of 0.5 s, 4 of them half done, on 4 slots; the last of 4 ends 3 / 10 of a task after the mean
    assert tasks_left_s(20.0, 40, 4, 4) == pytest.approx((20.0 - 4 * 0.25) / 4 + 0.5 * 3 / 10)
    assert tasks_left_s(20.0, 40, 4, 4, use=0.5) == pytest.approx((20.0 - 4 * 0.25) / 2 + 0.5 * 3 / 10)


def test_fewer_tasks_than_slots_take_as_long_as_one():
    assert tasks_left_s(2.0, 1, 0, 8) == pytest.approx(2.0)
    assert tasks_left_s(2.0, 1, 1, 8) == pytest.approx(1.0)
    assert tasks_left_s(0.0, 0, 0, 8) == 0.0


def test_the_last_of_several_tasks_is_where_chance_has_it():
    chance, slots, ends = random.Random(1), 4, []
    for _ in range(4000):
        left = [chance.random() for _ in range(slots)]  # each has begun at some moment
        for _ in range(12):
            left[left.index(min(left))] += 1.0
        ends.append(max(left))
    assert tasks_left_s(16.0, 16, slots, slots) == pytest.approx(sum(ends) / len(ends), rel=0.03)


def test_bounds_are_assumed_until_enough_came_and_are_then_those_of_the_errors():
    few = told(Calibration(), [100.0] * (LEAST_ERRORS - 1))
    first = few.interval("a", 100.0)
    assert (first.errors, first.high_s) == (0, pytest.approx(100 * ASSUMED_FACTOR, rel=1e-3))
    enough = told(Calibration(), [110.0] * LEAST_ERRORS)
    now = enough.interval("a", 50.0)
    assert now.errors == LEAST_ERRORS
    assert (now.low_s, now.high_s) == pytest.approx((50 / 1.1, 55.0), rel=1e-3)


def test_a_category_that_is_new_errs_as_the_others_and_then_as_itself():
    known = told(Calibration(), [150.0] * LEAST_ERRORS, "a")
    assert known.interval("b", 100.0).high_s == pytest.approx(150.0, rel=1e-3)
    known = told(known, [101.0] * LEAST_ERRORS, "b")
    assert known.interval("b", 100.0).high_s == pytest.approx(101.0, rel=1e-3)
    assert known.interval("a", 100.0).high_s == pytest.approx(150.0, rel=1e-3)


@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
def test_intervals_hold_the_share_that_they_state_whatever_the_errors(spread):
    chance = random.Random(3)
    found = told(Calibration(), [100 * exp(chance.gauss(0.0, spread)) for _ in range(1000)])
    assert found.ends == 1000
    assert LEVEL - 0.02 <= found.inside <= LEVEL + 0.04


def test_they_hold_it_also_once_forecasts_have_become_worse():
    chance = random.Random(5)
    good = told(Calibration(), [100 * exp(chance.gauss(0.0, 0.05)) for _ in range(300)])
    worse = told(good, [100 * exp(chance.gauss(0.0, 0.05 + i / 1000)) for i in range(1000)])
    assert (worse.categories["a"].inside - good.categories["a"].inside) / 1000 >= 0.85
    assert len(worse.categories["a"].errors) == ERRORS_KEPT


def test_the_level_that_is_asked_for_follows_the_misses():
    missed = told(Calibration(), [100.0 * 3**i for i in range(3)]).categories["a"].level
    held = told(Calibration(), [100.0] * 3).categories["a"].level
    assert held < LEVEL < missed


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(seconds):
    calibration = Calibration()
    with pytest.raises(ValueError, match="expected_s"):
        calibration.interval("a", seconds)
    with pytest.raises(ValueError, match="took_s"):
        calibration.with_end("a", calibration.interval("a", 1.0), seconds)
