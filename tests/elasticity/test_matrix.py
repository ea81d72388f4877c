"""Our clusters lose nothing when they shrink, whatever makes them smaller and whatever is there to lose."""

from __future__ import annotations

import pytest
from elastic_cells import KINDS, TRIGGERS, WORKERS, Cell, run_cell, victims

pytestmark = pytest.mark.slow
_STAYS = "actor 'ledger' lives there"


def ours(trigger: str, kind: str) -> Cell:
    cell = run_cell(trigger, kind, ours=True, processes=False, task_s=0.2)
    print(f"seed {cell.seed}: {cell}")
    return cell


@pytest.mark.parametrize("kind", ["computed", "scattered", "p2p"])
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_nothing_is_lost_or_executed_twice_and_every_result_is_right(trigger: str, kind: str) -> None:
    cell = ours(trigger, kind)
    assert (cell.lost_computed, cell.lost_scattered, cell.twice) == (0, 0, [])
    assert cell.right
    assert cell.announced == []
    stays = 1 if trigger == "actor host" else 0
    assert cell.left == WORKERS - len(victims(trigger)) + stays
    assert cell.release_s is not None


@pytest.mark.parametrize("trigger", [trigger for trigger in TRIGGERS if trigger != "lifetime"])
def test_an_actor_stays_alive_and_its_node_says_why(trigger: str) -> None:
    cell = ours(trigger, "actor")
    assert cell.actor_alive
    assert (cell.lost_computed, cell.twice, cell.right) == (0, [], True)
    if trigger in ("scale", "adapt"):  # others could go in its place
        assert cell.left == WORKERS - len(victims(trigger))
    else:
        assert _STAYS in cell.refused["3"]
        assert cell.left == WORKERS - len(victims(trigger)) + 1


def test_a_lifetime_that_ends_takes_the_actor_and_nothing_else_and_says_so() -> None:
    cell = ours("lifetime", "actor")
    assert cell.actor_alive is False
    assert cell.announced == ["ledger"]
    assert (cell.lost_computed, cell.twice) == (0, [])
    assert cell.left == WORKERS - len(victims("lifetime"))


def test_with_stock_the_same_work_loses_results_so_the_matrix_can_tell() -> None:
    cell = run_cell("scale", "computed", ours=False, processes=False, task_s=0.2)
    assert cell.lost_computed > 0
    assert cell.twice
    assert KINDS[0] == "computed"
