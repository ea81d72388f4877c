"""The four applications are right: against what numpy, one piece and conservation say."""

from __future__ import annotations

import itertools
import math

import dask
import numpy as np
import pytest

from dask_hpc.demo.applications import APPLICATIONS, lu, pi, tsunami


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_result_is_that_which_is_known_otherwise(name: str) -> None:
    made = APPLICATIONS[name]
    with dask.config.set(scheduler="sync"):
        error = made.error(dask.compute(made.graph(1))[0])
    assert error < (1e-6 if name == "pi" else 1e-12)


def test_pi_is_off_by_the_first_term_that_it_lacks() -> None:
    found = pi.total([pi.block(first, 500) for first in (0, 500)])
    assert abs(found - math.pi) == pytest.approx(1 / 1000, rel=1e-3)
    assert pi.error(found + 1.0) > 0.3


def test_tiles_give_what_one_matrix_does() -> None:
    whole = lu.matrix(3, 5)
    with dask.config.set(scheduler="sync"):
        found = lu.graph(1, rows=5).compute()
    assert len(found) == 5 * lu.TILES
    np.testing.assert_allclose(lu.factored(lu.matrix(lu.TILES, 5)), found, rtol=1e-12)
    # without exchanged rows the diagonal of U has the determinants of the leading parts
    packed = lu.factored(whole)
    for k in (1, 7, 15):
        assert np.prod(np.diag(packed)[:k]) == pytest.approx(np.linalg.det(whole[:k, :k]))
    assert lu.error(packed + 1.0, rows=5) > 1e-3


def test_cells_are_small_where_the_wave_is_and_no_water_is_lost() -> None:
    with dask.config.set(scheduler="sync"):
        found, coarse, fine = (
            tsunami.graph(1, steps=20, steep=steep, level=level).compute()
            for steep, level in ((tsunami.STEEP, 1), (None, 0), (None, tsunami.LEVELS))
        )
    assert abs(tsunami.volume(found) / tsunami.volume(fine) - 1) < 1e-3
    sizes = {water.shape[1] for row in found for water in row}
    assert len(sizes) > 1
    assert tsunami.cells(coarse) < tsunami.cells(found) < tsunami.cells(fine) / 2

    def miss(sea: list[list[np.ndarray]]) -> float:
        """Mean distance of depths from those of the smallest cells."""
        patches = zip(itertools.chain(*sea), itertools.chain(*fine), strict=True)
        depths = [(a[0], b[0]) for a, b in patches]
        away = [np.kron(a, np.ones((len(b) // len(a),) * 2)) - b for a, b in depths]
        return float(np.mean(np.abs(away)))

    assert miss(found) < miss(coarse) / 2


def test_a_wave_against_a_wall_comes_back_and_meets_unlike_cells_without_loss() -> None:
    water = tsunami.start(0, 0, 1, 1)
    beside = tsunami.start(0, 1, 1, 2)
    walls = dict.fromkeys(("west", "south", "north"))
    mine, other = tsunami.edges(water), tsunami.edges(beside)
    after = tsunami.advance(water, {**walls, "east": other["west"]})
    next_to = tsunami.advance(
        beside, {"west": mine["east"], "east": None, "south": None, "north": None}
    )
    before = water[0].mean() + beside[0].mean()
    assert after[0].mean() + next_to[0].mean() == pytest.approx(before, rel=1e-14)
    assert abs(after[0] - water[0]).max() > 0
