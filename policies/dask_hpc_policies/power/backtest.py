"""What models would have said before, how wrong that was, which of them to believe, and how far.

Rules of the file: numpy only, no fitting. A forecast matrix has a row for each origin (the number of samples
known) and a column for each step ahead; the last row, with all samples known, is the forecast itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Watts = NDArray[np.float64]
Origins = NDArray[np.int64]

#: What a window counts of the next one that it does not overlap, when models are chosen.
DISCOUNT = 0.95
#: Share of windows whose least and most watts the band is to hold.
COVERAGE = 0.9
#: Below this share of the mean level percentages mean nothing; errors are then taken of the level.
NEAR_ZERO = 0.05


@dataclass(frozen=True, slots=True)
class ARMA:
    """A process ``ar(B) (1-B)^d (1-B^m)^D (y - mean) = ma(B) e`` by its coefficients, lag 0 first."""

    ar: Watts
    ma: Watts
    mean: float = 0.0
    difference: int = 0
    season: int = 0


def naive(series: Watts, origins: Origins, horizon: int) -> Matrix:
    """The last value, again and again."""
    return np.repeat(series[origins - 1, None], horizon, axis=1)


def seasonal_naive(series: Watts, origins: Origins, horizon: int, season: int) -> Matrix:
    """The values of the last season, again and again."""
    ahead = np.arange(horizon) % season
    before: Matrix = series[origins[:, None] - season + ahead[None, :]]
    return before


def arma(series: Watts, origins: Origins, horizon: int, process: ARMA) -> Matrix:
    """What an ARMA process expects, past shocks being those of the conditional sum of squares.

    Source: Box and Jenkins (1970), section 5.2: the difference equation, with shocks to come left out.
    """
    # brings a library of processes with it
    from scipy.signal import lfilter

    level = series - process.mean
    lags = np.array([1.0])
    for _ in range(process.difference):
        lags = np.convolve(lags, [1.0, -1.0])
    if process.season:
        lags = np.convolve(lags, np.concatenate([[1.0], np.zeros(process.season - 1), [-1.0]]))
    lost = len(lags) - 1
    steady = np.convolve(level, lags)[lost : len(level)]
    shocks = np.concatenate([np.zeros(lost), lfilter(process.ar, process.ma, steady)])
    own = np.convolve(process.ar, lags)
    back = np.flatnonzero(own[1:]) + 1
    known = np.flatnonzero(process.ma[1:]) + 1
    values = np.empty((len(origins), horizon))
    for step in range(horizon):
        value = np.zeros(len(origins))
        for lag in back:
            past = values[:, step - lag] if lag <= step else level[origins + step - lag]
            value -= own[lag] * past
        for lag in known[known > step]:
            value += process.ma[lag] * shocks[origins + step - lag]
        values[:, step] = value
    return values + process.mean


def smoothed(
    level: Watts,
    slope: Watts,
    seasons: Watts | None,
    damping: float,
    season: int,
    origins: Origins,
    horizon: int,
) -> Matrix:
    """What exponential smoothing expects from its states after each sample (Holt 1957, Winters 1960).

    Parameters
    ----------
    level, slope, seasons
        One value a sample; no seasons for a series without any.
    damping
        What is left of the slope after a step; 1 keeps all.
    """
    ahead = np.cumsum(damping ** np.arange(1, horizon + 1))
    values = level[origins - 1][:, None] + slope[origins - 1][:, None] * ahead
    if seasons is not None:
        values = values + seasons[origins[:, None] - season + np.arange(horizon)[None, :] % season]
    return values


def window_errors(series: Watts, origins: Origins, forecasts: Matrix) -> Watts:
    """The mean error of each origin but the last: a share of what came, or of the mean level near 0 W."""
    horizon = forecasts.shape[1]
    at = origins[:-1, None] + np.arange(horizon)[None, :]
    here = at < len(series)
    actual = series[np.minimum(at, len(series) - 1)]
    level = float(np.mean(np.abs(series)))
    near_zero = float(np.min(np.abs(series))) < NEAR_ZERO * level
    of = np.full_like(actual, level) if near_zero else np.abs(actual)
    shares = np.where(here, np.abs(forecasts[:-1] - actual) / of, 0.0)
    errors: Watts = shares.sum(axis=1) / here.sum(axis=1)
    return errors


def discounted(errors: Watts, horizon: int, discount: float = DISCOUNT) -> float:
    """The mean of the errors of windows that begin one after the other, the last one counting most.

    A window counts `discount` of the one that begins where it ends. That they overlap makes the mean steadier
    than that of windows which do not, and no less honest.
    """
    weights = discount ** (np.arange(len(errors) - 1, -1, -1) / horizon)
    return float(np.sum(weights * errors) / np.sum(weights))


def best(errors: Mapping[str, float]) -> str:
    """The name with the smallest error; of equals the first one."""
    return min(errors, key=lambda name: errors[name])


def band(
    series: Watts, origins: Origins, forecasts: Matrix, coverage: float = COVERAGE
) -> tuple[float, float]:
    """The least and the most watts of the steps ahead, wide enough for past errors of just these two.

    A side is as wide as a past error of that side which (1 - coverage) / 2 of such errors exceed: the split
    conformal quantile (Lei and others 2018, section 2.2), with its correction for few samples. Windows that
    overlap are no samples of their own: it counts those that do not. Without a past window it is the range
    of the forecast.
    """
    horizon = forecasts.shape[1]
    low, high = float(forecasts[-1].min()), float(forecasts[-1].max())
    whole = np.flatnonzero(origins + horizon <= len(series))
    if not len(whole):
        return max(0.0, low), high
    windows = series[origins[whole][:, None] + np.arange(horizon)[None, :]]
    below = forecasts[whole].min(axis=1) - windows.min(axis=1)
    above = windows.max(axis=1) - forecasts[whole].max(axis=1)
    rank = min(1.0, (1 - (1 - coverage) / 2) * (1 + horizon / len(whole)))
    low -= float(np.quantile(below, rank, method="higher"))
    high += float(np.quantile(above, rank, method="higher"))
    return max(0.0, min(low, high)), max(low, high)
