"""Who asks how many workers there should be hears which stay: those of jobs, while others are idle."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import dask
import pytest
from coupled import FIELDS
from distributed import Client, Worker
from helpers import Gate, asleep, engine, live, record, started, through, until
from sources import nothing_left, whole

import dask_hpc
from dask_hpc.scheduler.coupling import joining
from dask_hpc.scheduler.coupling.flows import Flows
from dask_hpc.scheduler.leaving.pool_target import PoolTarget
from dask_hpc.scheduler.rpc.service import of
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


@live(workers=4, lend="5 s")
async def test_a_job_that_rests_gives_its_nodes_back_before_one_that_works(c, s, *workers):
    with dask.config.set({"hpc.pool.hold": "0 s"}):
        rt = await dask_hpc.install(c, policy="fair")
    async with Client(c.scheduler.address, asynchronous=True, set_as_default=False) as other:
        idle = (await dask_hpc.runtime(other)).job("idle")
        await idle.activate()
        await started(s, idle)
        gate = Gate()
        async with rt.job("works") as works:
            futures = [c.submit(through, i, gate, pure=False) for i in range(2)]
            await until(lambda: record(s, works).processing == 2, "both run")
            await started(s, works, 2)
            own = set(record(s, idle).nodes)
            assert (len(own), record(s, idle).resting) == (2, True)
            answer = await pool(s)
            assert (answer["nodes"], len(own & set(answer["stay"]))) == (3, 1)
            # stock's would close whoever it has chosen, whatever that one says
            assert of(s).pool_target.target() == 4
            await s.handlers[RPC]("pin", {"workers": list(own), "keep": True})
            assert (await pool(s))["nodes"] == 4
            gate.open()
            assert await c.gather(futures) == [0, 1]
        await works.wait(10)
        await idle.close()
        await idle.wait(10)
    await asleep(s)


@live(workers=0, config={"hpc.node.by": "host"})
async def test_the_nodes_of_a_pool_that_has_none_now_are_counted_as_those_it_had(c, s):
    rt = await dask_hpc.install(c)
    async with (
        Worker(s.address, name="host0-a", host="127.0.0.1"),
        Worker(s.address, name="host0-b", host="127.0.0.1"),
    ):
        async with rt.job("main", nodes=1) as job:
            await started(s, job)
            await pool(s, maximum=8)
            assert engine(s).state.nodes.away.off == 3
        await job.wait(10)
    await until(lambda: not s.workers, "they have gone")
    await pool(s, maximum=9)  # half a node is none
    assert engine(s).state.nodes.away.off == 4
    assert (await rt.snapshot()).sections["pool"]["most_nodes"] == 4


@live(workers=0)
async def test_a_pool_has_a_node_while_a_program_waits_for_one_or_hands_over_its_steps(c, s, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(joining, "stopwatch_s", lambda: now_s[0])
    with dask.config.set({"hpc.pool.hold": "0 s"}):
        rt = await dask_hpc.install(c)
    target = of(s).pool_target.target
    flow = await rt.couple("heat", FIELDS)
    assert ((await pool(s))["nodes"], target()) == (0, 0)
    coming = asyncio.ensure_future(asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=30))
    # stock asks nobody who sleeps
    await until(lambda: target() == 1, "it waits for a worker")
    assert ((await pool(s))["nodes"], engine(s).awake) == (1, False)
    # who asks no more has given up
    now_s[0] = 31.0
    assert target() == 0
    now_s[0] = 1.0
    async with Worker(s.address, nthreads=1) as a:
        source = await coming
        for step in range(2):
            assert await asyncio.to_thread(source.send, step, {"T": whole(step)}) is True
            await until(lambda done=step + 1: flow._done == done, "the step is done")
            assert (await pool(s))["reason"].startswith("1 node asked for")
        await asyncio.to_thread(source.close)
        await until(lambda: target() == 0, "no step comes any more")
        await flow.close()
        await nothing_left(s, a)


@pytest.mark.parametrize(
    ("failed", "connected", "left", "needs"),
    [
        (False, True, False, True),
        (True, True, False, False),
        (False, False, False, False),
        (False, True, True, False),
    ],
)
def test_who_hands_over_steps_to_a_flow_that_has_not_failed_needs_a_node(failed, connected, left, needs):
    flows = object.__new__(Flows)
    ranks = {0: SimpleNamespace(connected=connected, left=left)}
    flows._by_id = {"flow": SimpleNamespace(failed=failed, ranks=ranks)}
    flows._joining = SimpleNamespace(waits=lambda: False)
    assert flows.needs_node() == needs


@pytest.mark.parametrize(("kept", "coupled", "needed"), [(0, True, 1), (0, False, 0), (3, True, 3)])
def test_a_program_outside_needs_a_node_beside_jobs_that_need_none(kept, coupled, needed):
    target = object.__new__(PoolTarget)
    jobs = SimpleNamespace(named=[SimpleNamespace(state="running")])
    target.engine = SimpleNamespace(state=SimpleNamespace(jobs=jobs, reserve_for_plain=lambda: 0))
    target._coupled, target._kept = lambda: coupled, lambda job: kept
    assert target._needed() == needed
