"""A run of the explorer goes on beside a kernel's loop, tells how far it is, and can be stopped."""

from __future__ import annotations

import asyncio
import gc
import json
import threading

import pytest
from markup import text

from dask_hpc.sim import Result, simulate
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.explorer import Explorer
from dask_hpc_widgets.forms.fields import below

pytestmark = pytest.mark.usefixtures("no_figure")
PATIENCE_S = 60


def threads():
    return [one for one in threading.enumerate() if one.name == "dask-hpc-simulation"]


async def until(condition):
    """Let the loop go on until it has brought what is waited for."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def test_a_run_goes_on_beside_the_loop(explorer, monkeypatch):
    seen, plans = [], []
    real = exploration.run
    monkeypatch.setattr(
        exploration, "run", lambda plan, progress, found: [plans.append(plan), real(plan, progress)][1]
    )
    explorer.progress.observe(lambda change: seen.append(threading.get_ident()), names="value")

    async def main():
        explorer.run.click()
        assert explorer.run.disabled
        assert explorer._under_way.layout.display == "flex"
        explorer.run.click()
        await until(lambda: explorer._turn is None)

    asyncio.run(main())
    assert text(explorer.says.value) == "Done."
    assert explorer._under_way.layout.display == "none"
    assert not explorer.run.disabled
    assert set(seen) <= {threading.get_ident()}
    assert len(plans) == 1
    for thread in threads():
        thread.join(PATIENCE_S)
    assert threads() == []


def test_progress_names_the_policy_that_runs(explorer, monkeypatch):
    said = []
    explorer.says.observe(lambda change: said.append(text(change["new"])), names="value")

    def telling(plan, progress, found):
        for share in (0.0, 0.5, 1.0):
            progress(share)
        return real(plan)

    real = exploration.run
    monkeypatch.setattr(exploration, "run", telling)
    monkeypatch.setattr("dask_hpc_widgets.base.background._PERIOD_S", 0.0)
    explorer.run.click()
    assert said == [
        "Reading the workload.",
        "Running policy 1 of 2: fcfs.",
        "Running policy 2 of 2: easy.",
        "Done.",
    ]
    assert explorer.progress.value == 1.0


def test_each_result_is_there_as_soon_as_it_can_be_and_stays_when_the_run_is_stopped(
    explorer, tmp_path, monkeypatch
):
    def endless(workload, spec, **more):
        if spec["policy"] == "fcfs":
            return simulate(workload, spec, **more)
        while True:
            more["progress"](1)

    monkeypatch.setattr(exploration, "simulate", endless)

    async def main():
        explorer.run.click()
        # the first policy has run, and what came of it is shown while the second runs
        await until(lambda: "Mean wait" in explorer.results.value)
        assert "Running policy" in text(explorer.says.value)
        assert "Without easy, not run to the end." in text(explorer.results.value)
        explorer.stop.click()
        assert text(explorer.says.value) == "Stopped; kept: fcfs."
        assert not explorer.run.disabled
        assert explorer._under_way.layout.display == "none"
        explorer.stop.click()
        # by itself: the loop goes on
        await until(lambda: not threads())

    asyncio.run(main())
    assert "Mean wait 4 s" in text(explorer.results.value)
    explorer.path.value = str(tmp_path / "part.json")
    explorer.save.click()
    assert [run["label"] for run in json.loads((tmp_path / "part.json").read_text())["runs"]] == ["fcfs"]


def test_a_run_that_is_stopped_before_anything_has_ended_leaves_what_was_there(explorer, monkeypatch):
    explorer.run.click()
    before = explorer.results.value

    def endless(workload, spec, **more):
        while True:
            more["progress"](1)

    monkeypatch.setattr(exploration, "simulate", endless)
    gc.collect()
    found = sum(type(one) is Result for one in gc.get_objects())

    async def main():
        explorer.run.click()
        await until(lambda: "policy 1 of 2" in explorer.says.value)
        explorer.stop.click()
        assert text(explorer.says.value) == "Stopped; no policy had run to its end."
        await until(lambda: not threads())

    asyncio.run(main())
    assert explorer.results.value == before
    gc.collect()
    assert sum(type(one) is Result for one in gc.get_objects()) <= found


def test_what_was_stopped_does_not_come_after_what_ran_later(explorer, monkeypatch):
    go = threading.Event()
    real = exploration.run

    def slow(plan, progress, found):
        if plan.workload["seed"] == 1:
            # a workload is generated or read in one piece
            go.wait(PATIENCE_S)
        return real(plan)

    monkeypatch.setattr(exploration, "run", slow)
    seed = explorer.workload.settings.controls["seed"]

    async def main():
        seed.value = "1"
        explorer.run.click()
        explorer.stop.click()
        seed.value = "2"
        explorer.run.click()
        await until(lambda: explorer._turn is None)
        go.set()
        await until(lambda: not threads())
        await asyncio.sleep(0)

    asyncio.run(main())
    assert explorer._outcome.plan.workload["seed"] == 2
    assert text(explorer.says.value) == "Done."


def test_close_ends_what_is_under_way_and_takes_every_widget_away(monkeypatch):
    began = threading.Event()

    def endless(plan, progress, found):
        while True:
            began.set()
            progress(0.0)

    monkeypatch.setattr(exploration, "run", endless)
    explorer = Explorer("builtin:figure-5-1", ("fcfs", "easy"))
    inside = below(explorer)

    async def main():
        explorer.run.click()
        await until(began.is_set)
        assert threads()
        explorer.close()
        explorer.close()
        await until(lambda: not threads())

    asyncio.run(main())
    assert all(widget.comm is None for widget in inside)
    assert repr(explorer) == "<Explorer closed>"
