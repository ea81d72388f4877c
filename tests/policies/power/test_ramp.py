"""Bounds that change slowly: inside what was asked, no faster than said, as wide as can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.bounds import MOST_ANNOUNCED, MOST_W, Bounds, BoundsError
from dask_hpc_policies.power.ramp import ramped

STEPS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 500), st.integers(600, 2000)), min_size=1, max_size=6
)


def bounds(*steps: tuple[float, float, float]) -> Bounds:
    return Bounds(steps=steps)


def at(found: Bounds, t_s: float) -> tuple[float, float]:
    step = found.at(t_s)
    assert step is not None
    return step[1:]


def test_an_upper_bound_falls_in_time_and_rises_afterwards() -> None:
    found = ramped(bounds((0, 0, 4000), (1000, 0, 2000), (2000, 0, 3000)), 10, 0)
    assert at(found, 799) == (0, 4000)
    assert at(found, 900)[1] == pytest.approx(3000, abs=40)
    assert at(found, 1000) == at(found, 2000) == (0, 2000)
    assert at(found, 2050)[1] == pytest.approx(2500, abs=30)
    assert at(found, 2101) == (0, 3000)


def test_a_lower_bound_rises_in_time_and_falls_afterwards() -> None:
    found = ramped(bounds((0, 0, 4000), (1000, 2000, 4000), (2000, 1000, 4000)), 10, 0)
    assert at(found, 799) == (0, 4000)
    assert at(found, 900)[0] == pytest.approx(1000, abs=40)
    assert at(found, 1000) == at(found, 2000) == (2000, 4000)
    assert at(found, 2101) == (1000, 4000)


def test_a_picture_has_the_next_steps_of_a_year() -> None:
    year = Bounds(steps=tuple((900.0 * n, 0.0, 1e3 + n % 7) for n in range(35_000)))
    assert year.announced(1800.0) == year.steps[3:103]
    assert (year.after(1800.0, 1), year.announced(1e9)) == (year.steps[3:4], ())


def test_a_picture_sees_beyond_a_long_ramp() -> None:
    week = [(7200.0 * n, 0.0, 4000.0 - 1000.0 * (n % 3)) for n in range(80)]
    found = ramped(bounds(*week), 0.6, 0)
    assert len(found.after(0.0)) > 20 * MOST_ANNOUNCED
    seen = found.announced(0.0)
    assert len(seen) == MOST_ANNOUNCED
    assert seen[:20] == found.steps[1:21]
    assert {2000.0, 3000.0, 4000.0} <= {high for _, _, high in seen}
    assert seen[-1][0] > week[MOST_ANNOUNCED // 3][0]
    # what is left of a bound that rises is no lower than it is now
    rising = ramped(bounds((0, 0, 1000), (10, 0, 9000), (90_000, 0, 8000), (180_000, 0, 9000)), 0.5, 0)
    assert len(rising.after(1000.0)) > MOST_ANNOUNCED
    assert min(high for _, _, high in rising.announced(1000.0)) >= at(rising, 1000.0)[1]


def test_what_is_drawn_outside_is_led_inside() -> None:
    found = ramped(bounds((0, 0, 2000)), 10, 50, 3000)
    assert at(found, 50) == (0, 3000)
    assert at(found, 100)[1] == pytest.approx(2500, abs=20)
    assert at(found, 151) == (0, 2000)
    found = ramped(bounds((0, 1000, 2000)), 10, 50, 400)
    assert at(found, 50) == (400, 2000)
    assert at(found, 111) == (1000, 2000)
    # inside there is nothing to lead
    assert ramped(bounds((0, 1000, 2000)), 10, 50, 1500).steps == ((50, 1000, 2000),)


def test_bounds_open_slowly_and_are_open_in_the_end() -> None:
    found = ramped(bounds((0, 0, 2000), (10, 0, MOST_W)), 1e4, 0)
    assert at(found, 0) == (0, 2000)
    assert at(found, 3e5) == (0, MOST_W)
    assert len(found.steps) < 200


def test_before_the_first_step_bounds_are_open_but_for_its_slope() -> None:
    found = ramped(bounds((100, 0, 2000)), 10, 50)
    assert at(found, 50)[1] == pytest.approx(2500, abs=10)
    assert at(found, 100) == (0, 2000)


@pytest.mark.parametrize("ramp", [0, -1, float("nan"), float("inf")])
def test_a_ramp_is_above_zero(ramp: float) -> None:
    with pytest.raises(BoundsError, match="ramp_w_s is"):
        ramped(bounds((0, 0, 1)), ramp, 0)


def test_bounds_that_no_draw_can_follow_are_refused() -> None:
    with pytest.raises(BoundsError, match=r"ramp_w_s is 10: no draw .* around 600 s; allowed: bounds that"):
        ramped(bounds((0, 1000, 1700), (600, 2500, 3500)), 10, 0)
    # those that touch can be followed
    ramped(bounds((0, 1700, 2500), (600, 1000, 1700)), 10, 0)


@given(rows=STEPS, ramp=st.sampled_from([0.5, 3.0, 10.0, 1000.0]), draw=st.none() | st.integers(0, 3000))
def test_it_is_inside_slow_and_reached(
    rows: list[tuple[int, int, int]], ramp: float, draw: int | None
) -> None:
    time, steps = 0.0, []
    for length, low, high in rows:
        steps.append((time, float(low), float(high)))
        time += length
    asked = Bounds(steps=tuple(steps))
    found = ramped(asked, ramp, 0.0, draw)
    end_s = found.steps[-1][0] + 1000
    begins = sorted({*(step[0] for step in found.steps), *(step[0] for step in steps)})
    if draw is None:
        for begin in begins:
            (low, high), (least, most) = at(found, begin), at(asked, begin)
            assert least <= low <= high <= most
    ends = [*(step[0] for step in found.steps[1:]), end_s]
    for (first, *one), second, (third, *other), fourth in zip(
        found.steps, ends, found.steps[1:], ends[1:], strict=False
    ):
        assert first < second == third < fourth
        for before, after in zip(one, other, strict=True):
            assert abs(after - before) <= ramp * (fourth - first) * (1 + 1e-6) + 1e-6
    assert at(found, end_s + 10_000) == steps[-1][1:]
    # as wide as can be: no tighter than one step on the way to or from a tighter bound
    spans = [(begin, end, *pair) for (begin, *pair), (end, *_) in pairwise([*steps, (end_s, 0.0, 0.0)])]
    for begin, end in pairwise(begins):
        low, high = at(found, begin)
        far = [max(since - begin, begin - until, 0.0) - (end - begin) for since, until, _, _ in spans]
        assert high >= min(top + ramp * away for away, (*_, top) in zip(far, spans, strict=True)) - 1e-6
        assert low <= max(floor - ramp * away for away, (*_, floor, _) in zip(far, spans, strict=True)) + 1e-6


@given(
    rows=STEPS,
    ramp=st.sampled_from([0.2, 0.7, 3.0]),
    draw=st.none() | st.integers(0, 3000),
    at_share=st.floats(0, 1.2),
    times=st.integers(1, 20),
)
def test_what_is_announced_is_never_looser_and_the_same_soon(
    rows: list[tuple[int, int, int]], ramp: float, draw: int | None, at_share: float, times: int
) -> None:
    time, steps = 0.0, []
    for length, low, high in rows * times:
        steps.append((time, float(low), float(high)))
        time += 10 * length
    found = ramped(Bounds(steps=tuple(steps)), ramp, 0.0, draw)
    now_s = at_share * found.steps[-1][0]
    true, seen = found.after(now_s), found.announced(now_s)
    assert len(seen) == min(len(true), MOST_ANNOUNCED) or len(true) > MOST_ANNOUNCED > len(seen)
    assert seen[: MOST_ANNOUNCED // 4] == true[: MOST_ANNOUNCED // 4]
    assert (seen == true) == (len(true) <= MOST_ANNOUNCED)
    if not seen:
        return
    told = Bounds(steps=seen)
    # the last one that is told may be of a slope that goes on; after it nothing is said
    for t_s, least, most in true:
        if t_s <= seen[-1][0]:
            low, high = at(told, t_s)
            assert least <= low <= high <= most
    # what was asked for is told as it is, where bounds got so far
    asked = Bounds(steps=tuple(steps))
    assert {step for step in true if step[0] <= seen[-1][0] and step[1:] == at(asked, step[0])} <= {*seen}
