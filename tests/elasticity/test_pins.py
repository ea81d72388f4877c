"""Nodes that their user keeps lend nothing while there are others to share; where there are none, they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_hpc.scheduler.leaving.pins import Pins
from dask_hpc.scheduler.tables.nodes import NodeTable


def pool(**jobs: bool | None) -> tuple[Pins, NodeTable]:
    """A node for each job, with its name: one that has asked for nodes, one that has not, None: nobody's."""
    table = NodeTable("worker")
    state: Any = SimpleNamespace(
        nodes=table, scheduler=SimpleNamespace(workers={}), jobs=SimpleNamespace(active={})
    )
    for name, asked in jobs.items():
        state.scheduler.workers[name] = SimpleNamespace(name=name)
        table.join(name, name=name, host="here", nthreads=1, memory_bytes=1)
        if asked is not None:
            table.nodes[name].job = name
            state.jobs.active[name] = SimpleNamespace(undeclared=not asked)
    return Pins(state), table


def lent(pins: Pins, table: NodeTable) -> list[str]:
    return [name for name, node in table.nodes.items() if pins.lends(node)]


def test_a_pinned_node_lends_nothing_while_there_is_another_one_to_share() -> None:
    pins, table = pool(a=False, b=False, c=None, d=True)
    assert lent(pins, table) == ["a", "b", "c", "d"]
    pins.put(["a", "c"], True)
    assert lent(pins, table) == ["b", "d"]
    pins.put(["b"], True)
    # of those that nobody has asked for all are pinned
    assert lent(pins, table) == ["a", "b", "c", "d"]
    pins.put(["d"], True)
    assert lent(pins, table) == ["a", "b", "c"], "who has asked for nodes shares none of them"
    pins.put(["c"], False)
    assert lent(pins, table) == ["c"]


def test_only_nodes_that_are_there_and_serve_are_others_to_share() -> None:
    pins, table = pool(a=False, b=False)
    pins.put(["a"], True)
    assert lent(pins, table) == ["b"]
    table.nodes["b"].reserved = 1
    table.touch([])
    assert lent(pins, table) == ["a", "b"]
    table.nodes["b"].reserved = 0
    table.leave("b")
    assert pins.lends(table.nodes["a"])


def test_a_node_stays_as_long_as_one_of_its_workers_is_pinned() -> None:
    pins, table = pool(a=None, b=None)
    pins.put(["a", "nobody"], True)
    assert pins.veto(table.nodes["b"], None) is None
    why = pins.veto(table.nodes["a"], None)
    assert why is not None
    assert "worker 'a' is pinned (cluster.unpin lets it go)" in why.text
    assert pins.names == {"a", "nobody"}
    pins.put(["a"], False)
    assert pins.veto(table.nodes["a"], None) is None


def test_a_worker_that_is_lost_and_still_in_the_table_is_not_looked_at() -> None:
    pins, table = pool(a=False, b=False)
    pins.put(["a", "b"], True)
    del pins._state.scheduler.workers["a"]  # the scheduler moves its tasks before plugins hear of the loss
    assert pins.lends(table.nodes["a"])
    assert pins.why(table.nodes["b"]) is not None
