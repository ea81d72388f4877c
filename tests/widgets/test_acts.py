"""Cancel and resize of a job from the panel: nothing is lost unasked, what came of it is said."""

from __future__ import annotations

import pytest
from panel_work import until, working

from dask_hpc_widgets.live import acts, questions

ROW = {
    "id": "heat-1", "name": "heat", "state": "running", "nodes": 4, "min_nodes": 1, "max_nodes": 4,
    "unfinished_tasks": 70, "processing_tasks": 4,
}  # fmt: skip


@pytest.fixture
def page(panel, monkeypatch):
    """What a page sends and hears: a function of a message, which gives all answers to it."""
    heard = []
    monkeypatch.setattr(panel.timeline.box, "send", heard.append, raising=False)

    def send(**message):
        heard.clear()
        panel.timeline.box._handle_custom_msg(message, [])
        return [one for one in heard if "why" in one]

    return send


def nodes(rt, job):
    return rt.find(job.id).status()["nodes"]


def test_a_job_is_cancelled_only_after_what_is_lost_was_said_and_agreed_to(rt, page):
    heat = working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: nodes(rt, heat) == 4, "it runs")
    (asked,) = page(ask="cancel", job=heat.id)
    assert asked["confirm"] == "cancel"
    assert f"Cancel heat ({heat.id})? It cannot be taken back." in asked["text"]
    assert "It gives up its 4 nodes." in asked["text"]
    assert "tasks of it will not be finished, " in asked["text"]
    (again,) = page(ask="cancel", job=heat.id, agreed="no")
    assert again["confirm"] == "cancel", "only a yes is one"
    assert rt.find(heat.id).status()["state"] == "running"
    (done,) = page(ask="cancel", job=heat.id, agreed=True)
    assert done["text"].startswith(f"heat ({heat.id}) is cancelled: ")
    assert rt.find(heat.id).status()["state"] == "cancelled"
    (over,) = page(ask="cancel", job=heat.id)
    assert "there is nothing to cancel" in over["text"]
    assert not over["confirm"]


def test_a_resize_is_done_or_refused_in_words(rt, page, monkeypatch):
    heat = working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: nodes(rt, heat) == 4, "it runs")
    page(ask="resize", job=heat.id, nodes="2")
    waits, done = page(ask="resize", job=heat.id, nodes="2", agreed=True)
    assert "Waiting until" in waits["text"]
    # a page shows what came of it also when it is asked about another job by then
    assert (waits["came"], done["came"]) == (False, True)
    assert done["text"] == f"heat ({heat.id}) has 2 nodes now; it had 4."
    assert nodes(rt, heat) == 2
    # as many as it has: the scheduler says so
    assert "was not resized to 2 nodes: " in page(ask="resize", job=heat.id, nodes="2")[-1]["text"]

    async def never(*arguments):
        raise AssertionError("it is known before that this cannot be")

    monkeypatch.setattr(questions, "resize", never)
    for text in ("5", "0", "-1", "2.5", "", "two", "²", "9" * 400):
        (no,) = page(ask="resize", job=heat.id, nodes=text)
        assert "allowed: a whole number from 1 (its min_nodes) to 4 (its max_nodes)" in no["text"]
        assert len(no["text"]) < 300
        assert no["came"], "a page shows it whatever else was asked"


def test_no_job_loses_nodes_by_a_resize_before_a_person_agrees_to_just_that(rt, page):
    heat = working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: nodes(rt, heat) == 4, "it runs")
    lines = [
        "A job loses nodes at once. Go ahead?",
        f"{heat.id} (heat) shrinks from 4 to 2 nodes: the user asked for 2 nodes",
    ]
    for more in ({}, {"agreed": "yes"}, {"agreed": True, "nodes": "3"}, {"nodes": "2"}):
        (asked,) = page(**{"ask": "resize", "job": heat.id, "nodes": "2", **more})
        assert asked["confirm"] == "resize"
        assert asked["nodes"] == more.get("nodes", "2"), "a yes is about these"
        assert nodes(rt, heat) == 4
    assert asked["text"].split("\n") == lines
    assert "has 2 nodes now" in page(ask="resize", job=heat.id, nodes="2", agreed=True)[-1]["text"]
    # a yes is one for once, and who takes from nobody is not asked
    assert page(ask="resize", job=heat.id, nodes="1", agreed=True)[0]["confirm"] == "resize"
    assert "has 3 nodes now" in page(ask="resize", job=heat.id, nodes="3")[-1]["text"]


def test_without_a_time_for_unknown_jobs_nothing_is_resized(rt, panel, page):
    heat = working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    panel.tuning.assumed.field.value = "garbage"
    (no,) = page(ask="resize", job=heat.id, nodes="2")
    assert no["text"].startswith("Nothing was resized: parameter ")
    assert no["came"]


def test_a_job_that_is_not_there_is_neither_cancelled_nor_resized(page):
    for asked, told in (
        ({"ask": "cancel"}, "Nothing was cancelled: "),
        ({"ask": "cancel", "agreed": True}, "gone-9 was not cancelled: "),
        ({"ask": "resize", "nodes": "1"}, "Nothing was resized: "),
    ):
        (answer,) = page(job="gone-9", **asked)
        assert answer["text"].startswith(told)
        assert answer["came"], "a page shows it whatever else was asked"


def test_what_came_of_a_resize_says_why_it_was_taken_back():
    told = acts.came_of(ROW, 2, {"result": "aborted", "reason": "a worker was lost"})
    assert told == "The resize of heat (heat-1) to 2 nodes was taken back: a worker was lost."


def test_a_job_without_work_or_nodes_loses_none():
    told = acts.loss({**ROW, "nodes": 0, "unfinished_tasks": 0, "processing_tasks": 0})
    assert "gives up" not in told
    assert "No task of it is left unfinished." in told
