"""Intervals between checkpoints: the published figures, and that each estimate is what it says it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.resilience.intervals import METHODS, Costs, daly, daly_first, exact, expected_s, young

HOUR_S = 3600.0
times_s = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR_S, "117"), (6 * HOUR_S, "57"), (900.0, "9.1")])
def test_daly_has_the_published_intervals(mtbf_s: float, minutes: str) -> None:
    # Daly (2006), captions of the figures: a checkpoint takes 5 minutes, a restart 10
    digits = len(minutes.partition(".")[2])
    assert f"{daly(Costs(300.0, mtbf_s, 600.0)) / 60:.{digits}f}" == minutes


@given(times_s, st.floats(1e-6, 50), st.floats(0, 1), st.floats(0.5, 2.0))
def test_no_interval_is_better_than_the_exact_one(
    mtbf_s: float, cost: float, restart: float, factor: float
) -> None:
    costs = Costs(cost * mtbf_s, mtbf_s, restart * mtbf_s)
    best_s = exact(costs)
    assert expected_s(costs, 1.0, best_s) <= expected_s(costs, 1.0, best_s * factor) * (1 + 1e-9)


@given(times_s, st.floats(1e-6, 0.05))
def test_estimates_come_near_the_exact_interval_where_checkpoints_are_cheap(
    mtbf_s: float, cost: float
) -> None:
    costs = Costs(cost * mtbf_s, mtbf_s)
    best_s = exact(costs)
    assert daly(costs) == pytest.approx(best_s, rel=1e-3)
    assert daly_first(costs) == pytest.approx(best_s, rel=0.15)
    assert young(costs) == pytest.approx(best_s, rel=0.2)
    # and the order between them is always this
    assert daly_first(costs) < best_s < young(costs)


def test_a_checkpoint_that_takes_longer_than_failures_leave() -> None:
    costs = Costs(100.0, 10.0)
    assert daly(costs) == 10.0
    assert daly_first(costs) == 0.0
    assert expected_s(costs, 1000.0, 0.0) == math.inf
    assert expected_s(Costs(0.0, 1.0), 1e6, 1e6) == math.inf
    # nor does one end that fails again before it has begun anew
    for checkpoint_s in (0.0, 1.0):
        assert expected_s(Costs(checkpoint_s, 1.0, 1e6), 1.0, checkpoint_s) == math.inf
    # one that costs next to nothing is not taken all the time
    assert exact(Costs(1e-13, 3600.0)) == pytest.approx(young(Costs(1e-13, 3600.0)))


def test_without_failures_worth_the_name_a_run_takes_what_it_takes() -> None:
    assert expected_s(Costs(1.0, 1e12), 1000.0, 100.0) == pytest.approx(1010.0)


@pytest.mark.parametrize(
    ("values", "name"),
    [((-1.0, 1.0, 0.0), "checkpoint_s"), ((1.0, 0.0, 0.0), "mtbf_s"), ((1.0, 1.0, math.nan), "restart_s")],
)
def test_what_is_no_time_is_refused(values: tuple[float, float, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; allowed: a number of seconds"):
        Costs(*values)


def test_the_methods_are_all_there() -> None:
    assert list(METHODS) == ["young", "daly-first", "daly", "exact"]
