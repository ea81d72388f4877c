"""Time and watts by size, fitted to runs: what was laid down is found again, what cannot be is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.scaling import ScalingError, fit_scaling

AMOUNT = st.floats(0.1, 1e3)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.sets(st.integers(1, 64), min_size=2, max_size=6))
@examples(50)
def test_a_law_that_holds_is_found_again(alone_s, shared_s, base_w, node_w, sizes) -> None:
    runs = [(n, alone_s + shared_s / n, base_w + node_w * n) for n in sizes]
    found = fit_scaling(runs)
    assert max(found.error_s, found.error_w) < 1e-6
    for nodes, seconds, watts in runs:
        assert found.seconds(nodes) == pytest.approx(seconds, rel=1e-6)
        assert found.watts(nodes) == pytest.approx(watts, rel=1e-6)
        assert found.energy_j(nodes) == pytest.approx(seconds * watts, rel=1e-5)
    assert found.speed(1) == 1.0


def test_nothing_is_below_zero_and_a_run_counts_by_its_share() -> None:
    # faster than all nodes together, and draws less on more of them: the fit says neither
    found = fit_scaling([(1, 100.0, 300.0), (2, 40.0, 200.0)])
    assert min(found.alone_s, found.shared_s, found.base_w, found.node_w) >= 0
    assert found.speed(2) == pytest.approx(2.0)
    assert found.error_s == pytest.approx(0.12, abs=0.02)


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([(1, 2.0, 3.0), (1, 2.0, 4.0)], "two sizes are needed"),
        ([], "two sizes are needed"),
        ([(0, 2.0, 3.0), (1, 2.0, 3.0)], "run 1: nodes is 0; allowed: 1 and more"),
        ([(1, 2.0, 3.0), (2, math.nan, 3.0)], "run 2: seconds is nan; allowed: above 0"),
        ([(1, 2.0, 3.0), (2, 1.0, 0.0)], "run 2: watts is 0.0; allowed: above 0"),
    ],
)
def test_runs_that_say_nothing_are_refused_by_name(runs: Any, text: str) -> None:
    with pytest.raises(ScalingError, match=text):
        fit_scaling(runs)
