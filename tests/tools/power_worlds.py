"""Random questions to the corridor's program, and series of watts as clusters draw them; all from seeds."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.jobs.constraints import CONSTRAINTS, smallest_at_least
from dask_hpc_policies.power.problem import PowerJob, Problem, Rigid
from dask_hpc_policies.power.program import Plan, Solver, solve

#: Kinds of series.
SERIES = ("seasonal", "trending", "regimes", "bursty")
SEASON = 24


def problem(seed: int, jobs: int = 6, nodes: int = 24, *, plain: bool = False) -> Problem:
    """A machine, a corridor and jobs; with all options unless `plain`: malleable jobs of any size."""
    chance = random.Random(seed)
    idle_w = chance.choice([0.0, chance.uniform(5, 80)])
    middle_w, half_w = nodes * chance.uniform(60, 220), nodes * chance.uniform(2, 60)
    running = tuple(_job(chance, f"job-{i}", nodes, 2 * nodes // jobs, plain) for i in range(jobs))
    asking = tuple(
        _job(chance, f"asks-{i}", nodes, 2 * nodes // jobs, plain) for i in range(chance.randint(0, 2))
    )
    common = {
        "nodes": nodes,
        "lower_w": max(0.0, middle_w - half_w),
        "upper_w": middle_w + half_w,
        "idle_w": idle_w,
        "jobs": running,
        "waiting": asking,
    }
    if plain:
        return Problem(**common)  # type: ignore[arg-type]
    held = chance.choice([0, chance.randint(1, nodes // 6)])
    least_w = chance.uniform(0, 200 * held + 20)
    return Problem(
        **common,  # type: ignore[arg-type]
        off_w=chance.uniform(0, idle_w),
        max_off_nodes=chance.choice([0, 0, chance.randint(1, nodes // 4)]),
        margin_w=chance.choice([0.0, chance.uniform(0, half_w / 2)]),
        rigid=Rigid(nodes=held, min_w=least_w, max_w=least_w * chance.uniform(1, 1.2)),
        several=chance.random() < 0.2,
    )


def _job(chance: random.Random, id: str, nodes: int, usual: int, plain: bool) -> PowerJob:
    lo = chance.choice([1, 1, 1, 2, 3])
    hi = chance.randint(lo, min(24, nodes))
    a_node_w, spread = chance.uniform(60, 300), chance.uniform(1, 1.15)
    sizes = sorted({min(hi, chance.randint(1, 4)), *chance.sample(range(1, hi + 1), min(hi, 4))})
    # on small machines some have no legal size at all
    shapes = [shape for shape in CONSTRAINTS if nodes <= 24 or smallest_at_least(shape, lo, hi)]
    is_measured = not plain and chance.random() < 0.2
    return PowerJob(
        id=id,
        nodes=chance.randint(1, max(1, min(hi, usual))),
        min_nodes=1 if is_measured else lo,
        max_nodes=hi,
        constraint="any" if plain or is_measured else chance.choice(shapes),
        min_w=a_node_w,
        max_w=a_node_w * spread,
        table=tuple((n, n**0.9 * a_node_w, n**0.9 * a_node_w * spread) for n in sizes) if is_measured else (),
    )


def published(solver: Solver = "highs", watts: float = 130.0) -> dict[str, tuple[list[int], list[int]]]:
    """Counts of nodes that John (2024, sections 9.2.2 and 9.2.3) prints: those that are found, and those.

    Watts are ours, the counts are printed without any. The machine of the second had 16 nodes, which the
    printed counts exceed. Of the moving corridor the count between 9 and 4 is not printed.

    Parameters
    ----------
    watts
        Of a node of the only job under the moving corridor.
    """

    def job(id: str, nodes: int, low_w: float, high_w: float | None = None) -> PowerJob:
        high_w = low_w if high_w is None else high_w
        return PowerJob(id=id, nodes=nodes, min_nodes=1, max_nodes=32, min_w=low_w, max_w=high_w)

    upper = Problem(
        nodes=32, lower_w=3000, upper_w=4000, idle_w=23, jobs=(job("1", 12, 300, 325), job("2", 2, 84, 120))
    )
    lower = Problem(nodes=18, lower_w=1500, upper_w=2500, idle_w=5, jobs=(job("1", 4, 208), job("2", 4, 126)))
    counts = [1]
    for lower_w, upper_w in ((100, 600), (700, 1200), (1300, 1900), (100, 600)):
        if lower_w <= counts[-1] * watts <= upper_w:
            continue  # nothing is solved while the corridor holds
        moved = Problem(
            nodes=16, lower_w=lower_w, upper_w=upper_w, idle_w=0, jobs=(job("pi", counts[-1], watts),)
        )
        counts.append(solve(moved, solver).nodes["pi"])
    return {
        "upper bound, 12 and 2 nodes": (list(solve(upper, solver).nodes.values()), [3, 24]),
        "lower bound, 4 and 4 nodes": (list(solve(lower, solver).nodes.values()), [2, 16]),
        "moving corridor": (counts, [1, 9, 14, 4]),
    }


def merits(plan: Plan) -> tuple[object, ...]:
    """What must be the same whoever solves; of allocations that are equally good any will do."""
    reached = plan.score
    return (
        plan.status,
        plan.start,
        plan.guaranteed_upper,
        plan.guaranteed_lower,
        None if plan.violation_w is None else round(plan.violation_w, 3),
        None if reached is None else (reached.unused_nodes, reached.moved_nodes, reached.minor_nodes),
    )


def series(kind: str, seed: int, samples: int = 540) -> NDArray[np.float64]:
    """Watts at equal steps: correlated noise over a season, a slope, levels that jump, or bursts."""
    chance = np.random.default_rng([seed, SERIES.index(kind)])
    at = np.arange(samples)
    noise = np.zeros(samples)
    for i, shock in enumerate(chance.normal(scale=30, size=samples)):
        noise[i] = 0.6 * noise[i - 1] + shock
    level = np.full(samples, 1000.0)
    if kind == "seasonal":
        height_w, turn = chance.uniform(200, 500), 2 * np.pi * at / SEASON
        level = 2000 + height_w * (
            np.sin(turn + chance.uniform(0, 6)) + 0.3 * np.sin(2 * turn + chance.uniform(0, 6))
        )
    elif kind == "trending":
        level = 2500 + chance.uniform(0.8, 3) * at * chance.choice([-1, 1])
    elif kind == "regimes":
        start = 0
        while start < samples:
            end = start + 1 + int(chance.exponential(60))
            level[start:end] = chance.uniform(1000, 3000)
            start = end
    else:
        for start in np.flatnonzero(chance.random(samples) < 0.03):
            level[start : start + 1 + chance.geometric(1 / 8)] += chance.exponential(500)
    return np.maximum(level + noise, 50.0)
