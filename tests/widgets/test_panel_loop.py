"""An open panel in a running loop, as in a kernel: what it asks, what it shows, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import Any

import ipywidgets
import pytest
from distributed import Client

import dask_hpc
from dask_hpc_widgets import views
from dask_hpc_widgets.live import questions

PATIENCE_S = 60.0


async def until(true: Callable[[], Any], what: str) -> Any:
    """Ask until it is true, while the loop goes on."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline_s, f"not in {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.01)
    return found


def block_until(true: Callable[[], Any], client: Client) -> None:
    """Hold the loop, as a cell that computes does, and until the client's loop is through with it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    client.sync(asyncio.sleep, 0)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run in a loop of its own, which is the kernel's for the panel."""
    asyncio.run(test())


class Times(list):
    """Moments."""

    hold = False


@pytest.fixture(autouse=True)
def _soon(request, monkeypatch):
    """Updates come sooner than they do, but where that is the question."""
    if "at_most_twice" not in request.node.name:
        monkeypatch.setattr("dask_hpc_widgets.panel.PERIOD_S", 0.05)
        monkeypatch.setattr("dask_hpc_widgets.base.link.ABSENT_S", 0.5)


@pytest.fixture
def asked(monkeypatch):
    """When the cluster answered what is shown; while `hold` is set it answers nothing."""
    times = Times()
    picture = questions.picture

    async def noted(runtime: Any, since: int = 0) -> Any:
        answer = await picture(runtime, since)
        while times.hold:
            await asyncio.sleep(0.01)
        times.append(time.monotonic())
        return answer

    monkeypatch.setattr(questions, "picture", noted)
    return times


def shown(panel: Any) -> list[float]:
    """When something was shown, from now on."""
    times: list[float] = []
    show = panel._link._show

    def noted(function: Any) -> None:
        times.append(time.monotonic())
        show(function)

    panel._link._show = noted
    return times


@contextmanager
def nothing_left(*clients: Client):
    """Nothing of ours is there afterwards that was not there before."""
    widgets = ipywidgets.widgets.widget._instances
    before = set(widgets), set(threading.enumerate())
    yield
    assert set(widgets) == before[0]
    deadline_s = time.monotonic() + PATIENCE_S
    while left := {one for one in set(threading.enumerate()) - before[1] if one.name.startswith("dask-hpc")}:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.01)
    for client in clients:
        assert _tasks_of_ours(client) == []


def _tasks_of_ours(client: Client) -> list[str]:
    async def names() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if "dask_hpc_widgets" in repr(task)]

    return client.sync(names)


def test_it_asks_at_most_twice_a_second_and_shows_no_more_than_it_asked(rt, asked):
    async def test():
        panel = rt.panel()
        asked.clear()
        times = shown(panel)
        await until(lambda: len(asked) >= 4, "four answers")
        panel.close()
        # a loop never wakes early by more than the resolution of its clock
        gaps = [later - first for first, later in itertools.pairwise(asked)]
        assert min(gaps) > 0.45
        assert 0 < len(times) <= len(asked) + 1

    with nothing_left(rt.client):
        in_loop(test)


def test_the_timeline_the_head_and_the_views_hear_of_news_while_the_loop_is_busy(rt, monkeypatch):
    monkeypatch.setitem(views._views, "mine", views.View(name="mine", title="Mine", html=str))

    async def test():
        panel = rt.panel()
        panel.ticks["mine"].value = True
        before = panel.timeline.now_s
        # longer than three updates, in which the kernel does nothing else
        block_until(lambda: panel.timeline.now_s > before + 0.2 and panel.tables.number > 3, rt.client)
        rt.update(policy="easy")
        block_until(lambda: "easy" in panel.head.value and "'easy'" in panel.bodies["mine"].value, rt.client)
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


def test_a_busy_loop_is_followed_by_one_update_with_the_latest_news(rt, asked):
    async def test():
        panel = rt.panel()
        times = shown(panel)
        await until(lambda: times, "the first update")
        asked.clear()
        times.clear()
        block_until(lambda: len(asked) >= 4, rt.client)
        rt.update(policy="easy")
        count = len(asked)
        block_until(lambda: len(asked) >= count + 2, rt.client)
        asked.hold = True
        rt.client.sync(asyncio.sleep, 0)
        assert times == []
        # all that was queued while the loop was held runs in the next turns
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(times) == 1
        asked.hold = False
        assert panel.tuning.model.running["policy"] == "easy"
        await until(lambda: len(times) >= 2, "updates go on")
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


def test_what_is_seen_first_is_not_drawn_again_when_nothing_is_new(rt):
    async def test():
        panel = rt.panel()
        times = shown(panel)
        await until(lambda: len(times) >= 1, "an update")
        sent: list[Any] = []
        for body in (panel.head, *panel.bodies.values()):
            body.observe(sent.append, names="value")
        count = len(times)
        await until(lambda: len(times) >= count + 2, "further updates")
        panel.close()
        assert sent == []

    in_loop(test)


def test_two_panels_of_two_clients_show_the_same_and_one_goes_on_without_the_other(rt, cluster):
    async def test():
        with Client(cluster) as second:
            other = dask_hpc.runtime(second)
            panels = [rt.panel(), other.panel(), rt.panel()]
            panels[0].tuning.form.policy.value = "pwma-fpsma"
            panels[0].tuning.apply.click()
            for panel in panels:
                await until(lambda p=panel: "pwma-fpsma" in p.head.value, "all show what one applied")
            assert "it was not changed here" in panels[1].tuning.says.value
            assert "Applied" in panels[0].tuning.says.value
            panels[0].close()
            rt.update(policy="easy")
            for panel in panels[1:]:
                await until(lambda p=panel: "easy" in p.head.value, "the others go on")
                panel.close()
            await until(lambda: _tasks_of_ours(second) == [], "no task is left")

    with nothing_left(rt.client):
        in_loop(test)


# ------------------------------------------------------------ clicks in a loop


def test_apply_and_simulate_answer_in_the_loop_and_a_change_of_others_withdraws_a_question(rt):
    async def test():
        panel = rt.panel()
        tuning = panel.tuning
        with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4):
            heat = rt.client.map(time.sleep, [0.05] * 1500, pure=False, key="heat")
        await until(lambda: any(row["nodes"] == 4 for row in rt.jobs()), "heat has all nodes")
        with rt.job("late", nodes=2):
            late = rt.client.map(time.sleep, [0.05] * 1500, pure=False, key="late")
        await until(
            lambda: any(row["name"] == "late" and row["held_tasks"] for row in rt.jobs()), "late waits"
        )
        tuning.form.policy.value = "pwma-fpsma"
        tuning.simulate.click()
        assert tuning.simulate.disabled
        assert tuning.apply.disabled
        # a page that does not know yet that it is disabled: it is done afterwards
        tuning.apply.click()
        await until(lambda: tuning._question.layout.display == "flex", "the question")
        assert not tuning.simulate.disabled
        assert "heat" in tuning.predicted.value
        assert rt.status()["policy"]["policy"] == "fcfs"
        rt.update(policy="easy")
        await until(lambda: tuning._question.layout.display == "none", "it is withdrawn")
        assert "it was not changed here" in tuning.says.value
        tuning.go.click()
        assert rt.status()["policy"]["policy"] == "easy"
        panel.close()
        del heat, late

    with nothing_left(rt.client):
        in_loop(test)


def test_news_that_overtake_the_answer_to_apply_are_no_change_of_others(rt, monkeypatch):
    done, told = threading.Event(), threading.Event()
    update = questions.update

    async def slow(runtime, policy):
        answer = await update(runtime, policy)
        done.set()
        while not told.is_set():
            await asyncio.sleep(0.01)
        return answer

    monkeypatch.setattr(questions, "update", slow)

    async def test():
        panel = rt.panel()
        panel.tuning.form.policy.value = "easy"
        panel.tuning.apply.click()
        await until(done.is_set, "the cluster has the policy")
        # a loop that was busy shows the newest picture before it hears that Apply is done
        panel._show(rt.client.sync(questions.picture, rt))
        told.set()
        await until(lambda: "Applied" in panel.tuning.says.value, "it is applied")
        times = shown(panel)
        await until(lambda: times, "an update")
        assert "Applied" in panel.tuning.says.value
        monkeypatch.undo()
        panel.tuning.revert.click()
        await until(lambda: "Reverted" in panel.tuning.says.value, "it is taken back")
        assert rt.status()["policy"]["policy"] == "fcfs"
        panel.close()

    in_loop(test)


def test_closing_while_a_simulation_runs_ends_it(rt, monkeypatch):
    begun, steps = threading.Event(), []

    def what_if(view, rows, present, chosen, assumed_s, progress):
        begun.set()
        while True:
            steps.append(progress(0.5))
            time.sleep(0.005)

    monkeypatch.setattr("dask_hpc_widgets.live.tuning.what_if", what_if)

    async def test():
        panel = rt.panel()
        panel.tuning.simulate.click()
        await until(begun.is_set, "the simulation runs")
        await until(lambda: panel.tuning.progress.value == 0.5, "its progress is shown")
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


def test_a_simulation_that_is_stopped_says_so(rt, monkeypatch):
    def what_if(view, rows, present, chosen, assumed_s, progress):
        while True:
            progress(0.5)
            time.sleep(0.005)

    monkeypatch.setattr("dask_hpc_widgets.live.tuning.what_if", what_if)

    async def test():
        panel = rt.panel()
        panel.tuning.simulate.click()
        await until(lambda: panel.tuning._running.layout.display == "flex", "it runs")
        panel.tuning.stop.click()
        await until(lambda: "stopped" in panel.tuning.says.value, "it has ended")
        assert not panel.tuning.simulate.disabled
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


# ------------------------------------------------------------- what may go away


def test_an_uninstalled_runtime_is_said_and_an_installed_one_goes_on(rt):
    async def test():
        panel = rt.panel()
        rt.uninstall()
        await until(lambda: "not installed" in panel.head.value, "it says so")
        dask_hpc.install(rt.client, policy="easy")
        await until(lambda: "easy" in panel.head.value and not panel.trouble, "it goes on")
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


def test_a_cluster_that_closes_is_said_and_its_panel_ends():
    async def test():
        cluster = dask_hpc.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        )
        client = Client(cluster)
        panel = dask_hpc.install(client, policy="fcfs").panel()
        cluster.close()
        await until(lambda: 'role="alert"' in panel.head.value, "trouble is said")
        client.close()
        await until(lambda: "client is closed" in panel.head.value, "that it has ended is said")
        await until(lambda: not panel._link._tasks, "its task has ended")
        panel.tuning.form.policy.value = "easy"
        panel.tuning.apply.click()
        await until(lambda: "nothing was changed" in panel.tuning.says.value, "Apply says so too")
        panel.close()
        panel.close()

    with nothing_left():
        in_loop(test)


def test_an_open_panel_keeps_no_client_that_was_closed(cluster, rt):
    async def test():
        # its own loop ends with it, and nothing is heard there any more
        client = Client(cluster.scheduler_address)
        panel = dask_hpc.runtime(client).panel()
        times = shown(panel)
        await until(lambda: times, "an update")
        client.close()
        seen = weakref.ref(client)
        del client
        await until(lambda: gc.collect() >= 0 and seen() is None, "nothing keeps it")
        await until(lambda: "client is closed" in panel.head.value, "that it has ended is said")
        await until(lambda: not panel._link._tasks, "its task has ended")
        panel.close()

    with nothing_left(rt.client):
        in_loop(test)


def test_an_asynchronous_client_has_a_panel_too(cluster, rt):
    async def test():
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            runtime = await dask_hpc.runtime(client)
            panel = await runtime.panel()
            times = shown(panel)
            panel.tuning.form.policy.value = "easy"
            panel.tuning.apply.click()
            await until(lambda: "Applied" in panel.tuning.says.value, "it is applied")
            assert (await runtime.status())["policy"]["policy"] == "easy"
            await until(lambda: times, "an update")
            panel.close()
            await asyncio.sleep(0)
            await until(lambda: not panel._link._tasks, "no task is left")

    with nothing_left(rt.client):
        in_loop(test)
