"""Confidence interval of a warming trend by a nested moving-block bootstrap, over real data.

The data are the monthly sea-surface temperatures of the El Nino region off Peru, 1950 to 2010, that
statsmodels ships. Years are resampled in blocks, each year with its twelve months, so that the memory
of El Nino from one year to the next and from month to month is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Length of the resampled blocks: the El Nino cycle returns after three to five years.
BLOCK_YEARS = 4
#: Replicates of the trend in one task, and replicates inside each for its standard error.
OUTER_REPLICATES = 10
INNER_REPLICATES = 40
SEED = 19_501
CONFIDENCE = 0.95


def load_series() -> Array:
    """Monthly sea-surface temperatures, one row a year, in degrees Celsius (shape 61, 12)."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data
    return np.ascontiguousarray(table.drop(columns="YEAR").to_numpy(dtype=np.float64))


def trend(series: Array) -> Array:
    """Least-squares slope along the year axis, per month, in units a year.

    Parameters
    ----------
    series
        Values with the years on the axis before the last and the months on the last.
    """
    years = series.shape[-2]
    centred = np.arange(years) - (years - 1) / 2
    weights = (centred / (centred**2).sum())[:, np.newaxis]
    return np.asarray((series * weights).sum(axis=-2))


def detrend(series: Array) -> Array:
    """`series` less its mean and its trend, per month."""
    years = series.shape[0]
    centred = (np.arange(years) - (years - 1) / 2)[:, np.newaxis]
    return np.asarray(series - series.mean(axis=0) - centred * trend(series))


def resampled_years(rng: np.random.Generator, replicates: int, years: int) -> NDArray[np.int64]:
    """Indices of years for `replicates` moving-block resamples (Kuensch, 1989, section 2).

    Blocks of `BLOCK_YEARS` neighbouring years are drawn with replacement and laid end to end; the last
    one is cut to length.
    """
    blocks = -(-years // BLOCK_YEARS)
    starts = rng.integers(0, years - BLOCK_YEARS + 1, size=(replicates, blocks, 1))
    return (starts + np.arange(BLOCK_YEARS)).reshape(replicates, -1)[:, :years]


def annual_trend(series: Array) -> Array:
    """Mean over the months of :func:`trend`."""
    return np.asarray(trend(series).mean(axis=-1))


def replicate_block(residuals: Array, seed: int, replicates: int, block: int) -> Array:
    """Studentised replicates of the annual trend: one task.

    Each replicate of the trend is divided by its own standard error, which a bootstrap inside the
    bootstrap estimates (Efron and Tibshirani, 1993, section 12.5). The random stream depends on
    `seed` and `block` alone.

    Returns
    -------
    array of shape (replicates, 2)
        The replicate of the trend, and the replicate over its standard error.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(block,)))
    years = residuals.shape[0]
    out = np.empty((replicates, 2))
    for row, index in enumerate(resampled_years(rng, replicates, years)):
        sample = residuals[index]
        slope = annual_trend(sample)
        inner = detrend(sample)[resampled_years(rng, INNER_REPLICATES, years)]
        out[row] = slope, slope / annual_trend(inner).std(ddof=1)
    return out


def summarize(series: Array, blocks: list[Array]) -> dict[str, Any]:
    """Trend, standard error and bootstrap-t interval, in degrees a decade, from all replicates."""
    replicates = np.concatenate(blocks)
    slope = float(annual_trend(series))
    error = float(replicates[:, 0].std(ddof=1))
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(replicates[:, 1], [1 - tail, tail])
    return {
        "monthly_trend": 10 * trend(series),
        "trend": 10 * slope,
        "standard_error": 10 * error,
        "lower": 10 * (slope - float(lower) * error),
        "upper": 10 * (slope - float(upper) * error),
        "replicates": len(replicates),
    }


def functions() -> tuple[Callable[[int], Array], Callable[[list[Array]], dict[str, Any]]]:
    """What one task computes, by its number, and what is made of all their results."""
    series = load_series()
    return partial(replicate_block, detrend(series), SEED, OUTER_REPLICATES), partial(summarize, series)


def describe(result: dict[str, Any]) -> str:
    """The result in one line."""
    return (
        f"trend {result['trend']:+.3f} degrees a decade, {CONFIDENCE:.0%} interval "
        f"{result['lower']:+.3f} to {result['upper']:+.3f} ({result['replicates']} replicates)"
    )
