"""Heat in a plate, in blocks of rows: at each step a block needs the edges of its neighbours.

The equation and its steps are those of `dask_hpc.demo.heat`; here each step of each block is a task.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from dask_hpc.demo.applications.tasks import Tasks
from dask_hpc.demo.heat import Heat
from dask_hpc_policies.layout import Part

#: Rows of a block, columns, blocks of a size, and steps.
ROWS, COLUMNS, BLOCKS, STEPS = 32, 256, 4, 20


def start(heat: Heat, number: int) -> xr.DataArray:
    """One block of the initial field."""
    return heat.start(Part("", number * ROWS, (number + 1) * ROWS))


def edge(block: xr.DataArray, row: int) -> xr.DataArray:
    """The first (0) or the last (-1) row of a block."""
    return block[:1] if row == 0 else block[-1:]


def joined(blocks: list[xr.DataArray]) -> xr.DataArray:
    """The whole plate."""
    return xr.concat(blocks, "y")


def graph(size: int, task_s: float = 0.0, steps: int = STEPS) -> Any:
    """The plate of ``size * BLOCKS`` blocks after `steps` steps, as a `dask.delayed` object."""
    count, tasks = size * BLOCKS, Tasks(task_s)
    heat = Heat(count * ROWS, COLUMNS)
    blocks = [tasks.add(start, heat, number) for number in range(count)]
    for _ in range(steps):
        before = [None, *(tasks.add(edge, block, -1) for block in blocks[:-1])]
        after = [*(tasks.add(edge, block, 0) for block in blocks[1:]), None]
        blocks = [tasks.work(heat.step, *three) for three in zip(blocks, before, after, strict=True)]
    return tasks.result(tasks.add(joined, blocks))


def error(found: xr.DataArray, steps: int = STEPS) -> float:
    """How far it is from the plate computed in one piece, as a share of its highest temperature."""
    whole = Heat(*found.shape).undisturbed(steps)
    return float(np.abs(found.values - whole.values).max() / whole.values.max())
