"""Views are pure: data in, HTML out; what users named is escaped and nothing is said by colour alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from coupled import flow_row
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_widgets import static, views
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.views import Picture, View

EVIL = "<script>alert('x')</script>\"&"


def job(**changes):
    return {
        "id": "heat-1", "name": "heat", "state": "running", "kind": "malleable", "nodes": 3, "min_nodes": 1,
        "max_nodes": 4, "constraint": "any", "priority": 0, "submit_s": 10.0, "start_s": 12.0, "end_s": None,
        "wait_s": 2.0, "turnaround_s": None, "closed": False, "unfinished_tasks": 7, "processing_tasks": 2,
        "held_tasks": 5, "below_minimum": False, "expansions": 1, "shrinks": 2, "mtct": None,
        "mtct_previous": None, "phases": [], "sizes": [[12.0, 2], [40.0, 3]],
        "reason": "2 idle nodes", **changes,
    }  # fmt: skip


def node(id, holder=None, **changes):
    return {
        "id": id, "job": holder, "state": "up", "workers": 1, "nthreads": 2, "memory_bytes": 2**31,
        "walltime_left_s": None, "domain": None, **changes,
    }  # fmt: skip


def decision(**changes):
    return {
        "t_s": 30.0, "trigger": "submit", "action": "shrink", "job": "heat-1", "nodes": 2,
        "reason_code": "head-job-waits", "reason": "late waits for 2 nodes", "result": "done",
        "latency_s": 0.25, **changes,
    }  # fmt: skip


def protected_job(**changes):
    return {
        "job": "heat-1", "name": "heat", "writes": "results", "version_age_s": 90.0, "under_way": False,
        "due_in_s": 120.0, "written_results": 3, "left_results": 0, "unwritable_results": 0,
        "loss_core_s": 600.0, "loss_is": "about", **changes,
    }  # fmt: skip


def drawn(job):
    return {
        "draw_w": 100.0, "label": job, "mode": "enforce", "lower_w": 0.0, "upper_w": 200.0, "problem": job,
        "plan": {"reason": job}, "withheld": {"nodes": [job], "reason": job}, "energy_j": 5.0, "idle_j": 0.0,
        "caps": [{"host": job, "watts": None, "state": "refused", "reason": job}], "plain_j": 0.0,
        "jobs": [{"job": job, "draw_w": 100.0, "energy_j": 5.0}], "earlier_jobs_j": 0.0,
        "outside_ws": 0.0, "outside_s": 0.0, "chart": [[-1.0, 5, 0, 200, 5, 5], [0.0, 5, 0, 200, 5, 5]],
    }  # fmt: skip


def commits(*latest, **changes):
    return {
        "protected_results": 3, "restored_results": 2, "recomputed_results": 1, "lost_results": 0,
        "commits": {"complete": 1}, "latest": list(latest), **changes,
    }  # fmt: skip


def commit(**changes):
    return {
        "id": 1, "name": "field", "version": 4, "state": "complete", "reason": "", "path": "/store/field/4",
        "blocks": 8, "blocks_left": 0, "bytes": 3 * 2**20, "age_s": 75.0, "writing_s": 1.5,
        "finishing_s": 0.25, "levels": ["L1", "L3"], **changes,
    }  # fmt: skip


def picture(jobs=(), nodes=(), decisions=(), now_s=100.0, **status):
    return Picture(
        status={"now_s": now_s, "nodes": list(nodes), "pool_nodes": len(nodes), **status},
        jobs=list(jobs),
        decisions=list(decisions),
    )


class Text(HTMLParser):
    """The text of a piece of HTML, and whether every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.parts, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.parts.append(data)


def text(html):
    parser = Text()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return " ".join(" ".join(parser.parts).split())


FULL = picture(
    [job(), job(id="late-2", name="late", state="pending", nodes=0, start_s=None, wait_s=None, sizes=[])],
    [
        node("a", "heat-1", walltime_left_s=90.0),
        node("b", state="lost"),
        node("c", "heat-1", state="draining"),
    ],
    [decision(), decision(t_s=95.0, action="hold", job="late-2", nodes=None, result="held", latency_s=None)],
)


def io_target(**fields):
    return {
        "target": "/scratch", "kind": "lustre", "read_bytes": 2**20, "write_bytes": 2**30, "busy_s": 4.0,
        "bandwidth_bytes_s": 2.0**28, "tokens": None, "writers": 3,
    } | fields  # fmt: skip


def io_job(**fields):
    return {
        "id": "heat-1", "name": "heat", "read_bytes": 0, "write_bytes": 2**30, "io_s": 4.0, "task_s": 16.0,
        "intensity": 0.25, "quality": "counted", "law": None,
    } | fields  # fmt: skip


@pytest.mark.parametrize("view", views.registered(), ids=lambda view: view.name)
def test_what_users_name_is_text_and_never_markup(view):
    evil = picture(
        [job(id=EVIL, name=EVIL, reason=EVIL, state=EVIL, kind=EVIL, constraint=EVIL)],
        [node(EVIL, EVIL, walltime_left_s=1.0), node(EVIL, None)],
        [decision(job=EVIL, reason=EVIL, action=EVIL, result=EVIL, trigger=EVIL, reason_code=EVIL)],
        checkpoints=commits(commit(name=EVIL, state=EVIL, reason=EVIL)),
        protected_jobs=[protected_job(job=EVIL, name=EVIL)], power=drawn(EVIL),
        io={"targets": [io_target(target=EVIL, kind=EVIL)], "jobs": [io_job(id=EVIL, name=EVIL)]},
        coupling=[flow_row(name=EVIL, reason=EVIL)],
    )  # fmt: skip
    parser = Text()
    parser.feed(view.html(evil))
    assert "script" not in parser.tags
    assert EVIL in text(view.html(evil))


@pytest.mark.parametrize("view", views.registered(), ids=lambda view: view.name)
def test_an_empty_cluster_says_what_to_expect(view):
    assert len(text(view.html(picture()))) > 20


@given(st.text(), st.text(), st.floats(0, 1e9), st.integers(0, 10_000))
def test_any_name_gives_whole_markup(name, reason, t_s, nodes):
    for view in views.registered():
        html = view.html(
            picture(
                [job(name=name, reason=reason, nodes=nodes, submit_s=t_s)],
                [node(name, name, walltime_left_s=t_s)],
                [decision(reason=reason, job=name, t_s=t_s)],
                now_s=t_s,
                checkpoints=commits(commit(name=name, reason=reason, age_s=t_s)),
                protected_jobs=[protected_job(job=name, name=name, due_in_s=t_s, loss_core_s=t_s)],
            )
        )
        assert text(html)


def test_jobs_show_state_size_bounds_tasks_times_and_why():
    shown = text(views.named("jobs").html(FULL))
    assert "heat heat-1 running 3 (malleable: 1 to 4)" in shown
    assert "2 on workers, 5 held, 7 unfinished" in shown
    assert "1 up, 2 down 2 idle nodes" in shown
    # waits since 10 s, has not started
    assert "late late-2 pending 0 (malleable: 1 to 4)" in shown
    assert "1.5 min not started" in shown


def test_what_was_predicted_of_a_job_and_how_often_that_held_stands_in_its_table():
    said = {"text": "predicted 4.0 min, took 4.2 min", "predicted_s": 240.0, "took_s": 252.0}
    ended = job(id="old-1", name="old", state="completed", end_s=264.0, forecast=said)
    shown = text(views.named("jobs").html(picture([job(forecast=None), ended])))
    assert "predicted 4.0 min, took 4.2 min 1 up, 2 down" in shown
    assert "not known 1 up, 2 down" in shown
    assert "Predicted ends" not in shown
    held = {"text": "91% of 12 forecasts held the end; their intervals state 90%", "inside": 11 / 12}
    shown = text(views.named("jobs").html(picture([ended], forecasts=held)))
    assert "Predicted ends: 91% of 12 forecasts held the end; their intervals state 90%." in shown


def test_a_job_below_its_minimum_and_a_rigid_one_say_so():
    rows = [job(below_minimum=True, nodes=1, min_nodes=2), job(id="b-2", kind="rigid", constraint="pof2")]
    shown = text(views.named("jobs").html(picture(rows)))
    assert "1 below its minimum (malleable: 2 to 4)" in shown
    assert "3 (rigid: always 4, pof2)" in shown


def test_ended_jobs_come_after_the_active_ones_newest_first_and_are_counted():
    ended = [job(id=f"e-{i}", name=f"e{i}", state="completed", end_s=20.0 + i) for i in range(15)]
    shown = text(views.named("jobs").html(picture([*ended, job()])))
    assert re.findall(r"\b(e-\d+|heat-1)\b", shown) == ["heat-1", *(f"e-{i}" for i in range(14, 4, -1))]
    assert "5 more jobs not shown" in shown


def test_the_node_map_tells_holder_state_and_walltime_without_colour():
    shown = text(re.sub(r'style="[^"]*"|class="[^"]*"', "", views.named("nodes").html(FULL)))
    assert "3 nodes; 2 held by jobs; 0 for plain work or idle; 1 draining; 1 lost" in shown
    assert "the first ends in 1.5 min" in shown
    assert "a A heat 2 threads, 2 GiB 1.5 min of walltime left" in shown
    assert "b no job lost: expected back" in shown
    assert "c A heat draining: leaves its job" in shown


def test_the_node_map_tells_which_nodes_are_for_something_else():
    nodes = [node(id="a", job=None), node(id="b", job=None, role="staging")]
    shown = text(views.named("nodes").html(picture([], nodes=nodes)))
    assert "2 nodes; 0 held by jobs; 1 for plain work or idle; 1 for staging" in shown
    assert "b for staging" in shown


def test_sizes_over_time_are_steps_with_the_same_in_words():
    html = views.named("sizes").html(FULL)
    (path,) = re.findall(r'<path d="([^"]*)"', html)
    # 88 s from the first start on, 28 s on 2 of 3 nodes, then on all
    assert path == "M0.0 24H0.0V8.0H31.8V0.0H100.0V24Z"
    assert 'aria-label="heat: 2 nodes from 1.4 min ago; 3 nodes from 1 min ago"' in html
    assert text(html).endswith("A heat 3")
    assert "late" not in html, "has had no node"


def test_the_chart_of_sizes_changes_every_other_second_at_most():
    rows = [job(sizes=[[12.0, 2]])]
    html = [views.named("sizes").html(picture(rows, now_s=30.0 + i / 4)) for i in range(9)]
    assert len({re.sub(r"H[\d.]+V24Z", "", one) for one in html}) <= 3


def test_walltimes_come_in_the_order_in_which_they_end():
    nodes = [node("a", "heat-1", walltime_left_s=600.0), node("b", walltime_left_s=30.0), node("c")]
    shown = text(views.named("walltime").html(picture([job()], nodes)))
    assert shown.endswith("b 30 s no job up a 10 min A heat up")
    none = views.named("walltime").html(picture(nodes=[node("c")]))
    assert "1 node, none with a walltime: each stays until it is released." in none


def test_a_large_pool_is_counted_whole_and_shown_in_part():
    html = views.named("nodes").html(picture(nodes=[node(f"n{i}") for i in range(5000)]))
    assert html.count("<li") == 4096
    assert "5000 nodes; 0 held by jobs; 5000 for plain work or idle" in html
    assert "904 more nodes not shown" in html


def test_decisions_are_newest_first_with_reason_and_result():
    shown = text(views.named("decisions").html(FULL))
    first, second = shown.index("hold held"), shown.index("shrink to 2 nodes done in 0.25 s")
    assert first < second
    assert "late waits for 2 nodes (head-job-waits, on submit)" in shown
    many = picture(decisions=[decision(reason=f"r{i}") for i in range(100)])
    assert re.findall(r"\br\d+", text(views.named("decisions").html(many))) == [
        f"r{i}" for i in range(99, 69, -1)
    ]


def test_checkpoints_tell_what_a_loss_now_would_cost_and_when_the_next_version_is_due():
    rows = [
        protected_job(left_results=2, unwritable_results=1),
        protected_job(
            job="flow-2", name="flow", writes="state", version_age_s=None, due_in_s=None, under_way=True,
            loss_core_s=3600.0, loss_is="at most",
        ),
        protected_job(job="rest-3", name="rest", due_in_s=None, loss_core_s=0.0),
        protected_job(job="soon-4", name="soon", due_in_s=0.0, loss_core_s=0.0),
    ]  # fmt: skip
    told = commits(
        commit(name="old", age_s=500.0, state="failed", reason="the store is full", version=None, levels=[]),
        commit(),
        commit(name="now", age_s=2.0, state="writing", blocks_left=5, levels=["L1"]),
    )
    view = views.named("checkpoints")
    shown = text(view.html(picture([job()], checkpoints=told, protected_jobs=rows)))
    assert "cluster lost now, about 1.1 h on one core would be computed again" in shown
    assert (
        "heat heat-1 results, as heat; 3 written; 2 of an earlier run not asked for yet; 1 cannot be written "
        "1.5 min ago in 2 min about 10 min"
    ) in shown
    assert "flow-2 state, as flow none yet under way at most 1 h" in shown
    assert "rest-3 results, as rest; 3 written 1.5 min ago when a policy asks, and at its end" in shown
    assert "soon-4 results, as soon; 3 written 1.5 min ago now nothing" in shown
    assert "3 results protected, 2 read back, 1 computed again, 0 lost so far." in shown
    # latest first
    assert shown.endswith(
        "now 4 writing 2 s ago L1 5 of 8 field 4 complete 1.2 min ago L1, L3 3.00 MiB 0 of 8 1.75 s "
        "old failed the store is full 8.3 min ago 0 of 8"
    )
    alone = text(view.html(picture(protected_jobs=[protected_job(loss_is="at least")])))
    assert "cluster lost now, at least 10 min on one core would" in alone
    none = text(view.html(picture(protected_jobs=[protected_job(loss_core_s=0.0)])))
    assert "cluster lost now, nothing would be computed again" in none
    assert "so far" not in alone
    many = view.html(picture(checkpoints=commits(*(commit(name=f"n{i}") for i in range(70)))))
    assert many.count("<tr>") == 51
    assert "20 more not shown; rt.status() has all." in many


def test_checkpoints_tell_what_was_taken_over_and_what_hosts_have_of_their_memory():
    managers = [
        {"host": EVIL, "held_bytes": 2**20, "limit_bytes": 2**30},
        {"host": "no manager", "held_bytes": 0, "limit_bytes": 0},
    ]
    taken = {"versions": 1, "results": 40, "age_s": 75.0, "asked": [EVIL]}
    page = views.named("checkpoints").html(picture(checkpoints=commits(managers=managers, taken_over=taken)))
    shown = text(page)
    assert " among them, were taken over from an earlier scheduler 1.2 min ago." in shown
    assert "1.00 MiB 1.00 GiB" in shown
    assert "no manager" not in shown
    assert EVIL not in page
    others = picture(checkpoints=commits(taken_over={**taken, "asked": []}))
    assert "Nothing is protected." in text(views.named("checkpoints").html(others)), "nor asked for"


def test_io_tells_what_file_systems_gave_and_who_may_be_at_them():
    told = {"targets": [io_target(), io_target(target="home", tokens=2)], "jobs": [io_job()] * 60}
    page = views.named("io").html(picture(io=told))
    assert "/scratch lustre 1.00 MiB 1.00 GiB 256.00 MiB/s 3 any home" in text(page)
    assert "heat-1 0 B 1.00 GiB 4 s 25% counted" in text(page)
    assert "10 more not shown; rt.io()" in text(page)
    assert static.io_html({"io": told}).count("<tr>") == 2 + 2 + 50
    assert "Nothing is measured." in static.io_html({})
    assert not views.named("io").is_in(picture())


def test_the_static_twin_of_a_runtime_shows_checkpoints_once_there_are_any():
    status = {
        "now_s": 1.0, "nodes": [], "pool_nodes": 0, "policy": {"policy": "fcfs"}, "policy_failure": None,
        "jobs_running": 0, "jobs_pending": 0, "sections": [],
    }  # fmt: skip
    assert "Checkpoints" not in static.runtime_html("here", {"status": status})
    told = static.runtime_html("here", {"status": status | {"protected_jobs": [protected_job()]}})
    assert "Checkpoints" in told
    assert "heat-1" in told
    assert "mine failed" not in told
    dropped = {"status": status | {"policy_dropped": "mine failed, easy decides: no <node>"}}
    assert "mine failed, easy decides: no &lt;node&gt;" in static.runtime_html("here", dropped)


def test_a_view_is_one_registration(monkeypatch):
    monkeypatch.setattr(views, "_views", dict(views._views))
    mine = View(name="network", title="Network", html=lambda picture: "<p>1 kW</p>")
    views.register(mine)
    assert views.registered()[-1] is views.named("network") is mine
    views.register(mine)
    with pytest.raises(ValueError, match="'network' is registered"):
        views.register(View(name="network", title="Other", html=mine.html))
    with pytest.raises(ValueError, match="checkpoints, io, coupling, network"):
        views.named("nothing")


def test_a_view_is_there_when_its_section_is():
    def drawn(one):
        return f"{one.section('power')['w']} W"

    power = View(name="power", title="Power", section="power", html=drawn)
    assert not power.is_in(picture())
    assert power.is_in(picture(power={"w": 7}))
    assert power.body(picture(power={"w": 7})) == "7 W"
    assert View(name="mine", title="Mine", html=lambda one: "").is_in(picture())
    assert [view.name for view in views.registered() if not view.is_in(picture())] == [
        "power",
        "io",
        "coupling",
    ]


def test_what_is_no_markup_is_text():
    html = markup.table((("<b>", False),), [[markup.strong("<i>")], ["<u>\x00"]], "'\"")
    assert text(markup.part(html)) == "<b> <i> <u>\ufffd"
    assert "&lt;u&gt;" in html
    assert text(markup.part("<p>", markup.element("p", "<p>"))) == "<p> <p>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "n/a"), (0.0, "0 s"), (9.9, "9 s"), (14.9, "10 s"), (59.9, "55 s"), (60.0, "1 min"),
     (95.0, "1.5 min"), (660.0, "11 min"), (3599.0, "59 min"), (5400.0, "1.5 h"), (90_000.0, "1 d")],
)  # fmt: skip
def test_times_that_go_on_are_shown_in_coarse_steps(value, shown):
    assert markup.roughly(value) == shown


def test_colours_are_the_themes_own_with_fallbacks():
    for name in re.findall(r"var\((--jp-[^,)]*)([,)])", markup.CSS):
        assert name[1] == ",", f"{name[0]} has no fallback"
    assert "--jp-ui-font-color1" in markup.CSS
