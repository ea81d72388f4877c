"""A wave in a closed basin on patches that refine themselves where the water is steep: an AMR proxy.

The shallow-water equations in two dimensions, finite volumes with the flux of Rusanov. A patch has ``CELLS``
cells a side, or twice or four times as many; every few steps it looks at its own water and halves or doubles
its cells. Where patches of unlike cells meet the flux is that of the smaller ones, on both sides: no water is
lost. So the graph is fixed, and what its tasks compute moves with the wave.

It stands for the tsunami code of John (2024, section 8.2), of which it has the equations, not the triangles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc.demo.applications.tasks import Tasks

#: Depth, and what flows in x and in y: (3, cells in y, cells in x). Edges: (3, cells).
Water = NDArray[np.float64]
Edges = dict[str, Water]

#: Cells of the coarsest patch, how often they may be halved, patches a side for each size, and steps.
CELLS, LEVELS, PATCHES, STEPS = 8, 2, 4, 12
#: A step is so long that no wave crosses more than a part of the smallest cell: of a patch's side of 1.
STEP_S = 0.2 / (CELLS * 2**LEVELS)
#: Depth that differs by more between two cells wants smaller ones; by less than a quarter of it, larger ones.
STEEP = 0.01
#: So many steps it goes without being looked at.
EVERY = 4
GRAVITY = 1.0
_TOWARDS = {"west": (0, -1), "east": (0, 1), "south": (-1, 0), "north": (1, 0)}
_OTHER = ("east", "west", "north", "south")
_WHERE = {"west": (2, 0), "east": (2, -1), "south": (1, 0), "north": (1, -1)}


def start(row: int, column: int, patches: int, level: int) -> Water:
    """Still water of depth 1, with a hill of it near a corner of the basin."""
    cells = CELLS * 2**level
    at = (np.arange(cells) + 0.5) / cells
    y, x = (row + at)[:, None] / patches, (column + at)[None, :] / patches
    depth = 1.0 + 0.3 * np.exp(-60 * ((y - 0.3) ** 2 + (x - 0.3) ** 2))
    return np.stack([depth, np.zeros_like(depth), np.zeros_like(depth)])


def edges(water: Water) -> Edges:
    """What neighbours have to know of a patch."""
    return {side: np.take(water, place, axis) for side, (axis, place) in _WHERE.items()}


def flux(one: Water, two: Water, normal: int) -> Water:
    """What goes from `one` to `two` through their faces, across which flow has the place `normal`."""

    def of(water: Water) -> Water:
        speed = water[normal] / water[0]
        found = water * speed
        found[normal] += GRAVITY * water[0] ** 2 / 2
        return found

    fastest = np.maximum(*(np.abs(w[normal] / w[0]) + np.sqrt(GRAVITY * w[0]) for w in (one, two)))
    return (of(one) + of(two) - fastest * (two - one)) / 2


def _through(mine: Water, other: Water | None, normal: int, first: bool) -> Water:
    """What goes through an edge, by the cells of `mine`; `first`: the other patch comes before it."""
    if other is None:
        # a wall: the same water comes from the other side
        other = mine.copy()
        other[normal] *= -1.0
    cells = max(mine.shape[1], other.shape[1])
    fine, beside = (np.repeat(water, cells // water.shape[1], axis=1) for water in (mine, other))
    found = flux(beside, fine, normal) if first else flux(fine, beside, normal)
    return found.reshape(3, mine.shape[1], -1).mean(axis=2)


def advance(water: Water, beside: dict[str, Water | None]) -> Water:
    """The patch one step later; `beside`: edges of its neighbours by where they are, None at a wall."""
    mine, cells = edges(water), water.shape[1]
    west, east = (_through(mine[side], beside[side], 1, side == "west") for side in ("west", "east"))
    south, north = (_through(mine[side], beside[side], 2, side == "south") for side in ("south", "north"))
    x = np.concatenate([west[:, :, None], flux(water[:, :, :-1], water[:, :, 1:], 1), east[:, :, None]], 2)
    y = np.concatenate([south[:, None], flux(water[:, :-1], water[:, 1:], 2), north[:, None]], 1)
    return water - STEP_S * cells * (np.diff(x, axis=2) + np.diff(y, axis=1))


def adapted(water: Water, steep: float) -> Water:
    """The same water in cells as small as it needs."""
    depth, cells = water[0], water.shape[1]
    rise = max(np.abs(np.diff(depth, axis=0)).max(), np.abs(np.diff(depth, axis=1)).max())
    if rise > steep and cells < CELLS * 2**LEVELS:
        return water.repeat(2, axis=1).repeat(2, axis=2)
    if rise < steep / 4 and cells > CELLS:
        return water.reshape(3, cells // 2, 2, cells // 2, 2).mean(axis=(2, 4))
    return water


def next_one(water: Water, beside: list[Edges | None], steep: float | None) -> Water:
    """The patch one step later; `beside`: all edges of neighbours; `steep`: None, it is not looked at."""
    sides = zip(_TOWARDS, _OTHER, beside, strict=True)
    met = {side: told[other] if told is not None else None for side, other, told in sides}
    found = advance(water, met)
    return found if steep is None else adapted(found, steep)


def basin(patches: list[list[Water]]) -> list[list[Water]]:
    """All patches, a list of each row."""
    return patches


def graph(
    size: int, task_s: float = 0.0, steps: int = STEPS, steep: float | None = STEEP, level: int = 0
) -> Any:
    """The basin of ``size * PATCHES`` patches a side after `steps` steps, as a `dask.delayed` object.

    Parameters
    ----------
    steep
        None: no cell is halved or joined.
    level
        How often cells are halved at the beginning.
    """
    n, tasks = size * PATCHES, Tasks(task_s)
    sea = [[tasks.add(start, i, j, n, level) for j in range(n)] for i in range(n)]
    for number in range(1, steps + 1):
        told = [[tasks.add(edges, water) for water in row] for row in sea]
        looks = steep if number % EVERY == 0 else None
        sea = [
            [tasks.work(next_one, sea[i][j], _beside(told, i, j), looks) for j in range(n)] for i in range(n)
        ]
    return tasks.result(tasks.add(basin, sea))


def _beside(told: list[list[str]], row: int, column: int) -> list[str | None]:
    """What neighbours of a patch tell, None at a wall."""
    n, places = len(told), [(row + i, column + j) for i, j in _TOWARDS.values()]
    return [told[i][j] if 0 <= i < n and 0 <= j < n else None for i, j in places]


def volume(sea: list[list[Water]]) -> float:
    """All water, a patch being 1 wide and long."""
    return float(sum(water[0].mean() for row in sea for water in row))


def cells(sea: list[list[Water]]) -> int:
    """Cells of all patches."""
    return sum(water[0].size for row in sea for water in row)


def error(sea: list[list[Water]]) -> float:
    """How much water was lost or has come, as a share."""
    # in the coarsest cells the hill is not what it is in smaller ones
    began = volume([[start(i, j, len(sea), 0) for j in range(len(sea))] for i in range(len(sea))])
    return abs(volume(sea) - began) / began
