"""Walltime that is left, and labels, as the node table has them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.tables.nodes import NodeTable, Told


def table(*names: str, by: str = "worker", host: str = "machine") -> NodeTable:
    made = NodeTable(by)
    for name in names:
        made.join(f"tcp://{name}", name=name, host=host, nthreads=1, memory_bytes=0)
    return made


def left(made: NodeTable, now_s: float) -> dict[str, float | None]:
    return {view.id: view.walltime_left_s for view in made.views(now_s)}


@given(
    st.floats(0, 1e5),
    st.lists(st.floats(0.0, 400.0), min_size=1, max_size=20),
    st.sampled_from([None, "job"]),
)
def test_the_walltime_that_is_left_is_never_more_than_a_second_off_and_never_below_0(end_s, moments, job):
    made = table("a", "b")
    made.nodes["a"].job = job
    made.hear("tcp://a", Told(end_s=end_s))
    now_s = max(0.0, end_s - 200.0)
    for moment in sorted(moments):
        found = left(made, now_s + moment)
        assert found["b"] is None
        assert found["a"] == pytest.approx(max(0.0, end_s - now_s - moment), abs=1.0)


def test_a_node_ends_with_the_first_of_its_workers_and_no_more_when_that_one_has_gone():
    made = table("a", "b", by="host")
    made.hear("tcp://a", Told(end_s=50.0))
    made.hear("tcp://b", Told(end_s=30.0))
    assert left(made, 10.0) == {"machine": 20.0}
    made.leave("tcp://b")
    assert left(made, 20.0) == {"machine": 30.0}
    made.leave("tcp://a")
    made.join("tcp://a", name="a", host="machine", nthreads=1, memory_bytes=0)
    assert left(made, 30.0) == {"machine": None}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["join", "leave", "hold", "free", "reserve"])))
)
def test_free_nodes_are_those_of_now_and_the_version_tells_of_each_change(steps):
    made = table()
    for name, step in steps:
        before, address, node = made.version, f"tcp://{name}", made.nodes.get(name)
        if step == "join":
            made.join(address, name=name, host="machine", nthreads=1, memory_bytes=0)
        elif node is None:
            continue
        elif step == "leave":
            if made.leave(address) is None:
                made.forget(node)
        else:
            node.job, node.reserved = "job" if step == "hold" else None, int(step == "reserve")
            made.touch([node])
        assert made.version > before
        there = [node for node in made.nodes.values() if node.workers]
        assert made.free() == [node for node in there if node.job is None and not node.reserved]
    made.clear()
    assert made.free() == []


@pytest.mark.parametrize(
    ("told", "host", "domain"),
    [
        ({}, "machine", "machine"),
        ({"host": "board-1"}, "board-1", "board-1"),
        ({"domain": "rack-2"}, "machine", "rack-2"),
        ({"host": "board-1", "domain": "rack-2"}, "board-1", "rack-2"),
    ],
)
def test_who_shares_memory_and_who_fails_together_are_the_machine_or_labels(
    told: dict[str, Any], host: str, domain: str
):
    made = table("a")
    made.hear("tcp://a", Told(**told))
    (view,) = made.views(0.0)
    assert (view.host, view.domain) == (host, domain)


def test_only_news_makes_the_picture_anew():
    made = table(*map(str, range(20)))
    views = made.views(0.0)
    assert made.views(1000.0) is views, "nothing ends"
    assert made.hear("tcp://1", Told(end_s=500.0))
    changed = made.views(10.0)
    assert [one is other for one, other in zip(views, changed, strict=True)].count(False) == 1
    assert not made.hear("tcp://1", Told(end_s=500.1)), "clocks that go a little apart"
    assert made.views(10.5) is changed
    assert not made.hear("tcp://gone", Told(end_s=1.0))
    assert made.hear("tcp://1", Told(end_s=520.0)), "its time was extended"
    assert left(made, 11.0)["1"] == 509.0
    assert math.isclose(left(made, 12.0)["1"] or 0.0, 508.0)
