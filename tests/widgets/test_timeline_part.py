"""What the timeline of the panel tells the browser: all of it, once, in small pieces, and from any thread."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dask_hpc.trace.records import JobEvent, NodeEvent, Other, encode_line
from dask_hpc_widgets.live import timeline
from dask_hpc_widgets.live.events import Events
from dask_hpc_widgets.live.known import Known
from dask_hpc_widgets.live.timeline import TimelinePart
from dask_hpc_widgets.views import Picture


def picture(records, number, whole=False, now_s=10.0):
    happened = {"lines": [encode_line(one) for one in records], "number": number, "whole": whole}
    return Picture(status={"now_s": now_s}, happened=happened)


def a_beginning():
    return [
        NodeEvent(t_s=0.0, nodes=("n0", "n1")),
        JobEvent(t_s=1.0, job="heat-1", name="heat", state="pending"),
        NodeEvent(t_s=2.0, nodes=("n0", "n1"), job="heat-1"),
        JobEvent(t_s=2.0, job="heat-1", name="heat", state="running", nodes=2),
    ]


@pytest.fixture
def part():
    made = TimelinePart(picture(a_beginning(), 4, whole=True))
    yield made
    made.box.close()


def resize(job: int, change: int) -> NodeEvent:
    nodes = tuple(f"n{(7 * change + i) % 500}" for i in range(4))
    return NodeEvent(t_s=float(change), nodes=nodes, job=f"job-{job + 1}")


def test_the_static_twin_has_everything_that_was_heard(part):
    part.heard(picture([NodeEvent(t_s=5.0, nodes=("n1",))], 5))
    html = part.html()
    assert part.number == 5
    assert "n1: no named job, up, 5.0 s to 10.0 s" in html
    assert "A heat" in html
    decided = {
        "t_s": 5.0, "job": "heat-1", "action": "shrink", "nodes": 1, "result": "done", "reason": "late waits",
    }  # fmt: skip
    part.heard(replace(picture([], 5), decisions=[decided]))
    html = part.html()
    assert "5.0 s: shrink heat to 1: late waits" in html, "decisions are marked"
    part.heard(ConnectionError("gone"))
    assert part.html() == html, "an error tells nothing new"


def test_what_is_drawn_is_told_when_it_changes_and_the_twin_has_a_lane_of_it(part):
    news = [
        Other(kind="corridor", data={"t_s": 3.0, "lower_w": 100.0, "upper_w": 400.0, "mode": "enforce"}),
        Other(kind="draw", data={"t_s": 4.0, "draw_w": 250.4}),
        Other(kind="draw", data={"t_s": 5.0, "draw_w": 250.2, "energy_j": 1.0}),
        Other(kind="draw", data={"t_s": "soon", "draw_w": 1.0}),
        Other(kind="corridor", data={"t_s": 5.5, "lower_w": 100.0, "upper_w": 1e9, "mode": "enforce"}),
        Other(kind="corridor", data={"t_s": 6.0, "lower_w": None, "upper_w": None, "mode": "none"}),
    ]
    part.heard(picture(news, 10))
    told = [event for event in part._events.all if event[0] == "watts"]
    assert told == [
        ["watts", 100, None, 100, 400],
        ["watts", 100, 250, 100, 400],
        ["watts", 150, 250, 100, None],
        ["watts", 50, None, None, None],
    ]
    assert "250 W, 4.0 s to 5.0 s" in part.html()


def test_what_is_no_longer_kept_there_begins_anew(part):
    part.heard(picture([NodeEvent(t_s=9.0, nodes=("m0",))], 900, whole=True))
    assert "n1" not in part.html()
    assert part.number == 900


def test_names_are_told_once_and_pieces_are_small(part, monkeypatch):
    sent = []
    monkeypatch.setattr(timeline, "AnyWidget", object)
    monkeypatch.setattr(part.box, "send", sent.append, raising=False)
    first = [event for event in part._events.all if event[0] in ("job", "node")]
    assert first == [["node", "n0"], ["node", "n1"], ["job", "heat-1", "heat", "A", "#E69F00", 0]]
    changes = [resize(job, change) for change in range(80) for job in range(100)]
    part.heard(picture(changes, 8004, now_s=80.0))
    assert max(len(json.dumps(one)) for one in sent) <= 8_000
    told = [event for one in sent for event in one["events"]]
    assert [one["since"] for one in sent[1:]] == [one["since"] + len(one["events"]) for one in sent[:-1]]
    assert [*first, *told] == [*first, *part._events.all[-len(told) :]]
    # what a page is filled with at 100 jobs, 500 nodes and 80 changes a job
    assert len(json.dumps(part._events.all, separators=(",", ":"))) <= 300_000


def test_what_is_known_of_a_job_is_told_once_and_again_to_a_page_that_asks(part, monkeypatch):
    sent = []
    monkeypatch.setattr(timeline, "AnyWidget", object)
    monkeypatch.setattr(part.box, "send", sent.append, raising=False)
    row = {
        "id": "heat-1", "name": "heat", "state": "running", "submit_s": 1.0, "min_nodes": 1, "max_nodes": 4,
        "forecast": {"text": "predicted 4.0 min", "ends_s": [200.04, 240.0, 300.0]},
    }  # fmt: skip
    unknown = {**row, "id": "late-2"}

    def known(number, *rows):
        sent.clear()
        part.heard(replace(picture([], number), jobs=list(rows)))
        return [one["known"] for one in sent if "known" in one]

    told = [0, 1, 4, "predicted 4.0 min", [200.0, 240.0, 300.0]]
    assert known(4, row, unknown) == [[told]], "a job is told with its name first"
    assert known(4, row, unknown) == [], "what is known is not told again"
    hardly = {**row, "forecast": {"text": "predicted 4.0 min", "ends_s": [201.0, 244.0, 299.0]}}
    assert known(4, hardly, unknown) == [], "an interval that looks the same is not told again"
    later = {**row, "forecast": {"text": "predicted 4.0 min, took 4.2 min"}}
    assert known(4, later) == [[[0, 1, 4, "predicted 4.0 min, took 4.2 min", None]]]
    sent.clear()
    part._asked({"ask": "all"}, why=None)
    assert sent[-1] == {"known": [[0, 1, 4, "predicted 4.0 min, took 4.2 min", None]]}
    assert part._whole()["known"] == sent[-1]["known"]
    assert known(4) == part._whole()["known"] == [], "nothing is kept of jobs that are not shown"


def test_where_much_is_predicted_an_update_tells_of_some_jobs_and_of_each_soon():
    events, known, told = Events(), Known(), []
    for i in range(60):
        events.job(f"j-{i + 1}", "")
    for step in range(6):
        forecast = {"text": "", "ends_s": [100.0 + 10 * step] * 3}
        rows = [
            {"id": f"j-{i + 1}", "min_nodes": 1, "max_nodes": 4, "forecast": forecast} for i in range(60)
        ]
        told.append({row[0] for row in known.news(rows, events, anew=step == 0)})
    assert [len(one) for one in told] == [60, 20, 20, 20, 20, 20]
    assert set().union(*told[1:4]) == set().union(*told[3:]) == told[0]
    assert len(known.all) == 60


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(timeline, "_KEPT", 50)


def test_memory_is_bounded(small, part):
    for change in range(1000):
        part.heard(picture([resize(change % 3, change)], 5 + change, now_s=float(change)))
        assert len(part._events.all) <= 300
        assert len(part._records()) <= 50
    assert "j" in part.html()
