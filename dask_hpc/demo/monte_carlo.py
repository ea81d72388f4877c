"""Price of an Asian call option by Monte Carlo with antithetic paths and a control variate.

The option pays the excess of the arithmetic mean of a geometric Brownian motion over the strike. The
option on the geometric mean has a closed form and serves as the control (Kemna and Vorst, 1990).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPOT = 100.0
STRIKE = 100.0
RATE = 0.05
VOLATILITY = 0.3
YEARS = 1.0
#: Observations of the price that the mean is taken over.
STEPS = 52
#: Antithetic pairs in one task, worked on in batches: arrays above 128 KiB would cost a system call each.
PAIRS = 1_200
BATCH = 300
SEED = 1_990


def payoffs(normals: Array) -> tuple[Array, Array]:
    """Discounted payoffs on the arithmetic and on the geometric mean, one value a path."""
    step_years = YEARS / STEPS
    drift = (RATE - VOLATILITY**2 / 2) * step_years * np.arange(1, STEPS + 1)
    logs = VOLATILITY * np.sqrt(step_years) * np.cumsum(normals, axis=1) + drift
    discount = np.exp(-RATE * YEARS)
    arithmetic = SPOT * np.exp(logs).mean(axis=1)
    geometric = SPOT * np.exp(logs.mean(axis=1))
    return (
        discount * np.maximum(arithmetic - STRIKE, 0),
        discount * np.maximum(geometric - STRIKE, 0),
    )


def simulate_block(seed: int, pairs: int, block: int) -> Array:
    """Sums over one block of antithetic pairs: one task.

    The random stream depends on `seed` and `block` alone.

    Returns
    -------
    array of 6 values
        Number of pairs; sums of the arithmetic payoff, the geometric payoff, their squares and their
        product, each payoff being the mean of a pair.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(block,)))
    total = np.zeros(6)
    for first in range(0, pairs, BATCH):
        normals = rng.standard_normal((min(BATCH, pairs - first), STEPS))
        plus, minus = payoffs(normals), payoffs(-normals)
        a, g = ((p + m) / 2 for p, m in zip(plus, minus, strict=True))
        total += (len(a), a.sum(), g.sum(), (a * a).sum(), (g * g).sum(), (a * g).sum())
    return total


def add(parts: list[Array]) -> Array:
    """Sum of partial sums, from the first to the last."""
    total = np.zeros(6)
    for part in parts:
        total = total + part
    return total


def geometric_price() -> float:
    """Exact price of the option on the geometric mean (Kemna and Vorst, 1990, discrete form)."""
    from scipy.special import ndtr

    step_years = YEARS / STEPS
    mean = np.log(SPOT) + (RATE - VOLATILITY**2 / 2) * step_years * (STEPS + 1) / 2
    variance = VOLATILITY**2 * step_years * (STEPS + 1) * (2 * STEPS + 1) / (6 * STEPS)
    spread = np.sqrt(variance)
    d = (mean - np.log(STRIKE) + variance) / spread
    undiscounted = np.exp(mean + variance / 2) * ndtr(d) - STRIKE * ndtr(d - spread)
    return float(np.exp(-RATE * YEARS) * undiscounted)


def summarize(total: Array) -> dict[str, Any]:
    """Price and standard error, with and without the control variate, from the sums."""
    n, a, g, aa, gg, ag = (float(value) for value in total)
    variance_a, variance_g = aa / n - (a / n) ** 2, gg / n - (g / n) ** 2
    covariance = ag / n - (a / n) * (g / n)
    slope = covariance / variance_g
    return {
        "price": a / n - slope * (g / n - geometric_price()),
        "standard_error": (max(variance_a - slope * covariance, 0.0) / n) ** 0.5,
        "plain_price": a / n,
        "plain_standard_error": (variance_a / n) ** 0.5,
        "paths": int(2 * n),
    }


def functions() -> tuple[Callable[[int], Array], Callable[[list[Array]], dict[str, Any]]]:
    """What one task computes, by its number, and what is made of all their results."""
    return partial(simulate_block, SEED, PAIRS), summarize_blocks


def summarize_blocks(blocks: list[Array]) -> dict[str, Any]:
    """:func:`summarize` of the sums over all blocks, added in their order: rounding has to be the same."""
    return summarize(add(blocks))


def describe(result: dict[str, Any]) -> str:
    """The result in one line."""
    return f"price {result['price']:.5f} +- {result['standard_error']:.5f} ({result['paths']:,} paths)"
