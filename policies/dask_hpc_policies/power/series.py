"""A measured series of watts made fit for models: equal steps, no gaps, and the season that it has.

Rules of the file: a series that models cannot take is not an error. It comes back with the reason, and
whoever forecasts repeats the last value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.params import shown
from dask_hpc_policies.power.checks import MOST_TOTAL_W, watts

#: Fewer samples say nothing about a model.
FEWEST_SAMPLES = 30
#: More of its steps than this without a sample: the series has gaps.
MOST_MISSING = 0.1
#: A season must come round so many times, and explain this share of what is left without the trend.
SEASONS, SEASON_SHARE = 3, 0.4
#: Far beyond any time in seconds; what lies between two such times is a number.
_MOST_T_S = 1e300

Watts = NDArray[np.float64]


class SeriesError(ValueError):
    """What was measured cannot be; the message names the sample, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Watts at equal steps."""

    watts: Watts
    step_s: float
    #: Why no model can be fitted; None when one can.
    unfit: str | None


def regular(t_s: Sequence[float], measured_w: Sequence[float]) -> Grid:
    """Samples at equal steps, the median one; single missing ones lie on the line between their neighbours.

    Raises
    ------
    SeriesError
        When there is no sample, times do not rise, or a sample is no number of watts.
    """
    if not len(measured_w) or len(t_s) != len(measured_w):
        raise SeriesError(f"{len(t_s)} times and {len(measured_w)} watts; give as many of both, at least one")
    for number, (time, value) in enumerate(zip(t_s, measured_w, strict=True), start=1):
        watts(f"sample {number}: ", "watts", value, MOST_TOTAL_W)
        if not abs(time) <= _MOST_T_S:
            raise SeriesError(f"sample {number}: t_s is {shown(time)}; allowed: a number of seconds")
        if number > 1 and time <= t_s[number - 2]:
            raise SeriesError(
                f"sample {number}: t_s is {time:g} after {t_s[number - 2]:g}; times must rise: sort the "
                "samples and leave out repeated ones"
            )
    values = np.asarray(measured_w, dtype=float)
    if len(values) < FEWEST_SAMPLES:
        step_s = float(np.median(np.diff(t_s))) if len(values) > 1 else 1.0
        return Grid(values, step_s, f"{len(values)} samples; models need {FEWEST_SAMPLES}")
    times = np.asarray(t_s, dtype=float)
    step_s = float(np.median(np.diff(times)))
    steps = round(float(times[-1] - times[0]) / step_s) + 1
    missing = 1.0 - len(values) / max(steps, 1)
    if missing > MOST_MISSING:
        return Grid(
            values, step_s, f"{missing:.0%} of the samples are missing; models allow {MOST_MISSING:.0%}"
        )
    grid = np.interp(times[0] + step_s * np.arange(steps), times, values)
    if np.ptp(grid) <= 1e-9 * max(1.0, float(np.abs(grid).max())):
        return Grid(grid, step_s, "the series is constant")
    return Grid(grid, step_s, None)


def season_of(series: Watts) -> int | None:
    """Samples after which the series repeats itself; None when it does not.

    The first peak of the autocorrelation, once a straight line is taken out, that is about as high as the
    highest one: multiples of a season are peaks as well.
    """
    count = len(series)
    position = np.arange(count)
    rest = series - np.polyval(np.polyfit(position, series, 1), position)
    power = np.abs(np.fft.rfft(rest, 2 * count)) ** 2
    correlation = np.fft.irfft(power)[: count // SEASONS + 2]
    if correlation[0] <= 0 or len(correlation) < 5:
        return None
    # each lag by the samples that it compares
    correlation = correlation / correlation[0] * count / (count - np.arange(len(correlation)))
    inner = correlation[1:-1]
    peaks = 1 + np.flatnonzero((inner > correlation[:-2]) & (inner >= correlation[2:]))
    # what rises and falls slowly is similar to itself at once; a season is unlike itself in between
    valley = np.minimum.accumulate(correlation)
    high = [int(lag) for lag in peaks if lag > 2 and correlation[lag] - max(0.0, valley[lag]) > SEASON_SHARE]
    highest = max((correlation[lag] for lag in high), default=0.0)
    found = next((lag for lag in high if correlation[lag] >= 0.85 * highest), None)
    return None if found is None else _sharpened(rest, found)


def _sharpened(rest: Watts, lag: int) -> int:
    """The length near `lag` whose mean season leaves least: a flat peak of the correlation may be off."""
    near = range(max(3, lag - 2 - lag // 20), min(lag + 3 + lag // 20, len(rest) // SEASONS + 1))
    return min(near, key=lambda length: _left(rest, length))


def _left(rest: Watts, length: int) -> float:
    """The variance that the mean season of a length leaves, each of its values taken as an estimate."""
    phase = np.arange(len(rest)) % length
    means = np.bincount(phase, rest) / np.bincount(phase)
    return float(np.sum((rest - means[phase]) ** 2)) / (len(rest) - length)
