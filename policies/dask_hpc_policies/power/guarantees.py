"""Whether the running jobs alone can be below the upper bound, and above the lower one.

Equations 5.4 and 5.5 of John (2024) ask it of everybody on one node, and of the hungriest on all that is
left; the second is printed with a factor too many and with the most watts in place of the least. Here it is
asked of all legal allocations: the least of the most watts, and the most of the least watts, found exactly.
Neither says that one allocation does both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.power.allocation import Case, Side

#: The least sum of watts, by the number of nodes that jobs have together.
_Row = NDArray[np.float64]


def guaranteed_upper(case: Case) -> bool:
    """Whether some allocation draws at most the upper bound, margin kept."""
    least_w = _least(case, 2, 1.0)
    return least_w is not None and least_w <= case.inner_w[1] + case.problem.tolerance_w


def guaranteed_lower(case: Case) -> bool:
    """Whether some allocation draws at least the lower bound, margin kept."""
    least_w = _least(case, 1, -1.0)
    return least_w is not None and -least_w >= case.inner_w[0] - case.problem.tolerance_w


def _least(case: Case, index: int, sign: float) -> float | None:
    """The least of `sign` times the watts over all allocations; None when there is none.

    Parameters
    ----------
    index
        Which watts of a choice count: 1 the least, 2 the most.
    """
    problem = case.problem
    if any(not side.choices for side in case.sides):
        return None
    best = np.zeros(1)
    for side in case.sides:
        best = _with(best, side, index, sign, case.free_nodes)
    unused = case.free_nodes - np.arange(len(best))
    off = np.minimum(unused, problem.max_off_nodes) if sign * (problem.off_w - problem.idle_w) < 0 else 0
    value = float((best + sign * ((unused - off) * problem.idle_w + off * problem.off_w)).min())
    constant_w = problem.rigid.min_w if index == 1 else problem.rigid.max_w
    return None if value == np.inf else sign * constant_w + value


def _with(best: _Row, side: Side, index: int, sign: float, most_nodes: int) -> _Row:
    """The least watts for each number of nodes together, with one job more."""
    first = side.choices[0]
    grown = _shifted(best, first[0], sign * first[index], most_nodes)
    step = side.fixed_step
    if not step:
        for choice in side.choices[1:]:
            grown = _least_of(grown, _shifted(best, choice[0], sign * choice[index], most_nodes))
        return grown
    # any number of equal steps is a sum of some of 1, 2, 4, ... and a rest of them
    left, part = len(side.choices) - 1, 1
    step_w = sign * (side.job.min_w if index == 1 else side.job.max_w) * step
    while left:
        part = min(part, left)
        grown = _least_of(grown, _shifted(grown, part * step, part * step_w, most_nodes))
        left, part = left - part, 2 * part
    return grown


def _shifted(best: _Row, nodes: int, cost_w: float, most_nodes: int) -> _Row:
    return np.concatenate([np.full(nodes, np.inf), best + cost_w])[: most_nodes + 1]


def _least_of(one: _Row, other: _Row) -> _Row:
    short, long = sorted((one, other), key=len)
    least = long.copy()
    np.minimum(least[: len(short)], short, out=least[: len(short)])
    return least
