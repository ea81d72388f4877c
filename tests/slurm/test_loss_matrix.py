"""Rows of the loss matrix on a real Slurm, with all that can be lost in one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_cells import Cell, run_cell
from elastic_places import ROWS, Row
from private_slurm import PrivateSlurm, missing

pytestmark = pytest.mark.slow
_SLURM = [row for row in ROWS.values() if row.where == "slurm"]


@pytest.fixture(scope="module")
def patient() -> Iterator[PrivateSlurm]:
    """A Slurm that waits for as long as its default is before it kills."""
    if why := missing():
        pytest.skip(why)
    with PrivateSlurm(nodes=6, staging_nodes=1, kill_wait_s=30) as slurm:
        yield slurm


def ours(row: Row, slurm: Any) -> Cell:
    cell = run_cell(row.name, "all", ours=True, task_s=0.2, slurm=slurm)
    print(f"seed {cell.seed}: {cell}")
    assert (cell.lost_computed, cell.lost_scattered, cell.twice, cell.cut) == (0, 0, [], [])
    assert cell.right
    assert cell.holds
    return cell


@pytest.mark.parametrize("row", [row for row in _SLURM if row.refusable], ids=lambda row: row.name)
def test_a_smaller_cluster_has_lost_nothing_and_the_actor_lives(patient: PrivateSlurm, row: Row) -> None:
    cell = ours(row, patient)
    assert (cell.left, cell.actor_alive, cell.announced) == (row.left, True, [])


@pytest.mark.parametrize("row", [row for row in _SLURM if not row.refusable], ids=lambda row: row.name)
def test_a_job_that_is_ended_leaves_nothing_behind_but_an_actor_that_is_named_and_is_replaced(
    patient: PrivateSlurm, row: Row
) -> None:
    cell = ours(row, patient)
    assert cell.actor_alive or cell.announced == ["ledger"]
    assert cell.left == row.nodes
    # the successor of a job whose walltime ends is there before
    assert cell.fewest == (row.nodes if row.timed else row.left)
