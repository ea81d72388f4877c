"""What a run loses while memory does not take its checkpoints: equations 6.13 and 6.14 of John (2024)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.resilience.fallback import Fallback

TIMES = st.floats(0.0, 1e4)
RUNS = st.builds(
    Fallback,
    period_s=st.floats(0.1, 1e4),
    memory_s=TIMES,
    file_system_s=TIMES,
    probe_s=TIMES,
    connect_s=TIMES,
)


def test_the_equations_by_hand() -> None:
    run = Fallback(period_s=10.0, memory_s=0.5, file_system_s=3.0, probe_s=0.25, connect_s=2.0)
    # 4 tries, 15 s each: 6 checkpoints go to the file system, 2.5 s longer each
    assert run.reconnected_s(4, 15.0) == pytest.approx(0.25 + 2.0 + 6 * 2.5)
    assert run.never_s(100.0) == pytest.approx(0.25 + 2.0 + 10 * 2.5)
    # answered at once
    assert run.reconnected_s(0, 15.0) == pytest.approx(2.25)


@given(RUNS, st.integers(0, 100), st.floats(0.0, 100.0))
def test_a_run_that_is_answered_at_its_last_try_loses_as_one_that_never_is(
    run: Fallback, tries: int, wait_s: float
) -> None:
    assert run.reconnected_s(tries, wait_s) == pytest.approx(run.never_s(tries * wait_s))


@given(RUNS, st.floats(0.0, 1e5), st.floats(0.0, 1e5))
def test_a_slower_file_system_costs_more_the_longer_it_lasts(
    run: Fallback, one_s: float, more_s: float
) -> None:
    longer = run.never_s(one_s + more_s) - run.never_s(one_s)
    assert longer == pytest.approx(
        more_s / run.period_s * (run.file_system_s - run.memory_s), abs=1e-3, rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("period_s", 0.0), ("memory_s", -1.0), ("file_system_s", math.nan), ("probe_s", math.inf)],
)
def test_times_that_there_are_not_are_refused(name: str, value: float) -> None:
    given_s = {"period_s": 1.0, "memory_s": 1.0, "file_system_s": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed: a number of seconds"):
        Fallback(**given_s)
