"""The report shows what the trace says, to everyone, and nothing that a name smuggles in."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError

from dask_hpc.report.figure import compared_figure, node_map_figure
from dask_hpc.report.looks import COLORS, PATTERNS, looks, printable, ticks
from dask_hpc.report.markup import render, render_macro
from dask_hpc.report.page import build_report, write_report
from dask_hpc.report.svg import Drawing, Label, Rect
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Other, Pass, Record, Result
from dask_hpc_policies.decision import (
    Decision,
    Expand,
    Hold,
    Outcome,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Suppressed,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

HOSTILE = '<script>alert("1")</script>&\x00\x1b[31m\ud800"\'\u202egnp.exe</svg>'

FITS = Reason(ReasonCode.FITS, "2 of 2 idle nodes are enough")
WAITS = Reason(ReasonCode.HEAD_JOB_WAITS, "job b waits for 1 node")
IDLE = Reason(ReasonCode.IDLE_NODES, "1 idle node")
FULL = Reason(ReasonCode.NOT_ENOUGH_NODES, "0 of 1 nodes are idle")
DONE = Reason(ReasonCode.DONE, "finished")


def a_pass(t_s: float, trigger: str, *actions, suppressed=(), jobs=(), nodes=()) -> Pass:
    return Pass(
        policy={"policy": "pwma-fpsma", "step": "max"},
        snapshot=ClusterSnapshot(now_s=t_s, trigger=trigger, jobs=jobs, nodes=nodes),
        decision=Decision(actions=actions, suppressed=tuple(suppressed)),
        decide_s=0.0002,
    )


def result(t_s: float, action, outcome: str = "done", reason: Reason = DONE) -> Result:
    return Result(t_s=t_s, outcome=Outcome(action=action, result=outcome, reason=reason, latency_s=0.1))


def a_run(first_name: str = "heat", second_name: str = "bootstrap") -> list[Record]:
    """Job a starts on both nodes, is shrunk for job b, grows again when b is done; a node is lost."""
    start_a = Start(job="a", nodes=2, reason=FITS)
    shrink_a = Shrink(job="a", nodes=1, reason=WAITS)
    start_b = Start(job="b", nodes=1, reason=FITS)
    expand_a = Expand(job="a", nodes=2, reason=IDLE)
    view_a = JobView(id="a", name=first_name, kind="malleable", min_nodes=1, max_nodes=2)
    view_b = JobView(id="b", name=second_name, kind="rigid", min_nodes=1, max_nodes=1)
    return [
        Header(started="2026-01-01T00:00:00+00:00", versions={"dask_hpc": "0.1.0"}),
        NodeEvent(t_s=100.0, nodes=("w0",)),
        NodeEvent(t_s=100.0, nodes=("w1",)),
        JobEvent(t_s=101.0, job="a", name=first_name, state="pending"),
        a_pass(101.0, "submit", start_a, jobs=(view_a,)),
        NodeEvent(t_s=101.0, nodes=("w0",), job="a"),
        NodeEvent(t_s=101.0, nodes=("w1",), job="a"),
        JobEvent(t_s=101.0, job="a", name=first_name, state="running", nodes=2),
        result(101.1, start_a),
        JobEvent(t_s=104.0, job="b", name=second_name, state="pending"),
        a_pass(104.0, "submit", shrink_a, Hold(job="b", reason=FULL), jobs=(view_a, view_b)),
        a_pass(104.5, "tick", Hold(job="b", reason=FULL), jobs=(view_a, view_b)),
        NodeEvent(t_s=104.0, nodes=("w1",), job="a", state="draining"),
        NodeEvent(t_s=105.0, nodes=("w1",)),
        JobEvent(t_s=105.0, job="a", name=first_name, state="running", nodes=1),
        result(105.0, shrink_a),
        a_pass(105.0, "tick", start_b, jobs=(view_a, view_b)),
        NodeEvent(t_s=105.0, nodes=("w1",), job="b"),
        JobEvent(t_s=105.0, job="b", name=second_name, state="running", nodes=1),
        result(105.0, start_b),
        JobEvent(t_s=107.0, job="b", name=second_name, state="completed"),
        NodeEvent(t_s=107.0, nodes=("w1",)),
        a_pass(
            107.0,
            "finish",
            expand_a,
            jobs=(view_a,),
            suppressed=[Suppressed(action=expand_a, reason=Reason(ReasonCode.COOLDOWN, "resized 2 s ago"))],
        ),
        NodeEvent(t_s=107.0, nodes=("w1",), job="a"),
        JobEvent(t_s=107.0, job="a", name=first_name, state="running", nodes=2),
        result(107.2, expand_a),
        NodeEvent(t_s=109.0, nodes=("w1",), job="a", state="lost"),
        JobEvent(t_s=109.0, job="a", name=first_name, state="running", nodes=1),
        JobEvent(t_s=111.0, job="a", name=first_name, state="completed"),
        NodeEvent(t_s=111.0, nodes=("w0",)),
    ]


def many_jobs(jobs: int, nodes: int) -> list[Record]:
    records: list[Record] = [Header(source="simulated")]
    records += [NodeEvent(t_s=0.0, nodes=(f"n{i}",)) for i in range(nodes)]
    for i in range(jobs):
        node, job = f"n{i % nodes}", f"j{i}"
        records += [
            JobEvent(t_s=float(i), job=job, name=f"job {i}", state="pending"),
            NodeEvent(t_s=i + 0.5, nodes=(node,), job=job),
            JobEvent(t_s=i + 0.5, job=job, name=f"job {i}", state="running", nodes=1),
            JobEvent(t_s=i + 1.0, job=job, name=f"job {i}", state="completed"),
            NodeEvent(t_s=i + 1.0, nodes=(node,)),
        ]
    return records


class Page(HTMLParser):
    """All tags with their attributes, and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def charts(page: str) -> list[ElementTree.Element]:
    """Every outermost SVG of the page, parsed as XML; fails when one is not well formed."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    found, depth, first = [], 0, 0
    for match in re.finditer(r"<svg\b|</svg>", page):
        depth += 1 if match.group() == "<svg" else -1
        if match.group() == "<svg" and depth == 1:
            first = match.start()
        elif depth == 0:
            found.append(ElementTree.fromstring(page[first : match.end()]))
    assert depth == 0
    return found


def node_chart(page: str) -> ElementTree.Element:
    return next(svg for svg in charts(page) if svg.get("aria-label", "").startswith("Node map"))


TRACES = {
    "run": a_run(),
    "hostile names": a_run(HOSTILE, "'><img src=http://example.org/x onerror=alert(1)>"),
    "empty": [],
    "header only": [Header()],
    "one node, no job": [Header(), NodeEvent(t_s=5.0, nodes=("w0",))],
    "jobs that never start": [JobEvent(t_s=0.0, job="x", name="x", state="pending")],
    "many jobs": many_jobs(150, 8),
    "many nodes": many_jobs(20, 700),
}


@pytest.mark.parametrize("records", TRACES.values(), ids=TRACES.keys())
def test_page_is_well_formed_and_needs_nothing_else(records):
    page = build_report(records, title="A run")
    assert charts(page) or not any(isinstance(r, NodeEvent) for r in records)
    parsed = Page(page)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "image", "use", "a", "form"}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "href", "xlink:href", "srcset", "action"}, (tag, name)
            assert "url(" not in (value or "") or re.fullmatch(r"url\(#\w+\)", value or ""), value
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)
    assert "@import" not in style
    assert set(re.findall(r"url\((.*?)\)", style)) <= {"#lost"}
    ids = {a["id"] for _, a in parsed.tags if a.get("id")}
    assert set(re.findall(r"url\(#(\w+)\)", page)) <= ids


def test_names_from_users_are_text_and_nothing_else():
    page = build_report(a_run(HOSTILE), title=HOSTILE, notes={HOSTILE: HOSTILE})
    assert page.count("<script") == 0
    assert not re.search("[\x00\x1b\ud800\u202e]", page)
    page.encode("utf-8")
    assert '<script>alert("1")</script>&' in Page(page).text


def test_node_map_shows_each_holder_for_the_right_time():
    rects = [
        (rect.findtext("title"), float(rect.get("x").rstrip("%")), float(rect.get("width").rstrip("%")))
        for rect in node_chart(build_report(a_run())).iter("rect")
        if rect.find("title") is not None
    ]
    about = [title for title, _, _ in rects]
    # The trace runs from 100 s to 111 s; positions are percentages of 11 s.
    assert about == [
        "w0: no named job, up, 0.0 s to 1.0 s",
        "w0: heat, up, 1.0 s to 11.0 s",
        "w1: no named job, up, 0.0 s to 1.0 s",
        "w1: heat, up, 1.0 s to 4.0 s",
        "w1: heat, draining, 4.0 s to 5.0 s",
        "w1: bootstrap, up, 5.0 s to 7.0 s",
        "w1: heat, up, 7.0 s to 9.0 s",
        "w1: heat, lost, 9.0 s to 11.0 s",
    ]
    assert rects[5][1:] == (pytest.approx(500 / 11, abs=1e-3), pytest.approx(200 / 11, abs=1e-3))


def test_nothing_is_told_by_colour_alone():
    page = build_report(a_run())
    fills = {r.get("fill") for r in node_chart(page).iter("rect") if r.get("fill")}
    texts = {t.text for t in node_chart(page).iter("text")}
    assert len(fills) == 2
    assert {"A heat", "B bootstrap", "lost"} <= texts
    styles = list(looks(job.run.id for job in build_timeline(many_jobs(42, 4)).jobs).values())
    assert len({style.letter for style in styles}) == 42
    assert len({(style.color, style.pattern) for style in styles}) == 42
    assert all(a.pattern != b.pattern for a, b in itertools.pairwise(styles))
    assert len(set(COLORS)) == 7
    assert len(set(PATTERNS)) == 6


def test_jobs_and_reasons_are_all_there():
    text = Page(build_report(a_run(), notes={"check": "equal"})).text
    for expected in (
        "shrink to 1 at 4.0 s: job b waits for 1 node",
        "expand to 2 at 7.0 s: 1 idle node",
        "hold (2 times)",
        "resized 2 s ago",
        "suppressed",
        "2 at 1.0 s → 1 at 5.0 s → 2 at 7.0 s → 1 at 9.0 s",
        "rigid, 1 node",
        "policy: pwma-fpsma, step: max",
        "check: equal",
        "dask_hpc",
    ):
        assert expected in text, expected


def test_timeline_agrees_with_the_events():
    timeline = build_timeline(a_run())
    heat, bootstrap = timeline.jobs
    assert (heat.run.submit_s, heat.run.start_s, heat.run.end_s) == (1.0, 1.0, 11.0)
    assert (bootstrap.run.wait_s, bootstrap.run.turnaround_s) == (1.0, 3.0)
    # a lost node is no shrink
    assert (heat.run.expansions, heat.run.shrinks) == (1, 1)
    assert timeline.levels() == [(0.0, 2, 0), (1.0, 2, 2), (9.0, 1, 1)]
    # held: 10 s on two nodes less the 2 s that w1 is lost; there: 10 s on two nodes less the same 2 s
    assert timeline.summary["utilization"] == pytest.approx(1.0)
    assert timeline.summary["makespan_s"] == pytest.approx(10.0)


def test_trace_that_lost_its_beginning_takes_nodes_from_the_snapshot():
    nodes = (NodeView(id="w0", job="a"), NodeView(id="w1", state="lost"))
    records = [a_pass(10.0, "tick", nodes=nodes), NodeEvent(t_s=14.0, nodes=("w0",))]
    spans = build_timeline(records).spans.node_spans
    assert [(s.node, s.job, s.state, s.start_s, s.end_s) for s in spans] == [
        ("w0", "a", "up", 0.0, 4.0),
        ("w1", None, "lost", 0.0, 4.0),
    ]


def test_nodes_are_in_natural_order():
    names = ["n10", "n9", "rack2-n1", "n1", "10.0.0.12:8786", "10.0.0.3:8786", "", "\u0661", "9" * 5000]
    timeline = build_timeline([NodeEvent(t_s=float(i), nodes=(name,)) for i, name in enumerate(names)])
    assert [n for n in timeline.spans.nodes if n[:1] == "n"] == ["n1", "n9", "n10"]
    assert [n for n in timeline.spans.nodes if n[:2] == "10"] == ["10.0.0.3:8786", "10.0.0.12:8786"]
    assert sorted(timeline.spans.nodes) == sorted(names)


def test_plain_work_is_called_so_in_decisions():
    plain = JobView(id="default-1", name="default", is_default=True)
    shrink = Shrink(job="default-1", nodes=1, reason=WAITS)
    records = [a_pass(1.0, "tick", jobs=(plain,)), result(2.0, shrink)]
    assert "plain work" in Page(build_report(records)).text
    assert "default-1" not in build_report(records)


def test_what_a_guard_refused_has_no_part_in_what_came_of_it_later():
    expand = Expand(job="a", nodes=2, reason=IDLE)
    refused = Decision(suppressed=(Suppressed(action=expand, reason=FULL),))
    passes = replace(a_pass(101.0, "tick", expand), arbitrated=refused), a_pass(105.0, "tick", expand)
    timeline = build_timeline([Header(), *passes, result(105.1, expand)])
    told = [(entry.t_s, entry.result, entry.text) for entry in timeline.feed]
    assert told == [(0.0, "suppressed", FULL.text), (4.0, "done", IDLE.text)]


def test_outcomes_without_a_decision_are_shown_with_where_they_come_from():
    asked = Expand(job="a", nodes=3, reason=Reason(ReasonCode.USER_REQUEST, "a user asked for 3 nodes"))
    refused = result(1.0, asked, "refused", Reason(ReasonCode.OUT_OF_BOUNDS, "3 is above 2"))
    follows = result(2.0, Shrink(job="d", nodes=1, reason=WAITS))
    entries = build_timeline([refused, follows]).feed
    assert [(entry.trigger, entry.result) for entry in entries] == [("request", "refused"), ("", "done")]
    assert "refused: 3 is above 2" in Page(build_report([refused])).text


def test_a_run_with_a_corridor_has_a_lane_of_its_power():
    assert "Watts of all nodes" not in build_report(a_run())
    expected = {"min_w": 200.0, "max_w": 300.0, "draw_w": 260.0, "upper_w": 500.0, "lower_w": 0.0}
    view = ClusterSnapshot(now_s=7.0, trigger="tick", sections={"power": {"mode": "enforce", **expected}})
    records = [
        Header(),
        NodeEvent(t_s=2.0, nodes=("w0",)),
        Other(kind="corridor", data={"t_s": 3.0, "lower_w": 100.0, "upper_w": 400.0, "mode": "enforce"}),
        Other(kind="draw", data={"t_s": 3.001, "draw_w": 250.0}),
        Pass(policy={}, snapshot=view, decision=Decision(), decide_s=0.0),
        Other(kind="corridor", data={"t_s": 9.0, "lower_w": None, "upper_w": None, "mode": "none"}),
        NodeEvent(t_s=12.0, nodes=("w0",), state="removed"),
    ]
    lane = build_timeline(records).spans.power
    assert [(s.start_s, s.end_s, s.watts, s.lower_w, s.upper_w, s.min_w, s.max_w) for s in lane] == [
        (1.0, 5.0, 250.0, 100.0, 400.0, None, None),
        (5.0, 7.0, 260.0, 0.0, 500.0, 200.0, 300.0),
        (7.0, 10.0, None, None, None, None, None),
    ]
    page = build_report(records)
    assert "260 W, 5.0 s to 7.0 s" in page
    chart = next(svg for svg in charts(page) if svg.get("aria-label", "").startswith("Watts of all nodes"))
    # the upper bound at the top, then 400 W; a lower one of nothing is none; without a corridor none
    assert len([line for line in chart.iter("line") if line.get("class") == "bound"]) == 3
    assert len([one for one in chart.iter("rect") if one.get("class") == "expected"]) == 1


def test_long_feeds_and_many_jobs_say_what_they_leave_out():
    records = many_jobs(150, 8)
    for i in range(700):
        records.append(a_pass(200.0 + i, "tick", Expand(job="j0", nodes=1 + i % 2, reason=IDLE)))
    page = build_report(records)
    text = Page(page).text
    assert "The last 500 of 700." in text
    assert "The first 60 jobs; the table has all 150." in text
    assert "job 149" in text


def test_page_adapts_to_narrow_windows_and_dark_mode():
    page = build_report(a_run())
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media (max-width: 720px)" in page
    # charts take the width there is: no fixed width above a swatch's
    widths = {svg.get("width") for svg in charts(page)}
    assert widths <= {"100%", "22", "0"}


@pytest.mark.parametrize("end_s", [0.0, 1e-9, 0.004, 1.0, 59.0, 61.0, 3_599.0, 86_400.0, 1e7, 1e12])
def test_ticks_are_few_and_inside(end_s):
    marks = ticks(end_s)
    assert 1 <= len(marks) <= 6
    assert marks[0] == 0
    assert marks[-1] <= end_s


def test_templates_escape_text_and_attributes():
    drawn = Drawing(9, HOSTILE, [Rect(0, 1, 0, 1, css="idle", title=HOSTILE), Label(0, 1, 0, 1, HOSTILE, 4)])
    made = render_macro("dask_hpc.report", "charts.html", "chart", drawn, HOSTILE)
    svg = ElementTree.fromstring(printable(made))
    safe = printable(HOSTILE)
    assert svg.get("aria-label") == svg.get("class") == safe
    assert [one.tag for one in svg.iter()] == ["svg", "rect", "title", "svg", "text"]
    assert svg.findtext("rect/title") == svg.findtext("svg/text") == safe


def test_a_value_that_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("dask_hpc.report", "report.html")


def test_write_report_writes_the_page(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, a_run(HOSTILE), title="T")
    assert path.read_text(encoding="utf-8") == build_report(a_run(HOSTILE), title="T")


def test_figure_shows_the_same_spans(tmp_path):
    pytest.importorskip("matplotlib")
    figure = node_map_figure(a_run("$" + HOSTILE))
    bars = figure.axes[0].patches
    assert len(bars) == len(build_timeline(a_run()).spans.node_spans)
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    node_map_figure([]).savefig(tmp_path / "empty.png")


def test_runs_are_compared_on_one_axis_with_one_colour_a_job():
    pytest.importorskip("matplotlib")
    spans = build_timeline(a_run()).spans
    later = replace(spans.shifted(50.0), end_s=70.0)
    figure = compared_figure({"as it ran": spans, "later": later})
    above, below = figure.axes
    begins_s = [
        min(bar.get_x() for bar in axes.patches if bar.get_facecolor()[:3] != (1, 1, 1))
        for axes in figure.axes
    ]
    assert begins_s[0] == pytest.approx(begins_s[1]), "time counts from the first submission of each"
    assert above.get_xlim() == below.get_xlim()
    assert [bar.get_facecolor() for bar in above.patches] == [bar.get_facecolor() for bar in below.patches]
