"""The forecast: nearly as good as the best model known afterwards, and a band that holds what comes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import power_worlds
import pytest

from dask_hpc_policies.power import backtest
from dask_hpc_policies.power.backtest import ARMA
from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.forecast import Forecast, fitted, forecast
from dask_hpc_policies.power.series import SeriesError, season_of

#: Searches for coefficients that end early warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
HORIZON = 12


def expected(watts: np.ndarray, horizon: int = HORIZON, **more: int) -> Forecast:
    return forecast(np.arange(float(len(watts))).tolist(), watts.tolist(), horizon, **more)


# ------------------------------------------------------------- which model, how sure


@pytest.mark.parametrize(("kind", "models"), [("seasonal", {"sarimax", "holt-winters", "seasonal-naive"})])
def test_a_season_is_seen_and_used(kind: str, models: set[str]) -> None:
    found = expected(power_worlds.series(kind, 500)[:300])
    assert found.season == power_worlds.SEASON
    assert found.model in models
    assert found.mape[found.model] == min(found.mape.values())
    assert found.mape["naive"] > 2 * found.mape[found.model]
    assert found.reason is None


@pytest.mark.parametrize("kind", power_worlds.SERIES)
def test_the_band_holds_the_mean_and_what_comes(kind: str) -> None:
    watts = power_worlds.series(kind, 501)
    held = 0
    for end in (300, 340, 380, 420):
        found = expected(watts[end - 300 : end])
        assert 0 <= found.min_w <= min(found.mean_w) <= max(found.mean_w) <= found.max_w
        assert len(found.mean_w) == HORIZON
        came = watts[end : end + HORIZON]
        held += bool(found.min_w <= came.min() and came.max() <= found.max_w)
    assert held >= 3


def test_the_band_of_the_next_sample_remembers_a_hundred_samples_and_forgets_two_hundred() -> None:
    noise = np.random.default_rng(7).normal(scale=50, size=300)
    wide = {}
    for calm in (20, 200):
        found = expected(np.where(np.arange(300) < 300 - calm, 1000 + noise, 1000), horizon=1, season=0)
        wide[calm] = found.max_w - found.min_w
    assert wide[20] > 100
    assert wide[200] < 20


def test_a_refit_of_three_hundred_samples_takes_at_most_three_seconds() -> None:
    at = np.arange(300)
    slow = 1500 + 300 * np.sin(2 * np.pi * at / 60) + np.random.default_rng(0).normal(scale=30, size=300)
    for watts, season in ((slow, 60), (power_worlds.series("seasonal", 502)[:300], power_worlds.SEASON)):
        began_s = time.process_time()
        found = expected(watts)
        assert found.season == pytest.approx(season, abs=1)
        assert "sarimax" in found.mape
        assert time.process_time() - began_s <= 3.0


def test_the_same_samples_give_the_same_forecast() -> None:
    watts = power_worlds.series("regimes", 503)[:120]
    assert expected(watts) == expected(watts)


def test_near_zero_watts_errors_are_shares_of_the_level() -> None:
    watts = np.abs(np.random.default_rng(1).normal(scale=3, size=120)) + np.tile([0.0, 100.0], 60)
    found = expected(watts, season=2)
    assert all(error < 3 for error in found.mape.values())
    assert found.mape["seasonal-naive"] < 0.2


# --------------------------------------------------------------- nothing to be fitted


@pytest.mark.parametrize(
    ("watts", "said"),
    [
        ([500.0], "1 samples; models need 30"),
        ([500.0 + i for i in range(29)], "29 samples; models need 30"),
        ([500.0] * 50, "the series is constant"),
        ([0.0] * 50, "the series is constant"),
        # but for the rounding of sums of a thousand nodes
        ([1e6 + 1e-5 * (i % 2) for i in range(50)], "the series is constant"),
    ],
)
def test_short_and_constant_series_repeat_the_last_value(watts: list[float], said: str) -> None:
    found = expected(np.array(watts))
    assert found.model == "naive"
    assert found.mean_w == (watts[-1],) * HORIZON
    assert (found.min_w, found.max_w) == (min(watts[-HORIZON:]), max(watts[-HORIZON:]))
    assert found.mape == {}
    assert said in (found.reason or "")


def test_a_series_with_gaps_repeats_the_last_value_and_one_with_few_does_not() -> None:
    watts = power_worlds.series("trending", 504)[:100]
    at = np.arange(100.0)
    few = np.ones(100, dtype=bool)
    few[[20, 41, 77]] = False
    assert forecast(at[few].tolist(), watts[few].tolist(), 5).reason is None
    many = (at < 30) | (at >= 60)
    found = forecast(at[many].tolist(), watts[many].tolist(), 5)
    assert found.model == "naive"
    assert "30% of the samples are missing" in (found.reason or "")


def test_a_horizon_too_long_for_the_series_repeats_the_last_value() -> None:
    assert "three times the horizon" in (expected(power_worlds.series("bursty", 505)[:60], 21).reason or "")


def test_a_model_that_cannot_be_fitted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from statsmodels.tsa.arima.estimators import innovations

    def fails(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("it does not converge")

    monkeypatch.setattr(innovations, "innovations_mle", fails)
    watts = power_worlds.series("trending", 506)[:100]
    assert set(fitted(watts, None)) == {"naive", "holt-winters"}
    assert expected(watts).model in {"naive", "holt-winters"}


@pytest.mark.parametrize(
    ("t_s", "watts", "horizon", "error", "said"),
    [
        ([], [], 1, SeriesError, "0 times and 0 watts"),
        ([0.0, 1.0], [5.0, float("nan")], 1, ProgramError, "sample 2: watts is nan; allowed: watts from 0"),
        ([0.0, 1.0], [5.0, -1.0], 1, ProgramError, "sample 2: watts is -1.0"),
        ([0.0, 1.0], [5.0, 1e12], 1, ProgramError, r"watts from 0 to 1e\+09"),
        ([0.0, 0.0], [5.0, 5.0], 1, SeriesError, "sample 2: t_s is 0 after 0; times must rise"),
        ([0.0, float("inf")], [5.0, 5.0], 1, SeriesError, "sample 2: t_s is inf"),
        ([0.0], [5.0], 0, SeriesError, "horizon is 0; allowed: 1 to 10000 samples"),
    ],
)
def test_what_cannot_be_is_refused(
    t_s: list[float], watts: list[float], horizon: int, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        forecast(t_s, watts, horizon)


# ------------------------------------------------------- what models would have said


def test_an_arma_process_expects_what_its_equation_says() -> None:
    # (1 - 0.5 B)(1 - B) y = (1 + 0.4 B) e
    series = np.array([0.0, 1.0, 3.0, 2.0, 2.5])
    change = np.diff(series)
    shock = [change[0]]
    for i in range(1, 4):
        shock.append(change[i] - 0.5 * change[i - 1] - 0.4 * shock[-1])
    first = 0.5 * change[3] + 0.4 * shock[3]
    process = ARMA(np.array([1, -0.5]), np.array([1, 0.4]), difference=1)
    (said,) = backtest.arma(series, np.array([5]), 3, process)
    assert said == pytest.approx(2.5 + np.cumsum([first, 0.5 * first, 0.25 * first]))


@pytest.mark.slow  # for what it loads
def test_forecasts_of_arima_agree_with_the_library_s_own() -> None:
    from statsmodels.tsa.arima.model import ARIMA

    watts = power_worlds.series("trending", 507)[:200]
    done = ARIMA(watts, order=(1, 1, 1)).fit()
    process = ARMA(np.array([1, -done.params[0]]), np.array([1, done.params[1]]), difference=1)
    (ours,) = backtest.arma(watts, np.array([len(watts)]), 10, process)
    assert ours == pytest.approx(done.forecast(10), rel=1e-4)


def test_forecasts_of_holt_winters_agree_with_the_library_s_own() -> None:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    watts = power_worlds.series("seasonal", 507)[:100]
    smooth = ExponentialSmoothing(
        watts,
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=24,
        initialization_method="heuristic",
    ).fit()
    ours = fitted(watts, 24)["holt-winters"](watts, np.array([len(watts)]), 30)[0]
    assert ours == pytest.approx(smooth.forecast(30), rel=1e-6)


MODELS: dict[str, Callable[..., np.ndarray]] = {
    "naive": backtest.naive,
    "seasonal-naive": lambda *args: backtest.seasonal_naive(*args, season=3),
    "arma": lambda *args: backtest.arma(*args, ARMA(np.array([1, -0.5]), np.array([1, 0.4]), 900.0, 1, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_came_later_changes_nothing_that_was_said_before(name: str) -> None:
    series = power_worlds.series("bursty", 508)[:60]
    other = series.copy()
    other[40:] += 500
    origins = np.arange(30, 41)
    said, again = (MODELS[name](one, origins, 7) for one in (series, other))
    assert said == pytest.approx(again)


def test_later_windows_count_more() -> None:
    errors = np.array([9.0, 1.0, 0.0])
    weights = np.array([0.5, 0.5**0.5, 1.0])
    assert backtest.discounted(errors, 2, 0.5) == pytest.approx((weights * errors).sum() / weights.sum())
    assert backtest.discounted(errors, 2, 1.0) == pytest.approx(10 / 3)


def test_the_band_is_as_wide_as_past_errors_and_wider_with_few_of_them() -> None:
    series = 100 + np.where(np.arange(400) % 50 == 0, 40.0, 0.0)
    forecasts = np.full((301, 1), 100.0)
    low, high = backtest.band(series, np.arange(100, 401), forecasts)
    # one sample in fifty is above: less than a twentieth
    assert (low, high) == (100.0, 100.0)
    assert backtest.band(series, np.arange(380, 401), forecasts[:21]) == (100.0, 100.0)
    assert backtest.band(series, np.arange(345, 401), forecasts[:56]) == (100.0, 100.0)
    assert backtest.band(series, np.arange(349, 361), forecasts[:12])[1] == 140.0
    # of twenty-one one is less than a twentieth, but they are few
    assert backtest.band(series, np.arange(340, 361), forecasts[:21])[1] == 140.0
    assert backtest.band(series, np.array([400]), forecasts[:1]) == (100.0, 100.0)


@pytest.mark.parametrize("season", [5, 24, 60])
def test_a_season_is_found_in_noise_and_none_in_noise_alone(season: int) -> None:
    chance = np.random.default_rng(season)
    noise = chance.normal(scale=0.4, size=300)
    at = np.arange(300)
    assert season_of(10 + 0.01 * at + np.sin(2 * np.pi * at / season) + noise) == pytest.approx(season, abs=1)
    assert season_of(10 + 0.01 * at + noise) is None
    assert season_of(10 + np.cumsum(noise)) is None
