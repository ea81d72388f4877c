"""The draw of the next samples: models fitted to the past, the one that was least wrong of late, and a band.

Models (John 2024, section 5.1.4, names ARIMA, SARIMAX and Holt-Winters; the simple ones are there to be
beaten): each is fitted once to the whole window and asked what it would have said before each of the last
samples. The one with the smallest mean error, older ones counting less, is taken. Orders are fixed: an
automatic choice of orders costs more than it gains on windows of some hundred samples. A fit that does not
converge warns; the errors of what it says show what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dask_hpc_policies.params import shown
from dask_hpc_policies.power import backtest
from dask_hpc_policies.power.backtest import ARMA, Matrix, Origins, Watts
from dask_hpc_policies.power.series import SeriesError, regular, season_of

#: No more samples than these are looked at, the last ones.
MOST_SAMPLES = 600
#: Windows that the band is made of, one beginning at each sample; more where that would not be
#: `FEWEST_WINDOWS` that do not overlap.
MOST_WINDOWS, FEWEST_WINDOWS = 120, 10
#: The longest season of the seasonal ARIMA: beyond it a fit takes seconds.
LONGEST_SARIMAX_SEASON = 60
MOST_HORIZON = 10_000
#: Steps of the search for the coefficients of one model; more take longer and forecast no better.
_STEPS = 15

#: What a model says for each origin.
Model = Callable[[Watts, Origins, int], Matrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of the next samples."""

    model: str
    #: One value a step.
    mean_w: tuple[float, ...]
    #: What all of them are expected to stay within.
    min_w: float
    max_w: float
    #: Mean error of every model that could be fitted, a share of the watts; empty when none was tried.
    mape: Mapping[str, float]
    step_s: float
    season: int | None
    #: Why it is but the last value; None when models were compared.
    reason: str | None


def forecast(
    t_s: Sequence[float], measured_w: Sequence[float], horizon: int, season: int | None = None
) -> Forecast:
    """The mean of the next `horizon` samples, and the least and the most of them.

    Parameters
    ----------
    season
        Samples after which the series repeats itself; found when None, 0 for none. One that is too long for
        the series leaves the last value, as too few samples do.

    Raises
    ------
    SeriesError
        When a sample, the horizon or the season cannot be.
    ProgramError
        When watts are outside of what is allowed.
    """
    if not 1 <= horizon <= MOST_HORIZON:
        raise SeriesError(f"horizon is {shown(horizon)}; allowed: 1 to {MOST_HORIZON} samples")
    grid = regular(t_s, measured_w)
    series = grid.watts[-MOST_SAMPLES:]
    unfit = grid.unfit
    if unfit is None and len(series) < 3 * horizon:
        unfit = f"{len(series)} samples; models need three times the horizon"
    if unfit is None and season is not None and len(series) < (fewest := 2 * season + 3):
        unfit = f"{len(series)} samples; models need {fewest} for a season of {season}"
    if unfit is not None:
        return _last_value(series, horizon, grid.step_s, unfit)
    season = season_of(series) if season is None else season
    models = fitted(series, season)
    first = max(2 * (season or 0) + 2, len(series) // 3, 4)
    origins = np.arange(first, len(series) + 1)
    said = {name: np.maximum(0.0, model(series, origins, horizon)) for name, model in models.items()}
    errors = {
        name: backtest.discounted(backtest.window_errors(series, origins, matrix), horizon)
        for name, matrix in said.items()
        if np.isfinite(matrix).all()
    }
    model = backtest.best(errors)
    recent = max(MOST_WINDOWS, FEWEST_WINDOWS * horizon) + horizon
    min_w, max_w = backtest.band(series, origins[-recent:], said[model][-recent:])
    return Forecast(
        model=model,
        mean_w=tuple(float(value) for value in said[model][-1]),
        min_w=min_w,
        max_w=max_w,
        mape=errors,
        step_s=grid.step_s,
        season=season or None,
        reason=None,
    )


def _last_value(series: Watts, horizon: int, step_s: float, reason: str) -> Forecast:
    """The last value, and the range of the last samples."""
    last, recent = float(series[-1]), series[-max(horizon, 2) :]
    return Forecast(
        model="naive",
        mean_w=(last,) * horizon,
        min_w=float(recent.min()),
        max_w=float(recent.max()),
        mape={},
        step_s=step_s,
        season=None,
        reason=reason,
    )


def fitted(series: Watts, season: int | None) -> dict[str, Model]:
    """Models by name, with their coefficients; one that cannot be fitted is left out."""
    found: dict[str, Model] = {"naive": backtest.naive}
    if season and len(series) >= 2 * season + 2:
        found["seasonal-naive"] = partial(backtest.seasonal_naive, season=season)
    for name, fit in _fits(series, season):
        try:
            with np.errstate(all="ignore"):
                model = fit()
        except (ValueError, ArithmeticError, IndexError, np.linalg.LinAlgError):
            continue
        if model is not None:
            found[name] = model
    return found


def _fits(series: Watts, season: int | None) -> Iterator[tuple[str, Callable[[], Model | None]]]:
    seasonal = bool(season and len(series) >= 3 * season)
    yield "holt-winters", partial(_holt_winters, series, season if seasonal else None)
    yield "arima", partial(_arima, series, (1, 1, 1), 0)
    yield "arma", partial(_arima, series, (1, 0, 1), 0)
    if season and seasonal and season <= LONGEST_SARIMAX_SEASON:
        yield "sarimax", partial(_arima, series, (1, 0, 1), season)


def _holt_winters(series: Watts, season: int | None) -> Model | None:
    # takes a second to load, with what it brings: not before it is needed
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    model = ExponentialSmoothing(
        series,
        trend="add",
        damped_trend=True,
        seasonal="add" if season else None,
        seasonal_periods=season,
        initialization_method="heuristic",
    )
    done = model.fit()
    if not np.isfinite(done.sse):
        return None
    states = (np.asarray(done.level), np.asarray(done.trend), np.asarray(done.season) if season else None)
    damping = float(done.params["damping_trend"])

    def said(series: Watts, origins: Origins, horizon: int) -> Matrix:
        return backtest.smoothed(*states, damping, season or 0, origins, horizon)

    return said


def _arima(series: Watts, order: tuple[int, int, int], season: int) -> Model | None:
    """ARIMA(order), with one seasonal difference and one seasonal shock where there is a season.

    The exact likelihood by the innovations algorithm (Brockwell and Davis 1991, section 8.7): a state space
    of a long season takes many times as long and comes to the same.
    """
    from statsmodels.tsa.arima.estimators.innovations import innovations_mle

    mean = 0.0 if season or order[1] else float(series.mean())
    steady = np.diff(series - mean, n=order[1])
    if season:
        steady = steady[season:] - steady[:-season]
    found, _ = innovations_mle(
        # of about 1, as the search expects
        steady / (float(np.std(steady)) or 1.0),
        order=(order[0], 0, order[2]),
        seasonal_order=(0, 0, 1, season) if season else (0, 0, 0, 0),
        demean=False,
        minimize_kwargs={"options": {"maxiter": _STEPS}},
    )
    ar, ma = np.asarray(found.reduced_ar_poly.coef), np.asarray(found.reduced_ma_poly.coef)
    if not (np.isfinite(ar).all() and np.isfinite(ma).all()):
        return None
    return partial(backtest.arma, process=ARMA(ar, ma, mean, order[1], season))


def load_models() -> None:
    """Load the libraries of the models, which takes longer than a forecast; before time is taken."""
    from statsmodels.tsa.arima.estimators import innovations
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    del innovations, ExponentialSmoothing
