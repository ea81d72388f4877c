"""When a job writes the next version of its state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.resilience.commit_times import MARGIN, History, due, interval_s
from dask_hpc_policies.resilience.intervals import Costs, expected_s

SECONDS = st.floats(0.01, 1e6)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_the_first_is_due_at_once_the_next_after_the_interval_and_none_beside_another(
    now, since, every, cost
):
    assert due(now, History(), every_s=every) == "it has no version yet"
    history = History(begun_s=now - since, cost_s=cost)
    found = due(now, history, every_s=every)
    assert (found is not None) == (now - history.begun_s >= every)
    under_way = History(begun_s=now - since, cost_s=cost, under_way=True)
    assert due(now, under_way, every_s=every, end_s=now + cost) is None


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 100))
def test_one_version_has_time_to_end_before_the_node_is_given_up(begun, cost, length, ahead):
    end = begun + length
    latest = end - MARGIN * cost - ahead

    def at(now, begun_s):
        history = History(begun_s=begun_s, cost_s=cost)
        return due(now, history, every_s=math.inf, end_s=end, ahead_s=ahead)

    if latest > begun:
        assert at(math.nextafter(latest, -math.inf), begun) is None
        assert at(latest, begun).startswith("a node is given up in")
        assert at(latest, latest) is None, "once"
        assert end - latest >= cost + ahead
    else:
        assert at(end - cost / 2, begun) is None, "the last one was begun too late for another"
    assert at(end, begun) is None


@given(st.floats(0.1, 100), st.floats(1000, 1e6))
def test_once_cost_and_failures_are_known_the_interval_is_the_best_one(cost, mtbf):
    assert interval_s(600, None, mtbf) == interval_s(600, cost, None) == 600
    found = interval_s(600, cost, mtbf) - cost
    costs, work = Costs(cost, mtbf), 100 * mtbf
    best = expected_s(costs, work, found)
    assert best <= min(expected_s(costs, work, found * f) for f in (0.5, 0.8, 1.25, 2))


def test_reasons_say_which_rule():
    history = History(begun_s=0.0, cost_s=2.0)
    assert due(600, history, every_s=600) == "the last one was begun 600 s ago, interval 600 s (the setting)"
    assert "(by its cost and the failures expected)" in due(600, history, every_s=600, mtbf_s=3600)
    assert due(599, history, every_s=600) is None
    text = due(1000 - 3, history, every_s=1e9, end_s=1000, ahead_s=1)
    assert text == "a node is given up in 3 s, before its walltime ends; a version takes 2 s"


def test_so_much_time_is_left():
    assert pytest.approx(1.3) == MARGIN
