"""What workers tell of power: nothing until it is asked for; then each its part, with a label, never 0."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Any

import dask.config
import pytest
from distributed import Scheduler
from distributed.utils_test import inc
from helpers import Gate, live, until
from sensor_trees import Powercap, counting

import dask_hpc
from dask_hpc.config import Settings, settings
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.internals.remote import ask, sections_of
from dask_hpc.wire import HEARTBEAT, POWER, WORKER_PLUGIN
from dask_hpc.worker.power import section as sections
from dask_hpc.worker.power import sources
from dask_hpc.worker.power.board import Member
from dask_hpc.worker.power.figures import Gauge, SensorError


def told(scheduler: Scheduler) -> list[dict[str, Any]]:
    found = [sections_of(ws).get("power") for ws in scheduler.workers.values()]
    return [dict(section) for section in found if section is not None]


async def switched(scheduler: Scheduler, *, on: bool) -> None:
    for address in scheduler.workers:
        await ask(scheduler, address, POWER, 5.0, on=on)


async def beat(scheduler: Scheduler, workers: Any, done: Any, what: str) -> list[dict[str, Any]]:
    """Heartbeats until what they tell is so."""
    for _ in range(400):
        for worker in workers:
            await worker.heartbeat()
        if done(found := told(scheduler)):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: {told(scheduler)}")


def watts(found: list[dict[str, Any]]) -> list[float]:
    return sorted(section["watts"] for section in found)


def passed_s(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> float:
    return sum(each["at_s"] for each in now) / 2 - sum(each["at_s"] for each in before) / 2


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dask-hpc-power"]


def all_are(label: str, count: int) -> Any:
    return lambda found: len(found) == count and all(each["label"] == label for each in found)


FAST = {"hpc.power.interval": "100 ms"}


@live(workers=2, config=FAST)
async def test_nothing_is_sampled_until_it_is_asked_for_and_then_parts_add_up(
    c, s, a, b, tmp_path, monkeypatch
):
    tree = Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0")
    monkeypatch.setattr(sections, "made", lambda settings: sources.made(settings, tmp_path))
    await dask_hpc.install(c)
    await until(lambda: all(WORKER_PLUGIN in w.plugins for w in (a, b)), "the plugin is everywhere")
    for worker in (a, b):
        await worker.heartbeat()
    assert told(s) == []
    assert samplers() == []
    with counting(tree, {"intel-rapl:0": 120.0}):
        await switched(s, on=True)
        assert len(samplers()) == 2
        before = await beat(s, (a, b), all_are("measured", 2), "both are measured")
        # by the stamps of the figures: the machine may be busy
        found = await beat(
            s, (a, b), lambda now: all_are("measured", 2)(now) and passed_s(before, now) > 2, "2 s of it"
        )
    spent_j = sum(each["energy_j"] for each in found) - sum(each["energy_j"] for each in before)
    assert spent_j / passed_s(before, found) == pytest.approx(120.0, rel=0.2)
    for each in found:
        assert each["host"] == "127.0.0.1"
        assert each["source"] == "rapl"
        assert abs(each["at_s"] - time.time()) < 10
        assert each["energy_j"] > 0
    await switched(s, on=False)
    await until(lambda: samplers() == [], "nobody samples any more")
    for worker in (a, b):
        await worker.heartbeat()
    assert told(s) == []


@live(workers=2, config={**FAST, "hpc.power.measure": "always", "hpc.power.model.idle": "50 W",
                         "hpc.power.model.busy": "150 W"})  # fmt: skip
async def test_without_a_sensor_the_model_speaks_for_each_node_and_says_so(c, s, a, b, monkeypatch, tmp_path):
    monkeypatch.setattr(sections, "made", lambda settings: sources.made(settings, tmp_path))
    rt = await dask_hpc.install(c)
    found = await beat(s, (a, b), all_are("modelled", 2), "both are modelled")
    found = await beat(
        s, (a, b), lambda each: [one["watts"] for one in each] == [50.0, 50.0], "both are idle"
    )
    assert all("no energy counter" in one["reason"] for one in found)
    await beat(s, (a, b), lambda each: all("load" not in one for one in each), "each knows of the other")
    gate = Gate()
    busy = c.submit(gate.wait, workers=[a.address])
    await beat(s, (a, b), lambda each: watts(each) == [50.0, 150.0], "one is busy")
    gate.open()
    await busy
    await b.close()
    found = await beat(s, (a,), lambda each: len(each) == 1 and "load" in each[0], "it is alone")
    assert found[0]["watts"] == pytest.approx(50 + 100 * found[0]["load"])
    # it is there in any case
    await switched(s, on=False)
    assert samplers() != []
    await rt.uninstall()
    await until(lambda: samplers() == [], "nobody samples any more")
    assert HEARTBEAT not in a.metrics
    assert POWER not in a.handlers


class Dying:
    """A sensor that answers, then hangs, then fails, then answers again."""

    name, label = "dying", "measured"

    def __init__(self) -> None:
        self.state, self.free = "well", threading.Event()

    def read(self) -> dict[str, Gauge]:
        if self.state == "hangs":
            self.free.wait(60)
        if self.state == "fails":
            raise SensorError("the bus is busy", "wait")
        return {"node": Gauge(100.0)}

    def total(self, spent_j: Any, before: Any, now: Any) -> float:
        return sum(spent_j.values())


@live(workers=1, config={**FAST, "hpc.power.timeout": "200 ms"})
async def test_a_sensor_that_hangs_or_dies_is_said_once_and_keeps_nobody_waiting(
    c, s, a, monkeypatch, caplog
):
    dying = Dying()
    monkeypatch.setattr(sections, "made", lambda settings: dying)
    await dask_hpc.install(c)
    await until(lambda: WORKER_PLUGIN in a.plugins, "the plugin is there")
    caplog.set_level(logging.INFO, "distributed.dask_hpc.power")
    await switched(s, on=True)
    (well,) = await beat(s, (a,), all_are("measured", 1), "it is measured")
    assert well["watts"] == pytest.approx(100.0)
    dying.state = "hangs"
    (hung,) = await beat(s, (a,), all_are("unavailable", 1), "it is not known")
    assert (hung["watts"], hung["reason"]) == (None, "dying does not answer any more")
    assert await c.submit(inc, 1) == 2
    dying.state = "fails"
    dying.free.set()
    (dead,) = await beat(s, (a,), lambda found: "busy" in found[0].get("reason", ""), "it says why")
    assert dead["watts"] is None
    for _ in range(5):
        await a.heartbeat()
    dying.state = "well"
    await beat(s, (a,), all_are("measured", 1), "it is measured again")
    said = [record.getMessage() for record in caplog.records if record.name == "distributed.dask_hpc.power"]
    assert said == [
        "The power of 127.0.0.1 is not known: dying does not answer any more",
        "The power of 127.0.0.1 is not known: the bus is busy",
        "The power of 127.0.0.1 is measured again, by dying",
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"source": "command"}, "hpc.power.command is not set"),
        ({"source": "model"}, "no model of the power of a node is set"),
        ({"source": "command", "command": ["no-such-command"]}, "there is no command no-such-command"),
    ],
)
def test_what_is_missing_is_said(given: dict[str, Any], reason: str) -> None:
    @live(workers=1, config={**FAST, **{f"hpc.power.{key}": value for key, value in given.items()}})
    async def missing(c, s, a):
        await dask_hpc.install(c)
        await until(lambda: WORKER_PLUGIN in a.plugins, "the plugin is there")
        await switched(s, on=True)
        (found,) = await beat(s, (a,), lambda each: reason in each[0].get("reason", ""), "it says so")
        assert (found["watts"], found["label"]) == (None, "unavailable")

    missing()


def test_settings_of_sensors_belong_to_the_node_alone() -> None:
    with dask.config.set({"hpc.power.model.idle": "0.1 kW", "hpc.power.command": ["ipmitool", "dcmi"]}):
        assert settings().power_model_idle_w == 100.0
        assert settings().power_command == ("ipmitool", "dcmi")
    with pytest.raises(ConfigError, match=r"power\.source"):
        Settings().updated_live(power_source="rapl")


def test_sampling_costs_less_than_3_thousandths_of_a_core_at_a_sample_a_second(tmp_path, monkeypatch):
    tree = Powercap(tmp_path)
    zones = {f"intel-rapl:{package}{part}" for package in (0, 1) for part in ("", ":0", ":1")}
    for number, id in enumerate(sorted(zones)):
        name = {"": f"package-{id[11]}", ":0": "dram", ":1": "core"}[id[12:]]
        tree.zone(id, name, 10**9 * (1 + number))
    monkeypatch.setattr(sections, "made", lambda settings: sources.made(settings, tmp_path))
    # ten times as often, so ten times as dear
    often = Settings(power_interval_s=0.1)
    sampler = sections.Sampler("tcp://nowhere:1", Member("a", os.getpid(), 1), often, tmp_path)
    try:
        with counting(tree, dict.fromkeys(zones, 20.0), every_s=0.05):
            time.sleep(0.5)
            began_s, before_s = time.monotonic(), sampler.cpu_s
            time.sleep(2.0)
            share = (sampler.cpu_s - before_s) / (time.monotonic() - began_s)
        assert sampler.told.figure.label == "measured"
    finally:
        sampler.stop()
        sampler.thread.join(10)
    assert 0 < share < 10 * 0.003
