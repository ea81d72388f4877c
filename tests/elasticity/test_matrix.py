"""Our clusters lose nothing when they shrink, whatever makes them smaller and whatever is there to lose."""

from __future__ import annotations

import pytest
from elastic_cells import Cell, run_cell
from elastic_places import ROWS, Row
from elastic_tables import markdown

pytestmark = pytest.mark.slow
_STAYS = "actor 'ledger' lives there"
_LOCAL = [row for row in ROWS.values() if row.where == "local"]


def ours(row: Row, kind: str) -> Cell:
    cell = run_cell(row.name, kind, ours=True, processes=False, task_s=0.2)
    print(f"seed {cell.seed}: {cell}")
    return cell


@pytest.mark.parametrize("kind", ["computed", "scattered", "p2p"])
@pytest.mark.parametrize("row", _LOCAL, ids=lambda row: row.name)
def test_nothing_is_lost_or_executed_twice_and_every_result_is_right(row: Row, kind: str) -> None:
    cell = ours(row, kind)
    assert (cell.lost_computed, cell.lost_scattered, cell.twice) == (0, 0, [])
    assert cell.right
    assert cell.announced == cell.cut == []
    stays = 1 if row.name == "actor host" else 0
    assert cell.left == row.left + stays
    assert cell.release_s is not None


@pytest.mark.parametrize("row", [row for row in _LOCAL if row.refusable], ids=lambda row: row.name)
def test_an_actor_stays_alive_and_its_node_says_why(row: Row) -> None:
    cell = ours(row, "actor")
    assert cell.actor_alive
    assert (cell.lost_computed, cell.twice, cell.right) == (0, [], True)
    if row.name in ("scale", "adapt"):  # others could go in its place
        assert cell.left == row.left
    else:
        assert _STAYS in cell.refused["3"]
        assert cell.left == row.left + 1


def test_a_lifetime_that_ends_takes_the_actor_and_nothing_else_and_says_so() -> None:
    row = ROWS["lifetime"]
    cell = ours(row, "actor")
    assert cell.actor_alive is False
    assert cell.announced == ["ledger"]
    assert (cell.lost_computed, cell.twice, cell.left) == (0, [], row.left)


def test_an_actor_that_gives_its_state_outlives_the_lifetime_of_its_worker() -> None:
    row = ROWS["lifetime"]
    # handles of a client in the process of workers are bound to one of those
    cell = run_cell(row.name, "moving actor", ours=True, processes=True, task_s=0.2)
    assert cell.actor_alive
    assert (cell.announced, cell.lost_computed, cell.twice, cell.left) == ([], 0, [], row.left)
    assert cell.holds


@pytest.mark.parametrize("name", [row.name for row in ROWS.values() if row.where == "shell"])
def test_workers_from_a_shell_that_get_a_signal_leave_nothing_behind_but_an_actor_that_is_named(
    name: str,
) -> None:
    cell = ours(ROWS[name], "all")
    assert (cell.lost_computed, cell.lost_scattered, cell.twice) == (0, 0, [])
    assert cell.right
    assert cell.actor_alive or cell.announced == ["ledger"]
    assert (cell.cut, cell.left) == ([], ROWS[name].left)
    assert cell.holds


def test_with_stock_the_same_work_loses_results_so_the_matrix_can_tell() -> None:
    cell = run_cell("scale", "computed", ours=False, processes=False, task_s=0.2)
    assert cell.lost_computed > 0
    assert cell.twice
    assert not cell.holds


def test_a_cell_holds_unless_something_was_lost_or_an_actor_ended_unannounced_or_needlessly() -> None:
    def cell(row: str, **outcome: object) -> Cell:
        return Cell(row, outcome.pop("kind", "actor"), True, 0, **{"right": True, **outcome})

    assert cell("scale", actor_alive=True).holds
    assert not cell("scale", actor_alive=False, announced=["ledger"]).holds
    assert cell("SIGTERM", actor_alive=False, announced=["ledger"]).holds
    assert not cell("SIGTERM", actor_alive=False).holds
    assert not cell("SIGTERM", kind="moving actor", actor_alive=False, announced=["ledger"]).holds
    for lost in ({"lost_computed": 1}, {"lost_scattered": 1}, {"twice": ["work-1"]}, {"right": False}):
        assert not cell("SIGTERM", **lost).holds


def test_the_markdown_table_has_a_line_for_each_row_with_all_its_kinds() -> None:
    cells = [
        Cell("scale", "computed", False, 0, lost_computed=30, twice=["a", "b"], release_s=0.1),
        Cell("scale", "actor", False, 0, lost_scattered=2, actor_alive=False),
        Cell("scale", "computed", True, 0, right=True, release_s=1.0),
        Cell("scale", "actor", True, 0, right=True, release_s=3.0, actor_alive=True),
        Cell("SIGTERM", "all", True, 0, actor_alive=False, announced=["ledger"]),
    ]
    assert markdown(cells).splitlines()[2:] == [
        "| scale | 30 + 2 | 2 | LOST | 0 + 0 | 0 | alive | 2.0 s |",
        "| SIGTERM | ? | ? | ? | 0 + 0 | 0 | named | - |",
    ]
