"""A job that has nothing to do leaves its nodes to plain work, and has them when it has something to do."""

from __future__ import annotations

import math

import pytest
from distributed import Client, Worker, get_worker
from helpers import Gate, asleep, engine, live, owner_of, record, started, through, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals import reads


def there(x, *others):
    return get_worker().address


def pair(c, i):
    """A task of plain work that depends on another one; where it was executed."""
    return c.submit(there, c.submit(inc, i, pure=False), pure=False)


def addresses(s):
    return set(s.workers)


@live(workers=4, lend="5 s")
async def test_what_depends_on_other_plain_tasks_runs_on_all_nodes_until_the_job_has_a_task(c, s, *workers):
    await dask_hpc.install(c, policy="fair")
    async with Client(c.scheduler.address, asynchronous=True, set_as_default=False) as other:
        theirs = await dask_hpc.runtime(other)
        job = theirs.job("idle")
        await job.activate()
        await started(s, job)
        await until(lambda: record(s, job).resting, "it rests")
        places = await c.gather([pair(c, i) for i in range(40)])
        assert set(places) == addresses(s)
        # their first task: the nodes are theirs again
        gate = Gate()
        futures = [other.submit(through, i, gate, pure=False) for i in range(3)]
        await until(lambda: not record(s, job).resting and record(s, job).processing, "it works")
        plain = engine(s).state.plain[0]
        assert not set(plain.allotment) & set(record(s, job).allotment)
        gate.open()
        assert await other.gather(futures) == [0, 1, 2]
        # it has just had tasks: it rests only when it has had none for as long as slots are lent
        await until(lambda: record(s, job).quiet_since_s is not None, "it is quiet")
        assert not record(s, job).resting
        # also a task that no look has seen at work is one
        resting = engine(s)._resting
        look, resting.look = resting.look, lambda: None
        record(s, job).quiet_since_s = -math.inf
        assert await other.submit(inc, 1, pure=False) == 2
        resting.look = look
        look()
        assert not record(s, job).resting
        await job.close()
        await job.wait(20)
    await asleep(s)


@live(workers=2, lend="5 s")
async def test_plain_work_does_not_queue_for_a_node_while_jobs_that_rest_have_all(c, s, a, b):
    await dask_hpc.install(c, policy="fair")
    async with Client(c.scheduler.address, asynchronous=True, set_as_default=False) as other:
        jobs = [(await dask_hpc.runtime(other)).job(f"idle-{i}") for i in range(2)]
        for job in jobs:
            await job.activate()
            await started(s, job)
        future = c.submit(inc, 1, key="plain")
        assert await future == 2
        # its nodes are those of the jobs, whole: nothing had to be lent to one that waits
        assert owner_of(s, "plain") == engine(s).state.plain[0].id
        assert [record(s, job).lent_tasks for job in jobs] == [0, 0]
        for job in jobs:
            await job.close()


@live(workers=4, lend="5 s")
async def test_a_job_that_comes_with_nothing_to_do_has_no_plain_task_leave_its_nodes(c, s, *workers):
    await dask_hpc.install(c, policy="fair")
    gate = Gate()
    # one executes and one waits on each worker
    busy = [c.submit(through, i, gate, pure=False) for i in range(8)]
    await until(lambda: all(len(ws.processing) == 2 for ws in s.workers.values()), "all are sent")
    placed = {ts.key: ts.processing_on for ts in s.tasks.values()}
    async with Client(c.scheduler.address, asynchronous=True, set_as_default=False) as other:
        job = (await dask_hpc.runtime(other)).job("idle")
        await job.activate()
        await started(s, job)
        assert record(s, job).resting
        assert {ts.key: ts.processing_on for ts in s.tasks.values()} == placed
        assert set(engine(s).state.plain[0].allotment) == addresses(s)
        gate.open()
        assert await c.gather(busy) == list(range(8))
        assert not [entry for entry in s.transition_log if entry[-2].startswith("hpc-recall")]
        await job.close()
        await job.wait(20)
    await asleep(s)


@live(workers=4, lend="300 ms")
async def test_a_job_rests_again_when_it_has_had_no_task_for_as_long_as_slots_are_lent(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("now and then") as job:
        await started(s, job)
        assert await c.submit(inc, 1, pure=False) == 2
        await until(lambda: record(s, job).resting, "it rests again")
        assert await c.submit(inc, 2, pure=False) == 3
    await job.wait(20)
    await asleep(s)


@pytest.mark.parametrize(
    ("policy", "fields", "lend"),
    [
        ("fair", {"nodes": 2}, "5 s"),
        ("fair", {}, "0 s"),
        ("fcfs", {}, "5 s"),
        ("fair", {"exclusive": True}, "5 s"),
    ],
)
def test_jobs_with_nodes_of_their_own_never_rest(policy, fields, lend):
    @live(workers=3, lend=lend)
    async def case(c, s, *workers):
        rt = await dask_hpc.install(c, policy=policy)
        async with rt.job("own", **fields) as job:
            await started(s, job)
            engine(s)._resting.look()
            assert not record(s, job).resting
            assert not set(record(s, job).allotment) & set(engine(s).state.plain[0].allotment)
        await job.wait(20)
        await asleep(s)

    case()


@live(workers=3, lend="5 s")
async def test_a_node_that_joins_a_resting_job_serves_plain_work_too(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("idle") as job:
        await started(s, job)
        await until(lambda: record(s, job).resting, "it rests")
        late = await Worker(s.address, nthreads=1, name="late")
        held = record(s, job)
        await until(lambda: "late" in held.nodes, "the job gets the new node")
        assert late.address in engine(s).state.plain[0].allotment
    await job.wait(20)
    await asleep(s)
    await late.close()


@live(workers=2, lend="100 ms")
async def test_a_closed_job_whose_last_task_another_one_makes_rests_meanwhile(c, s, a, b):
    await dask_hpc.install(c, policy="fair")
    gate = Gate()
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        jobs, futures = [], []
        for client in (c, other):
            job = await (await dask_hpc.runtime(client)).job("shares").activate()
            await started(s, job)
            jobs.append(job)
        for client in (c, other):
            futures.append(client.submit(through, 1, gate, key="shared"))
            await until(lambda: len(reads.wanted_by(s, ["shared"])) == len(futures), "it is sent")
        await until(lambda: gate.arrived, "it executes")
        makes, waits = jobs
        await waits.close()
        await until(lambda: record(s, waits).closed and record(s, waits).resting, "it rests")
        assert record(s, waits).active
        gate.open()
        assert (await waits.wait(10))["state"] == "completed"
        await makes.close()


@live(workers=2, lend="5 s")
async def test_plain_work_sends_nothing_to_a_node_of_a_job_that_rests_while_it_is_drained(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("idle") as job:
        await started(s, job)
        await until(lambda: record(s, job).resting, "it rests")
        state, held = engine(s).state, record(s, job)
        plain, node = state.plain[0].allotment, state.nodes_of(held)[0]
        state.reserve([node], 1)
        assert set(plain) == addresses(s) - set(node.workers)
        state.give([node], held)
        assert set(plain) == addresses(s)
    await job.wait(20)
    await asleep(s)
