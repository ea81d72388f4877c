"""The modules of the panel on an empty page: what is drawn, said and sent for what the kernel tells."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from panel_states import ASSUMED_S, FCFS, MALLEABLE, ROWS, STATE

from dask_hpc.report.looks import look
from dask_hpc.trace.records import JobEvent, NodeEvent, encode_line
from dask_hpc_widgets import views
from dask_hpc_widgets.live import timeline
from dask_hpc_widgets.live.tables import TablesPart
from dask_hpc_widgets.live.timeline import TimelinePart
from dask_hpc_widgets.live.what_if import what_if
from dask_hpc_widgets.views import Picture

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")

#: Of the page, in px.
WIDTH = 1000
#: A page with a panel, of which one widget is drawn by a module; its model is a stub.
PAGE = "<div class='dask-hpc-panel'><button>Apply</button><div id='panel' style='width: 900px'></div></div>"
_RENDER = """async ([code, first]) => {
  const module = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  const heard = [];
  window.sent = [];
  window.tell = (message) => heard.forEach((hear) => hear(message));
  const model = { get: () => first, on: (_, hear) => heard.push(hear), send: (one) => window.sent.push(one) };
  window.end = module.default.render({ model, el: document.getElementById("panel") });
}"""
#: Colours of the pixels in a small box of the canvas.
_PIXELS = """(canvas, [x, y]) => {
  const scale = canvas.width / canvas.clientWidth, pen = canvas.getContext("2d");
  const { data } = pen.getImageData((x - 3) * scale, (y - 5) * scale, 6 * scale, 10 * scale);
  const hex = (one) => one.toString(16).padStart(2, "0");
  const color = (_, i) => `#${[...data.slice(4 * i, 4 * i + 3)].map(hex).join("")}`;
  return [...new Set(Array.from({ length: data.length / 4 }, color))];
}"""
NODES = ("n0", "n1", "n2", "n3")
LEFT, MARKS, HEAD, ROW = 90, 12, 16, 18
JOBS = [
    {"id": "j-1", "name": "heat", "state": "running", "submit_s": 1.0, "min_nodes": 1, "max_nodes": 4},
    {"id": "j-2", "name": "late", "state": "pending", "submit_s": 80.0, "min_nodes": 2, "max_nodes": 2},
]


def picture(records, number, now_s, whole=False):
    happened = {"lines": [encode_line(one) for one in records], "number": number, "whole": whole}
    status = {"now_s": now_s, "nodes_at_work": 4, "pool_nodes": 4, "jobs_pending": 1}
    return Picture(status=status, happened=happened, jobs=JOBS)


#: The job had two nodes for half of its time, one of which was lost for a while.
PAST = [
    NodeEvent(t_s=0.0, nodes=NODES),
    JobEvent(t_s=1.0, job="j-1", name="heat", state="pending"),
    NodeEvent(t_s=20.0, nodes=("n0", "n1"), job="j-1"),
    JobEvent(t_s=20.0, job="j-1", name="heat", state="running", nodes=2),
    NodeEvent(t_s=50.0, nodes=("n1",), job="j-1", state="lost"),
    NodeEvent(t_s=60.0, nodes=("n1", "n2", "n3"), job="j-1"),
    JobEvent(t_s=60.0, job="j-1", name="heat", state="running", nodes=4),
    JobEvent(t_s=80.0, job="j-2", name="late", state="pending"),
]


class Shown:
    """A timeline in the page, and the kernel's end of it."""

    def __init__(self, page, part, monkeypatch):
        self.page, self.part, self.messages = page, part, []
        monkeypatch.setattr(part.box, "send", self.messages.append)
        page.set_content(PAGE)
        page.evaluate(_RENDER, [part.box._esm, json.loads(json.dumps(part.box.whole()))])
        self.figure = page.get_by_role("group", name="Timeline")
        self.canvas = self.figure.locator("canvas")

    def hear(self, answer):
        """An answer of the cluster; gives the messages that it comes to, which the page hears."""
        self.messages.clear()
        self.part.heard(answer)
        return self.tell(*self.messages)

    def tell(self, *messages):
        for message in messages:
            self.page.evaluate("(message) => window.tell(message)", message)
        return list(messages)

    def sent(self):
        return self.page.evaluate("window.sent.splice(0)")

    def x(self, t_s):
        begin, end = (float(self.figure.get_attribute(f"data-{name}")) for name in ("from", "to"))
        width = self.canvas.bounding_box()["width"]
        return LEFT + (width - LEFT) * (t_s - begin) / (end - begin)

    def colors(self, t_s, row, lane=None):
        """Colours of a node's row at a time; `lane`: of the chart of that number, where there are two."""
        top = MARKS + ROW * row + (0 if lane is None else HEAD + lane * (HEAD + ROW * len(NODES)))
        return set(self.canvas.evaluate(_PIXELS, [self.x(t_s), top + ROW / 2]))

    def said_at(self, t_s, row, lane=None):
        top = MARKS + ROW * row + (0 if lane is None else HEAD + lane * (HEAD + ROW * len(NODES)))
        self.canvas.hover(position={"x": self.x(t_s), "y": top + ROW / 2})
        return self.figure.get_by_role("status").first.inner_text()


@pytest.fixture
def shown(page, monkeypatch):
    part = TimelinePart(picture(PAST, 8, 100.0, whole=True))
    monkeypatch.setattr(timeline, "AnyWidget", object)
    there = Shown(page, part, monkeypatch)
    yield there
    page.evaluate("window.end()")
    part.box.close()


def jobs(count, **more):
    row = {
        "state": "running", "kind": "malleable", "nodes": 2, "min_nodes": 1, "max_nodes": 4,
        "constraint": "any", "below_minimum": False, "submit_s": 1.0, "start_s": 2.0, "end_s": None,
        "wait_s": 1.0, "expansions": 0, "shrinks": 0, "reason": "", "unfinished_tasks": 9, **more,
    }  # fmt: skip
    return [{"id": f"job-{i + 1}", "name": f"job-{i + 1}", **row} for i in range(count)]


class Tables(Shown):
    """The tables in the page, and the kernel's end of them."""

    def rows(self):
        """Name and nodes of each job in the page."""
        rows = self.page.locator("tbody tr")
        cells = rows.evaluate_all("(rows) => rows.map((row) => [...row.cells].map((one) => one.innerText))")
        return [(job.split()[1], int(nodes.split()[0])) for job, _, nodes, *_ in cells]


def of_jobs(rows, now_s):
    return Picture(status={"now_s": now_s}, jobs=rows, ended_jobs=0)


@pytest.fixture
def tables(page, monkeypatch):
    part = TablesPart([views.named("jobs")], of_jobs(jobs(4), 10.0), ["jobs"])
    there = Tables(page, part, monkeypatch)
    yield there
    page.evaluate("window.end()")
    part.box.close()


HEAT, LATE, WHITE = look("j-1").color.lower(), look("j-2").color.lower(), "#ffffff"


def test_white_is_idle_and_every_other_colour_is_the_jobs(shown):
    assert shown.colors(15.0, 0) == shown.colors(40.0, 2) == {WHITE}
    assert HEAT in shown.colors(40.0, 0)
    assert HEAT in shown.colors(80.0, 3)
    assert HEAT in shown.colors(40.0, 1)
    assert HEAT not in shown.colors(55.0, 1), "what is lost does not work"
    assert "A heat lost" in shown.said_at(55.0, 1)
    assert "no job" in shown.said_at(40.0, 2)
    assert "A heat" in shown.said_at(40.0, 0)


def test_what_is_predicted_is_right_of_now_and_what_has_come_covers_it(shown):
    shown.part.predict(what_if(STATE, ROWS, FCFS, MALLEABLE, ASSUMED_S).forecast)
    shown.hear(picture([], 8, 101.0))
    assert shown.figure.get_attribute("data-lanes") == "2"
    # the past is the same in both, what comes is not
    for lane in (0, 1):
        assert shown.colors(40.0, 2, lane) == {WHITE}
        assert HEAT in shown.colors(80.0, 2, lane)
    assert LATE not in shown.colors(105.0, 2, 0)
    assert LATE in shown.colors(105.0, 2, 1)
    assert "as chosen: B late" in shown.said_at(105.0, 2, 1)
    assert "as it runs: A heat" in shown.said_at(105.0, 2, 0)
    # the job has all nodes up to now, whatever was predicted of it
    shown.hear(picture([], 8, 104.0))
    assert LATE not in shown.colors(102.0, 2, 1)
    assert HEAT in shown.colors(102.0, 2, 1)
    assert LATE in shown.colors(107.0, 2, 1)
    for ends_s, said in (
        ([110.0, 119.0, 129.0], "A heat ends in 15 s (6 s to 25 s)"),
        ([104.0, 104.1, 104.4], "A heat is about to end"),
    ):
        heat = {**JOBS[0], "forecast": {"text": "predicted 99 s", "ends_s": ends_s}}
        shown.hear(replace(picture([], 8, 104.0), jobs=[heat, JOBS[1]]))
        assert said in shown.figure.locator("p").first.inner_text()
    # half of a window that follows now is of what comes
    shown.figure.get_by_label("Range").select_option("1 min")
    shown.hear(picture([], 8, 105.0))
    assert [float(shown.figure.get_attribute(f"data-{name}")) for name in ("from", "to")] == [75.0, 135.0]


def test_a_page_that_has_lost_news_asks_for_all_of_it_once_and_has_it_then(shown):
    lost = replace(PAST[-1], t_s=101.0, job="j-3", name="gone")
    shown.messages.clear()
    shown.part.heard(picture([lost], 9, 101.0))
    shown.hear(picture([replace(lost, t_s=102.0, job="j-4", name="last")], 10, 102.0))
    shown.hear(picture([], 10, 103.0))
    assert shown.sent() == [{"ask": "all"}]
    assert "last" not in shown.figure.inner_text()
    shown.messages.clear()
    shown.part._asked({"ask": "all"}, why=None)
    # and what it hears twice it knows once
    for _ in range(2):
        shown.tell(*shown.messages)
    text = shown.figure.locator("p").first.inner_text()
    assert text.startswith("At work: A heat on 4. Waiting: B late for ")
    assert [text.count(f" {name} for ") for name in ("late", "gone", "last")] == [1, 1, 1]
    again = replace(PAST[-1], t_s=103.5)
    decided = {
        "t_s": 103.5, "job": "j-2", "action": "shrink", "nodes": 1, "result": "done", "reason": "so it is",
    }  # fmt: skip
    shown.tell(*shown.hear(replace(picture([again], 11, 104.0), decisions=[decided])))
    assert shown.figure.get_attribute("data-marks") == "1"
    text = shown.figure.locator("p").first.inner_text()
    assert "B late for 24 s" in text, "it waits since it came, whatever is told of it again"
    assert shown.sent() == []


def test_what_came_of_an_act_is_told_beside_the_answer_that_is_waited_for(shown):
    choose, ask = shown.figure.get_by_role("combobox", name="Job"), "What blocks it?"
    choose.select_option("j-2")
    shown.figure.get_by_role("button", name=ask).click()
    assert shown.sent() == [{"ask": "why", "job": "j-2"}]
    answer = {"why": "j-1", "text": "heat is cancelled.", "confirm": "", "came": True, "nodes": ""}
    shown.tell({**answer, "text": "Of another job.", "came": False}, answer)
    text = shown.figure.inner_text()
    assert "Of another job." not in text
    assert "heat is cancelled." in text
    assert "Asked about B late" in text
    shown.tell({**answer, "why": "j-2", "text": "late waits.", "came": False})
    text = shown.figure.inner_text()
    assert "late waits." in text
    assert "heat is cancelled." in text
    assert "Asked about" not in text
    for number in range(8):
        shown.tell({**answer, "text": f"heat was not resized: {number}."})
    text = shown.figure.inner_text()
    assert "heat was not resized: 7." in text
    assert "heat is cancelled." not in text, "the latest alone"
    # who goes on to another job is not asked about this one any more
    shown.tell({**answer, "why": "j-2", "text": "Cancel late?", "confirm": "cancel", "came": False})
    sure = shown.figure.get_by_role("group", name="Cancel late?")
    assert sure.is_visible()
    choose.select_option("j-1")
    assert not sure.is_visible()


def test_the_nodes_to_ask_for_are_those_of_the_job_until_others_are_typed_and_one_is_one_node(shown):
    shown.figure.get_by_role("combobox", name="Job").select_option("j-1")
    nodes = shown.figure.get_by_label("Nodes", exact=True)
    assert nodes.input_value() == "4"
    resized = JobEvent(t_s=101.0, job="j-1", name="heat", state="running", nodes=3)
    shown.hear(picture([resized], 9, 101.0))
    assert nodes.input_value() == "3"
    nodes.fill("1")
    shown.hear(picture([replace(resized, t_s=102.0, nodes=2)], 10, 102.0))
    assert nodes.input_value() == "1"
    shown.figure.get_by_role("button", name="Resize job").click()
    assert "Asked for 1 node for A heat." in shown.figure.inner_text()
    assert shown.sent() == [{"ask": "resize", "nodes": "1", "job": "j-1"}]


def test_a_click_that_waits_says_so_until_it_is_taken_and_one_that_does_not_says_nothing(shown):
    button, said = shown.page.get_by_role("button", name="Apply"), shown.figure.get_by_role("status").first

    def marked():
        return "dask-hpc-waits" in (button.get_attribute("class") or "")

    for late in (False, True):
        button.click()
        (asked,) = shown.sent()
        assert asked["ask"] == "here"
        if not late:
            shown.tell({"here": asked["n"], "of": asked["of"]})
        # every answer is news: the page is not left alone meanwhile
        shown.page.wait_for_timeout(1100)
        shown.hear(picture([], 8, 102.0 + late))
        assert marked() == late
        assert said.inner_text().startswith("What was clicked waits for the cell that runs.") == late
    # the answer to a click in another view of the panel is not this one's
    shown.tell({"here": asked["n"], "of": "another"})
    assert marked()
    shown.tell({"here": asked["n"], "of": asked["of"]})
    assert not marked()
    assert "waits" not in said.inner_text()
    # where nothing comes any more no kernel may be there to wait for
    button.click()
    shown.page.wait_for_timeout(1100)
    assert marked()
    shown.page.evaluate("window.now = Date.now; Date.now = () => window.now.call(Date) + 9000")
    shown.page.locator(".dask-hpc-live.old").wait_for()
    assert said.inner_text().startswith("Nothing new for ")
    assert not marked()
    shown.sent()
    button.click()
    assert shown.sent() == []
    shown.page.evaluate("Date.now = window.now")


def test_a_window_of_time_follows_now_until_it_is_moved(shown):
    shown.figure.get_by_label("Range").select_option("1 min")
    shown.hear(picture([], 8, 120.0))
    ends = [float(shown.figure.get_attribute(f"data-{name}")) for name in ("from", "to")]
    assert ends == [60.0, 120.0]
    shown.figure.get_by_role("button", name="Earlier").click()
    shown.hear(picture([], 8, 130.0))
    assert [float(shown.figure.get_attribute(f"data-{name}")) for name in ("from", "to")] == [45.0, 105.0]
    assert shown.figure.get_by_label("Range").input_value() == ""


def test_rows_of_a_table_are_those_of_the_cluster_also_after_news_was_lost(tables):
    rows = jobs(4)
    assert tables.rows() == [(f"job-{i + 1}", 2) for i in range(4)]
    rows[1] = {**rows[1], "nodes": 3}
    tables.hear(of_jobs([*rows[:3], *jobs(6)[4:]], 11.0))
    assert tables.rows() == [("job-1", 2), ("job-2", 3), ("job-3", 2), ("job-5", 2), ("job-6", 2)]
    tables.hear(of_jobs([rows[1], *jobs(6)[4:]], 11.2))
    assert tables.rows() == [("job-2", 3), ("job-5", 2), ("job-6", 2)]
    tables.hear(of_jobs([*rows[:3], *jobs(6)[4:]], 11.4))
    assert tables.sent() == []
    tables.messages.clear()
    tables.part.heard(of_jobs(rows[2:], 12.0))
    tables.hear(of_jobs([{**rows[2], "nodes": 1}], 13.0))
    tables.hear(of_jobs([{**rows[2], "nodes": 1}], 14.0))
    assert tables.sent() == [{"ask": "all"}]
    assert len(tables.rows()) == 5, "what cannot be placed is left out"
    tables.messages.clear()
    tables.part._asked({"ask": "all"})
    tables.tell(*tables.messages)
    assert tables.rows() == [("job-3", 1)]
