"""What a node draws by its load: between idle and busy, never falling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.load_curve import LoadCurve

LOADS = st.floats(0, 1)
POINTS = st.dictionaries(st.floats(0.01, 0.99), st.floats(0, 1), max_size=5)


@given(POINTS, LOADS, LOADS, st.floats(71, 500))
def test_more_load_never_draws_less(points: dict[float, float], one: float, other: float, top: float) -> None:
    rising = sorted(points.values())
    inner = ((load, 71 + 99 * share) for load, share in zip(sorted(points), rising, strict=True))
    curve = LoadCurve(((0.0, 71.0), *inner, (1.0, 170.0)))
    low, high = sorted((one, other))
    assert curve.watts(low) <= curve.watts(high) + 1e-9
    assert 71 - 1e-9 <= curve.watts(low, top) <= top + 1e-9
    assert (curve.watts(0), curve.watts(1)) == (71, 170)
    assert curve.watts(1, top) == pytest.approx(top)


def test_a_job_takes_the_share_of_its_own_way_and_other_ends_keep_the_bends() -> None:
    curve = LoadCurve(((0.0, 70.0), (0.5, 140.0), (1.0, 170.0)))
    assert curve.watts(0.25) == pytest.approx(105)
    assert curve.watts(0.5, 270) == pytest.approx(70 + 0.7 * 200)
    assert curve.between(0, 100).points == ((0.0, 0.0), (0.5, 70.0), (1.0, 100.0))
    assert LoadCurve(((0.0, 70.0), (1.0, 70.0))).watts(0.5, 90) == 80
