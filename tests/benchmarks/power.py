"""The power corridor's models: CPU of the program, of a forecast; how good both are.

Random programs, solved and enumerated; random series, forecast window by window. Seeds differ from those that
orders and shares were chosen with.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator

import numpy as np
from harness import Options, Row, main, percentile
from power_worlds import SERIES, merits, problem, published, series

from dask_hpc.processes import load_solver
from dask_hpc_policies.power import backtest
from dask_hpc_policies.power.forecast import fitted, forecast, load_models
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.series import season_of

#: Median and p99 in milliseconds of CPU, by jobs.
BARS_MS = {16: (10.0, 150.0), 128: (40.0, 600.0)}
#: On a busy machine CPU time itself is longer.
BUSY = 1.5
#: The solver's limit is on the clock, which a busy machine reaches with less CPU than any bar.
PATIENCE_S = 60.0
#: How much worse than the best model in hindsight, in %, by kind of series.
WORSE = {"seasonal": 5.0, "trending": 5.0, "regimes": 5.0, "bursty": 10.0}
#: Share of windows, in %, that the band may miss.
MISSED = 20.0
REFIT_S = 3.0
SAMPLES, HORIZON = 300, 12


def run(options: Options) -> list[Row]:
    load_solver()
    load_models()
    # searches for coefficients that end early say so
    warnings.simplefilter("ignore")
    rows = [*_published(), *_agreement(options.pick(1000, 200, 4))]
    for jobs, bars in BARS_MS.items():
        count = options.pick(400, 100, 3) if jobs == 16 else options.pick(200, 50, 2)
        for plain in (True, False):
            rows += _times(jobs, bars, count, plain)
    rows += _forecasts(*options.pick((20, 10), (20, 2), (1, 1)))
    return rows


def _published() -> Iterator[Row]:
    for what, (found, printed) in published().items():
        wrong = sum(one != other for one, other in zip(found, printed, strict=True))
        note = f"{', '.join(map(str, found))} nodes; printed {', '.join(map(str, printed))}"
        yield Row(name=f"published counts, {what}: unlike", value=wrong, unit="counts", bar=0, note=note)


def _agreement(count: int) -> Iterator[Row]:
    different = {"highs": 0, "cbc": 0}
    tried = {"highs": 0, "cbc": 0}
    for seed in range(count):
        asked = problem(10_000 + seed)
        exact = merits(solve(asked, "enumerate"))
        for solver in ("highs", "cbc") if seed % 4 == 0 else ("highs",):
            tried[solver] += 1
            different[solver] += merits(solve(asked, solver)) != exact  # type: ignore[arg-type]
    for solver, wrong in different.items():
        yield Row(
            name=f"programs of 6 jobs, 24 nodes: {solver} unlike enumeration",
            value=wrong,
            unit="programs",
            bar=0,
            note=f"of {tried[solver]}",
        )


def _times(jobs: int, bars: tuple[float, float], count: int, plain: bool) -> list[Row]:
    took_ms, inside = [], 0
    for seed in range(count):
        asked = problem(20_000 + seed, jobs, 8 * jobs, plain=plain)
        began_s = time.process_time()
        plan = solve(asked, limit_s=PATIENCE_S)
        took_ms.append((time.process_time() - began_s) * 1e3)
        assert plan.status != "time-limit"
        inside += plan.status == "optimal"
    name = f"program of {jobs} jobs, {'any size' if plain else 'all options'}"
    most = f"of {count}, {inside} inside the corridor; largest {max(took_ms):.0f} ms"
    if plain:
        most += f"; up to {BUSY:g} of the bar is short: on a busy machine CPU time itself is longer"
    figures = {"median": statistics.median(took_ms), "p99": percentile(took_ms, 0.99)}
    return [
        Row(
            name=f"{name}: {which}",
            value=value,
            unit="ms",
            bar=bar if plain else None,
            limit=BUSY * bar if plain else None,
            note=most,
        )
        for (which, value), bar in zip(figures.items(), bars, strict=True)
    ]


def _forecasts(seeds: int, windows: int) -> list[Row]:
    rows, took_s = [], []
    for kind in SERIES:
        chosen, held = [], 0
        each: list[dict[str, float]] = []
        for seed in range(seeds):
            watts = series(kind, 3000 + seed, SAMPLES + 20 * HORIZON + HORIZON)
            for end in np.linspace(SAMPLES, SAMPLES + 20 * HORIZON, windows, dtype=int):
                past, came = watts[end - SAMPLES : end], watts[end : end + HORIZON]
                began_s = time.process_time()
                found = forecast(np.arange(float(SAMPLES)).tolist(), past.tolist(), HORIZON)
                took_s.append(time.process_time() - began_s)
                chosen.append(_error(np.array(found.mean_w), came))
                held += bool(found.min_w <= came.min() and came.max() <= found.max_w)
                each.append({name: _error(said, came) for name, said in _each(past).items()})
        # where a model could not be fitted, who had chosen it would have gone by the naive one
        pooled = {
            name: statistics.mean([errors.get(name, errors["naive"]) for errors in each])
            for name in sorted(set().union(*each))
        }
        best = backtest.best(pooled)
        worse = 100 * (statistics.mean(chosen) / pooled[best] - 1)
        note = f"{statistics.mean(chosen):.2%} of the watts, {best} {pooled[best]:.2%}; {len(chosen)} windows"
        rows.append(
            Row(
                name=f"forecast, {kind}: worse than the best in hindsight",
                value=worse,
                unit="%",
                bar=WORSE[kind],
                note=note,
            )
        )
        missed = 100 * (1 - held / len(chosen))
        rows.append(
            Row(name=f"forecast, {kind}: windows outside the band", value=missed, unit="%", bar=MISSED)
        )
        rows += _ranking(kind, pooled)
    rows.append(Row(name=f"forecast of {SAMPLES} samples, longest", value=max(took_s), unit="s", bar=REFIT_S))
    return rows


def _ranking(kind: str, errors: dict[str, float]) -> Iterator[Row]:
    """The place of the seasonal ARIMA among the models: the first on John's (2024, section 9.2.1) traces."""
    order = sorted(errors, key=errors.__getitem__)
    if "sarimax" in order:
        note = "1 is best: " + ", ".join(f"{name} {errors[name]:.2%}" for name in order)
        place = order.index("sarimax") + 1
        yield Row(name=f"forecast, {kind}: sarimax is at", value=place, unit="place", note=note)


def _each(past: np.ndarray) -> dict[str, np.ndarray]:
    """What every model says on its own."""
    models = fitted(past, season_of(past))
    return {name: model(past, np.array([len(past)]), HORIZON)[0] for name, model in models.items()}


def _error(said: np.ndarray, came: np.ndarray) -> float:
    return float(np.mean(np.abs(said - came) / came))


if __name__ == "__main__":
    main("power", "Power corridor: the program and the forecast, CPU of one thread", run)
