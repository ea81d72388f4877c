"""The placement planner: quality on the study of its source (Honoré 2020, chapter 5), and CPU time of
`exact`.

Every placement is held against the least step over all splits, whole nodes and helper cores that fit. Loads
are memory of the simulation and all analyses in units of the simulation's; the platform has 1.33. The orders
round up, as in the source.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Mapping

import numpy as np
from harness import Options, Row, main, row
from machine import SEED
from placements import STUDY_BANDWIDTHS, STUDY_LOADS, STUDY_SAMPLES, study

from dask_hpc.clock import countdown
from dask_hpc_policies.placement.application import Application
from dask_hpc_policies.placement.exact import exact
from dask_hpc_policies.placement.one_by_one import ORDERS
from dask_hpc_policies.placement.packs import packs
from dask_hpc_policies.placement.plan import plan

#: Percent above the least step.
BAR_PACKS_MEAN, BAR_PACKS_WORST = 0.5, 3.0
BAR_LOOSE, BAR_TIGHT = 2.0, 6.0
#: Milliseconds of CPU with so many analyses.
BAR_EXACT_MS = 200.0
MANY = 30
#: The orders that lead in the source, and the loads over which they do.
LEADERS = ("increasing-peak", "decreasing-time")
MIDDLE_LOADS = (1.15, 1.25, 1.33, 1.5)
#: Longest that the exact method may take on one application.
LIMIT_S = 10.0

#: Percent above the least step, by bandwidth, load and method; of each sample.
Found = Mapping[tuple[float, float, str], list[float]]


def run(options: Options) -> list[Row]:
    samples = options.pick(STUDY_SAMPLES, 30, 2)
    found, together = _study(samples)
    return [
        *_packs_rows(found),
        *_order_rows(found),
        row(
            "synchronous optimum below the asynchronous",
            together,
            "%",
            note="median and quartiles",
        ),
        Row(
            name="synchronous optimum above the asynchronous, worst",
            # what is left of equal times by rounding is no difference
            value=round(-min(together), 9) + 0.0,
            unit="%",
            bar=0.0,
            note="without a serial fraction, as all of the study; with one it may be above",
        ),
        *_exact_rows(options.pick(7, 3, 1)),
    ]


def _study(samples: int) -> tuple[dict[tuple[float, float, str], list[float]], list[float]]:
    found: dict[tuple[float, float, str], list[float]] = {}
    together = []
    for bandwidth, load in itertools.product(STUDY_BANDWIDTHS, STUDY_LOADS):
        # the same analyses at every bandwidth and, but for the scale of their peaks, at every load
        chance = np.random.default_rng(SEED)
        for sample in range(samples):
            application = study(chance, load, bandwidth)
            least_s = _least_s(application, "asynchronous")
            steps = {order: plan(application, order, rounding="up", seed=sample).step_s for order in ORDERS}
            searched = packs(application, "asynchronous")
            assert searched is not None
            for method, step_s in {**steps, "packs": searched.step_s}.items():
                found.setdefault((bandwidth, load, method), []).append(100 * (step_s / least_s - 1))
            together.append(100 * (1 - _least_s(application, "synchronous") / least_s))
    return found, together


def _least_s(application: Application, mode: str) -> float:
    return exact(application, mode).bound_s  # type: ignore[arg-type]


def _packs_rows(found: Found) -> list[Row]:
    above = [one for (_, _, method), values in found.items() if method == "packs" for one in values]
    return [
        Row(name="packs above exact, mean", value=statistics.mean(above), unit="%", bar=BAR_PACKS_MEAN),
        Row(name="packs above exact, worst", value=max(above), unit="%", bar=BAR_PACKS_WORST),
    ]


def _order_rows(found: Found) -> Iterable[Row]:
    for bandwidth in STUDY_BANDWIDTHS:
        means = {
            order: statistics.mean(_mean(found, bandwidth, load, order) for load in MIDDLE_LOADS)
            for order in ORDERS
        }
        others = [mean for order, mean in means.items() if order not in LEADERS]
        for order, mean in means.items():
            bar = min(others) if order in LEADERS else None
            yield Row(
                name=f"{order}, bandwidth {bandwidth:.0%}, loads 1.15 to 1.5",
                value=mean,
                unit="%",
                bar=bar,
                note="mean above exact" if bar is None else "mean above exact; bar: best of the other orders",
            )
    for loads, text, bar in (
        ([load for load in STUDY_LOADS if load >= 1.75], "1.75 and more", BAR_LOOSE),
        ([1.05], "1.05", BAR_TIGHT),
    ):
        means = {
            (bandwidth, load, order): _mean(found, bandwidth, load, order)
            for bandwidth in STUDY_BANDWIDTHS
            for load in loads
            for order in ORDERS
        }
        at = max(means, key=lambda key: means[key])
        yield Row(
            name=f"worst mean of all orders, loads {text}",
            value=means[at],
            unit="%",
            bar=bar,
            note=f"{at[2]}, bandwidth {at[0]:.0%}, load {at[1]:g}",
        )


def _mean(found: Found, bandwidth: float, load: float, order: str) -> float:
    return statistics.mean(found[bandwidth, load, order])


def _exact_rows(samples: int) -> list[Row]:
    """CPU time of the exact method with many analyses, and what is not proven within the limit."""
    chance = np.random.default_rng(SEED)
    # PuLP is loaded by the first
    exact(study(chance, 1.5, 0.25, MANY), "asynchronous", countdown(LIMIT_S))
    times_ms, gaps = [], []
    for bandwidth, load in itertools.product(STUDY_BANDWIDTHS, STUDY_LOADS):
        for _ in range(samples):
            application = study(chance, load, bandwidth, MANY)
            began_s = time.process_time()
            solved = exact(application, "asynchronous", countdown(LIMIT_S))
            times_ms.append((time.process_time() - began_s) * 1e3)
            assert solved.found is not None
            gaps.append(100 * (1 - solved.bound_s / solved.found.step_s))
    note = f"{len(times_ms)} applications; longest {max(times_ms):.0f} ms"
    return [
        row(f"exact, {MANY} analyses, CPU", times_ms, "ms", bar=BAR_EXACT_MS, note=note),
        Row(
            name=f"exact, {MANY} analyses, not proven after {LIMIT_S:g} s",
            value=100 * sum(gap > 1e-7 for gap in gaps) / len(gaps),
            unit="%",
            note=f"of them; the largest gap is {max(gaps):.2g} %",
        ),
    ]


if __name__ == "__main__":
    main("placement", "Placement of analyses: percent above the least step, and CPU time", run)
