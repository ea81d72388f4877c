"""Analyses in situ beside a program take its helper cores, and always have a place."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from beside_programs import FIELDS, advance, begin, on_the_cluster, sleeps
from distributed import Worker
from helpers import live, until
from programs import Shared, going, start

import dask_hpc
from dask_hpc.errors import CouplingError
from dask_hpc.wire import HELPER_RESOURCE
from dask_hpc_policies import registry


@live(workers=1, threads=3, timeout=60)
async def test_beside_a_program_analyses_in_situ_take_no_more_than_its_helper_cores(c, s, a):
    lock, running, at_once, heard = threading.Lock(), [], [], []

    def counted(ds):
        step = int(ds["step"][-1])
        with lock:
            running.append(step)
            # what was aimed before the worker had heard has ended
            if heard and step > heard[0] + 3:
                at_once.append(len(running))
        time.sleep(0.05)
        with lock:
            running.remove(step)

    analyses = {name: Shared(counted) for name in "abcd"}
    async with on_the_cluster(c, s, "fcfs", analyses, where="in-situ") as (rt, _flow, values, _):
        while len(at_once) < 12:
            ((step, _), *_) = await asyncio.gather(*map(anext, values))
            if not heard and a.address in s.resources.get(HELPER_RESOURCE, {}):
                heard.append(step)
    # one of three threads is the program's
    assert max(at_once) == 2
    await rt.uninstall()
    await until(lambda: a.state.total_resources[HELPER_RESOURCE] == 3, "they limit nothing on the worker")
    assert HELPER_RESOURCE not in s.resources


@live(workers=1, timeout=60)
async def test_values_in_situ_come_where_one_of_three_nodes_alone_has_helper_cores(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    # one has no thread to spare, and one tasks that a token would keep waiting
    async with Worker(s.address, nthreads=4) as b, Worker(s.address, nthreads=4, resources={"GPU": 1}):
        flow = await rt.couple("heat", FIELDS, queue=2)
        await flow.analyse(sleeps(0), name="where", where="in-situ")
        values = flow.results("where", timeout=30)
        async with rt.job("heat", nodes=3) as job:
            run = start(job.program(8, "y").init(begin).elastic(advance, going, couple=(flow, "T")))
            while b.address not in s.resources.get(HELPER_RESOURCE, {}):
                await anext(values)
            for _ in range(6):
                await anext(values)
            known = s.resources[HELPER_RESOURCE]
            assert known[b.address] > 0
            assert known == {b.address: known[b.address], a.address: 0}
            await flow.close()
            with pytest.raises(CouplingError, match="is closed"):
                await run
            await job.cancel()


@live(workers=1, timeout=60)
async def test_values_in_situ_follow_a_node_that_comes_back_under_another_address(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(sleeps(0), name="where", where="in-situ")
    values = flow.results("where", timeout=30)
    async with rt.job("heat", nodes=1) as job:
        run = start(job.program(8, "y").init(begin).elastic(advance, going, couple=(flow, "T")))
        assert (await anext(values))[1] == a.address
        await a.close(executor_wait=False)
        async with Worker(s.address, name=a.name, nthreads=1) as back:
            where = ""
            while where != back.address:
                # steps whose blocks nobody has any more are lost
                with suppress(CouplingError):
                    where = (await anext(values))[1]
            await flow.close()
            with pytest.raises(CouplingError, match="is closed"):
                await run
            await job.cancel()


@live(workers=1, threads=4, timeout=60)
async def test_threads_of_a_program_become_helper_cores_for_dear_analyses_and_go_back_to_it(c, s, a):
    placing = {"policy": "placement", "params": {"cooldown_steps": 0}}
    policy = registry.create({"policy": "chain", "policies": ["fcfs", placing]})
    rt = await dask_hpc.install(c, policy)
    flow = await rt.couple("heat", FIELDS, queue=2)
    seconds = [0.2]
    for name in "abc":
        await flow.analyse(Shared(lambda ds: time.sleep(seconds[0])), name=name)
    values = flow.results("a", timeout=30)

    async def come_to(count):
        while s.resources.get(HELPER_RESOURCE, {}).get(a.address) != count:
            await anext(values)

    async with rt.job("heat", nodes=1) as job:
        program = job.program(8, "y", blocks_per_node=3)
        run = start(program.init(begin).elastic(advance, going, couple=(flow, "T")))
        # that which the program has no block for; all but one while they are dear
        for count, dear_s in ((1, 0.2), (3, 0.001), (1, 0.001)):
            await come_to(count)
            seconds[0] = dear_s
        await flow.close()
        with pytest.raises(CouplingError, match="is closed"):
            await run
        await job.cancel()
