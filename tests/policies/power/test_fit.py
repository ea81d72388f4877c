"""The curve of watts by load: it never falls, and misses what it has not seen by little."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.fit import FitError, fit_curve
from dask_hpc_policies.power.load_curve import LoadCurve


def column(path: Path, name: str) -> list[float]:
    with path.open() as file:
        return [float(row[name]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["rapl-load-EPYC-8024P.csv", "rapl-load-E5-2620v3.csv"])
def test_points_left_out_are_missed_by_little_on_real_processors(data_folder: Path, name: str) -> None:
    path = data_folder / name
    loads = np.array(column(path, "cpu_load")) / 100
    power_w = np.array(column(path, "rapl_power"))
    error = fit_curve(loads.tolist(), power_w.tolist()).error
    estimate = np.abs(np.array(column(path, "estimated_power")) - power_w).mean() / power_w.max()
    line = np.array(
        [
            np.polyval(np.polyfit(np.delete(loads, i), np.delete(power_w, i), 1), loads[i])
            for i in range(len(loads))
        ]
    )
    line_error = np.abs(line - power_w).mean() / power_w.max()
    print(f"{name}: curve {error:.1%}, line {line_error:.1%}, the file's own estimate {estimate:.1%}")
    assert error <= 0.055
    assert error < estimate
    assert error < line_error


def test_the_error_is_that_of_points_the_curve_was_not_fitted_to() -> None:
    loads, power_w = [0.0, 0.25, 0.5, 0.75, 1.0], [10.0, 60.0, 70.0, 90.0, 100.0]
    missed = []
    for i in range(5):
        others = [fit_curve([*loads[:i], *loads[i + 1 :]], [*power_w[:i], *power_w[i + 1 :]])]
        missed += [abs(curve.watts(loads[i]) - power_w[i]) for curve in others]
    assert fit_curve(loads, power_w).error == pytest.approx(sum(missed) / 5 / 100)


points = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.floats(0, 5000, width=32)),
    min_size=3,
    max_size=30,
    unique_by=lambda point: point[0],
).filter(lambda found: max(watts for _, watts in found) > 1e-3)


@given(points)
def test_a_curve_never_falls_and_is_never_below_zero(found: list[tuple[float, float]]) -> None:
    curve = fit_curve([load for load, _ in found], [watts for _, watts in found])
    loads, watts = zip(*curve.points, strict=True)
    assert (loads[0], loads[-1]) == (0.0, 1.0)
    assert list(loads) == sorted(set(loads))
    assert watts[0] >= 0
    assert all(later >= earlier for earlier, later in pairwise(watts))
    assert curve.idle_w == watts[0]
    assert curve.error >= 0


@given(st.floats(1, 500), st.floats(1, 2000))
def test_a_straight_line_is_found_again_also_where_nothing_was_measured(idle_w: float, rise_w: float) -> None:
    loads = [0.2, 0.4, 0.5, 0.7]
    curve = fit_curve(loads, [idle_w + rise_w * load for load in loads])
    for load in (0.0, 0.33, 1.0):
        assert curve.watts(load) == pytest.approx(idle_w + rise_w * load, rel=1e-3, abs=1e-2)
    assert curve.error < 1e-3


def test_the_order_of_measurements_does_not_matter_and_repeated_loads_are_averaged() -> None:
    curve = fit_curve([0.0, 0.5, 0.5, 1.0], [10.0, 40.0, 60.0, 90.0])
    again = fit_curve([1.0, 0.5, 0.0, 0.5], [90.0, 60.0, 10.0, 40.0])
    assert [w for _, w in curve.points] == pytest.approx([w for _, w in again.points])
    assert curve.watts(0.5) == pytest.approx(50, abs=1)


def test_hundreds_of_points_are_fitted_in_as_many_fits_as_are_needed() -> None:
    loads = np.linspace(0, 1, 701)
    curve = fit_curve(loads.tolist(), (50 + 100 * np.sqrt(loads)).tolist())
    assert curve.error < 0.01
    assert curve.watts(0.25) == pytest.approx(100, abs=1)


def test_loads_outside_count_as_the_nearer_end() -> None:
    curve = LoadCurve(((0.0, 5.0), (1.0, 9.0)), 0.0)
    assert (curve.watts(-1), curve.watts(0.5), curve.watts(7)) == (5.0, 7.0, 9.0)


@pytest.mark.parametrize(
    ("loads", "watts", "error", "said"),
    [
        ([0, 0.5, 1.2], [1, 2, 3], FitError, r"point 3: the load is 1.2; allowed: 0 to 1"),
        ([0, float("nan"), 1], [1, 2, 3], FitError, r"point 2: the load is nan; allowed: 0 to 1"),
        ([0, 0.5, 1], [1, -2, 3], ProgramError, r"point 2: the power is -2; allowed: watts from 0 to 1e\+09"),
        ([0, 0.5, 1], [1, float("nan"), 3], ProgramError, "the power is nan"),
        ([0.5, 0.5, 0.5, 1], [1, 2, 3, 4], FitError, "2 different loads; a curve needs 3"),
        ([0, 0.5, 1], [0, 0, 0], FitError, "every power is 0 W"),
    ],
)
def test_what_cannot_be_is_refused(
    loads: list[float], watts: list[float], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        fit_curve(loads, watts)
