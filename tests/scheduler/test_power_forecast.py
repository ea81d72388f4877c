"""The forecast of a live cluster's draw: made beside the loop, moved with the sizes, seen by the policy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers import engine, live, record, started, until

import dask_hpc
from dask_hpc.scheduler.power import forecaster as forecasters
from dask_hpc.scheduler.power import forecasting
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.forecaster import Forecaster
from dask_hpc.scheduler.power.picture import widened
from dask_hpc_policies.power import unexplained
from dask_hpc_policies.power.forecast import forecast
from dask_hpc_policies.power.view import PowerView

HORIZON_S, TICK_S = 5.0, 1.0
#: Passes that are looked at where nothing is to happen.
PASSES = 20


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts are made at the priority of the tests: at the lowest they wait for all other work."""
    monkeypatch.setattr(forecasters, "NICE", 0)


def sample(number: int, nodes: int = 2, **more: Any) -> Sample:
    """Nodes of a job are modelled at 200 W, and draw 10 W more, up and down by 30 W."""
    sized_w = 200.0 * nodes
    watts = sized_w + 10 + 30 * math.sin(number * math.pi / 4)
    return Sample(float(number), **{"label": "measured", "total_w": watts, "sized_w": sized_w, **more})


@contextmanager
def forecaster(came: list[int]) -> Iterator[Forecaster]:
    one = Forecaster(lambda: came.append(1))
    try:
        yield one
    finally:
        one.close()


@pytest.mark.filterwarnings("ignore")
def test_it_is_made_in_a_process_of_its_own_and_moves_with_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    # how long the next one waits for the CPU time of this one is a matter of the machine
    monkeypatch.setattr(forecasters, "_SHARE", 10.0)

    async def go() -> None:
        with forecaster(came) as one:
            for number in range(29):
                one.add(sample(number), HORIZON_S, TICK_S)
            assert one.told(28.0) == {"model": None, "samples": 29, "made": 0, "problem": ""}
            one.add(sample(29), HORIZON_S, TICK_S)
            # a job is being resized: its nodes count as before, the draw is neither nor
            one.add(sample(30, total_w=5000.0, settled=False), HORIZON_S, TICK_S)
            one.add(sample(31, total_w=5000.0, label="modelled"), HORIZON_S, TICK_S)
            await until(lambda: bool(came), "a forecast")
            told = one.told(29.0)
            mine = forecast([float(n) for n in range(30)], [sample(n).total_w for n in range(30)], 5)
            assert told["model"] == mine.model
            assert told["mean_w"] == pytest.approx(mine.mean_w)
            assert (told["min_w"], told["max_w"]) == pytest.approx((mine.min_w, mine.max_w))
            assert told["error"] == pytest.approx(mine.mape[mine.model])
            assert (told["samples"], told["made"]) == (30, 1)
            low, high = round(mine.min_w), round(mine.max_w)
            assert one.range_w(sample(32)) == (low, high)
            assert one.range_w(sample(32, nodes=3)) == (low + 200, high + 200)
            # samples that were taken at two nodes count as if they had been at three
            one.add(sample(32, nodes=3), HORIZON_S, TICK_S)
            await until(lambda: len(came) == 2, "another forecast")
            assert one.told(32.0)["made"] == 2
            range_w = one.range_w(sample(33, nodes=3))
            assert range_w is not None
            assert 560 < range_w[0] < 600
            assert 620 < range_w[1] < 660
            # one that is followed by no other does not hold for ever
            assert one.range_w(sample(2000)) is None
            assert one.told(2000.0)["model"] is None

    asyncio.run(go())


@pytest.mark.errors("There is no forecast of the draw")
def test_what_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    right = forecasting.EXPECTED

    async def go() -> None:
        with forecaster(came) as one:
            monkeypatch.setattr(forecasters.forecasting, "EXPECTED", f"{right.partition(':')[0]}:nothing")
            for number in range(30):
                one.add(sample(number), HORIZON_S, TICK_S)
            await until(lambda: bool(one.failure), "it has failed")
            assert "nothing" in one.told(30.0)["problem"]
            monkeypatch.setattr(forecasters.forecasting, "EXPECTED", right)
            one.add(sample(31), HORIZON_S, TICK_S)
            assert not came
            one.add(sample(36), HORIZON_S, TICK_S)
            await until(lambda: bool(came), "it is made")
            assert one.told(36.0)["problem"] == ""

    asyncio.run(go())


def test_what_keeps_it_from_being_made_is_told() -> None:
    with forecaster([]) as one:
        for more, said in (
            ({"label": "modelled", "measured_nodes": 7}, "1 of 8 nodes are not measured"),
            ({"label": "unavailable", "measured_nodes": 0}, "8 of 8 nodes are not measured"),
            ({"label": "modelled", "measured_nodes": 8}, "nodes that are away"),
            ({"label": "measured", "measured_nodes": 8}, ""),
        ):
            one.add(Sample(1.0, nodes=8, total_w=800.0, **more), HORIZON_S, TICK_S)  # type: ignore[arg-type]
            told = one.told(1.0)
            assert told["model"] is None
            assert told["problem"].startswith(said)
            assert bool(told["problem"]) is bool(said)


def test_over_another_policy_the_forecast_is_told_beside_what_is_known() -> None:
    for mode, expected_w in (("policy", (80.0, 300.0)), ("enforce", (100.0, 200.0))):
        power = PowerView(mode=mode, min_w=100.0, max_w=200.0)  # type: ignore[arg-type]
        found = widened(power, (80.0, 300.0))
        assert (found.min_w, found.max_w) == expected_w
        assert found.forecast_w == (80.0, 300.0)


def corridor_of(s: Any) -> Any:
    return s.extensions["hpc-corridor"]


def expected_w(s: Any) -> float:
    """The most watts that the last picture expects."""
    view = corridor_of(s)._shown.view
    return 0.0 if view is None or view.max_w is None else view.max_w


async def passes(s: Any, above_w: float) -> None:
    """There are passes, one after the other, in which more than that is expected."""
    views: list[Any] = []

    def enough() -> bool:
        view = corridor_of(s)._shown.view
        if expected_w(s) > above_w and not any(view is one for one in views):
            views.append(view)
        return len(views) >= PASSES

    await until(enough, f"{PASSES} passes in which more than {above_w} W are expected")


async def say(s: Any, workers: Any, watts: Callable[[int], float]) -> None:
    """Have workers tell so many watts as measured, again and again."""
    for worker in workers:
        worker.periodic_callbacks["heartbeat"].stop()
    number = 0
    while len(s.workers) == len(workers):
        number += 1
        for worker in workers:
            section = {"watts": watts(number), "label": "measured", "at_s": number, "host": worker.address}
            ws = s.workers[worker.address]
            ws.metrics = {**ws.metrics, "hpc": {"power": section}}
        await asyncio.sleep(0.01)


@live(workers=3)
async def test_what_is_expected_counts_when_proactive_and_not_when_reactive(c, s, *workers, monkeypatch):
    rt = await dask_hpc.install(
        c, policy="power-aware", power_model_idle_w=70, power_model_busy_w=100, tick_s=0.02,
        power_forecast_horizon_s=0.5,
    )  # fmt: skip
    await rt.update(mode="reactive")
    assert "power" in await rt.status()
    assert (await rt.power())["forecast"] is None
    saying = asyncio.create_task(say(s, workers, lambda number: 100 + 30 * (-1) ** (number // 3)))
    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 3)
        await rt.corridor(upper_w=1000, over=5)
        await until(lambda: expected_w(s) > 340, "it is forecast")
        told: dict[str, Any] = {"model": None}
        while told["model"] is None:  # on a loaded machine one is soon older than what it is for
            told = (await rt.status())["power"]["forecast"]
        assert told["max_w"] > 340
        # the mean of 5 s is 300 W, and single samples are 390 W
        await rt.corridor(upper_w=345, over=5)
        await passes(s, 345)
        assert engine(s).state.nodes_up(record(s, job)) == 3
        await rt.update(mode="proactive")
        await until(lambda: engine(s).state.nodes_up(record(s, job)) < 3, "it is smaller")
        (row, *_) = [row for row in await rt.decisions() if row["action"] == "shrink"]
        assert "expected are" in row["reason"]
        # over a policy that knows nothing of it the job grows no more for as long as that holds
        monkeypatch.setattr(forecasters, "_SHARE", 0.01)
        of_draw = corridor_of(s)._forecaster
        # else it is due twenty times as long after the last one as that has taken of a processor
        made, of_draw._due_s = of_draw.made, 0.0
        await until(lambda: of_draw.made > made, "a forecast that holds for long")
        await rt.update(policy="fair")
        await passes(s, 0)
        assert engine(s).state.nodes_up(record(s, job)) < 3
        said = " ".join(row["reason"] for row in await rt.decisions())
        assert "with what is forecast beyond what is known" in said
        await rt.corridor(upper_w=1000, over=5)
        await until(lambda: engine(s).state.nodes_up(record(s, job)) == 3, "it has all nodes")
    saying.cancel()
    await rt.corridor(clear=True)
    assert (await rt.power())["forecast"] is None


@live(workers=3)
async def test_a_draw_of_nobody_is_led_back_under_any_policy(c, s, *workers, monkeypatch):
    monkeypatch.setattr(unexplained, "STAYS_S", 0.2)
    rt = await dask_hpc.install(
        c, policy="fcfs", power_model_idle_w=70, power_model_busy_w=100, tick_s=0.02
    )
    saying = asyncio.create_task(say(s, workers, lambda number: 200.0))
    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3, min_power_w=100, max_power_w=100) as job:
        await started(s, job, 3)
        # it does nothing, so that nothing is learned of it: 300 W are known, 600 W drawn
        await rt.corridor(upper_w=550)
        await until(lambda: engine(s).state.nodes_up(record(s, job)) < 3, "it is smaller")
        (row, *_) = [row for row in await rt.decisions() if row["action"] == "shrink"]
        assert "the draw is 600 W (300 W more than is known of jobs and nodes)" in row["reason"]
        assert (await rt.power())["unexplained_w"] == 300
    saying.cancel()
    await rt.corridor(clear=True)


def test_the_next_forecast_is_asked_for_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def work(one: Forecaster, sample: Sample, steps: int, horizon_s: float) -> None:
        asked.append(sample.t_s)
        one._due_s = sample.t_s + 4

    monkeypatch.setattr(Forecaster, "_work", work)

    async def go() -> None:
        with forecaster([]) as one:
            for number in range(40):
                one.add(sample(number), HORIZON_S, TICK_S)
                await asyncio.sleep(0)

    asyncio.run(go())
    assert asked == [29.0, 33.0, 37.0]
