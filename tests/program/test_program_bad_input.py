"""Whatever is wrong in a program's functions leaves the state of the last good step, and a clear error."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from helpers import engine, live, record, until
from programs import HEAT, Shared, finish, going, heat, members, same, start, stepped

import dask_hpc
from dask_hpc.errors import WindowError
from dask_hpc.program.phase import Phase
from dask_hpc_policies.layout import Layout, LayoutError, Part, even_layout


def _raises(change, layout):
    raise KeyError("lost my notes")


def _layout(*bounds, size=HEAT.rows):
    """An adapt that gives these bounds to the nodes in order."""

    def adapt(change, layout):
        return Layout(size, tuple(Part(node, *b) for node, b in zip(change.nodes, bounds, strict=True)))

    return adapt


BAD_ADAPTS = {
    "raises": (_raises, KeyError, "lost my notes"),
    "nothing": (
        lambda change, layout: None,
        LayoutError,
        "adapt of phase 'steps' gave None; needed: a Layout",
    ),
    "a dict": (lambda change, layout: {}, LayoutError, "needed: a Layout"),
    "the old one": (lambda change, layout: layout, LayoutError, "a part to each of"),
    "gap": (_layout((0, 8), (9, 16), (16, 24)), LayoutError, "a gap at index 8"),
    "overlap": (_layout((0, 8), (7, 16), (16, 24)), LayoutError, "an overlap at index 7"),
    "too short": (_layout((0, 8), (8, 16), (16, 23)), LayoutError, "covers 0:23; the domain is 0:24"),
    "too long": (_layout((0, 8), (8, 16), (16, 25)), LayoutError, "covers 0:25; the domain is 0:24"),
    "another domain": (_layout((0, 8), (8, 16), (16, 25), size=25), LayoutError, "of 25 indices.*has 24"),
    "no room": (_layout((0, 12), (12, 12), (12, 24)), LayoutError, "allowed: 1 or more"),
    "halves": (_layout((0, 8.5), (8.5, 16), (16, 24)), LayoutError, "whole numbers"),
    "stranger": (
        lambda change, layout: even_layout(HEAT.rows, ["x", *change.nodes[1:]]),
        LayoutError,
        "a part to each of",
    ),
}


def test_numbers_of_a_phase_are_whole_ones_of_any_type():
    phase = Phase("elastic", "steps", abs, np.int64(3), 1.0, keep=np.float64(2)).checked(4)
    numbers = (phase.steps, phase.halo, phase.keep)
    assert (numbers, {type(one) for one in numbers}) == ((3, 1, 2), {int})
    for right in ({"steps": abs}, {"steps": 0}, {"halo": 0}, {"halo": 4}, {"keep": 1}, {"keep": None}):
        assert vars(replace(phase, **right).checked(4)).items() >= right.items()
    names = ["init", "steps", "end"]
    assert [phase.chosen(answer, names) for answer in (1.0, "steps", "end", 2)] == [1, 1, 2, 2]
    for wrong in (0, 3, "init", "none", 1.5, ["end"]):
        with pytest.raises(ValueError, match=r"goes to .*; allowed: 1 to 2, 'steps', 'end', or None"):
            phase.chosen(wrong, names)
    keeps = ({"keep": 0}, {"keep": "x"})
    for wrong in ({"steps": 1.5}, {"steps": -1}, {"steps": None}, {"halo": 5}, {"halo": True}, *keeps):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*; allowed: "):
            replace(phase, **wrong).checked(4)
    for wrong in ({"function": None}, {"adapt": 1}, {"after": "x"}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} of phase 'steps' is .*needed: a f"):
            replace(phase, **wrong)


@live(timeout=120)
async def test_an_adapt_that_is_wrong_leaves_everything_as_it_was(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    wrong = []

    def adapt(change, layout):
        return wrong[0](change, layout) if wrong else even_layout(HEAT.rows, change.nodes)

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, adapt=adapt)
        for name, (bad, error, words) in BAD_ADAPTS.items():
            wrong[:] = [bad]
            run = start(program)
            await stepped(program, run)
            layout, nodes = program.layout, program.producer.nodes
            resize = asyncio.ensure_future(job.resize(3))
            with pytest.raises(error, match=words):
                await asyncio.wait_for(run, 25)
            outcome = await resize
            assert outcome["result"] == "aborted", name
            assert error.__name__ in outcome["reason"], name
            assert (program.layout, program.producer.nodes) == (layout, nodes), name
            assert list(nodes) == members(s, job) == list(record(s, job).nodes), name
            await same(program)
        wrong.clear()
        run = start(program)
        await stepped(program, run)
        assert (await job.resize(3))["result"] == "done"
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(workers=4, timeout=60)
async def test_a_domain_too_small_for_more_nodes_keeps_its_size_and_goes_on(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("small", nodes=1, min_nodes=1, max_nodes=4) as job:
        program = job.program(5, "i").init(lambda part, status: xr.DataArray(np.zeros(part.size), dims="i"))
        program.elastic(lambda block, before, after: block + 1, going, halo=2)
        run = start(program)
        await stepped(program, run)
        outcome = await job.resize(4)
        assert outcome["result"] == "aborted"
        assert "use fewer nodes" in outcome["reason"]
        assert (await job.resize(2))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        assert set((await program.field()).values) == {float(program.step)}
    await job.wait(10)


@live(workers=4, timeout=60)
async def test_a_policy_does_not_push_nodes_for_ever_at_a_program_that_cannot_take_them(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma", tick_s=0.1)
    async with rt.job("small", min_nodes=1, max_nodes=4, nodes=2) as job:
        program = job.program(2, "i").init(lambda part, status: xr.DataArray(np.zeros(part.size), dims="i"))
        run = start(program.elastic(lambda block: block + 1, going, name="steps"))
        await stepped(program, run)
        tries = engine(s).rounds.outcomes
        await until(lambda: tries._next_id > 2, "the policy tries")
        first, since = tries._next_id, engine(s).state.now_s()
        await until(lambda: engine(s).state.now_s() > since + 2, "some time")
        assert tries._next_id - first <= 3, f"{tries._next_id - first} windows in two seconds"
        await stepped(program, run)
        program.data["stop"] = True
        await run
    await job.wait(10)


BAD_STARTS = {
    "a list": (lambda part, status: [0] * part.size, "gave one of type list"),
    "numpy": (lambda part, status: np.zeros(part.size), "gave one of type ndarray"),
    "nothing": (lambda part, status: None, "gave one of type NoneType"),
    "another dimension": (lambda part, status: xr.DataArray(np.zeros(part.size), dims="x"), "dimension 'y'"),
    "too long": (
        lambda part, status: xr.DataArray(np.zeros(part.size + 1), dims="y"),
        "13 indices.*needed: 12",
    ),
}


@live(workers=2, timeout=60)
@pytest.mark.parametrize("name", BAD_STARTS)
async def test_an_init_that_gives_no_block_of_its_part_is_named(c, s, *workers, name):
    bad, words = BAD_STARTS[name]
    rt = await dask_hpc.install(c, "fcfs")
    wrong = [True]

    def init(part, status):
        return bad(part, status) if wrong[0] else HEAT.start(part, status)

    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(Shared(init)).elastic(HEAT.step, 2, halo=1)
        with pytest.raises(LayoutError, match=words):
            await program.run()
        assert program.layout is None
        wrong[0] = False
        await program.run()
        await same(program)
    assert (await job.wait(10))["state"] == "completed"


BAD_STEPS = {
    "raises": (lambda block, before, after: 1 / 0, ZeroDivisionError, "division by zero"),
    "nothing": (lambda block, before, after: None, LayoutError, "gave one of type NoneType"),
    "too short": (lambda block, before, after: block[1:], LayoutError, "11 indices of 'y'.*needed: 12"),
    "no block": (lambda block, before, after: block.values, LayoutError, "gave one of type ndarray"),
}


@live(workers=2, timeout=60)
@pytest.mark.parametrize("name", BAD_STEPS)
async def test_a_step_that_fails_leaves_the_last_good_state_and_the_run_goes_on(c, s, *workers, name):
    bad, error, words = BAD_STEPS[name]
    rt = await dask_hpc.install(c, "fcfs")
    wrong = [True]

    def step(block, before, after):
        # at the fourth step, on one node only
        spoilt = wrong[0] and int(block.y[0]) == 0 and block.identical(undisturbed[3].sel(y=block.y))
        return bad(block, before, after) if spoilt else HEAT.step(block, before, after)

    undisturbed = [HEAT.undisturbed(n) for n in range(5)]
    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(Shared(step), 6, halo=1)
        with pytest.raises(error, match=words):
            await program.run()
        assert program.step == program.phase_step == 3
        await same(program)
        wrong[0] = False
        await program.run()
        assert program.step == program.phase_step + 6 == 6
        await same(program)
    assert (await job.wait(10))["state"] == "completed"


@live(workers=2, timeout=60)
async def test_an_error_between_steps_loses_no_step_and_repeats_none(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    seen = []

    def after(program):
        seen.append(program.step)
        if program.step == 3 and len(seen) == 3:
            raise OSError("disk full")

    def steps(program):
        if program.step == 5 and len(seen) == 5 and not program.data.setdefault("asked", False):
            program.data["asked"] = True
            raise KeyError("how many")
        return program.step < 7

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, steps, after=after)
        with pytest.raises(OSError, match="disk full"):
            await program.run()
        assert program.step == 3
        with pytest.raises(KeyError, match="how many"):
            await program.run()
        assert program.step == 5
        await program.run()
        assert seen == [1, 2, 3, 4, 5, 6, 7]
        await same(program)
    await job.wait(10)


@live(workers=2, timeout=60)
async def test_only_the_driver_probes_and_only_one_run_goes_on(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    errors = []

    def after(program):
        with pytest.raises(WindowError, match="outside a step boundary") as caught:
            program.producer.probe()
        errors.append(caught.value)

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, after=after)
        run = start(program)
        await stepped(program, run)
        with pytest.raises(RuntimeError, match="runs already"):
            await program.run()
        with pytest.raises(WindowError, match="has a producer already"):
            await heat(job, 1).run()
        await finish(program, run)
    assert len(errors) == program.step
    await job.wait(10)
