"""The same program answered by looking at every allocation: exact, without a solver, for small ones.

Rules of the file: nothing of the integer program is used. All allocations stand in arrays, one row each,
extended job by job; those that need more nodes than are left are dropped at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.power.allocation import Case, Found
from dask_hpc_policies.power.checks import ProgramError

#: Beyond so many allocations this is refused.
MOST_ALLOCATIONS = 5_000_000

_Counts = NDArray[np.int64]


def least(case: Case, tight: bool) -> Found:
    """The best allocation; `tight`: only those inside the corridor count.

    Raises
    ------
    ProgramError
        When there are more than `MOST_ALLOCATIONS`.
    """
    problem = case.problem
    picks: NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
    used: _Counts = np.zeros(1, dtype=np.int64)
    for index, side in enumerate(case.sides):
        if not side.choices:
            return Found("infeasible")
        sizes = np.array([nodes for nodes, *_ in side.choices])
        # what is still to come needs at least its smallest sizes
        rest = sum(later.choices[0][0] if later.choices else 0 for later in case.sides[index + 1 :])
        fitting = np.searchsorted(sizes, case.free_nodes - rest - used, side="right")
        rows, columns = _counted(fitting)
        picks = np.column_stack([picks[rows], columns.astype(np.int32)])
        used = used[rows] + sizes[columns]
    if not len(used):
        return Found("infeasible")
    rows, off = _counted(np.minimum(case.free_nodes - used, problem.max_off_nodes) + 1)
    return _best(case, picks[rows], used[rows], off, tight)


def _counted(counts: _Counts) -> tuple[_Counts, _Counts]:
    """For each position so many rows: the position, and 0, 1, 2, ... within it."""
    total = int(counts.sum())
    if total > MOST_ALLOCATIONS:
        raise ProgramError(
            f"{total} allocations are too many to enumerate; allowed: {MOST_ALLOCATIONS}; "
            "choose the solver highs"
        )
    positions = np.repeat(np.arange(len(counts)), counts)
    return positions, np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def _best(case: Case, picks: NDArray[np.int32], used: _Counts, off: _Counts, tight: bool) -> Found:
    problem = case.problem
    unused = case.free_nodes - used
    constant_w = (unused - off) * problem.idle_w + off * problem.off_w
    low_w, high_w = problem.rigid.min_w + constant_w, problem.rigid.max_w + constant_w
    moved, minor = np.zeros(len(used)), off.astype(float)
    for column, side in zip(picks.T, case.sides, strict=True):
        table = np.array(side.choices)[column]
        low_w, high_w = low_w + table[:, 1], high_w + table[:, 2]
        change = np.abs(table[:, 0] - side.job.nodes)
        moved, minor = (moved, minor + change) if side.starts else (moved + change, minor)
    lower_w, upper_w = case.inner_w
    outside_w = np.maximum(0.0, lower_w - low_w) + np.maximum(0.0, high_w - upper_w)
    least_w = 0.0 if tight else float(outside_w.min())
    good = np.flatnonzero(outside_w <= least_w + problem.tolerance_w)
    if not len(good):
        return Found("infeasible")
    best = good[np.lexsort((minor[good], moved[good], unused[good]))[0]]
    return Found("optimal", tuple(int(pick) for pick in picks[best]), int(off[best]))
