"""Data that a job scatters is on the nodes of the job, in the form it came in, and stays there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Future
from helpers import Gate, Starts, addresses_of, live, started, state_of, through, until, within
from submissions import pool
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobCancelled, UnknownJob
from dask_hpc.scheduler.internals.allotment import AllotmentSet
from dask_hpc.scheduler.rpc.jobs import JobMethods
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


def at(s, future):
    """Addresses of the workers that have the data of a future."""
    return {ws.address for ws in s.tasks[future.key].who_has}


LISTS = {"list": ([1, 2, 3, 4, 5, 6], list), "tuple": ((1.0, 2.0, 3.0), tuple), "range": (range(4), list)}
DATA = {**LISTS, "dict": ({"x": 1, "y": 2}, dict), "array": (np.arange(5.0), None)}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("kind", DATA)
@live()
async def test_scattered_data_is_on_the_jobs_nodes_and_has_the_form_it_came_in(c, s, *workers, kind, direct):
    data, type_ = DATA[kind]
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        scattered = await job.scatter(data, direct=direct)
        assert type(scattered) is (type_ or Future)
        futures = list(scattered.values()) if type_ is dict else scattered if type_ else [scattered]
        places = set().union(*(at(s, future) for future in futures))
        assert places <= addresses_of(s, job)
        assert len(places) == (2 if len(futures) > 1 else 1)
        np.testing.assert_equal(await c.gather(scattered), list(data) if kind == "range" else data)
    assert (await job.wait(10))["state"] == "completed"


@pytest.mark.parametrize("direct", [False, True])
@live(config={"distributed.scheduler.active-memory-manager.start": False})
async def test_broadcast_copies_to_the_jobs_nodes_only(c, s, *workers, direct):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        futures = await job.scatter([1, 2], broadcast=True, direct=direct)
        assert all(at(s, future) == addresses_of(s, job) for future in futures)
        (one, two, _) = sorted(addresses_of(s, job))
        twice = await job.scatter(["a"], workers=[one, two], broadcast=True, direct=direct)
        assert at(s, twice[0]) == {one, two}


@live()
async def test_scatter_waits_for_a_pending_job_and_its_tasks_use_the_data_there(c, s, *workers):
    rt = await dask_hpc.install(c)
    starts = Starts()
    await starts.watch(workers)
    async with rt.job("all", nodes=4) as everything:
        await started(s, everything, 4)
        gate = Gate()
        held = c.submit(through, 1, gate=gate, pure=False)
        job = await rt.job("main", nodes=1).activate()
        with pytest.raises(TimeoutError, match=rf"{job.id} holds no node after 0.05 s; .+"):
            await job.scatter([1], timeout=0.05)
        waiting = asyncio.ensure_future(job.scatter({"late": 41}))
        await until(lambda: gate.arrived, "busy")
        assert not waiting.done()
        gate.open()
    assert await held == 1
    data = await asyncio.wait_for(waiting, 10)
    assert at(s, data["late"]) == addresses_of(s, job)
    result = await pool(lambda: c.submit(inc, data["late"], pure=False))
    assert await result == 42
    assert starts.where[result.key] == at(s, data["late"])
    await job.close()
    await job.wait(10)


@live(1, lend="5 s", config={"hpc.tick": "50 ms"})
async def test_a_job_without_a_node_scatters_where_its_tasks_take_turns(c, s, a):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("idle") as idle:
        await started(s, idle)
        async with rt.job("more") as more:
            data = await within(more.scatter([1, 2]), 10)
            assert at(s, data[0]) == {a.address}
            assert await within(c.gather(c.map(inc, data, pure=False))) == [2, 3]
            assert state_of(s, more) == "pending"


@live()
async def test_data_is_placed_on_the_nodes_of_the_moment_and_stays_there(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=1, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 1)
        await job.resize(3)
        wide = await job.scatter(list(range(6)))
        places = {future.key: at(s, future) for future in wide}
        assert set().union(*places.values()) == addresses_of(s, job)
        assert (await job.resize(1))["result"] == "done"
        assert {future.key: at(s, future) for future in wide} == places
        narrow = await job.scatter(list(range(10, 16)))
        assert {place for future in narrow for place in at(s, future)} == addresses_of(s, job)
        assert await c.gather(c.map(inc, wide, pure=False)) == [1, 2, 3, 4, 5, 6]
    await job.wait(10)


@live()
async def test_workers_of_the_job_can_be_chosen_and_others_are_refused(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        one, two = sorted(addresses_of(s, job))
        away = sorted(set(s.workers) - {one, two})[0]
        host, port = one.removeprefix("tcp://").split(":")
        for chosen in ([one], one, {one}, s.workers[one].name, [(host, int(port))], f"{host}:{port}"):
            futures = await job.scatter([1, 2, 3], workers=chosen, hash=False)
            assert {place for future in futures for place in at(s, future)} == {one}
        for wrong in (away, [one, away], s.workers[away].name, "nobody", [("127.0.0.1", 1)], 99, [1.5], []):
            before = set(s.tasks)
            with pytest.raises(ValueError, match=rf"not workers of job {job.id}, which holds {one}, {two}"):
                await job.scatter([7], workers=wrong)
            assert set(s.tasks) <= before
        with pytest.raises(ValueError, match=f"'{away}'"):
            await job.scatter([7], workers=[one, away])
    await job.wait(10)


@live(workers=2)
async def test_scatter_that_cannot_be_says_why(c, s, *workers):
    rt = await dask_hpc.install(c)
    with pytest.raises(RuntimeError, match="not been submitted"):
        await rt.job("new").scatter([1])
    job = await rt.job("main", nodes=2).activate()
    pending = await rt.job("next", nodes=2).activate()
    for value in (-1, "5 s", True):
        with pytest.raises(ValueError, match="seconds as a number"):
            await job.scatter([1], timeout=value)
    waiting = asyncio.ensure_future(pending.scatter([1]))
    await started(s, job)
    await pending.cancel("no more")
    with pytest.raises(JobCancelled, match="no more"):
        await asyncio.wait_for(waiting, 5)
    await job.close()
    await job.wait(10)
    with pytest.raises(JobCancelled, match="has ended"):
        await job.scatter([1])
    with pytest.raises(UnknownJob):
        await rt.find("nobody-7").scatter([1])
    await pending.close()


def test_whose_workers_a_job_has_that_was_given_none_is_known_after_a_tick_and_of_one_that_ended_never():
    now_s, spec = [0.0], job_spec("job")
    state = SimpleNamespace(now_s=lambda: now_s[0], settings=SimpleNamespace(tick_s=1.0))
    methods = JobMethods(SimpleNamespace(state=state), None)
    job = JobRecord("job", spec, resolve(spec, 1), client=None)
    common = job.lanes["rest"].restriction = AllotmentSet()
    common.grant(["of others"])
    assert methods._held(job) == [], "it may be given some of its own in a moment"
    now_s[0] = 1.0
    assert methods._held(job) == ["of others"]
    job.allotment.grant(["own"])
    assert methods._held(job) == ["own"]
    job.ended.set()
    assert methods._held(job) == [], "they are another's"
