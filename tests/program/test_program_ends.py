"""Whatever ends a program, also inside a window, frees its nodes and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc

import pytest
from helpers import asleep, engine, live, until
from programs import HEAT, heat, same, start, stepped

import dask_hpc
from dask_hpc.errors import JobCancelled
from dask_hpc.wire import notice_topic
from dask_hpc_policies.layout import even_layout


async def at_a_window(s, job, program, run):
    """Bring a program to the inside of a window; returns the resize that waits for it."""
    await stepped(program, run)
    resize = asyncio.ensure_future(job.resize(4))
    await asyncio.wait_for(program.data["inside"].wait(), 20)
    assert engine(s).rounds.windows.active
    return resize


def held(job):
    """A program whose adapt waits until it is let go on."""

    async def adapt(change, layout):
        program.data["inside"].set()
        await program.data["go_on"].wait()
        return even_layout(HEAT.rows, change.nodes)

    program = heat(job, adapt=adapt)
    program.data.update(inside=asyncio.Event(), go_on=asyncio.Event())
    return program


@live(timeout=60)
async def test_a_job_that_is_cancelled_inside_a_window_ends_its_program(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = held(job)
        run = start(program)
        resize = await at_a_window(s, job, program, run)
        await job.cancel("enough")
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] == "aborted"
        program.data["go_on"].set()
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(run, 20)
    assert not engine(s).rounds.active
    await asleep(s)


@live(timeout=60)
async def test_a_job_that_is_cancelled_between_windows_ends_its_program(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        await job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(run, 20)
    await asleep(s)


@live(timeout=60)
async def test_an_exception_that_leaves_the_context_inside_a_window_frees_the_nodes(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
            program = held(job)
            run = start(program)
            resize = await at_a_window(s, job, program, run)
            raise KeyError("mine")
    assert (await asyncio.wait_for(resize, 20))["result"] == "aborted"
    program.data["go_on"].set()
    with pytest.raises(JobCancelled, match="mine"):
        await asyncio.wait_for(run, 20)
    await asleep(s)
    assert await c.submit(int, 3) == 3


@live(timeout=60)
async def test_uninstalling_inside_a_window_ends_the_program_with_a_word(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = held(job)
        run = start(program)
        resize = await at_a_window(s, job, program, run)
        await rt.uninstall()
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] == "aborted"
        assert "uninstalled" in outcome["reason"]
        program.data["go_on"].set()
        with pytest.raises(dask_hpc.errors.DaskHPCError, match="not installed"):
            await asyncio.wait_for(run, 20)
        # what it has computed is there all the same
        await same(program)


@live(workers=2)
async def test_a_program_that_has_no_state_yet_keeps_no_other_one_from_its_job(c, s, *workers):
    def mistaken(part, status):
        raise KeyError("typo")

    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2) as job:
        with pytest.raises(KeyError, match="typo"):
            await job.program(HEAT.rows, "y").init(mistaken).elastic(HEAT.step, 3, halo=1).run()
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, 3, halo=1)
        await program.run()
        await same(program)
    await job.wait(10)


@live(workers=2)
async def test_a_program_that_nobody_holds_leaves_nothing_behind(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, 3, halo=1)
        await program.run()
        await same(program)
    await job.wait(10)
    await asleep(s)
    assert any(ts.who_wants for ts in s.tasks.values()), "its state is there as long as the program is"
    del program, job
    gc.collect()
    await until(lambda: not s.tasks, "the blocks are forgotten")
    assert [name for name in s._broker._topics if "hpc" in name] == [notice_topic(c.id)]
    await rt.uninstall()
    assert not [name for name in s._broker._topics if "hpc" in name]
