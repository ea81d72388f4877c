"""The levers ``pool`` and ``steal`` on a live cluster: they act on request alone, with a reason in watts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import dask
import pytest
from distributed import Worker
from helpers import Gate, engine, live, record, started, until

import dask_hpc
from dask_hpc.report.spans import PowerSpan
from dask_hpc.wire import RPC

USUAL = ("resize", "hold", "start")


async def until_true(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until what is asked of the scheduler is so."""
    until_s = time.monotonic() + 30
    while not await look():
        assert time.monotonic() < until_s, what
        await asyncio.sleep(0.02)


@live(workers=4, config={"hpc.tick": "50 ms"})
async def test_a_waiting_job_takes_the_nodes_of_a_malleable_one(c, s, *workers):
    rt = await dask_hpc.install(c, policy="power-aware", power_model_idle_w=50, power_model_busy_w=200)
    watts = {"min_power_w": 250, "max_power_w": 250}
    async with rt.job("hungry", nodes=4, min_nodes=3, max_nodes=4, **watts) as hungry:
        await started(s, hungry, 4)
        async with rt.job("modest", nodes=2, min_power_w=100, max_power_w=100) as modest:
            # three nodes of the first one draw 800 W with the idle one, two of the second one 300 W
            await rt.corridor(upper_w=600)
            await started(s, hungry, 3)

            async def nothing_is_inside() -> bool:
                plan = (await rt.power())["plan"]
                return plan is not None and plan["found_for"] == {hungry.id: 3} and plan["violation_w"] == 200

            await until_true(nothing_is_inside, "the plan for the present sizes is outside")
            assert not [one for one in await rt.decisions() if one["action"] == "steal"]
            await rt.update(power_levers=[*USUAL, "steal"])
            await started(s, modest, 2)
            [theft] = [one for one in await rt.decisions() if one["action"] == "steal"]
            assert "the draw is 300 to 300 W, allowed are 0 to 600 W" in theft["reason"]
            # the picture has it, too: what was drawn, allowed and expected
            lane: list[PowerSpan] = []

            async def inside_is_seen() -> bool:
                lane[:] = (await rt.timeline(predict=False)).spans.power
                return lane[-1].max_w == 300

            await until_true(inside_is_seen, "the lane shows what is expected now")
            assert {span.upper_w for span in lane} == {600.0}
            assert next(span.max_w for span in lane if span.max_w is not None) == 1_000
            assert all(before.end_s == span.start_s for before, span in pairwise(lane))
            assert all(span.watts is not None and 200 <= span.watts <= 1_000 for span in lane)
            # whoever was set aside runs again once there are watts for it
            await rt.corridor(upper_w=2_000)
        await started(s, hungry, 4)


async def wanted(s, **view) -> int:
    """How many workers an adaptive cluster is told to have, which says `view` of those that are not there."""
    there = [str(ws.name) for ws in s.workers.values()]
    return (await s.handlers[RPC]("pool", {"there": there, **view}))["result"]["nodes"]


@live(workers=4)
async def test_an_adaptive_cluster_has_the_nodes_that_the_bounds_leave_it(c, s, *workers):
    with dask.config.set({"hpc.pool.hold": "0 s", "hpc.tick": "50 ms"}):
        rt = await dask_hpc.install(c, policy="power-aware", power_model_idle_w=50, power_model_busy_w=200)

    async def is_told(nodes: int) -> None:
        async def told() -> bool:
            return await wanted(s) == nodes

        await until_true(told, f"{nodes} nodes")

    # nobody asks for any: idle ones are let go, unless the lower bound needs them
    await rt.corridor(lower_w=160, upper_w=1_000)
    await is_told(0)
    await rt.update(power_levers=[*USUAL, "pool"])
    await is_told(4)
    await rt.corridor(lower_w=260, upper_w=1_000)
    await is_told(6)
    # a job that waits asks for four, of which two may be there
    await rt.corridor(upper_w=120)
    async with rt.job("wide", nodes=4, min_power_w=300, max_power_w=300) as job:
        await is_told(2)
        reasons = [one["reason"] for one in await rt.decisions()]
        assert any("4 nodes is to have 2" in text and "allowed are 0 to 120 W" in text for text in reasons)
        await rt.update(power_levers=list(USUAL))
        await is_told(4)
        await job.cancel()
    await rt.corridor(clear=True)


@live(workers=4)
async def test_an_idle_node_goes_for_what_a_job_may_then_have_of_the_others(c, s, *workers):
    model = {"power_model_idle_w": 50, "power_model_busy_w": 75, "power_levers": [*USUAL, "pool"]}
    with dask.config.set({"hpc.pool.hold": "0 s", "hpc.tick": "50 ms"}):
        rt = await dask_hpc.install(c, policy="power-aware", **model)
    # three idle nodes leave watts for one that computes, one that is off leaves them for three
    await rt.corridor(upper_w=225)
    gate = Gate()
    async with rt.job("wide", nodes=1, min_nodes=1, max_nodes=4) as job:
        mine = [c.submit(gate.wait, number) for number in range(100)]
        await started(s, job, 1)

        async def is_told(nodes: int, **view) -> None:
            async def told() -> bool:
                return await wanted(s, **view) == nodes

            await until_true(told, f"{nodes} nodes")

        # its own minimum comes first
        await is_told(4, minimum=4)
        await is_told(3)
        reasons = [one["reason"] for one in await rt.decisions()]
        assert any("4 nodes is to have 3" in text and "with 1 node off" in text for text in reasons)
        idle = next(node for node in engine(s).state.nodes.free())
        await next(worker for worker in workers if worker.address in idle.workers).close()
        await started(s, job, 3)
        # no node comes while there are no watts for it, and one does once there are
        assert await wanted(s) == 3
        await rt.corridor(upper_w=900)

        async def more_may_come() -> bool:
            return await wanted(s) > 3

        await until_true(more_may_come, "it comes again")
        gate.open()
        assert len(await c.gather(mine)) == 100
    await rt.corridor(clear=True)


@live(workers=2)
async def test_nodes_that_are_off_and_that_start_draw_and_are_billed(c, s, *workers):
    model = {"power_model_idle_w": 50, "power_model_busy_w": 200}
    with dask.config.set({"hpc.pool.hold": "0 s", "hpc.tick": "50 ms", "hpc.pool.max-nodes": 8}):
        rt = await dask_hpc.install(c, policy="power-aware", **model)
    # nobody has said what they draw: they are not counted
    await rt.corridor(lower_w=0, upper_w=1_000, mode="monitor")
    await wanted(s, pending=["x-0", "x-1", "y-0"], queued=["y-0"], maximum=8)
    assert (await rt.power())["draw_w"] == 100
    await rt.update(power_model_powered_off_w=4, power_model_boot_w=130, power_levers=[*USUAL, "pool"])

    # three are off, two start, one waits for a node of others
    async def is_drawn() -> bool:
        await wanted(s, pending=["x-0", "x-1", "y-0"], queued=["y-0"], maximum=8)
        return (await rt.power())["draw_w"] == 2 * 50 + 3 * 4 + 2 * 130

    await until_true(is_drawn, "all of them are drawn")

    async def is_billed() -> bool:
        bill = (await rt.power())["bill"]
        if not {"off", "boot", "idle"} <= set(bill["states"]):
            return False
        total, states = bill["total"]["energy_j"], bill["states"]
        assert sum(use["energy_j"] for use in states.values()) == pytest.approx(total)
        absent = bill["absent_nodes"]
        assert absent["energy_j"] == pytest.approx(states["off"]["energy_j"] + states["boot"]["energy_j"])
        nodes = sum(use["energy_j"] for use in bill["nodes"].values())
        assert nodes + absent["energy_j"] == pytest.approx(total)
        return True

    await until_true(is_billed, "they are billed")
    # whoever has come draws once, also before the cluster asks again
    async with Worker(s.address, name="x-0", nthreads=1):

        async def has_come() -> bool:
            return (await rt.power())["draw_w"] == 3 * 50 + 3 * 4 + 130

        await until_true(has_come, "it does not start any more")
    # there are watts for two more while they start, for all of them once they are there
    await rt.corridor(upper_w=2 * 50 + 6 * 4 + 2 * (130 - 4) + 60)
    async with rt.job("wide", nodes=6, min_power_w=50, max_power_w=50) as job:

        async def is_told() -> bool:
            if await wanted(s, pending=["x-0", "x-1"], maximum=8) != 4:
                return False
            texts = [one["reason"] for one in await rt.decisions()]
            return any("46 W more than one that is off, one that starts 126 W" in text for text in texts)

        await until_true(is_told, "the two that start are to come, and no third one")
        await job.cancel()
    await rt.corridor(clear=True)


@live(workers=3)
async def test_advice_is_told_and_not_taken(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs", power_model_idle_w=70, power_model_busy_w=200, tick_s=0.05)
    gate = Gate()
    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3) as job:
        mine = [c.submit(gate.wait, number) for number in range(3)]
        await started(s, job, 3)
        await rt.corridor(upper_w=500, mode="advise")
        await until(lambda: "advised" in str(list(engine(s).controller.decisions)), "advice")
        assert (await rt.power())["plan"]["nodes"] == {job.id: 2}
        (row,) = [row for row in await rt.decisions() if "advised" in row["reason"]]
        assert row["reason"] == f"advised, not done: {job.id} to 2 nodes: inside 0 to 500 W"
        assert engine(s).state.nodes_up(record(s, job)) == 3
        gate.open()
        assert await c.gather(mine) == [0, 1, 2]
    await rt.corridor(clear=True)
