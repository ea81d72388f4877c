"""Bounds that change by at most so many watts a second; the same live and simulated.

The bounds of a corridor jump. Here each is led: an upper bound that falls begins to fall so early that it is
there in time, one that rises takes its time afterwards; a lower bound likewise, the other way round. What
comes out is never outside of what was asked, and is the widest corridor that does both (the largest function
below the upper bound, and the smallest above the lower one, that change no faster). A draw that is outside at
the beginning is led inside at the same rate.

Rules of the file: pure. Steps stand for the slopes, inside of them; up to `_SMOOTH_S` a slope has `_STAIRS`
steps, from there on each is a quarter longer than all before it together were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from dask_hpc_policies.power.bounds import MOST_W, Bounds, BoundsError
from dask_hpc_policies.power.view import Step

_STAIRS, _SMOOTH_S, _LONGER = 60, 3600.0, 1.25
#: Shorter than this no step is.
_LEAST_S = 1.0
#: More steps are refused.
_MOST_STEPS = 200_000
#: By so much, as a share, sums of floats may cross.
_SLACK = 1e-9


def ramped(bounds: Bounds, ramp_w_s: float, from_s: float, draw_w: float | None = None) -> Bounds:
    """`bounds` from `from_s` on, led at `ramp_w_s` watts a second.

    Parameters
    ----------
    draw_w
        What is drawn at `from_s`: outside, the bounds begin there. None: they begin as they were asked for.

    Raises
    ------
    BoundsError
        Where no draw that changes so slowly stays inside: the bounds before and after a step are too far
        apart. The message names the step.
    """
    if not 0 < ramp_w_s < inf:
        raise BoundsError(f"ramp_w_s is {ramp_w_s!r}; allowed: above 0 W/s")
    asked = _from(bounds, from_s)
    tops = _led([(time, high) for time, _, high in asked], ramp_w_s)
    # a lower bound is an upper one upside down
    floors = [-value for value in _led([(time, -low) for time, low, _ in asked], ramp_w_s)]
    for (time, *_), low, high in zip(asked, floors, tops, strict=True):
        if low > high + _SLACK * max(1.0, high):
            raise BoundsError(
                f"ramp_w_s is {ramp_w_s:g}: no draw that changes by {ramp_w_s:g} W/s stays inside the bounds "
                f"around {time:.10g} s; allowed: bounds that overlap where they change, or a faster ramp"
            )
    times = sorted({time for time in _times(asked, tops, floors, ramp_w_s, draw_w) if time >= from_s})
    if len(times) > _MOST_STEPS:
        raise BoundsError(
            f"ramp_w_s makes {len(times)} steps; allowed: {_MOST_STEPS}: give fewer, or a faster ramp"
        )
    steps: list[Step] = []
    coarse: list[Step] = []
    slope: int | None = None
    number = 0
    for begin, end in pairwise([*times, inf]):
        while number + 1 < len(asked) and asked[number + 1][0] <= begin:
            number += 1
        low, high = _inside(asked, tops, floors, ramp_w_s, number, begin, end)
        if draw_w is not None:
            led_w = ramp_w_s * (begin - from_s)
            low, high = min(low, draw_w + led_w), max(high, draw_w - led_w)
        high = _snapped(min(MOST_W, high), asked[number][2])
        low = min(_snapped(max(0.0, low), asked[number][1]), high)
        if steps and steps[-1][1:] == (low, high):
            continue
        steps.append((begin, low, high))
        # stairs between two bounds that were asked for are one slope
        before, slope = slope, None if (low, high) == asked[number][1:] else number
        if slope is not None and slope == before:
            since, least, most = coarse[-1]
            least, most = max(least, low), min(most, high)
            if least <= most:
                coarse[-1] = since, least, most
                continue
        coarse.append((begin, low, high))
    return Bounds(steps=tuple(steps), coarse=tuple(coarse))


def _snapped(value: float, aim: float) -> float:
    """`aim` where a slope has reached it but for what floats lose."""
    return aim if abs(value - aim) <= _SLACK * max(1.0, aim) else value


def _from(bounds: Bounds, from_s: float) -> list[Step]:
    """The steps from a moment on, the first of them at it; before the first one both sides are open."""
    now = bounds.at(from_s)
    first = (from_s, 0.0, MOST_W) if now is None else (from_s, *now[1:])
    return [first, *bounds.after(from_s)]


def _led(tops: Sequence[tuple[float, float]], ramp_w_s: float) -> list[float]:
    """The led upper bound at the time of each step."""
    found: list[float] = []
    for number, (time, value) in enumerate(tops):
        # at a step both what held and what will hold is kept
        best = value
        if number:
            before_s, before = tops[number - 1]
            best = min(value, before, found[-1] + ramp_w_s * (time - before_s))
        found.append(best)
    for number in range(len(tops) - 2, -1, -1):
        length_s = tops[number + 1][0] - tops[number][0]
        found[number] = min(found[number], found[number + 1] + ramp_w_s * length_s)
    return found


def _inside(
    asked: Sequence[Step],
    tops: Sequence[float],
    floors: Sequence[float],
    ramp_w_s: float,
    number: int,
    begin_s: float,
    end_s: float,
) -> tuple[float, float]:
    """The bounds between two times within one step: the least upper, the largest lower one."""

    def at(time: float) -> tuple[float, float]:
        since, low, high = asked[number]
        reach = [ramp_w_s * (time - since)]
        highs, lows = [high, tops[number] + reach[0]], [low, floors[number] - reach[0]]
        if number + 1 < len(asked):
            ahead = ramp_w_s * (asked[number + 1][0] - time)
            highs.append(tops[number + 1] + ahead)
            lows.append(floors[number + 1] - ahead)
        return max(lows), min(highs)

    if end_s == inf:
        return at(begin_s)
    (low_a, high_a), (low_b, high_b) = at(begin_s), at(end_s)
    low, high = max(low_a, low_b), min(high_a, high_b)
    # steps of two slopes may cross where these do not
    return (low, high) if low <= high else at((begin_s + end_s) / 2)


def _times(
    asked: Sequence[Step],
    tops: Sequence[float],
    floors: Sequence[float],
    ramp_w_s: float,
    draw_w: float | None,
) -> Iterator[float]:
    """Where steps begin: those asked for, and stairs on each slope."""
    for number, (time, low, high) in enumerate(asked):
        yield time
        end_s = asked[number + 1][0] if number + 1 < len(asked) else inf
        for rise_w in (high - tops[number], floors[number] - low):
            yield from (time + ahead for ahead in _stairs(rise_w / ramp_w_s, end_s - time))
        if end_s < inf:
            for rise_w in (high - tops[number + 1], floors[number + 1] - low):
                yield from (end_s - ahead for ahead in _stairs(rise_w / ramp_w_s, end_s - time))
    if draw_w is not None:
        # it may meet a bound that moves ahead of it, at the tightest one at the latest
        for rise_w in (draw_w - min(tops), max(floors) - draw_w):
            yield from (asked[0][0] + ahead for ahead in _stairs(rise_w / ramp_w_s, inf))


def _stairs(slope_s: float, most_s: float) -> Iterator[float]:
    """How long after the foot of a slope its stairs begin."""
    step_s = max(_LEAST_S, min(slope_s, most_s, _SMOOTH_S) / _STAIRS)
    ahead_s = step_s
    while ahead_s < min(slope_s, most_s):
        yield ahead_s
        ahead_s = ahead_s + step_s if ahead_s < _SMOOTH_S else ahead_s * _LONGER
    if 0 < slope_s < most_s:
        yield slope_s
