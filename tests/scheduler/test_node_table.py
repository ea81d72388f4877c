"""Walltime that is left, and labels, as the node table has them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.tables.nodes import Away, Node, NodeTable, Told, node_id


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


@pytest.mark.parametrize(
    ("by", "name", "id"),
    [
        ("job", "slurm-7-3", "slurm-7"),
        ("job", "slurm-7-x", "slurm-7-x"),
        ("job", 12, "12"),
        ("job", "by-hand-", "by-hand-"),
        ("worker", "slurm-7-3", "slurm-7-3"),
        ("host", "slurm-7-3", "machine"),
    ],
)
def test_which_workers_are_one_node(by: str, name: Any, id: str):
    assert node_id(by, name, "machine") == id


def test_what_a_node_is_used_for_is_seen_as_it_changes():
    made = table("a", "b", by="host")
    node = made.nodes["machine"]

    def seen() -> tuple[str | None, str, int]:
        (view,) = made.views(0.0)
        return view.job, view.state, view.workers

    assert (seen(), node.serves, node.serves_plain) == ((None, "up", 2), True, True)
    node.job = "job"
    made.touch([node])
    assert (seen(), node.serves, node.serves_plain) == (("job", "up", 2), True, False)
    node.reserved = 1
    made.touch([node])
    assert (seen(), node.serves) == (("job", "draining", 2), False)
    assert made.unheld() == []
    node.job = None
    made.touch([node])
    assert (seen(), made.unheld(), made.free()) == ((None, "draining", 2), [], [])
    node.reserved = 0
    made.touch([node])
    assert (seen(), made.unheld(), made.free()) == ((None, "up", 2), [node], [node])
    made.leave("tcp://b")
    assert seen() == (None, "up", 1)
    made.join("tcp://b", name="b", host="machine", nthreads=1, memory_bytes=0)
    assert seen() == (None, "up", 2)
    # a node that stages, say, is none that jobs get
    node.role = "staging"
    made.touch([node])
    assert (made.unheld(), made.free(), made.up(), made.computing()) == ([node], [], 1, 0)
    assert not node.serves
    for name in "ab":
        assert made.leave(f"tcp://{name}") is node
    node.role = "compute"
    made.touch([node])
    assert (seen(), made.unheld(), made.up(), made.computing()) == ((None, "lost", 0), [], 0, 0)
    assert made.leave("tcp://b") is None
    # the same machine, come back as another node
    made.nodes["machine"] = other = Node("machine")
    made.forget(node)
    assert made.nodes == {"machine": other}
    made.forget(other)
    assert made.views(0.0) == ()


def test_nodes_that_were_said_to_start_start_no_more_once_so_many_have_come():
    made = table("a")
    assert made.absent().starting == 0
    made.away = Away(starting=2, off=3, up=1)
    assert made.absent().starting == 2
    for name, starting in (("b", 1), ("c", 0), ("d", 0)):
        made.join(f"tcp://{name}", name=name, host="machine", nthreads=1, memory_bytes=0)
        assert (made.absent().starting, made.absent().off) == (starting, 3)
    # nodes that were not looked at
    made.away = Away(starting=2, up=None)
    assert made.absent().starting == 2


def test_who_ends_sooner_than_it_knows_is_told_until_it_knows():
    made = table("a", "b", "c")
    made.hear("tcp://a", Told(end_s=50.0, sooner=True))
    made.hear("tcp://b", Told(end_s=50.0))
    made.hear("tcp://c", Told(end_s=70.0, sooner=True))
    assert made.sooner(60.0) == {"tcp://a": 50.0}
    assert made.sooner(50.0) == {}
    assert made.hear("tcp://a", Told(end_s=50.0)), "that is news though the time is the same"
    assert made.sooner(60.0) == {}
    assert made.hear("tcp://c", Told()), "it has no end any more"
    assert made.sooner(100.0) == {}
    assert left(made, 0.0) == {"a": 50.0, "b": 50.0, "c": None}
