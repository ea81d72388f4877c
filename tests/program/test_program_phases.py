"""Phases of a program: rigid ones refuse resizes, branches lead where they say, wrong ones are refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import xarray as xr
from helpers import live
from programs import HEAT, finish, going, heat, same, start, stepped

import dask_hpc
from dask_hpc_policies.layout import even_layout


@live(timeout=60)
async def test_a_rigid_phase_refuses_every_resize_with_its_name(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def solve(program):
        inside.set()
        await go_on.wait()

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, 3).rigid(solve, name="solve").elastic(HEAT.step, going, halo=1, name="more")
        run = start(program)
        await inside.wait()
        for nodes in (1, 4):
            outcome = await job.resize(nodes)
            assert (outcome["result"], outcome["reason_code"]) == ("refused", "rigid-phase")
            assert "'solve'" in outcome["reason"]
        assert (await job.request(1))["result"] == "refused"
        go_on.set()
        await stepped(program, run)
        assert (await job.resize(4))["result"] == "done"
        await finish(program, run)
        assert [(row["phase"], row["kind"]) for row in program.timings] == [
            ("init", "init"),
            ("steps", "elastic"),
            ("solve", "rigid"),
            ("more", "elastic"),
        ]
        assert all(row["duration_s"] >= 0 for row in program.timings)
    await job.wait(10)


@live(timeout=60)
async def test_a_branch_goes_back_and_forth_by_name_and_number(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    came, answers = [], iter(["a", 3, None])

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, lambda program: program.phase_step < 2)
        program.rigid(lambda p: came.append("a"), name="a")
        program.rigid(lambda p: came.append("b"), name="b")
        program.branch(lambda p: next(answers), name="choose")
        program.rigid(lambda p: came.append("end"), name="end")
        await program.run()
        assert came == ["a", "b", "a", "b", "b", "end"]
        assert program.step == 2
        await same(program)
        # all is done: running again does nothing
        await program.run()
        assert came[-1] == "end"
        assert len(came) == 6
    await job.wait(10)


@live(timeout=60)
@pytest.mark.parametrize("answer", ["nowhere", "init", 0, 9, -1, 1.5, True, ["steps"]])
async def test_a_branch_to_nowhere_says_where_it_may_go(c, s, *workers, answer):
    rt = await dask_hpc.install(c, "fcfs")
    answers = [answer, None]
    async with rt.job("heat", nodes=2) as job:
        program = heat(job, 2).branch(lambda p: answers.pop(0), name="choose")
        with pytest.raises(ValueError, match=r"branch 'choose' goes to .*allowed: 1 to 2, 'steps', 'choose'"):
            await program.run()
        await program.run()
        assert program.step == 2
        await same(program)
    await job.wait(10)


@live(workers=3, timeout=60)
@pytest.mark.parametrize("halo", [0, 1, 2])
async def test_neighbours_see_edges_of_the_width_of_the_halo(c, s, *workers, halo):
    rt = await dask_hpc.install(c, "fcfs")
    size = 12

    def init(part, status):
        return xr.DataArray(np.arange(part.start, part.stop), dims="i")

    def step(block, *edges):
        assert len(edges) == (2 if halo else 0)
        first, last = int(block[0]), int(block[-1])
        before = [] if halo == 0 or edges[0] is None else list(edges[0].values)
        after = [] if halo == 0 or edges[1] is None else list(edges[1].values)
        assert before == [i for i in range(first - halo, first) if i >= 0]
        assert after == [i for i in range(last + 1, last + 1 + halo) if i < size]
        return block

    async with rt.job("plain", nodes=3, min_nodes=1, max_nodes=3) as job:
        program = job.program(size, "i").init(init).elastic(step, going, halo=halo)
        run = start(program)
        for nodes in (1, 3, 2):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        assert list((await program.field()).values) == list(range(size))
    await job.wait(10)


@live(workers=1)
async def test_what_cannot_be_a_program_is_refused_where_it_is_written(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=1) as job:
        with pytest.raises(ValueError, match="blocks_per_node is 0; allowed: a number of blocks, 1 or more"):
            job.program(24, "y", blocks_per_node=0)
        with pytest.raises(ValueError, match="blocks_per_node is 2 beside a layout function"):
            job.program(24, "y", blocks_per_node=2, layout=even_layout)
        for size in (0, -1, 1.5, "9", True, None):
            with pytest.raises(ValueError, match="1 or more"):
                job.program(size, "y")
        program = job.program(HEAT.rows, "y")
        with pytest.raises(ValueError, match="no phases; begin with init"):
            await program.run()
        with pytest.raises(ValueError, match="it is the first"):
            program.elastic(HEAT.step, 1)
        program.init(HEAT.start)
        with pytest.raises(ValueError, match="it is the first"):
            program.init(HEAT.start, name="again")
        for steps in (-1, 2.5, True, None):
            with pytest.raises(ValueError, match="0 or more"):
                program.elastic(HEAT.step, steps)
        for halo in (-1, 25, True, 1.5):
            with pytest.raises(ValueError, match="0 to 24"):
                program.elastic(HEAT.step, 1, halo=halo)
        program.rigid(print, name="a")
        with pytest.raises(ValueError, match="'a' is taken"):
            program.branch(print, name="a")
        assert [phase.name for phase in program.phases] == ["init", "a"]
