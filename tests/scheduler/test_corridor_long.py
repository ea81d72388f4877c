"""Long schedules: what takes seconds to read, to check and to lead is done beside the scheduler's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from distributed.core import Status
from distributed.utils_test import captured_logger
from helpers import live, until

import dask_hpc
from dask_hpc.scheduler.power import corridor
from dask_hpc.scheduler.power.request import Wanted


@live(workers=1)
async def test_long_schedules_are_read_and_led_beside_the_loop(c, s, a, monkeypatch):
    done: list[tuple[str, bool]] = []
    here = threading.get_ident()

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append((name, threading.get_ident() == here))
            return real(*given)

        return call

    monkeypatch.setattr(corridor, "read_wanted", noted("read", corridor.read_wanted))
    rt = await dask_hpc.install(c, power_model_idle_w=70, power_model_busy_w=200)
    await rt.corridor(schedule=[[0, 0, 1000]])
    assert done == [("read", True)]
    monkeypatch.setattr(Wanted, "led", noted("led", Wanted.led))
    # 70 W are drawn: they are led inside
    found = await rt.corridor(schedule=[[n, 0, 50 + n % 2] for n in range(200)], ramp_w_s=5)
    assert 65 < found["upper_w"] <= 70
    # as it is read, and from what is drawn
    assert done[1:] == [("read", False), ("led", False), ("led", False)]
    await rt.corridor(clear=True)


@pytest.mark.errors("says of its power cannot be read")
@live(workers=1)
async def test_what_a_worker_says_is_read_as_it_says_it_and_only_then(c, s, a, monkeypatch):
    stock = s.handlers["heartbeat_worker"]
    rt = await dask_hpc.install(c, power_model_idle_w=70, power_model_busy_w=200, tick_s=60)
    await rt.corridor(upper_w=1000)
    heard: list[str] = []
    draw = s.extensions["hpc-corridor"]._books.draw
    assert s.handlers["heartbeat_worker"] != stock

    def hear(ws: Any) -> None:
        heard.append(ws.address)
        raise ValueError("a defect of ours")

    monkeypatch.setattr(s.extensions["hpc-corridor"]._beats, "_heard", hear)
    await a.heartbeat()
    assert a.status == Status.running
    assert set(heard) == {a.address}
    assert draw.told_by_beats
    ours = s.handlers["heartbeat_worker"]

    def other(**said: Any) -> Any:
        return ours(**said)

    # somebody who stands before ours stays, and nobody is called twice
    s.handlers["heartbeat_worker"] = other
    await rt.corridor(clear=True)
    assert not draw.told_by_beats
    await rt.corridor(upper_w=1000)
    heard.clear()
    await a.heartbeat()
    assert (a.status, s.handlers["heartbeat_worker"]) == (Status.running, other)
    assert heard == [a.address]
    s.handlers["heartbeat_worker"] = ours
    await rt.corridor(clear=True)
    assert s.handlers["heartbeat_worker"] == stock
    assert not draw.told_by_beats


@live(workers=1)
async def test_who_samples_as_the_runtime_is_uninstalled_ends_that_without_a_complaint(c, s, a):
    rt = await dask_hpc.install(c, power_model_idle_w=70, power_model_busy_w=200)
    await rt.corridor(upper_w=900, mode="monitor")
    await until(lambda: "power" in s.workers[a.address].metrics.get("hpc", {}), "it samples")
    with captured_logger("distributed.core") as said:
        await rt.uninstall()
        await until(lambda: "power" not in s.workers[a.address].metrics.get("hpc", {}), "it does no more")
    assert not said.getvalue()
