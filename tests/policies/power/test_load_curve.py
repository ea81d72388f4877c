"""What a node draws by its load: between idle and busy, never falling; what cannot be is one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.load_curve import CurveError, load_curve

LOADS = st.floats(0, 1)
POINTS = st.dictionaries(st.floats(0.01, 0.99), st.floats(0, 1), max_size=5)


@given(POINTS, LOADS, LOADS, st.floats(71, 500))
def test_more_load_never_draws_less(points: dict[float, float], one: float, other: float, top: float) -> None:
    rising = sorted(points.values())
    table = {str(load): 71 + 99 * share for load, share in zip(sorted(points), rising, strict=True)}
    curve = load_curve(71, 170, table)
    low, high = sorted((one, other))
    assert curve.watts(low) <= curve.watts(high) + 1e-9
    assert 71 <= curve.watts(low, top) <= top + 1e-9
    assert (curve.watts(0), curve.watts(1), curve.watts(1, top)) == (71, 170, top)


def test_points_lie_on_the_curve_and_a_job_takes_their_share_of_its_own_way() -> None:
    curve = load_curve(70, 170, {"0.5": 140})
    assert curve.watts(0.5) == pytest.approx(140)
    assert curve.watts(0.25) == pytest.approx(105)
    assert curve.watts(0.5, 270) == pytest.approx(70 + 0.7 * 200)
    assert load_curve(70, 170).watts(0.3) == pytest.approx(100)
    assert load_curve(70, 70, {"0.5": 70}).watts(0.5) == 70


@pytest.mark.parametrize(
    ("idle_w", "busy_w", "points", "text"),
    [
        (100, 70, {}, "busy watts are 70; allowed: at least the idle ones, which are 100"),
        (70, 170, {"1": 100}, "load '1'; allowed: numbers above 0 and below 1"),
        (70, 170, {"half": 100}, "load 'half'"),
        (70, 170, {"0.5": "much"}, "'much' at load '0.5'; allowed: a number of watts"),
        (70, 170, {"0.5": 180}, "180 W at load 0.5; allowed: 70"),
        (70, 170, {"0.2": 120, "0.6": 110}, "110 W at load 0.6; allowed: 120"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(idle_w: float, busy_w: float, points: object, text: str) -> None:
    with pytest.raises(CurveError, match=text):
        load_curve(idle_w, busy_w, points)  # type: ignore[arg-type]
