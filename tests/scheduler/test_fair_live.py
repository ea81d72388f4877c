"""The policy `fair` on a live cluster: what it is told; a small job does not wait for a large one."""

from __future__ import annotations

import dask
import pytest
from distributed import Worker
from helpers import Gate, addresses_of, live, record, started, state_of, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc_policies.metrics import node_seconds


async def view_of(rt, job):
    snapshot = await rt.snapshot()
    return snapshot.now_s, next(view for view in snapshot.jobs if view.id == job.id)


@live(workers=3)
async def test_attained_service_is_what_a_job_has_held(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=3, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 3)
        await job.resize(1)
        now_s, view = await view_of(rt, job)
        sizes = list(record(s, job).sizes)
        assert sizes[0][1] == 3
        assert sizes[-1][1] == 1
        assert view.attained_node_s > 0
        assert view.attained_node_s == pytest.approx(node_seconds(sizes, 0.0, now_s))
    await job.wait(10)
    # no more after its end
    done = record(s, job)
    assert done.attained_node_s(now_s + 1000) == done.attained_node_s(now_s + 2000)


#: Of the test that runs: its runtime, and the jobs that tasks have declared, by name.
RUNTIMES, DECLARED = [], {}


def declare(name, **fields):
    """A task that declares a job, in the process of the test."""
    DECLARED[name] = RUNTIMES[-1].job(name, **fields)


@live(workers=1)
async def test_a_job_that_a_task_declares_is_its_users(c, s, a):
    """Else who has many tasks that declare some would be as many users."""
    rt = await dask_hpc.install(c, "fcfs")
    RUNTIMES.append(rt)
    async with rt.job("outer", nodes=1, user="ann"):
        tasks = c.submit(declare, "inner", pure=False), c.submit(declare, "says", user="bob", pure=False)
        await within(c.gather(tasks))
        declare("mine")
        for name, user in (("inner", "ann"), ("says", "bob"), ("mine", c.id)):
            async with DECLARED[name] as job:
                assert record(s, job).request.user == user


@live(workers=2)
async def test_a_job_is_its_clients_with_the_weight_of_the_setting_unless_it_says_otherwise(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    with dask.config.set({"hpc.share.weight": 3}):
        async with rt.job("plain", nodes=1) as plain, rt.job("says", nodes=1, user="ada", weight=2) as says:
            await started(s, says, 1)
            _, view = await view_of(rt, plain)
            assert (view.user, view.weight) == (c.id, 3.0)
            _, view = await view_of(rt, says)
            assert (view.user, view.weight) == ("ada", 2.0)
    with (
        dask.config.set({"hpc.share.weight": 0}),
        pytest.raises(ValueError, match=r"hpc\.share\.weight is 0"),
    ):
        rt.job("never")


@live(workers=4)
async def test_a_small_job_gets_nodes_of_a_large_one_at_once(c, s, *workers):
    rt = await dask_hpc.install(c, "fair")
    gate = Gate()
    async with rt.job("large", user="ada") as large:
        held = c.submit(through, 1, gate=gate, pure=False)
        await started(s, large, 4)
        await until(lambda: gate.arrived == 1, "a task of the large job runs")
        async with rt.job("small", user="bob"):
            assert await c.submit(inc, 1, pure=False) == 2
            assert 1 <= len(record(s, large).nodes) < 4
            assert not held.done()
        gate.open()
        assert await held == 1
    await large.wait(10)


@live(workers=3)
async def test_a_job_of_more_nodes_than_are_left_keeps_nobody_waiting_and_runs_once_they_are_back(
    c, s, *workers
):
    rt = await dask_hpc.install(c)
    await rt.update(policy="fair", patience_s=0)
    gate = Gate()
    async with rt.job("first", nodes=1) as first:
        held = c.submit(through, 1, gate, pure=False)
        await started(s, first, 1)
        async with rt.job("wide", nodes=3) as wide:
            asked = c.submit(inc, 1, pure=False)
            leaves = next(w for w in workers if w.address not in addresses_of(s, first))
            await leaves.close()
            with dask.annotate(hpc_job=None):
                plain = c.submit(through, 1, gate, pure=False)
                await until(lambda: gate.arrived == 2, "plain work has the other node")
                # it goes on taking tasks in, and keeps its node from no job once it is done
                more = c.submit(inc, 2, pure=False)
                gate.open()
                assert await within(more, 10) == 3
                assert await within(c.gather([held, plain])) == [1, 1]
            async with rt.job("third", nodes=1):
                assert await within(c.submit(inc, 3, pure=False), 10) == 4
            assert state_of(s, wide) == "pending"
    await first.wait(10)
    async with Worker(s.address, nthreads=1):
        assert await within(asked) == 2
        assert (await wide.wait(10))["state"] == "completed"
