"""Our panels on the dashboard: there whichever way the runtime is switched on, gone with it, and harmless."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, Scheduler
from distributed.utils_test import captured_logger, gen_test
from helpers import PATIENCE_S, Gate, live, started, until
from hypothesis import given
from hypothesis import strategies as st
from tasks import inc
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.ioloop import IOLoop

import dask_hpc
from dask_hpc.scheduler.dashboard import page
from dask_hpc.scheduler.dashboard import pages as panels
from dask_hpc.scheduler.dashboard.chart import MAX_ROWS, chart
from dask_hpc.scheduler.rpc import service

pytest.importorskip("bokeh")

from bokeh.client import pull_session
from bokeh.models import ColumnDataSource
from bokeh.models.text import PlainText
from bokeh.models.widgets import Div
from distributed.dashboard import core
from distributed.dashboard import scheduler as pages

from dask_hpc.scheduler.dashboard import decisions as decisions_page
from dask_hpc.scheduler.dashboard import documents as panel_documents
from dask_hpc.scheduler.dashboard.decisions import DecisionsPanel
from dask_hpc.scheduler.dashboard.jobs import JobsPanel

PATHS = ("/individual-hpc-jobs", "/individual-hpc-decisions")
EVIL = "<script>alert('x')</script>"
DASHBOARD = {"dashboard": True, "dashboard_address": ":0"}


def address(scheduler, path=""):
    return f"http://127.0.0.1:{scheduler.http_server.port}{path}"


async def get(scheduler, path):
    """Body of a page; fails unless the answer is 200."""
    answer = await AsyncHTTPClient().fetch(address(scheduler, path), request_timeout=30)
    assert answer.code == 200
    return answer.body.decode()


async def code_of(scheduler, path):
    try:
        await get(scheduler, path)
    except HTTPClientError as error:
        return error.code
    return 200


async def listed(scheduler, prefix=""):
    """Our pages in what the Dask extension of JupyterLab reads, by name."""
    plots = json.loads(await get(scheduler, f"{prefix}/individual-plots.json"))
    return {name: path for name, path in plots.items() if "hpc" in path}


async def check_there(scheduler, prefix=""):
    for path in PATHS:
        body = await get(scheduler, prefix + path)
        assert "bokeh" in body
        assert "Dask: HPC" in body
    assert await listed(scheduler, prefix) == {
        "Individual Hpc Jobs": "/individual-hpc-jobs",
        "Individual Hpc Decisions": "/individual-hpc-decisions",
    }


async def check_absent(scheduler):
    for path in PATHS:
        assert await code_of(scheduler, path) == 404
    assert await listed(scheduler) == {}
    assert not [plot for plot in pages.template_variables(scheduler)["plots"] if "hpc" in plot["url"]]


# ------------------------------------------------- the three ways to switch it on


@live(1, scheduler_kwargs=DASHBOARD)
async def test_install_puts_them_on_and_uninstall_takes_them_off(c, s, a):
    table, served = dict(pages.applications), list(s.http_application.applications)
    stock = panels._stock(s)
    before = dict(stock.applications)
    await check_absent(s)
    rt = await dask_hpc.install(c)
    await check_there(s)
    status = await rt.status()
    assert status["panels"] == list(PATHS)
    assert status["panels_problem"] == ""
    # pages of stock's are as they were, with ours in their menu
    menu = await get(s, "/workers")
    assert 'href="individual-hpc-jobs"' in menu.replace("./", "")
    assert "HPC Decisions" in menu
    await rt.uninstall()
    await check_absent(s)
    assert s.http_application.applications == served
    assert dict(stock.applications) == before
    # schedulers of a process share this one: it was never touched
    assert pages.applications == table
    await dask_hpc.install(c)
    await check_there(s)


@gen_test()
async def test_a_preload_puts_them_on():
    config = {"distributed.scheduler.preload": ["dask_hpc.preload"]}
    with dask.config.set(config):
        async with Scheduler(dashboard=True, dashboard_address=":0", port=0) as s:
            await check_there(s)


@gen_test()
async def test_a_cluster_class_puts_them_on_its_own_scheduler_alone():
    async with (
        dask_hpc.LocalCluster(
            n_workers=0, processes=False, dashboard_address=":0", asynchronous=True
        ) as cluster,
        Scheduler(dashboard=True, dashboard_address=":0", port=0) as other,
    ):
        await check_there(cluster.scheduler)
        await check_absent(other)


@gen_test()
async def test_they_are_below_the_prefix_of_the_dashboard():
    async with (
        Scheduler(dashboard=True, dashboard_address=":0", port=0, http_prefix="/proxy/7") as s,
        Client(s.address, asynchronous=True) as c,
    ):
        await dask_hpc.install(c)
        await check_there(s, "/proxy/7")


# ---------------------------------------------------------------- what they show


class Browser:
    """Opens a page as a browser does, over a web socket; shows the document that the server keeps for it."""

    def __init__(self, scheduler, path, **arguments):
        self._url, self._arguments = address(scheduler, path), arguments
        self._before = documents(scheduler, path)
        self._documents = lambda: documents(scheduler, path)

    async def __aenter__(self):
        # a session belongs to the thread that has made it, and to its loop
        self._thread = ThreadPoolExecutor(1)
        await self._there(self._open)
        (self.document,) = (doc for doc in self._documents() if doc not in self._before)
        return self

    def _open(self):
        self._loop = IOLoop(make_current=True)
        self._session = pull_session(url=self._url, arguments=self._arguments, io_loop=self._loop)

    async def __aexit__(self, *exc_info):
        await self._there(self._close)
        self._thread.shutdown()

    def _close(self):
        self._session.close()
        self._loop.asyncio_loop.run_until_complete(self._loop.asyncio_loop.shutdown_default_executor())
        self._loop.close()

    async def _there(self, call):
        await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def root(self):
        """The figure, or the table."""
        return self.document.roots[0]

    @property
    def data(self):
        """Columns of the chart."""
        return self.document.select_one({"type": ColumnDataSource}).data

    def received(self):
        """What the browser was given when it opened the page."""
        return self._session.document.roots[0]


def documents(scheduler, path):
    """Documents on the server that browsers have opened."""
    return [session.document for session in service.of(scheduler).panels._ours.applications[path].sessions]


@live(3, scheduler_kwargs=DASHBOARD)
async def test_pages_show_real_jobs_and_decisions_and_follow_them(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_documents, "INTERVAL_MS", 20)
        async with Browser(s, PATHS[0]) as jobs, Browser(s, PATHS[1]) as decisions:
            assert jobs.data["job"] == []
            assert "Nothing was decided yet" in decisions.root.text
            async with rt.job(EVIL, nodes=1, min_nodes=1, max_nodes=2) as job:
                future = c.submit(gate.wait, 1)
                await started(s, job)
                await until(lambda: "1" in jobs.data["nodes"], "one node is drawn")
                await until(lambda: "start to 1 node" in decisions.root.text, "the start is told")
                assert EVIL not in decisions.root.text
                assert "&lt;script&gt;" in decisions.root.text
                assert (await job.resize(2))["result"] == "done"
                await until(lambda: "2" in jobs.data["nodes"], "two nodes are drawn")
                assert jobs.root.title.text == "1 running, 0 waiting\n3 nodes (1 idle), pwma-fpsma"
                gate.open()
                assert await future == 1
            await job.wait(PATIENCE_S)
            await until(lambda: jobs.root.title.text.startswith("0 running"), "the heading follows")
            assert set(jobs.data["job"]) == {f"A {job.id}"}
            assert max(jobs.data["right"]) <= 0
            # plain text: no formula, no markup
            labels = jobs.root.yaxis[0].major_label_overrides
            assert [(type(label), label.text[:10]) for label in labels.values()] == [
                (PlainText, "A <script>")
            ]
            await until(lambda: "all its tasks are done" in decisions.root.text, "the end is told")
        # whoever comes later sees what was before
        async with Browser(s, PATHS[0]) as later, Browser(s, PATHS[1]) as told:
            assert later.received().title.text == jobs.root.title.text
            assert set(later.data["job"]) == {f"A {job.id}"}
            assert {"1", "2"} <= set(later.data["nodes"])
            assert "start to 1 node" in told.received().text


@live(1, scheduler_kwargs=DASHBOARD)
async def test_they_look_seldom_and_only_while_somebody_looks_at_them(c, s, a):
    await dask_hpc.install(c)
    looks = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (JobsPanel, DecisionsPanel):
            patch.setattr(kind, "show", lambda self, service: looks.append(service))
        for path in PATHS:
            looks.clear()
            await get(s, path)
            (doc,) = documents(s, path)
            (callback,) = doc.session_callbacks
            assert callback.period == 500
            # the page was fetched, and nobody opened the web socket that shows it live
            callback.callback()
            assert len(looks) == 1
            async with Browser(s, path) as browser:
                looks.clear()
                browser.document.session_callbacks[0].callback()
                assert looks


@live(1, scheduler_kwargs=DASHBOARD)
async def test_an_open_page_says_that_the_runtime_is_gone(c, s, a):
    rt = await dask_hpc.install(c)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_documents, "INTERVAL_MS", 20)
        async with Browser(s, PATHS[0]) as jobs, Browser(s, PATHS[1]) as decisions:
            await rt.uninstall()
            await until(lambda: "switched off" in decisions.root.text, "it says so")
            await until(lambda: "switched off" in jobs.root.title.text, "it says so")
            # and looks no more
            assert [page.document.session_callbacks for page in (jobs, decisions)] == [[], []]


@pytest.mark.errors("cannot be shown any more")
@live(1, scheduler_kwargs=DASHBOARD)
async def test_a_panel_that_fails_says_so_once_and_stops(c, s, a):
    await dask_hpc.install(c)

    def fail(self, service):
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch, captured_logger(panel_documents.logger) as log:
        patch.setattr(JobsPanel, "show", fail)
        assert await code_of(s, PATHS[0]) == 200
        (doc,) = documents(s, PATHS[0])
        assert doc.session_callbacks == []
        assert log.getvalue().count("cannot be shown any more") == 1


def test_the_heading_tells_of_a_policy_that_fails_and_of_jobs_that_are_not_drawn():
    panel = JobsPanel(10.0, dark=False)
    summary = {"jobs_running": 13, "jobs_pending": 2, "idle_nodes": None, "pool_nodes": 1}
    panel._set_title({**summary, "policy": {"policy": "easy"}, "policy_failure": "ZeroDivisionError"}, 3)
    assert panel.root.title.text == (
        "13 running, 2 waiting\n1 node, easy; 3 jobs not shown; the policy fails: jobs keep their nodes"
    )


class CountPanel:
    """A page of another package: how many nodes there are."""

    title = "Nodes"

    def __init__(self, minutes, dark):
        self.root = Div(text="")

    def show(self, watched):
        self.root.text = f"{watched.summary()['pool_nodes']} nodes"

    def gone(self):
        self.root.text = "gone"


@pytest.mark.errors("Uncaught exception GET")
@live(1, scheduler_kwargs=DASHBOARD)
async def test_a_page_is_one_registration(c, s, a):
    more = page.Page(path="/individual-hpc-count", title="HPC Count", panel=CountPanel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_pages", dict(page._pages))
        page.register(more)
        page.register(more)
        page.register(page.Page(path="/individual-hpc-broken", title="HPC Broken", panel="nowhere:Panel"))
        for wrong, said in (
            ("x", "register takes a Page"),
            (page.Page(path="/count", title="Count", panel=CountPanel), "must begin with /individual-"),
            (page.Page(path=more.path, title="Other", panel=CountPanel), "choose another path"),
        ):
            with pytest.raises((TypeError, ValueError), match=said):
                page.register(wrong)
        rt = await dask_hpc.install(c)
    assert (await rt.status())["panels"] == [*PATHS, more.path, "/individual-hpc-broken"]
    assert {"HPC Count", "HPC Broken"} <= {entry["name"] for entry in panels._menu(s)}
    async with Browser(s, more.path) as browser:
        assert browser.root.text == "1 nodes"
    # what cannot be loaded takes nothing else with it
    assert await code_of(s, "/individual-hpc-broken") == 500
    assert await code_of(s, PATHS[0]) == 200
    await rt.uninstall()
    assert await code_of(s, more.path) == 404


@live(1, scheduler_kwargs=DASHBOARD)
async def test_decisions_are_plain_text_without_the_package_of_the_panel(c, s, a):
    rt = await dask_hpc.install(c)
    async with rt.job(EVIL, nodes=1) as job:
        await started(s, job)
        panel = DecisionsPanel(10.0, dark=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decisions_page, "html", lambda *arguments: None)
            panel.show(service.of(s).status)
    assert panel.root.text.startswith("<pre>&lt;script&gt;")
    assert "start" in panel.root.text


@live(1, scheduler_kwargs=DASHBOARD)
async def test_the_page_is_dark_when_asked_for(c, s, a):
    await dask_hpc.install(c)
    for path in PATHS:
        assert panel_documents.DARK_PAGE not in await get(s, path)
        assert panel_documents.DARK_PAGE in await get(s, f"{path}?theme=dark")
    async with Browser(s, PATHS[0], theme="dark", minutes="1") as jobs:
        assert jobs.root.x_range.start == -60
        assert jobs.received().x_range.start == -60


@pytest.mark.parametrize(
    ("text", "minutes"), [("", 10), ("5", 5), ("0", 1), ("1e9", 1440), ("nan", 10), ("-inf", 1), ("x", 10)]
)
def test_any_number_of_minutes_is_taken_within_bounds(text, minutes):
    assert panel_documents._minutes(text) == minutes


# ------------------------------------------------------------- where they cannot be


@live(1, scheduler_kwargs={"dashboard": False})
async def test_without_a_dashboard_nothing_happens(c, s, a):
    with captured_logger(panels.logger) as log:
        rt = await dask_hpc.install(c)
    assert log.getvalue() == ""
    status = await rt.status()
    assert status["panels"] == []
    assert status["panels_problem"] == ""
    await rt.uninstall()


def _no_application(patch):
    patch.delattr(core, "BokehApplication")


def _other_parameters(patch):
    patch.setattr(core, "BokehApplication", lambda pages, server: None)


def _no_menu(patch):
    patch.delattr(pages, "template_variables")


def _other_menu(patch):
    patch.setattr(pages, "template_variables", lambda scheduler: {"plots": ()})


def _broken_menu(patch):
    def fail(scheduler):
        raise OSError("no menu today")

    patch.setattr(pages, "template_variables", fail)


def _fails_halfway(patch):
    made = panel_documents.applications
    patch.setattr(panel_documents, "applications", lambda rows, watched: made(rows[:1], watched))


def _not_served(patch):
    def refuse(self, application):
        raise RuntimeError("served enough")

    patch.setattr("distributed.http.routing.RoutingApplication.add_application", refuse)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (_no_application, "BokehApplication is missing"),
        (_other_parameters, "no parameter prefix"),
        (_no_menu, "template_variables is missing"),
        (_other_menu, "menu of the dashboard is not as expected"),
        (_broken_menu, "no menu today"),
        (_fails_halfway, "does not list /individual-hpc-decisions"),
        (_not_served, "served enough"),
    ],
)
def test_a_dashboard_of_another_shape_is_left_alone_with_a_warning(trouble, said):
    @live(1, scheduler_kwargs=DASHBOARD)
    async def on_a_scheduler(c, s, a):
        served, stock = list(s.http_application.applications), panels._stock(s)
        before = dict(stock.applications)
        with pytest.MonkeyPatch.context() as patch, captured_logger(panels.logger) as log:
            trouble(patch)
            rt = await dask_hpc.install(c)
        assert log.getvalue().count("shows no jobs and decisions") == 1
        assert said in log.getvalue()
        status = await rt.status()
        assert status["panels"] == []
        assert said in status["panels_problem"]
        assert s.http_application.applications == served
        assert dict(stock.applications) == before
        await check_absent(s)
        # the runtime goes on
        async with rt.job("heat", nodes=1) as job:
            assert await c.submit(inc, 1) == 2
        assert (await job.wait(PATIENCE_S))["state"] == "completed"
        await rt.uninstall()

    on_a_scheduler()


@pytest.mark.errors("could not be taken off")
@live(1, scheduler_kwargs=DASHBOARD)
async def test_the_runtime_can_be_switched_off_when_its_panels_cannot(c, s, a):
    rt = await dask_hpc.install(c)
    with pytest.MonkeyPatch.context() as patch, captured_logger(panels.logger) as log:
        _broken_menu(patch)
        await rt.uninstall()
    assert service.RPC not in s.handlers
    assert "could not be taken off" in log.getvalue()
    assert [await code_of(s, path) for path in PATHS] == [404, 404]


@live(1, scheduler_kwargs=DASHBOARD)
async def test_every_difference_of_the_dashboard_is_told(c, s, a):
    assert panels.check(s, panels._stock(s)) == []
    other = SimpleNamespace(applications=(), app_paths={"/status"}, prefix=None)
    plain = SimpleNamespace(applications={"/status": None}, app_paths={"/status"}, prefix="")
    server = SimpleNamespace(http_application=SimpleNamespace())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "template_variables", lambda scheduler: {"plots": []})
        assert panels.check(server, other) == [
            "the HTTP server takes no further application",
            "Bokeh does not list its pages as expected",
            "BokehTornado.prefix is missing",
        ]
        assert panels.check(s, plain) == ["pages of the dashboard are not called as expected"]


_WITHOUT_BOKEH = """
import logging, sys, warnings
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "bokeh":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import dask_hpc
if __name__ == "__main__":
    with dask_hpc.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
        with cluster.get_client() as client:
            rt = dask_hpc.runtime(client)
            print(rt.status()["panels"], repr(rt.status()["panels_problem"]))
            rt.uninstall()
    print("bokeh" in sys.modules)
"""


@pytest.mark.slow
def test_without_bokeh_nothing_happens(repository):
    roots = [str(repository), str(repository / "policies"), str(repository / "widgets")]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_BOKEH],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "[] ''"
    assert lines[1] == "False"
    assert "dask_hpc" not in done.stderr


# ------------------------------------------------------------------ sizes over time


WAITS = "none: it waits"


def job(id="heat-1", submit_s=10.0, start_s=20.0, end_s=None, sizes=((20.0, 2),)):
    return SimpleNamespace(
        id=id, name=id.rpartition("-")[0], submit_s=submit_s, start_s=start_s, end_s=end_s, sizes=sizes
    )


def drawn(active, ended=(), now_s=60.0):
    """Stretches by job: ``(left, right, nodes)``."""
    columns = chart(active, ended, now_s, 100.0).columns
    found = {}
    bars = zip(*(columns[name] for name in ("job", "left", "right", "nodes")), strict=True)
    for name, left, right, nodes in bars:
        found.setdefault(name, []).append((left, right, nodes))
    return found


def test_a_job_is_drawn_from_its_submission_to_its_end():
    ended = job(end_s=50.0, sizes=((20.0, 2), (30.0, 4), (50.0, 0)))
    bars = [(-50, -40, WAITS), (-40, -30, "2"), (-30, -10, "4")]
    assert drawn([], [ended]) == {"A heat-1": bars}
    # what leaves the window is cut, then left out
    assert drawn([], [ended], 125.0) == {"A heat-1": [(-100, -95, "2"), (-95, -75, "4")]}
    assert drawn([], [ended], 150.0) == {}
    running = job(sizes=((20.0, 2), (30.0, 0), (40.0, 1)))
    bars = [(-50, -40, WAITS), (-40, -30, "2"), (-30, -20, WAITS), (-20, 0, "1")]
    assert drawn([running]) == {"A heat-1": bars}
    waiting = job("late-3", 30.0, None, sizes=())
    assert drawn([waiting]) == {"C late-3": [(-30, 0, WAITS)]}


def test_sizes_that_are_no_longer_known_are_not_made_up():
    # it started at 20 s; the first change that is remembered is of 40 s
    assert drawn([job(sizes=((40.0, 3),))]) == {"A heat-1": [(-50, -40, WAITS), (-20, 0, "3")]}


def test_a_job_that_was_withdrawn_before_it_was_queued_is_left_out():
    withdrawn, earlier = job("late-3", end_s=None), job(end_s=50.0, sizes=((20.0, 2), (50.0, 0)))
    assert list(drawn([], [withdrawn, earlier])) == ["A heat-1"]


def test_more_jobs_than_fit_are_counted_active_ones_first():
    active = [job(f"j-{i}") for i in range(3, MAX_ROWS + 2)]
    ended = [job(f"j-{i}", end_s=50.0 - i, sizes=((20.0, 1), (50.0 - i, 0))) for i in (1, 2)]
    found = chart(active, ended, 60.0, 100.0)
    assert found.hidden == 1
    assert len(found.labels) == MAX_ROWS
    assert found.labels[0] == "C j"
    assert found.labels[-1] == "A j"


@given(
    st.lists(
        st.builds(
            job,
            id=st.text(max_size=30),
            submit_s=st.floats(-200, 60),
            start_s=st.none() | st.floats(-200, 60),
            end_s=st.none() | st.floats(-200, 60),
            sizes=st.lists(st.tuples(st.floats(-200, 60), st.integers(0, 9)), max_size=5).map(sorted),
        ),
        max_size=20,
    )
)
def test_whatever_is_drawn_is_inside_of_the_chart(jobs):
    found = chart(jobs, jobs, 60.0, 100.0)
    columns = found.columns
    assert {len(column) for column in columns.values()} == {len(columns["left"])}
    rows = len(found.labels)
    for left, right, bottom, top in zip(
        *(columns[n] for n in ("left", "right", "bottom", "top")), strict=True
    ):
        assert -100 <= left <= right <= 0
        assert 0 <= top < bottom <= rows
    assert all(len(label) <= 20 for label in found.labels)
