"""Pi by the series of Leibniz, a block of terms a task.

Terms are added from the last one, which is the smallest, to the first one; what the series still lacks after
an even number of terms is less than one over that number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_hpc.demo.applications.tasks import Tasks

#: Terms of a block, and blocks of a size.
TERMS, BLOCKS = 1_000_000, 16


def block(first: int, terms: int) -> float:
    """The sum of terms `first` to ``first + terms`` of 4 - 4/3 + 4/5 - ..."""
    k = np.arange(first + terms - 1, first - 1, -1)
    return float(np.sum(np.where(k % 2 == 0, 4.0, -4.0) / (2 * k + 1)))


def total(sums: list[float]) -> float:
    """The sum of all blocks, without what rounding loses."""
    return math.fsum(sums)


def graph(size: int, task_s: float = 0.0, terms: int = TERMS) -> Any:
    """Pi from ``size * BLOCKS`` blocks of `terms` terms, as a `dask.delayed` object."""
    tasks = Tasks(task_s)
    sums = [tasks.work(block, number * terms, terms) for number in range(size * BLOCKS)]
    return tasks.result(tasks.add(total, sums))


def error(found: float) -> float:
    """How far it is from pi, as a share of it."""
    return abs(found - math.pi) / math.pi
