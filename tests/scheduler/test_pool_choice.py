"""Who asks how many workers there should be hears which stay: those of jobs, while others are idle."""

from __future__ import annotations

import dask
from helpers import asleep, engine, live, started, until

import dask_hpc
from dask_hpc.wire import RPC


async def pool(s, **view):
    there = [str(ws.name) for ws in s.workers.values()]
    return (await s.handlers[RPC]("pool", {"there": there, **view}))["result"]


@live(workers=4)
async def test_idle_nodes_go_before_those_of_a_job_and_reserves_stay(c, s, *workers):
    with dask.config.set({"hpc.pool.hold": "0 s"}):
        rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 2)
        idle = [node.id for node in engine(s).state.nodes.free()]
        held = set(engine(s).state.jobs.find(job.id).nodes)
        answer = await pool(s)
        assert answer["nodes"] == 2
        assert set(answer["stay"]) == held
        assert (await rt.set_role(idle[0], "reserve"))["result"] == "done"
        answer = await pool(s)
        assert answer["nodes"] == 3
        assert set(answer["stay"]) == {*held, idle[0]}
        # a maximum below what jobs hold: one of theirs, which the job can spare
        answer = await pool(s, maximum=2)
        assert (answer["nodes"], len(set(answer["stay"]) & held), idle[0] in answer["stay"]) == (2, 1, True)
    await job.wait(10)
    assert (await rt.set_role(idle[0], "compute"))["result"] == "done"
    await asleep(s)
    # nobody has a job: stock chooses
    await until(lambda: not engine(s).awake, "it sleeps")
    assert (await pool(s))["stay"] == []
