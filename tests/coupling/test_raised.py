"""What functions of users raise, and a call of theirs that is interrupted: flows go on, or never were."""

from __future__ import annotations

import asyncio
import gc
from types import NoneType

import numpy as np
import pytest
from coupled import FIELDS, opened, started
from distributed import wait
from helpers import live
from sources import nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.client import turns
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.coupling.blocks import Block, Bundle, dataset
from dask_hpc_policies.coupling.contract import Field


@live(workers=1, timeout=60)
async def test_an_analysis_that_raises_does_so_for_its_reader_and_the_next_step_comes(c, s, a):
    flow, values = await started(c)
    with pytest.raises(TypeError, match=r"function of 'inverse' cannot be sent .* stay with their client"):
        await flow.analyse(lambda ds: flow, name="inverse")

    async def awaited(ds): ...

    with pytest.raises(TypeError, match=r"function of 'inverse' is a coroutine function"):
        await flow.analyse(awaited, name="inverse")
    await flow.analyse(lambda ds: 1 / float(ds["T"][0, 0, 0]), name="inverse")

    def ends(ds):
        # Dask has each of these end the worker
        raise (SystemExit, KeyboardInterrupt)[int(ds["step"][0])]("enough")

    await flow.analyse(ends, name="ends")
    await flow.analyse(lambda ds: ds["T"].values.sort(), name="sorted")
    inverse, ended = flow.results("inverse", timeout=30), flow.results("ends", timeout=30)
    in_place = flow.results("sorted", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("many", first=0, last=2)
        made[0].tell("close")
        said = r"the analysis has raised {}\('enough'\) at step {}"
        with pytest.raises(ZeroDivisionError):
            await anext(inverse)
        with pytest.raises(ValueError, match="read-only") as caught:
            await anext(in_place)
        assert "change a copy of them" in caught.value.__notes__[0]
        del in_place
        with pytest.raises(RuntimeError, match=said.format("SystemExit", 0)):
            await anext(ended)
        assert await anext(values) == (0, 0.0)
        with pytest.raises(RuntimeError, match=said.format("KeyboardInterrupt", 1)):
            await anext(ended)
        assert await anext(inverse) == (1, 1.0)
        # the program sees nothing of it
        assert (sum(await told(made[0])), await told(made[0])) == (2, "closed")
    await flow.close()
    await nothing_left(s, a)


@live(workers=1)
async def test_a_value_that_cannot_be_sent_is_the_error_of_its_own_analysis_alone(c, s, a):
    def never():
        return (each for each in "ab")

    functions = [lambda: "one", never, lambda: "other", never, lambda: "last"]
    futures = [c.submit(each, pure=False) for each in functions]
    await wait(futures)
    # Dask fetches with one request what is asked for at once, which fails for all of it
    found = await asyncio.gather(*map(turns.value_of, futures))
    assert [value for value, _ in found] == ["one", None, "other", None, "last"]
    assert [type(error) for _, error in found] == [NoneType, TypeError, NoneType, TypeError, NoneType]


@pytest.mark.errors("A callback of flow")
@live(workers=1, timeout=60)
async def test_a_callback_that_raises_is_told_in_the_status_and_the_flow_goes_on(c, s, a):
    flow, values = await started(c)

    # the first of these never comes out of a thread, the second ends a loop
    raised = [(StopIteration, "no more"), (SystemExit, "enough"), (KeyError, "no such thing")]
    told_of = []

    def fails(step, ds):
        kind, text = raised[step]
        raise kind(text)

    async def notes(step, ds):
        told_of.append((await flow.status())["callback_error"])

    await flow.on_step(fails)
    # not seen to be a coroutine function before it is called
    await flow.on_step(lambda step, ds: notes(step, ds))
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("many", first=0, last=3)
        made[0].tell("close")
        assert [each async for each in values] == [(step, float(step)) for step in range(3)]
        assert (sum(await told(made[0])), await told(made[0])) == (3, "closed")
    assert told_of == ["", "step 0: StopIteration: no more", "step 1: SystemExit: enough"]
    assert (await flow.status())["callback_error"] == "step 2: KeyError: 'no such thing'"
    # nothing comes of it any more, and its name is free
    another, _ = await started(c)
    await another.close()
    assert (await flow.status())["state"] == "closed"
    await flow.close()
    await nothing_left(s, a)


@pytest.mark.errors("A callback of flow")
@live(workers=1, timeout=60)
async def test_a_step_whose_callbacks_raise_what_a_task_has_raised_is_let_go_of(c, s, a):
    flow, values = await started(c)

    def failing(ds):
        return ds["T"].data.map_blocks(lambda block: 1 // 0, dtype=float, meta=np.empty((0, 0)))

    # Dask has what is raised in the state of the future, and that in what is raised
    async def awaits(step, ds):
        try:
            await c.compute(failing(ds))
        except ZeroDivisionError as error:
            raise RuntimeError("it cannot be") from error

    def computes(step, ds):
        try:
            failing(ds).compute()
        except ZeroDivisionError as error:
            raise error from error

    await flow.on_step(awaits)
    await flow.on_step(computes)
    gc.disable()  # it would let go of some of it
    try:
        async with producers(s, (0, 8)) as made:
            await opened(made)
            made[0].tell("many", first=0, last=2)
            made[0].tell("close")
            assert [each async for each in values] == [(0, 0.0), (1, 1.0)]
            assert (sum(await told(made[0])), await told(made[0])) == (2, "closed")
        assert (await flow.status())["callback_error"].startswith("step 1: ZeroDivisionError: ")
        await flow.close()
        await nothing_left(s, a)
    finally:
        gc.enable()


@live(workers=1, timeout=60)
async def test_an_analysis_stays_what_it_was_whatever_becomes_of_what_it_refers_to(c, s, a):
    flow, limits = (await started(c))[0], [300]
    await flow.analyse(lambda ds: limits[0], name="limit")
    values = flow.results("limit", timeout=30)
    limits[0] = 310
    async with producers(s, (0, 8)) as made:
        await opened(made)
        # those of later steps are sent to the scheduler later
        made[0].tell("many", first=0, last=24)
        made[0].tell("close")
        assert [each async for each in values] == [(step, 300) for step in range(24)]
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_of_analyses_that_are_given_one_name_at_once_the_second_is_refused(c, s, a):
    flow, _ = await started(c)
    both = [flow.analyse(lambda ds, which=which: which, name="which") for which in (1, 2)]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert (first, type(second)) == (None, ValueError)
    assert str(second).startswith("name is 'which', which an analysis of 'heat' has")
    values = flow.results("which", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("send", step=0)
        assert await anext(values) == (0, 1)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_whose_declaration_is_interrupted_leaves_its_name_to_the_next_one(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    couple = of(s)._methods["couple"]

    async def interrupted(*args, **more):
        id = await couple(*args, **more)
        # it is there, and the answer is on its way
        asking.cancel()
        return id

    with monkeypatch.context() as patch:
        patch.setitem(of(s)._methods, "couple", interrupted)
        asking = asyncio.ensure_future(rt.couple("heat", FIELDS))
        with pytest.raises(asyncio.CancelledError):
            await asking
    flow, _ = await started(c)
    assert [row["name"] for row in await rt.flows()] == ["heat"]
    await flow.close()
    await nothing_left(s, a)


def test_a_field_that_is_one_block_is_not_copied_and_none_can_be_written_to():
    field = Field("T", ("y", "x"), (8, 6), "float64")
    block = whole(1)
    block.flags.writeable = False
    one = dataset([field], [[Bundle(1, (Block("T", (0, 0), block),))]])
    halves = tuple(Block("T", (at, 0), block[at : at + 4]) for at in (0, 4))
    two = dataset([field], [[Bundle(1, halves)]])
    assert np.shares_memory(one["T"].values, block)
    for found in (one, two):
        assert (found["T"].dims, found["T"].values.tolist()) == (("step", "y", "x"), [block.tolist()])
        with pytest.raises(ValueError, match="read-only"):
            found["T"].values[0, 0, 0] = 1
