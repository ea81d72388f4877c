"""State of a program: what kinds it can be of, how it is laid out, and that analytics run where it is."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import xarray as xr
from helpers import Starts, live
from programs import HEAT, finish, going, heat, start, stepped

import dask_hpc
from dask_hpc.demo.heat import mean_and_peak
from dask_hpc.program.blocks import advance
from dask_hpc_policies.layout import Layout, LayoutError, Part, Piece, even_layout


@live(timeout=60)
async def test_a_dataset_moves_with_all_its_variables(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    size = 20

    def init(part, status):
        rows = np.arange(part.start, part.stop)
        return xr.Dataset(
            {
                "a": ("y", rows * 1.5),
                "b": (("x", "y"), np.stack([rows, -rows])),
                "flag": ("y", rows % 2 == 0),
                "scale": ("x", np.array([2.0, 3.0])),
                "time": ((), 0),
            },
            coords={"y": rows, "x": [10, 20], "name": ("y", rows.astype(str).astype("<U4"))},
            attrs={"made_by": "init"},
        )

    def step(block):
        return block.assign(a=block.a + 1, time=block.time + 1)

    async with rt.job("data", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = job.program(size, "y").init(init).elastic(step, going)
        run = start(program)
        for nodes in (4, 1, 3):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        whole = init(Part("", 0, size), "NEW")
        for _ in range(program.step):
            whole = step(whole)
        assert (await program.field()).identical(whole)
    await job.wait(10)


@live(timeout=60)
async def test_layout_and_plan_are_the_users_if_they_wish(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    plans = []

    def heavy_first(size, nodes):
        small = size // (len(nodes) + 1)
        cuts = [0, size - small * (len(nodes) - 1)]
        cuts += [cuts[1] + small * (i + 1) for i in range(len(nodes) - 1)]
        return Layout(size, tuple(map(Part, nodes, cuts, cuts[1:])))

    def row_by_row(old, new):
        plans.append((old, new))
        return tuple(
            tuple(
                Piece(next(n for n, o in enumerate(old.parts) if o.start <= i < o.stop), i, i + 1)
                for i in range(part.start, part.stop)
            )
            for part in new.parts
        )

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, layout=heavy_first, plan=row_by_row)
        run = start(program)
        await stepped(program, run)
        assert [part.size for part in program.layout.parts] == [16, 8]
        assert (await job.resize(3))["result"] == "done"
        await stepped(program, run)
        assert [part.size for part in program.layout.parts] == [12, 6, 6]
        assert len(plans) == 1
        await finish(program, run)
    await job.wait(10)


BAD_PLANS = {
    "holes": (lambda old, new: tuple(() for _ in new.parts), "must end at"),
    "short": (lambda old, new: (), "for 0 parts"),
    "swapped": (lambda old, new: tuple((Piece(0, p.start, p.stop),) for p in new.parts), "its source holds"),
    "no such source": (lambda old, new: tuple((Piece(7, p.start, p.stop),) for p in new.parts), "source 7"),
    "nothing": (lambda old, new: None, "gave None"),
}


@live(timeout=60)
@pytest.mark.parametrize("name", BAD_PLANS)
async def test_a_plan_that_does_not_make_up_the_parts_is_refused(c, s, *workers, name):
    bad, words = BAD_PLANS[name]
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, plan=bad)
        run = start(program)
        await stepped(program, run)
        layout = program.layout
        resize = asyncio.ensure_future(job.resize(3))
        with pytest.raises(LayoutError, match=words):
            await asyncio.wait_for(run, 25)
        assert (await resize)["result"] == "aborted"
        assert program.layout == layout
        run = start(program)
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
@pytest.mark.parametrize("bad", [lambda size, nodes: None, lambda size, nodes: even_layout(size + 1, nodes)])
async def test_a_layout_function_that_is_wrong_is_named_before_anything_is_made(c, s, *workers, bad):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2) as job:
        program = heat(job, 3, layout=bad)
        with pytest.raises(LayoutError, match="layout"):
            await program.run()
        assert program.layout is None
        assert not program.blocks


@live(timeout=60)
async def test_analytics_run_where_their_blocks_are_and_steps_stay_on_their_nodes(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    starts = Starts()
    await starts.watch(workers)
    where, peaks = [], {}

    def after(program):
        futures = program.map(mean_and_peak)
        peaks[program.step] = futures
        where.extend(
            (f.key, b.key, p.node)
            for f, b, p in zip(futures, program.blocks, program.layout.parts, strict=True)
        )

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, after=after)
        run = start(program)
        for nodes in (4, 2):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        await finish(program, run)
        addresses = {w.name if isinstance(w.name, str) else str(w.name): w.address for w in workers}
        assert len(where) >= 6
        for step, futures in peaks.items():
            found = await c.gather(futures)
            whole = HEAT.undisturbed(step)
            assert max(peak for _, peak in found) == float(whole.max())
            assert sum(total for total, _ in found) == pytest.approx(float(whole.sum()))
        for look, block, node in where:
            assert starts.places([look, block]) == {addresses[node]}
        assert not starts.twice(key for look, block, _ in where for key in (look, block))
    await job.wait(10)


def test_a_step_that_writes_into_its_block_is_told_so_and_one_that_replaces_a_field_leaves_the_block():
    part, field = Part("a", 0, 3), xr.DataArray(np.arange(3.0), dims="y", name="T")

    def adds(block):
        block += 1
        return block

    def writes(block, before, after):
        block["T"][0] = 7
        return block

    def replaces(block):
        block["T"] = block["T"] + 1
        return block

    with pytest.raises(ValueError, match="read-only") as caught:
        advance(adds, "y", part, 0, field)
    assert "change a copy of them (copy(deep=True))" in caught.value.__notes__[0]
    data = field.copy(deep=True).to_dataset()
    with pytest.raises(ValueError, match="read-only"):
        advance(writes, "y", part, 1, data, None, None)
    assert advance(replaces, "y", part, 0, data)["T"].values.tolist() == [1, 2, 3]
    assert (field.values.tolist(), data["T"].values.tolist()) == ([0, 1, 2], [0, 1, 2])
