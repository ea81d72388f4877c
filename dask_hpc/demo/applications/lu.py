"""LU decomposition of a matrix in square tiles, right-looking, without exchanging rows.

After each column of tiles the rest is one tile narrower: as many tasks as there are tiles at first, one at
the end. The matrix is random, from a seed of each tile, with a diagonal so large that no rows need to be
exchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc.demo.applications.tasks import Tasks

Tile = NDArray[np.float64]

#: Rows of a tile, and tiles of a row for each size.
ROWS, TILES = 48, 4
SEED = 2_024


def tile(row: int, column: int, tiles: int, rows: int) -> Tile:
    """One tile of the matrix."""
    values = np.random.default_rng((SEED, row, column)).uniform(-1.0, 1.0, (rows, rows))
    return values + tiles * rows * np.eye(rows) if row == column else values


def factored(values: Tile) -> Tile:
    """L below the diagonal, whose own is all ones, and U on and above it."""
    packed = values.copy()
    for k in range(len(packed) - 1):
        packed[k + 1 :, k] /= packed[k, k]
        packed[k + 1 :, k + 1 :] -= np.outer(packed[k + 1 :, k], packed[k, k + 1 :])
    return packed


def right_of(diagonal: Tile, values: Tile) -> Tile:
    """The tile of U right of a diagonal one."""
    return np.asarray(np.linalg.solve(np.tril(diagonal, -1) + np.eye(len(diagonal)), values), np.float64)


def below(diagonal: Tile, values: Tile) -> Tile:
    """The tile of L below a diagonal one."""
    return np.asarray(np.linalg.solve(np.triu(diagonal).T, values.T).T, np.float64)


def less(values: Tile, left: Tile, above: Tile) -> Tile:
    """What is left of a tile when a column of L and a row of U are known."""
    return values - left @ above


def joined(tiles: list[list[Tile]]) -> Tile:
    """One matrix of all tiles."""
    return np.block(tiles)


def graph(size: int, task_s: float = 0.0, rows: int = ROWS) -> Any:
    """L and U, packed into one matrix of ``size * TILES`` tiles a side, as a `dask.delayed` object."""
    n, tasks = size * TILES, Tasks(task_s)
    a = [[tasks.add(tile, i, j, n, rows) for j in range(n)] for i in range(n)]
    for k in range(n):
        a[k][k] = tasks.work(factored, a[k][k])
        for j in range(k + 1, n):
            a[k][j] = tasks.work(right_of, a[k][k], a[k][j])
            a[j][k] = tasks.work(below, a[k][k], a[j][k])
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                a[i][j] = tasks.work(less, a[i][j], a[i][k], a[k][j])
    return tasks.result(tasks.add(joined, a))


def matrix(tiles: int, rows: int) -> Tile:
    """The matrix itself, in one piece."""
    return joined([[tile(i, j, tiles, rows) for j in range(tiles)] for i in range(tiles)])


def error(packed: Tile, rows: int = ROWS) -> float:
    """How far L times U is from the matrix, as a share of it."""
    whole = matrix(len(packed) // rows, rows)
    product = (np.tril(packed, -1) + np.eye(len(packed))) @ np.triu(packed)
    return float(np.linalg.norm(product - whole) / np.linalg.norm(whole))
