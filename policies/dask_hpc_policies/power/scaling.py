"""How long an application takes and what it draws on n nodes, fitted to a few runs.

Time is a part that no node shortens and a part that all of them share (Amdahl 1967): ``a + b / n``. Watts
of the job are a constant and what each node adds: ``c + d n``. Neither is below 0. Both are fitted so that
misses count as shares: a run on one node, which takes longest, is no more than another one.

Rules of the file: pure, numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.params import shown
from dask_hpc_policies.power.checks import is_number

#: Nodes, seconds, watts of the whole job.
Run = tuple[int, float, float]
_Values = NDArray[np.float64]


class ScalingError(ValueError):
    """Runs that say nothing, or cannot be; the message names the run and what is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What was fitted, and by how much, as a share, it misses the runs at most."""

    #: Seconds that no node shortens, and those of one node that all share.
    alone_s: float
    shared_s: float
    #: Watts whatever the size is, and of each node.
    base_w: float
    node_w: float
    error_s: float
    error_w: float

    def seconds(self, nodes: int) -> float:
        """How long it takes."""
        return self.alone_s + self.shared_s / nodes

    def speed(self, nodes: int) -> float:
        """How many times faster than on one node."""
        return self.seconds(1) / self.seconds(nodes)

    def watts(self, nodes: int) -> float:
        """What the whole job draws."""
        return self.base_w + self.node_w * nodes

    def energy_j(self, nodes: int) -> float:
        """What a run takes."""
        return self.seconds(nodes) * self.watts(nodes)


def fit_scaling(runs: Sequence[Run]) -> Scaling:
    """The curves nearest to measured runs.

    Parameters
    ----------
    runs
        ``(nodes, seconds, watts)`` of each, in any order; several of one size all count.

    Raises
    ------
    ScalingError
        When a number cannot be, or there are fewer than two sizes.
    """
    for number, (nodes, took_s, drew_w) in enumerate(runs, start=1):
        if not (isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 1):
            raise ScalingError(f"run {number}: nodes is {shown(nodes)}; allowed: 1 and more")
        for name, value in (("seconds", took_s), ("watts", drew_w)):
            if not (is_number(value) and value > 0):
                raise ScalingError(f"run {number}: {name} is {shown(value)}; allowed: above 0")
    if len({nodes for nodes, *_ in runs}) < 2:
        raise ScalingError("all runs have one size; two sizes are needed to tell what another one does")
    n, seconds, watts = (np.asarray(column, dtype=float) for column in zip(*runs, strict=True))
    (alone_s, shared_s), error_s = _fit(1.0 / n, seconds)
    (base_w, node_w), error_w = _fit(n, watts)
    return Scaling(
        alone_s=alone_s, shared_s=shared_s, base_w=base_w, node_w=node_w, error_s=error_s, error_w=error_w
    )


def _fit(x: _Values, y: _Values) -> tuple[tuple[float, float], float]:
    """A constant and a slope, neither below 0, and the largest miss as a share."""
    rows = np.column_stack([1.0 / y, x / y])
    best = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0]
    if best.min() < 0:
        # the best with one of both at 0, of two
        alone = [rows[:, i].sum() / (rows[:, i] @ rows[:, i]) for i in (0, 1)]
        ends = [np.array([alone[0], 0.0]), np.array([0.0, alone[1]])]
        best = min(ends, key=lambda end: float(np.sum((rows @ end - 1) ** 2)))
    return (float(best[0]), float(best[1])), float(np.abs(rows @ best - 1).max())
