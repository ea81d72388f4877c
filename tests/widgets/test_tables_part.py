"""What the panel's tables tell the browser at 100 jobs, 500 nodes and 80 changes a job: what has changed."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import many_jobs
import pytest

from dask_hpc_widgets import views
from dask_hpc_widgets.live import tables, wire
from dask_hpc_widgets.live.code import CodePart
from dask_hpc_widgets.live.tables import TablesPart
from dask_hpc_widgets.live.timeline import AnyWidget, TimelinePart
from dask_hpc_widgets.live.wire import Told
from dask_hpc_widgets.views.table import EVERY, Search, Table

pytestmark = pytest.mark.skipif(AnyWidget is None, reason="pip install 'dask-hpc[widgets]'")

#: What an update and a first load may have on the wire.
UPDATE_BYTES, FIRST_BYTES = 8_000, 300_000
NAMES = ("jobs", "sizes", "nodes", "walltime", "decisions")
#: And those that say more of parts of the runtime, here of all jobs at once.
FILLED = ("power", "checkpoints", "io", "coupling")


def size(value) -> int:
    return len(json.dumps(value, separators=(",", ":")).encode())


class Page:
    """The browser's copy, kept as ``tables.js`` keeps it."""

    def __init__(self, first):
        self.views, self.number, self.sent = {}, None, []
        self.hear(first)

    def hear(self, message):
        # what goes over the wire is data
        message = json.loads(json.dumps(message))
        assert message.get("all") or message["n"] == self.number + 1
        self.sent.append(message)
        self.number, self.open = message["n"], message["open"]
        if message.get("all"):
            self.views = {}
        for name, news in message["views"].items():
            if news.get("new"):
                self.views[name] = {"rows": {}, "order": [], "note": "", "head": news["head"]}
            view = self.views[name]
            view.update({key: news[key] for key in ("order", "note") if key in news})
            before = []
            for number, told in news.get("rows", {}).items():
                before = [before[i] if cell == 0 else cell for i, cell in enumerate(told)]
                view["rows"][number] = list(before)
            for number, changed in news.get("cells", {}).items():
                for i, cell in changed.items():
                    cells = view["rows"][number]
                    if isinstance(cell, dict):
                        kind, called, color, _, steps = cells[int(i)][0]
                        cell = [[kind, called, color, cell["end"], steps + cell["steps"]]]
                    cells[int(i)] = cell
            if "moved" in news:
                gone, came = news["moved"]
                for place, count in reversed(gone):
                    for number in view["order"][place : place + count]:
                        view["rows"].pop(str(number), None)
                    del view["order"][place : place + count]
                for place, first, count in came:
                    view["order"][place:place] = range(first, first + count)
            if "order" in news:
                view["rows"] = {n: row for n, row in view["rows"].items() if int(n) in view["order"]}

    def shows(self, name):
        """Rows in order."""
        return [self.views[name]["rows"][str(number)] for number in self.views[name]["order"]]


def real(name, picture, part):
    """What the page is to show; a name with a number: of a table that follows in a view."""
    name, _, number = name.partition("/")
    table = views.named(name).table(picture, part._search)
    table = table.more[int(number) - 1] if number else table
    return json.loads(json.dumps([table.cells(row) for row in table.rows.values()]))


@pytest.fixture
def part():
    made = TablesPart(views.registered(), many_jobs.picture(0), NAMES)
    yield made
    made.box.close()


@pytest.fixture
def page(part, monkeypatch):
    shown = Page(part.whole())
    monkeypatch.setattr(part.box, "send", shown.hear, raising=False)
    return shown


def test_an_update_is_small_and_the_page_has_what_is_there(part, page):
    for step in range(1, 2 * many_jobs.RUNNING):
        now = many_jobs.picture(step)
        part.heard(now)
        for name in NAMES:
            assert page.shows(name) == real(name, now, part), (step, name)
    assert len(page.sent) == 2 * many_jobs.RUNNING
    assert max(map(size, page.sent[1:])) <= UPDATE_BYTES
    # a job that is resized: its row, its node, its steps and the decision
    assert sorted(map(size, page.sent[1:]))[len(page.sent) // 2] <= 3_000
    known_s = now.status["now_s"]
    part.heard(replace(now, status={**now.status, "now_s": known_s - 1.0}))
    assert len(page.sent) == 2 * many_jobs.RUNNING, "what is older than what is known tells nothing"
    part.heard(replace(many_jobs.picture(0), status={**now.status, "now_s": known_s - 60.0}))
    assert len(page.sent) > 2 * many_jobs.RUNNING, "a scheduler that has begun anew is heard"


def test_an_update_is_small_where_all_jobs_draw_power_are_at_files_and_are_protected(part, page):
    part.show(FILLED)
    more = [f"checkpoints/{i}" for i in (1, 2, 3)]
    tables = ["power", "power/1", "checkpoints", *more, "io", "io/1", "coupling"]
    assert page.open == tables
    for step in range(1, 40):
        part.heard(many_jobs.picture(step))
    assert max(map(size, page.sent[1:])) <= UPDATE_BYTES
    # and when nothing but time passes the page has it all
    last = many_jobs.picture(40)
    for i in range(20):
        part.heard(replace(last, status={**last.status, "now_s": last.status["now_s"] + i / 1000}))
    assert [name for name in tables if page.shows(name) != real(name, last, part)] == []
    assert size(page.sent[-1]) < 200
    less = {"now_s": last.status["now_s"] + 1.0, "io": {}, "protected_jobs": []}
    part.heard(replace(last, status={**last.status, **less}))
    assert page.open == [name for name in tables if name not in ("checkpoints/3", "io/1")]
    assert page.views["checkpoints/1"]["head"][1] == "Memory of hosts", "the one before it is gone"


def test_a_version_that_only_grows_older_is_the_same_row():
    def rows(passed_s):
        many = many_jobs.picture(0)
        signs = {"version_age_s": 1, "age_s": 1, "due_in_s": -1}

        def older(row):
            return {**row, **{key: row[key] + signs[key] * passed_s for key in signs if key in row}}

        status = {**many.status, "now_s": many.status["now_s"] + passed_s}
        status["protected_jobs"] = [*map(older, status["protected_jobs"])]
        told = status["checkpoints"]
        status["checkpoints"] = {**told, "latest": [*map(older, told["latest"])]}
        table = views.named("checkpoints").table(replace(many, status=status), EVERY)
        return [dict(one.rows) for one in table.more]

    assert rows(0.0) == rows(0.2)


def test_a_page_begins_with_little(part):
    timeline = TimelinePart(many_jobs.picture(0))
    part.show([*NAMES, *FILLED])
    first = size(part.box.get_state()) + size(timeline.box.get_state())
    assert many_jobs.JOBS * 100 < size(part.whole()) < first <= FIRST_BYTES
    timeline.box.close()


def test_a_page_tells_the_looks_of_tables_timeline_and_code_apart(part):
    parts = [part.box, TimelinePart(many_jobs.picture(0)).box, CodePart(str)._text]
    assert len({one._anywidget_id for one in parts}) == len({one._css for one in parts}) == 3
    for one in parts[1:]:
        one.close()


def test_when_everything_changes_no_row_waits_for_ever_and_no_message_is_large(part, page):
    def changed(step):
        now = many_jobs.picture(step)
        rows = [{**row, "unfinished_tasks": step, "reason": f"{'why ' * 60}{step}"} for row in now.jobs]
        nodes = [{**node, "state": ("up", "draining")[step % 2]} for node in now.status["nodes"]]
        return replace(now, jobs=rows, status={**now.status, "nodes": nodes})

    for step in range(1, 40):
        part.heard(changed(step))
    assert max(map(size, page.sent[1:])) <= UPDATE_BYTES
    told = [int(row[3][0].split()[-2]) for row in page.shows("jobs")]
    assert 20 <= min(told) <= max(told) < 40, "no row is older than twenty updates"
    assert "expand" in str(page.shows("decisions")[0])
    # and when it is quiet again the page has it all
    last = changed(40)
    for i in range(40):
        part.heard(replace(last, status={**last.status, "now_s": last.status["now_s"] + i / 1000}))
    for name in ("jobs", "nodes"):
        assert page.shows(name) == real(name, last, part)


def test_rows_that_are_measured_together_are_told_as_if_each_were_measured_alone(monkeypatch):
    steps = [views.named("io").table(many_jobs.picture(step), EVERY).more[0] for step in range(12)]

    def told(together):
        monkeypatch.setattr(wire, "_TOGETHER", together)
        page = Told("I/O")
        return [page.news(table, 900) for table in steps]

    assert told(8) == told(1)


def test_thousands_of_nodes_that_come_and_go_are_told_in_little():
    rng, told = Random(7), Told("Nodes")
    page = Page({"n": 0, "open": [], "views": {}, "all": True})
    names = {place: [f"node-{place}"] for place in range(4000)}

    def table(places):
        rows = {place: tuple(names[place]) for place in sorted(places)}
        return Table(caption="Nodes", rows=rows, cells=lambda row: [[name] for name in row], kind="heat")

    def heard(places, allowed_bytes=5_000):
        """Updates until the page has it; the largest."""
        most, count = 0, 0
        while (news := told.news(table(places), allowed_bytes)[0]) or not count:
            most, count = max(most, size(news)), count + 1
            page.hear({"n": page.number + 1, "open": [], "views": {"nodes": news}})
        assert page.shows("nodes") == [[[f"node-{place}"]] for place in sorted(places)]
        assert Page({"n": 0, "open": [], "all": True, "views": {"nodes": told.whole()}}).shows(
            "nodes"
        ) == page.shows("nodes")
        return most, count

    there = set(range(4000))
    assert heard(there)[0] <= UPDATE_BYTES
    there.remove(1234)
    most, count = heard(there)
    assert most <= 40, "one that goes costs nothing"
    assert count == 1
    for _ in range(3):
        there = set(rng.sample(range(4000), 2500))
        assert heard(there)[0] <= UPDATE_BYTES, "nor do messages grow when half are others"


def test_views_that_are_closed_cost_nothing(part, page, monkeypatch):
    asked = []
    whole = part.views
    part.views = tuple(
        replace(one, table=lambda *a, one=one: asked.append(one.name) or one.table(*a)) for one in whole
    )
    part.show(["decisions"])
    asked.clear()
    part.heard(many_jobs.picture(1))
    assert asked == ["decisions"]
    assert page.open == ["decisions"]
    part.show([])
    part.heard(many_jobs.picture(2))
    assert size(page.sent[-1]) < 60
    part.show(["jobs"])
    assert page.shows("jobs") == real("jobs", many_jobs.picture(2), part)
    assert max(map(size, page.sent[1:])) <= UPDATE_BYTES


def test_where_much_happens_only_what_is_told_is_made(part, page):
    part.show([*NAMES, *FILLED])
    made = []
    part.views = tuple(
        replace(one, table=lambda *a, one=one: made.append(one.name) or one.table(*a)) for one in part.views
    )
    for step in range(1, 5):
        made.clear()
        part.heard(many_jobs.picture(step))
        assert 0 < len(made) < len(part.views)
        assert len(set(made)) == len(made), "each once"


def test_a_search_is_among_all_jobs_and_what_was_lost_is_told_again(part, page):
    many = many_jobs.picture(0)
    rows = [{**row, "id": f"x-{i + 1}", "name": f"x{i}"} for i, row in enumerate(many.jobs * 3)]
    for i in range(10):
        part.heard(replace(many, jobs=rows, status={**many.status, "now_s": 800.0 + i / 1000}))
    assert len(page.shows("jobs")) == 100
    assert page.views["jobs"]["note"] == "200 more jobs not shown; rt.jobs() has all."
    part._asked({"ask": "search", "text": "X257 running", "state": "running"})
    assert [row[0][2] for row in page.shows("jobs")] == [["strong", "x257"]] or not page.shows("jobs")
    part._asked({"ask": "search", "text": "X257", "state": "pending' OR 1"})
    assert [row[0][2] for row in page.shows("jobs")] == [["strong", "x257"]]
    part._asked({"ask": "search", "text": "", "state": ""})
    before = [page.shows(name) for name in NAMES]
    page.views = {}
    part._asked({"ask": "all"})
    assert [page.shows(name) for name in NAMES] == before
    assert Page(part.whole()).shows("jobs") == before[0], "a page that is loaded again begins with that"


def test_who_is_being_resized_is_found_among_those_that_run():
    picture = many_jobs.picture(0)
    states = ("adapting", "running", "completing", "pending", "completed")
    rows = [{**row, "state": state} for row, state in zip(picture.jobs, states, strict=False)]
    for state, count in (("running", 3), ("pending", 1), ("ended", 1)):
        found = views.named("jobs").table(replace(picture, jobs=rows), Search(state=state))
        assert len(found.rows) == count, state


def test_jobs_that_wait_for_the_same_are_one_row(part, page):
    who = [row[1] for row in page.shows("decisions") if row[2] == ["hold"]]
    assert [cell[:2] for cell in who] == [[["strong", "40 jobs"], ": "]]
    assert who[0][-1] == " and 36 more"
    html = views.named("decisions").html(many_jobs.picture(0))
    assert "<strong>40 jobs</strong>" in html


def test_jobs_show_what_they_lent_and_borrowed_for_how_long_and_why():
    many = many_jobs.picture(0)
    why = "lent: it has no task for a thread"
    lent = {"lent_tasks": 9, "lent_s": 3.14, "borrowed_tasks": 2, "lending": why}
    shown = views.named("jobs").html(replace(many, jobs=[many.jobs[0] | lent])).unescape()
    assert "9 of others on its nodes so far (3.1 s), 2 on nodes of others so far (0.0 s)" in shown
    assert f"; {why}" in shown
    over = {**lent, "state": "completed", "end_s": 9.0}
    shown = views.named("jobs").html(replace(many, jobs=[many.jobs[0] | over])).unescape()
    assert "9 of others on its nodes (3.1 s), 2 on nodes of others (0.0 s)<" in shown, "it does so no more"


def test_what_dasks_pages_say_of_held_tasks_is_explained_where_there_are_any():
    told = "Held tasks wait for room on nodes of their job; Dask's own pages call them no-worker."
    many = many_jobs.picture(0)
    for held in (0, 3):
        now = replace(many, jobs=[{**many.jobs[0], "held_tasks": held}])
        assert (told in views.named("jobs").html(now).unescape()) == bool(held)


def test_more_nodes_than_tiles_are_a_map_of_letters(part, page):
    assert page.views["nodes"]["rows"]["0"] == [
        ["node-0"],
        ["up"],
        ["#E69F00"],
        ["A"],
        ["job-000"],
        ["4 threads, 8 GiB"],
    ]
    html = views.named("nodes").html(many_jobs.picture(0))
    assert '<ul class="nodes heat">' in html
    assert 'title="node-0: job-000, 4 threads, 8 GiB, ' in html


def test_memory_is_flat_over_ten_thousand_updates():
    """Of what is kept of a table whose rows come and go all the time."""
    told = Told("Decisions")

    def some(step):
        rows = {step + i: (step + i, "reason " * 10 + str(step)) for i in range(10)}
        return Table(caption="x", rows=rows, cells=lambda row: [[str(row[0])], [row[1]]])

    def update(step):
        told.news(some(step), tables.UPDATE_BYTES)

    for step in range(100):
        update(step)
    counts = []
    for step in range(100, 10_100):
        if step % 2500 == 100:
            gc.collect()
            counts.append(len(gc.get_objects()))
        update(step)
    gc.collect()
    counts.append(len(gc.get_objects()))
    assert len(told._cells) == len(told._numbers) == len(told._keys) == len(told._made_of) == 10
    # in each quarter: other threads of the process come to keep more now and then
    assert min(after - before for before, after in pairwise(counts)) < 50, counts
