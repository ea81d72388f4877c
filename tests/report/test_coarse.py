"""Many nodes share rows: each shows who has most of them."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.report.coarse import MAX_ROWS, coarse, each
from dask_hpc.report.figure import spans_figure
from dask_hpc.report.page import build_report
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.report.spans import NodeSpan, Spans
from dask_hpc.trace.records import NodeEvent, Pass
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot

#: Three nodes a row, seen in whole seconds of ten.
NODES = tuple(f"n{i}" for i in range(3 * MAX_ROWS))
UNTIL_S = 10


def run(holders):
    """Spans of the first row's nodes, given who has each of them in each second; the rest is idle."""
    spans = [
        NodeSpan(node=node, start_s=t, end_s=t + 1, job=job)
        for node, jobs in zip(NODES, holders, strict=False)
        for t, job in enumerate(jobs)
    ]
    spans += [NodeSpan(node=node, start_s=0, end_s=UNTIL_S, job=None) for node in NODES[len(holders) :]]
    return Spans(end_s=UNTIL_S, nodes=NODES, node_spans=tuple(spans), labels={"a": "a", "b": "b"})


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", None]), min_size=UNTIL_S, max_size=UNTIL_S),
        min_size=3,
        max_size=3,
    )
)
def test_a_row_has_at_each_time_the_holder_of_most_of_its_nodes(holders):
    found = coarse(run(holders))
    assert len(found.nodes) == MAX_ROWS
    assert found.nodes[0] == "n0 to n2"
    row = [span for span in found.node_spans if span.node == found.nodes[0]]
    assert [row[0].start_s, row[-1].end_s] == [0, UNTIL_S]
    for t in range(UNTIL_S):
        (shown,) = [span.job for span in row if span.start_s <= t < span.end_s]
        counts = Counter(jobs[t] for jobs in holders)
        assert counts[shown] == max(counts.values())


def test_a_figure_of_many_nodes_has_a_bar_a_row_and_says_what_that_is():
    pytest.importorskip("matplotlib")
    axes = spans_figure(run([["a"] * UNTIL_S] * 3)).axes[0]
    assert len(axes.patches) == MAX_ROWS
    assert axes.get_ylabel() == "3 nodes a row"


def test_what_is_too_short_to_be_seen_and_a_few_nodes_change_nothing():
    few = Spans(end_s=1.0, nodes=NODES[:MAX_ROWS], node_spans=(), labels={})
    assert coarse(few) is few
    blink = [NodeSpan(node=node, start_s=5, end_s=5.001, job="a") for node in NODES[:3]]
    idle = [
        NodeSpan(node=node, start_s=begin, end_s=end, job=None)
        for node in NODES
        for begin, end in ((0, 5), (5.001, 10))
    ]
    spans = Spans(end_s=10, nodes=NODES, node_spans=(*idle, *blink), labels={"a": "a"})
    assert {(span.start_s, span.end_s, span.job) for span in coarse(spans).node_spans[:1]} == {(0, 10, None)}


def test_a_picture_of_five_hundred_nodes_is_small_and_says_what_a_row_is():
    nodes = tuple(f"node-{i}" for i in range(500))
    spans = [
        NodeSpan(node=node, start_s=t, end_s=t + 1, job="a" if (t + i // 8) % 2 else None)
        for i, node in enumerate(nodes)
        for t in range(20)
    ]
    picture = TimelinePicture(
        Spans(end_s=20, nodes=nodes, node_spans=tuple(spans), labels={"a": "a"}), "Nodes over time"
    )
    assert each(picture.spans) == 8
    html = picture._repr_html_()
    assert "A row is 8 nodes, in the colour of most of them." in html
    assert "500 nodes and 1 job" in html
    assert "node-0 to node-7: a, up, 1.0 s to 2.0 s" in html
    # with a rectangle for each change of each node it would be ten times as much
    assert len(html) < 250_000


def test_the_page_of_a_run_on_two_thousand_nodes_has_rows_that_can_be_seen():
    nodes = tuple(f"node-{i}" for i in range(2000))
    records = [NodeEvent(t_s=float(t), nodes=nodes, job="a" if t % 2 else None) for t in range(20)]
    page = build_report(records)
    assert "A row is 32 nodes, in the colour of most of them." in page
    assert "node-0 to node-31: a, up, 1.0 s to 2.0 s" in page
    assert len(page) < 300_000, "with a rectangle for each change of each node: 5 MB"


def test_the_page_says_how_long_decisions_took():
    passes = [
        Pass(policy={}, snapshot=ClusterSnapshot(now_s=float(t)), decision=Decision(), decide_s=took_s)
        for t, took_s in enumerate((0.001, 0.004, 0.001))
    ]
    page = build_report(passes)
    assert ">4 ms<" in page, "the longest"
    assert "3, 2 ms each on average" in page


def test_two_pictures_of_a_page_give_out_no_name_twice():
    """Else the second would have its colours from the first, which may be hidden."""
    one, other = (
        TimelinePicture(Spans(end_s=end_s, nodes=("n",), labels={"a": "a"}), "Nodes over time").svg()
        for end_s in (1.0, 2.0)
    )
    names = [re.findall(r' id="([^"]+)"', svg) for svg in (one, other)]
    assert len(names[0]) == len(names[1]) >= 4
    assert not set(names[0]) & set(names[1])


def test_who_holds_a_row_is_seen_however_often_its_nodes_change_hands():
    until_s = 1000.0
    spans = [NodeSpan(node=node, start_s=0, end_s=until_s, job=None) for node in NODES[3:]]
    for number, node in enumerate(NODES[:3]):
        # each is away for a moment again and again, which is too short to be seen
        for at_s in range(0, 1000, 10):
            holder, change_s = "a" if at_s < 500 else "b", at_s + 2 * number
            spans += [
                NodeSpan(node=node, start_s=at_s, end_s=change_s, job=holder),
                NodeSpan(node=node, start_s=change_s, end_s=change_s + 1, job=None),
                NodeSpan(node=node, start_s=change_s + 1, end_s=at_s + 10, job=holder),
            ]
    spans = [one for one in spans if one.end_s > one.start_s]
    found = coarse(Spans(end_s=until_s, nodes=NODES, node_spans=tuple(spans), labels={"a": "a", "b": "b"}))
    row = [(span.start_s, span.end_s, span.job) for span in found.node_spans if span.node == found.nodes[0]]
    shown = [job for _, _, job in row]
    assert shown == ["a", "b"]
    assert 500 <= row[1][0] <= 506
