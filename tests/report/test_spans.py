"""One model of who had which nodes when: what it says is what was said to it, and nothing overlaps."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.report.figure import spans_figure
from dask_hpc.report.looks import COLORS, looks
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.report.spans import End, JobSpan, NodeSpan, Spans, ends_of, job_spans, packed
from dask_hpc.sim.model.machine import Options
from dask_hpc.sim.run import simulate
from dask_hpc.sim.workloads.sources import load

sizes = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def sized(job: str, submit_s: float, ends: list[int], predicted: bool = False) -> list[JobSpan]:
    """A job that has so many nodes for a second each."""
    return job_spans(
        job,
        submit_s,
        submit_s + 1,
        submit_s + 1 + len(ends),
        [(submit_s + 1 + i, n) for i, n in enumerate(ends)],
        1000.0,
        predicted,
    )


def test_a_job_keeps_letter_and_colour_whatever_else_is_shown():
    every, some = looks(["heat-1", "late-2", "cold-3"]), looks(["cold-3", "heat-1"])
    assert some == {"cold-3": every["cold-3"], "heat-1": every["heat-1"]}
    assert [look.letter for look in every.values()] == ["A", "B", "C"]
    assert [look.color for look in every.values()] == list(COLORS[:3])
    assert looks(["heat-28"])["heat-28"].letter == "AB"


@given(st.lists(st.text(max_size=6), unique=True, max_size=40))
def test_no_two_jobs_of_a_document_share_a_letter(ids):
    given_out = [look.letter for look in looks(ids).values()]
    assert len(set(given_out)) == len(ids)


def test_jobs_of_a_file_have_letters_by_their_places():
    assert [look.letter for look in looks(["x", "a-7", "b-7"]).values()] == ["A", "B", "C"]
    assert [look.letter for look in looks(["a-7", "b-7"]).values()] == ["A", "B"], "two of one number"


def test_a_job_waits_runs_is_interrupted_and_ends():
    spans = job_spans("a", 0.0, 2.0, 9.0, [(2.0, 4), (5.0, 0), (6.0, 2), (9.0, 0)], 100.0)
    told = [(span.start_s, span.end_s, span.nodes) for span in spans]
    assert told == [(0.0, 2.0, 0), (2.0, 5.0, 4), (5.0, 6.0, 0), (6.0, 9.0, 2)]
    assert [(s.start_s, s.end_s, s.nodes) for s in job_spans("a", 3.0, None, None, [], 8.0)] == [
        (3.0, 8.0, 0)
    ]


@given(st.lists(st.tuples(st.integers(0, 5), sizes), max_size=5))
def test_rows_hold_what_jobs_hold_and_one_job_at_a_time(jobs):
    spans = [span for i, (at, ends) in enumerate(jobs) for span in sized(f"j-{i + 1}", float(at), ends)]
    rows = packed(spans, ["n0", "n1"])
    for before, after in pairwise(rows.node_spans):
        assert before.node != after.node or before.end_s <= after.start_s
    for t_s in {span.start_s + 0.5 for span in spans}:
        for job in {span.job for span in spans}:
            asked = sum(s.nodes for s in spans if s.job == job and s.start_s <= t_s < s.end_s)
            held = sum(s.job == job and s.start_s <= t_s < s.end_s for s in rows.node_spans)
            assert held == asked


def test_a_job_that_is_resized_keeps_the_rows_that_it_keeps():
    rows = packed([*sized("a-1", 0.0, [3, 1, 2]), *sized("b-2", 1.0, [2])], ["n0", "n1", "n2"])
    assert {(s.node, s.start_s, s.end_s) for s in rows.node_spans if s.job == "b-2"} == {
        ("n1", 2.0, 3.0),
        ("n2", 2.0, 3.0),
    }
    assert [s for s in rows.node_spans if s.node == "n0"] == [
        NodeSpan(node="n0", start_s=1.0, end_s=4.0, job="a-1")
    ]


def a_past() -> Spans:
    return Spans(
        end_s=10.0,
        nodes=("w0", "w1", "w2"),
        node_spans=(
            NodeSpan(node="w0", start_s=0.0, end_s=10.0, job="a-1"),
            NodeSpan(node="w1", start_s=0.0, end_s=10.0, job="a-1"),
            NodeSpan(node="w2", start_s=0.0, end_s=10.0, job=None),
        ),
        labels={"a-1": "a", "b-2": "b"},
        job_spans=(
            JobSpan(job="a-1", start_s=0.0, end_s=10.0, nodes=2),
            JobSpan(job="b-2", start_s=4.0, end_s=10.0, nodes=0),
        ),
    )


def a_future() -> Spans:
    return Spans(
        start_s=10.0,
        job_spans=(
            JobSpan(job="a-1", start_s=10.0, end_s=15.0, nodes=2, predicted=True),
            JobSpan(job="b-2", start_s=10.0, end_s=15.0, nodes=0, predicted=True),
            JobSpan(job="b-2", start_s=15.0, end_s=20.0, nodes=3, predicted=True),
        ),
        labels={"a-1": "a", "b-2": "b"},
    )


def test_a_prediction_goes_on_from_the_nodes_that_jobs_hold():
    whole = a_past().followed_by(a_future(), 10.0)
    assert (whole.now_s, whole.end_s, whole.nodes) == (10.0, 20.0, ("w0", "w1", "w2"))
    coming = [(s.node, s.job, s.start_s, s.end_s) for s in whole.node_spans if s.predicted]
    assert coming == [
        ("w0", "a-1", 10.0, 15.0),
        ("w0", "b-2", 15.0, 20.0),
        ("w1", "a-1", 10.0, 15.0),
        ("w1", "b-2", 15.0, 20.0),
        ("w2", "b-2", 15.0, 20.0),
    ]
    assert [s for s in whole.node_spans if not s.predicted] == list(a_past().node_spans)


def test_the_interval_of_an_end_is_in_every_picture_and_in_its_words():
    rows = [
        {"id": "a-1", "nodes": 2, "forecast": {"ends_s": [113.0, 115.0, 118.0]}},
        {"id": "b-2", "nodes": 0, "forecast": {"ends_s": [115.0, 120.0, 130.0]}},
    ]
    ends = ends_of(rows, origin_s=100.0)
    assert ends == (End(job="a-1", low_s=13.0, expected_s=15.0, high_s=18.0),), "of jobs that run"
    assert a_past().with_ends(ends) == a_past(), "where nothing is predicted no end is drawn"
    whole = a_past().followed_by(a_future(), 10.0).with_ends(ends)
    assert (whole.end_s, whole.shifted(2.0).ends[0].high_s) == (20.0, 20.0)
    assert whole.of_job("a-1").ends == ends
    picture = TimelinePicture(whole, "Nodes")
    assert picture._repr_html_().count("ends at 15 s, 13 s to 18 s") >= 3, "table, words, whisker"
    whiskers = re.findall(r'x1="(\d+)%" x2="(\d+)%" .*class="whisker"', picture.svg())
    assert whiskers == [("65", "90"), ("65", "65"), ("75", "75"), ("90", "90")]
    drawn = [list(line.get_xdata()) for line in spans_figure(whole).axes[0].lines]
    assert [13.0, 18.0] in drawn
    late = (replace(ends[0], high_s=1000.0),)
    assert a_past().followed_by(a_future(), 10.0).with_ends(late).end_s == 25.0, "and the rest can be read"


def test_of_one_job_its_nodes_and_its_time_are_left():
    own = a_past().of_job("b-2")
    assert (own.start_s, own.end_s, own.nodes, own.node_spans) == (4.0, 10.0, (), ())
    other = a_past().of_job("a-1")
    assert other.nodes == ("w0", "w1")
    assert list(other.labels) == ["a-1"]
    with pytest.raises(ValueError, match="job is 'c'; known here: a-1, b-2"):
        a_past().of_job("c")


@pytest.mark.parametrize("options", [None, Options(node_ids=True)], ids=["sizes", "nodes"])
def test_a_simulation_holds_in_the_picture_what_its_jobs_held(options):
    result = simulate(load("builtin:five-jobs"), "pwma-fpsma", options=options)
    spans = result.spans()
    held_node_s = sum((s.end_s - s.start_s) for s in spans.node_spans)
    asked_node_s = sum((s.end_s - s.start_s) * s.nodes for s in spans.job_spans)
    assert held_node_s == pytest.approx(asked_node_s)
    assert len(spans.nodes) == result.machine.nodes
    assert list(spans.labels) == [run.id for run in result.runs]


def test_beside_a_picture_stands_when_each_job_had_how_many_nodes():
    spans = (
        JobSpan(job="a", start_s=0.0, end_s=1.0, nodes=0),
        JobSpan(job="a", start_s=1.0, end_s=3.0, nodes=2),
        JobSpan(job="b", start_s=0.0, end_s=4.0, nodes=0),
    )
    picture = TimelinePicture(Spans(end_s=4.0, labels={"a": "a", "b": "b"}, job_spans=spans), "Jobs")
    html = picture._repr_html_()
    assert "2 nodes from 1 s to 3 s" in html
    assert html.count("none yet") == 1
