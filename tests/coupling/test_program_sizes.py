"""A program that hands over its steps grows when that makes them shorter, and makes room; no step is lost.

One whose job ends before it gets room fails its flow; callbacks compute on the nodes that it has.
"""

from __future__ import annotations

import asyncio
import contextvars
import time

import numpy as np
import pytest
import xarray as xr
from helpers import live, until
from programs import going, start

import dask_hpc
from dask_hpc import sim
from dask_hpc.errors import CouplingError, JobCancelled
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.job import Job, Program
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc.wire import HELPER_RESOURCE
from dask_hpc_policies.codec import decode
from dask_hpc_policies.placement.replan import application_of
from dask_hpc_policies.placement.view import FlowView

ROWS = 12
FIELDS = {"T": (("y", "x"), (ROWS, 4), "float64")}
#: Seconds that a row takes.
ROW_S = 0.005


def begin(part, status):
    rows = np.arange(part.start, part.stop, dtype=float)
    return xr.DataArray(np.repeat(rows[:, None], 4, 1), dims=("y", "x"))


def advance(block):
    time.sleep(ROW_S * block.sizes["y"])
    return block + 1


def total(ds):
    return float(ds["T"].sum())


def simulated(view):
    """Nodes that the simulator's policy comes to, from what was measured here."""
    run = Coupled(flow="heat", steps=60, application=application_of(view), split=view.present, mode=view.mode)
    job = Job(
        id="j",
        submit_s=0.0,
        kind="malleable",
        start_nodes=view.job_nodes,
        min_nodes=1,
        max_nodes=3,
        program=Program(stages=(run,)),
    )
    work = Workload(name="w", jobs=(job,), machine=Machine(nodes=3))
    return sim.simulate(work, "placement").flows[0]["splits"][-1]["nodes"]


@live(workers=3, threads=2, timeout=60)
async def test_a_program_gets_idle_nodes_and_gives_them_to_who_waits_and_no_step_is_lost(c, s, *workers):
    rt = await dask_hpc.install(c, "placement")
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(total, name="total")
    values, got = flow.results("total", timeout=30), []

    async def come_to(nodes):
        while True:
            got.append(await anext(values))
            view = decode(FlowView, (await flow.plan())["view"])
            if view.nodes == nodes:
                return view

    async with rt.job("heat", nodes=1, min_nodes=1, max_nodes=3) as job:
        program = job.program(ROWS, "y").init(begin)
        run = start(program.elastic(advance, going, couple=(flow, "T")))
        alone = await come_to(1)
        await come_to(3)
        helpers = {worker.address: 1 for worker in workers}
        await until(lambda: s.resources.get(HELPER_RESOURCE) == helpers, "each node has a helper core")
        async with rt.job("other", nodes=2):
            await come_to(1)
        program.data["stop"] = True
        got += [each async for each in values]
        await run
    await flow.close()
    assert simulated(alone) == 3
    assert [step for step, _ in got] == list(range(1, len(got) + 1))
    assert [value for _, value in got] == [4 * (sum(range(ROWS)) + ROWS * step) for step, _ in got]


@live(workers=2, timeout=60)
async def test_the_flow_of_a_program_whose_job_ends_before_it_could_begin_has_failed(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(total, name="total")
    values = flow.results("total", timeout=30)
    async with rt.job("other", nodes=2):
        job = await rt.job("heat", nodes=2).activate()
        program = job.program(ROWS, "y").init(begin).elastic(advance, 2, couple=(flow, "T"))
        run = asyncio.ensure_future(program.run())
        await job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await run
        with pytest.raises(CouplingError, match="its program has ended"):
            await anext(values)
    await flow.close()


@live(workers=2, timeout=60)
async def test_callbacks_compute_on_the_nodes_of_a_program_that_is_run_where_nobody_has_entered_its_job(
    c, s, a, b
):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    seen = []

    async def look(step, ds):
        seen.append(float(await c.compute(ds["T"].sum())))

    await flow.on_step(look)
    # as on another thread than the one that has entered the job, which reads meanwhile
    outside = contextvars.copy_context()
    async with rt.job("heat", nodes=2) as job:
        program = job.program(ROWS, "y").init(begin).elastic(advance, 6, couple=(flow, "T"))

        async def run():
            await program.run()

        # beyond its queue it waits for the callback, which on nodes of nobody would wait for it
        await asyncio.wait_for(asyncio.create_task(run(), context=outside), 20)
    await until(lambda: flow.outcome == "", "all steps have been seen")
    assert seen == [float(4 * (np.arange(ROWS) + step).sum()) for step in range(1, 7)]
    assert [row["name"] for row in await rt.jobs()] == ["heat"]
    await flow.close()
