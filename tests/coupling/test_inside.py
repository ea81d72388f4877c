"""Programs on the cluster hand over their steps: values are right, and no block goes to another worker."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import pytest
import xarray as xr
from helpers import Gate, live, until
from programs import Shared
from sources import asked, producers, told, whole

import dask_hpc
from dask_hpc.errors import CouplingError, JobCancelled
from dask_hpc.scheduler.install import service_of

ROWS = 12
FIELDS = {"T": (("y", "x"), (ROWS, 512), "float64")}


def begin(part, status):
    rows = np.arange(part.start, part.stop, dtype=float)
    return xr.DataArray(np.repeat(rows[:, None], 512, 1), dims=("y", "x"))


def advance(block):
    return block + 1


def after(step):
    """The sum of the field after so many steps."""
    return float(512 * (np.arange(ROWS) + step).sum())


def total(ds):
    return float(ds["T"].mean("step").sum())


def fetched(*workers):
    """Bytes that workers have fetched from others."""
    return sum(one["total"] for worker in workers for one in worker.transfer_incoming_log)


@live(workers=2, timeout=60)
async def test_a_step_is_analysed_where_it_is_and_no_byte_moves(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(total, name="total", window=2, every=2)
    await flow.analyse(lambda ds: 1 / (float(ds["T"][0, 0, 0]) - 3), name="raises")
    shared = []

    def looks(ds):
        values = ds["T"].values
        # a view of the block
        shared.append(not values.flags.owndata)
        return values.flags.writeable

    await flow.analyse(Shared(looks), name="looks")
    values, raises, looked = (flow.results(name, timeout=30) for name in ("total", "raises", "looks"))
    async with rt.job("heat", nodes=1) as job:
        program = job.program(ROWS, "y").init(begin).elastic(advance, 6, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        got, looked, raised, _ = await asyncio.gather(*map(everything, (values, looked, raises)), run)
        assert got == [(step, pytest.approx(after(step - 0.5))) for step in (2, 4, 6)]
        assert looked == [(step, False) for step in range(1, 7)]
        assert shared == [True] * 6
        assert raised == [
            (1, -0.5),
            (2, -1.0),
            ZeroDivisionError,
            (4, 1.0),
            (5, 0.5),
            (6, pytest.approx(1 / 3)),
        ]
        assert fetched(a, b) == 0
        status = await flow.status()
        assert (status["state"], status["steps"], status["in_flight"], status["done"]) == ("ended", 6, 0, 6)
    await job.wait(10)
    # a flow that somebody still has holds nothing of the state of its program
    del program, run, _
    gc.collect()
    await until(lambda: not s.tasks, "the state is gone")
    assert (await flow.status())["state"] == "ended"
    await flow.close()


async def until_told(told, expected, within_s=10.0):
    """Wait until the scheduler has heard of what the client knows already."""
    deadline_s = time.monotonic() + within_s
    while (found := await told()) != expected:
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.02)


async def everything(reader):
    """All that a reader gives, and the kinds of what it raises."""
    found = []
    while True:
        try:
            found.append(await anext(reader))
        except StopAsyncIteration:
            return found
        except ZeroDivisionError as error:
            found.append(type(error))


async def handed_over_is_gone(s):
    """Nothing that was handed over is left; programs let go of their blocks when they are collected."""
    await until(lambda: not any(str(key).startswith("hpc-flow-") for key in s.tasks), "all of it is gone")


@live(workers=2, timeout=60)
async def test_blocks_of_several_nodes_stay_and_callbacks_see_each_step_once_in_order(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    seen = []

    async def look(step, ds):
        seen.append((step, ds["T"].chunks[0], float(await c.compute(ds["T"].sum()))))

    await flow.on_step(look)
    async with rt.job("heat", nodes=2) as job:
        await job.program(ROWS, "y").init(begin).elastic(advance, 4, couple=(flow, "T"), keep=None).run()
    await job.wait(10)
    await until(lambda: flow.outcome == "", "all steps have been seen")
    # whoever is asked for a policy's picture and for flows knows that it has ended before it is closed
    assert [row["state"] for row in await rt.flows()] == ["ended"]
    assert "coupling" not in service_of(s).engine.controller.picture("request").sections
    await flow.close()
    assert seen == [(step, (6, 6), after(step)) for step in range(1, 5)]
    # sums of blocks are all that has gone from one to the other
    assert fetched(a, b) < 6 * 512 * 8
    await handed_over_is_gone(s)


@live(workers=3, timeout=90)
async def test_a_program_that_is_resized_while_it_runs_hands_over_each_step_once_as_it_is(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(total, name="total", window=2)
    values = flow.results("total", timeout=60)
    seen, resized, plans = [], [], []

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=3) as job:

        async def look(step, ds):
            seen.append((step, len(ds["T"].chunks[0]), float(await c.compute(ds["T"].sum()))))
            if step in (4, 12, 20):
                resized.append(asyncio.ensure_future(job.resize({4: 3, 12: 1, 20: 2}[step])))
            elif step in (8, 16, 24):
                # beyond the queue the program waits for this one
                resized.append((await resized.pop())["result"])
            if step == 16:
                plans.append(await flow.plan())

        await flow.on_step(look)
        program = job.program(ROWS, "y").init(begin).elastic(advance, 28, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        got = [each async for each in values]
        await run
    await job.wait(10)
    await flow.close()
    assert resized == ["done"] * 3
    # on one node a step is computed by one thread; nothing else keeps it from being faster on three
    (plan,) = plans
    assert (plan["program"]["nodes"], plan["program"]["step_s"] < plan["step_s"]) == (3, True), plan
    assert "; with the program on 3 nodes, not 1, it is to take " in plan["reason"]
    assert [(step, value) for step, value in got] == [
        (step, (after(step - 1) + after(step)) / 2) for step in range(2, 29)
    ]
    assert [(step, value) for step, _, value in seen] == [(step, after(step)) for step in range(1, 29)]
    nodes = {step: count for step, count, _ in seen}
    assert [nodes[step] for step in (1, 11, 19, 28)] == [2, 3, 1, 2], nodes
    await handed_over_is_gone(s)


# analyses wait on threads of the worker, and the program must have one
@live(workers=1, threads=8, timeout=60)
async def test_a_program_that_is_faster_than_an_analysis_lets_it_end_and_leaves_out_its_own_steps(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS, queue=2, when_full="drop-oldest")
    gate = Gate()

    def slow(ds):
        gate.wait()
        return float(ds["T"][0, 0, 0])

    await flow.analyse(slow, name="slow")
    values = flow.results("slow", timeout=30)
    async with rt.job("heat", nodes=1) as job:
        program = job.program(ROWS, "y").init(begin).elastic(advance, 9, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        # the program comes to its end meanwhile
        await until(lambda: flow._total == 9, "all steps have been handed over")
        assert gate.arrived >= 1
        # who asks the scheduler sees what is in flight, and not what had to make room
        expected = [("ended", len(flow.in_flight()), 9)]
        assert expected == [("ended", 2, 9)]

        async def told():
            return [(row["state"], row["in_flight"], row["steps"]) for row in await rt.flows()]

        await until_told(told, expected)
        gate.open()
        # whether it had begun to analyse the second one when the third came is open
        first, second = await everything(values)
        assert first == (1, 1.0)
        assert second == (second[0], float(second[0]))
        await run
    await job.wait(10)
    await flow.close()
    await handed_over_is_gone(s)


@live(workers=1, timeout=60)
async def test_a_program_that_ends_badly_says_so_to_the_readers_of_its_flow(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(total, name="total")
    values = flow.results("total", timeout=30)

    def breaks(block):
        if float(block[0, 0]) >= 2:
            raise RuntimeError("it has burst")
        return block + 1

    async with rt.job("heat", nodes=1) as job:
        program = job.program(ROWS, "y").init(begin).elastic(breaks, 9, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        assert await anext(values) == (1, pytest.approx(after(1)))
        assert await anext(values) == (2, pytest.approx(after(2)))
        said = []
        # another step may have been submitted by then
        while not said or len(said) < 4 and "its program has ended" not in said[-1]:
            with pytest.raises(CouplingError) as caught:
                await anext(values)
            said.append(str(caught.value))
        assert "step 3: 3 failed, RuntimeError: it has burst" in said[0]
        assert said[-1] == "flow 'heat' has failed: its program has ended: RuntimeError: it has burst"
        with pytest.raises(RuntimeError, match="it has burst"):
            await run

        async def told():
            return [(row["state"], row["reason"], row["in_flight"]) for row in await rt.flows()]

        await until_told(told, [("failed", said[-1], 0)])
        await job.cancel()
    await flow.close()


@live(workers=1, timeout=60)
async def test_a_block_that_is_none_of_the_flows_fails_it_and_ends_the_program(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    for bad, why in (
        (lambda block: (block + 1)[:, :256], "step 1: block of 'T' has 256 indices along 'x'; allowed: 512"),
        (lambda block: (block + 1).astype("float32"), "step 1: block of 'T' is of type float32; allowed: fl"),
        (lambda block: xr.Dataset({"U": block}), "step 1: .*'T'"),
    ):
        flow = await rt.couple("heat", FIELDS)
        await flow.analyse(total, name="total")
        values = flow.results("total", timeout=30)
        async with rt.job("heat", nodes=1) as job:
            program = job.program(ROWS, "y").init(begin).elastic(bad, 99, couple=(flow, "T"))
            run = asyncio.ensure_future(program.run())
            with pytest.raises(CouplingError, match=why):
                await anext(values)
            with pytest.raises(CouplingError, match=why):
                await run
            await job.cancel()
        await flow.close()
        await handed_over_is_gone(s)


@live(workers=1, timeout=60)
async def test_a_flow_that_is_closed_while_a_step_begins_leaves_nothing(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    ask = flow._channel.ask

    async def closes(method, **arguments):
        answer = await ask(method, **arguments)
        if method == "flow_step" and arguments["turn"] == 1:
            await flow.close()
        return answer

    monkeypatch.setattr(flow._channel, "ask", closes)
    async with rt.job("heat", nodes=1) as job:
        with pytest.raises(CouplingError, match="is closed"):
            await job.program(ROWS, "y").init(begin).elastic(advance, 2, couple=(flow, "T"), keep=None).run()
        await job.cancel()
    await handed_over_is_gone(s)


@live(workers=1, timeout=60)
async def test_what_cannot_be_coupled_is_refused_and_a_flow_has_one_kind_of_producer(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    async with rt.job("heat", nodes=1) as job:
        for couple, size, dim, said in (
            ((flow, "U"), ROWS, "y", "couple names 'U'; allowed: all fields of the flow, 'T'"),
            ((flow, "T"), 8, "y", "has 12 along 'y'; allowed: 8 indices"),
            ((flow, "T"), ROWS, "z", "has no dimension along 'z'"),
        ):
            with pytest.raises(ValueError, match=said):
                job.program(size, dim).init(begin).elastic(advance, 1, couple=couple)
        await job.program(ROWS, "y").init(begin).elastic(advance, 1, couple=(flow, "T")).run()
        with pytest.raises(CouplingError, match="has or had another program"):
            # what a second program does at its next step: it would be taken for one of the first
            await flow.inside.begin(object(), 9, [])
        async with producers(s, (0, 8)) as made:
            assert "that of a program on the cluster" in (await told(made[0]))["text"]
        await flow.close()
        small = {"T": (("y", "x"), (8, 6), "float64")}
        other = await rt.couple("heat", small, queue=1, when_full="drop-oldest")
        await other.analyse(total, name="total")
        values = other.results("total", timeout=30)
        async with producers(s, (0, 8)) as made:
            assert await told(made[0]) == "open"
            assert await asked(made[0], "send", step=0) is True
            await until(other.in_flight, "its step is in flight")
            with pytest.raises(CouplingError, match="has sources outside"):
                await job.program(8, "y").init(begin).elastic(advance, 1, couple=(other, "T")).run()
            # and has ousted nothing
            assert await anext(values) == (0, pytest.approx(whole(0).sum()))
            assert await asked(made[0], "close") == "closed"
        await job.cancel()
    await other.close()


@live(workers=2, timeout=60)
async def test_a_program_that_waits_for_room_is_resized_and_ends_with_its_job(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(total, name="total")
    # nobody reads for now
    values = flow.results("total", timeout=30)
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=2) as job:
        program = job.program(ROWS, "y").init(begin).elastic(advance, 100, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        # between two steps it waits for nothing else
        await until(lambda: program.step == 2 and not program.producer.busy, "there is no room any more")
        assert (await job.resize(1))["result"] == "done"
        assert len(program.producer.nodes) == 1
        looks, probe = [], program.producer.probe
        program.producer.probe = lambda: looks.append(None) or probe()
        for _ in range(500):
            await asyncio.sleep(0)
        assert len(looks) < 5, "it waits, and does not look again and again"
        assert [await anext(values) for _ in range(2)] == [(step, after(step)) for step in (1, 2)]
        await until(lambda: program.step == 4 and not program.producer.busy, "two steps more")
        await job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(run, 20)
    await flow.close()


@live(workers=2, timeout=60)
async def test_a_program_that_could_not_begin_yet_may_run_again_into_its_flow(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(total, name="total")
    values = flow.results("total", timeout=30)
    async with rt.job("other", nodes=2):
        job = await rt.job("heat", nodes=2).activate()
        program = job.program(ROWS, "y").init(begin).elastic(advance, 2, couple=(flow, "T"))
        with pytest.raises(TimeoutError, match="is pending after"):
            await program.run(timeout=0.1)
    await program.run()
    assert await everything(values) == [(step, after(step)) for step in (1, 2)]
    await job.close()
    await flow.close()


@live(workers=2, timeout=60)
async def test_a_program_goes_on_when_blocks_of_a_window_are_lost_for_good(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(total, name="total", window=2)
    values = flow.results("total", timeout=30)
    async with rt.job("heat", nodes=1) as job:
        program = job.program(ROWS, "y").init(begin).elastic(advance, 6, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        await until(lambda: program.step == 3 and not program.producer.busy, "there is no room any more")
        # as with a node, once copies are all that is left of how they were computed
        await c.cancel(flow._turns[2].sources, force=True)
        got = []
        while len(got) < 5:
            try:
                got.append(await anext(values))
            except CouplingError as error:
                got.append(str(error))
        await asyncio.wait_for(run, 20)
        assert [one for one in got if not isinstance(one, str)] == [
            (step, pytest.approx(after(step - 0.5))) for step in (2, 5, 6)
        ]
        assert "'total' of step 4: 3 failed, blocks of it were lost with their node" in got[2]
    await flow.close()
