"""Our panels on the dashboard: there whichever way the runtime is switched on, gone with it, and harmless."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, Scheduler
from distributed.utils_test import captured_logger, gen_test
from helpers import PATIENCE_S, live
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.dashboard import pages as panels
from dask_hpc.scheduler.rpc import service

pytest.importorskip("bokeh")

from distributed.dashboard import core
from distributed.dashboard import scheduler as pages
from panel_pages import DASHBOARD, PATHS, check_absent, check_there, code_of, get

from dask_hpc.scheduler.dashboard import documents as panel_documents

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
    assert [await code_of(s, path) for path in PATHS] == [404] * len(PATHS)


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
