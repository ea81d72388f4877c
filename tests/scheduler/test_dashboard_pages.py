"""The pages of our panels show what there is, follow it while somebody looks, or say why not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed.utils_test import captured_logger
from helpers import PATIENCE_S, Gate, live, started, until
from tornado.ioloop import IOLoop

import dask_hpc
from dask_hpc.scheduler.dashboard import page
from dask_hpc.scheduler.dashboard import pages as panels
from dask_hpc.scheduler.rpc import service

pytest.importorskip("bokeh")

from bokeh.client import pull_session
from bokeh.models import ColumnDataSource
from bokeh.models.text import PlainText
from bokeh.models.widgets import Div
from panel_pages import DASHBOARD, PATHS, address, code_of, get

from dask_hpc.scheduler.dashboard import checkpoints as checkpoints_page
from dask_hpc.scheduler.dashboard import decisions as decisions_page
from dask_hpc.scheduler.dashboard import documents as panel_documents
from dask_hpc.scheduler.dashboard.checkpoints import CheckpointsPanel
from dask_hpc.scheduler.dashboard.decisions import DecisionsPanel
from dask_hpc.scheduler.dashboard.io import IoPanel
from dask_hpc.scheduler.dashboard.jobs import JobsPanel
from dask_hpc.scheduler.dashboard.power import PowerPanel

EVIL = "<script>alert('x')</script>"


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
                assert jobs.root.title.text == "1 running, 0 waiting\n3 nodes (1 idle), fair"
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
        for kind in (JobsPanel, DecisionsPanel, CheckpointsPanel, IoPanel, PowerPanel):
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
        patch.setattr(panels, "_CLOSED_S", 0.02)
        ours, stopped = service.of(s).panels._ours, []
        stop = ours.stop
        patch.setattr(ours, "stop", lambda **how: stopped.append(stop(**how)))
        async with Browser(s, PATHS[0]) as jobs, Browser(s, PATHS[1]) as decisions:
            await rt.uninstall()
            await until(lambda: "switched off" in decisions.root.text, "it says so")
            await until(lambda: "switched off" in jobs.root.title.text, "it says so")
            # and looks no more
            assert [page.document.session_callbacks for page in (jobs, decisions)] == [[], []]
            assert stopped == []
        await until(lambda: stopped, "nobody has a page open, and Bokeh's threads end")


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
    told = {"policy": {"policy": "easy"}, "policy_failure": None, "policy_dropped": "mine failed"}
    panel._set_title(summary | told, 0)
    assert panel.root.title.text.endswith("easy; the policy before it has failed")


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


@live(2, scheduler_kwargs=DASHBOARD)
async def test_the_page_of_checkpoints_follows_what_is_protected(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path), checkpoint_every_s=3600.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_documents, "INTERVAL_MS", 20)
        async with Browser(s, PATHS[2]) as page:
            assert "Nothing is protected. rt.checkpoint(" in page.root.text
            async with rt.job(EVIL, nodes=1, protect="night"):
                await c.submit(len, "abc")
                await until(lambda: "results, as night; 0 written" in page.root.text, "the job is there")
                # the very first look may still find the whole hour left
                await until(lambda: "in 59 min" in page.root.text, "the next version comes nearer")
                assert EVIL not in page.root.text
                field = c.submit(bytes, 5000)
                await rt.checkpoint(field, "field")
                await until(lambda: "1 result protected" in page.root.text, "the version is there")
                assert "<strong>field</strong>" in page.root.text
                panel = CheckpointsPanel(10.0, dark=True)
                patch.setattr(checkpoints_page, "html", lambda *arguments: None)
                panel.show(service.of(s).status)
                assert panel.root.text.startswith("<pre>&lt;script&gt;")
                assert "field 1: complete" in panel.root.text


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
