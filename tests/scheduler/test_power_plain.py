"""Plain work under a corridor draws, too: it has the nodes that there are watts for, and never none."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from distributed import wait
from helpers import Gate, engine, live, until, within

import dask_hpc

WATTS: dict[str, Any] = {"power_model_idle_w": 70, "power_model_busy_w": 200, "tick_s": 0.05}


def nap(number: int, seconds: float = 0.02) -> int:
    time.sleep(seconds)
    return number


def busy(s: Any) -> int:
    return sum(bool(ws.processing) for ws in s.workers.values())


async def most_busy(s: Any, moments: int = 40) -> int:
    """The most workers that execute something, over many moments."""
    seen = 0

    def look() -> bool:
        nonlocal seen, moments
        seen, moments = max(seen, busy(s)), moments - 1
        return moments <= 0

    await until(look, "all moments")
    return seen


async def withheld(rt: Any, count: int) -> str:
    """Wait until so many nodes are withheld; gives the reason."""
    found: dict[str, Any] = {}
    for _ in range(2000):
        found = (await rt.power())["withheld"]
        if len(found["nodes"]) == count:
            return str(found["reason"])
        await asyncio.sleep(0.02)
    raise AssertionError(f"{count} nodes are to be withheld: {found}")


@pytest.mark.parametrize("policy", ["power-aware", "prma-fpsma"])
@live(workers=4)
async def test_plain_work_has_the_nodes_that_there_are_watts_for_and_all_again_at_once(
    c, s, *workers, policy
):
    rt = await dask_hpc.install(c, policy=policy, **WATTS)
    futures = c.map(nap, range(4000), seconds=0.04)
    await until(lambda: busy(s) == 4, "as in stock it is everywhere")
    # 280 W idle, 130 W more a node: two fit
    await rt.corridor(upper_w=280 + 2 * 130 + 60)
    reason = await withheld(rt, 2)
    assert "plain work has 2 nodes of 4" in reason
    assert "130 W" in reason
    await until(lambda: busy(s) <= 2, "what executed has ended")
    assert await most_busy(s) == 2
    draw_w = (await rt.power())["draw_w"]
    assert draw_w <= 600
    assert any(one["reason"] == reason for one in await rt.decisions())
    # never none, however low the bound is
    await rt.corridor(upper_w=10)
    await withheld(rt, 3)
    await until(lambda: busy(s) == 1, "one node works")
    done = sum(future.done() for future in futures)
    await until(lambda: sum(future.done() for future in futures) > done + 5, "it goes on")
    # a bound that rises gives them back, and so does the end of it
    await rt.corridor(upper_w=2_000)
    await until(lambda: busy(s) == 4, "it is everywhere again")
    assert await withheld(rt, 0) == ""
    await rt.corridor(upper_w=10)
    await withheld(rt, 3)
    await rt.corridor(clear=True)
    await until(lambda: busy(s) == 4, "it is everywhere again")


@live(workers=4)
async def test_a_job_has_what_is_withheld_and_comes_before_plain_work(c, s, *workers):
    rt = await dask_hpc.install(c, policy="power-aware", **WATTS)
    futures = c.map(nap, range(4000), seconds=0.04)
    # 280 W idle: 3 busy nodes
    await rt.corridor(upper_w=280 + 3 * 130 + 60)
    await withheld(rt, 1)
    gate = Gate()
    async with rt.job("heat", nodes=2, min_power_w=200, max_power_w=200) as job:
        held = c.submit(gate.wait)
        await until(lambda: engine(s).state.nodes_up(engine(s).state.jobs.find(job.id)) == 2, "it runs")
        # two of its nodes, and one that works
        await withheld(rt, 1)
        assert (await rt.power())["draw_w"] <= 280 + 3 * 130 + 60
        gate.open()
        await within(wait(held))
    await until(lambda: busy(s) == 3, "plain work has them again")
    # one that a job holds while the bound rises is withheld no more
    gate = Gate()
    async with rt.job("heat", nodes=2, min_power_w=200, max_power_w=200) as job:
        held = c.submit(gate.wait, pure=False)
        await until(lambda: engine(s).state.nodes_up(engine(s).state.jobs.find(job.id)) == 2, "it runs")
        await rt.corridor(upper_w=2_000)
        assert await withheld(rt, 0) == ""
        gate.open()
        await within(wait(held))
    await until(lambda: busy(s) == 4, "plain work is everywhere")
    assert not all(future.done() for future in futures)


@live(workers=4)
async def test_what_is_looked_at_alone_withholds_nothing(c, s, *workers):
    rt = await dask_hpc.install(c, policy="power-aware", **WATTS)
    futures = c.map(nap, range(1000))
    await rt.corridor(upper_w=300, mode="advise")
    await until(lambda: busy(s) == 4, "it is everywhere")
    assert await most_busy(s) == 4
    assert (await rt.power())["withheld"] == {"nodes": [], "reason": ""}
    assert not all(future.done() for future in futures)
