"""What jobs do to other work, to settings of the scheduler and to the trace: nothing that lasts."""

from __future__ import annotations

import asyncio

import dask
import pytest
from distributed import Client, Worker
from helpers import (
    Gate,
    addresses_of,
    asleep,
    engine,
    live,
    owner_of,
    record,
    started,
    state_of,
    through,
    until,
    within,
)
from tasks import Counter, inc

import dask_hpc
from dask_hpc.trace.records import Pass
from dask_hpc.wire import CLOSE, OPEN


@live(workers=2, config={"distributed.scheduler.no-workers-timeout": "100 ms"})
async def test_tasks_are_held_for_longer_than_the_limit_for_tasks_that_no_worker_can_run(c, s, *workers):
    limit = s.no_workers_timeout
    assert limit == pytest.approx(0.1)
    gate = Gate()
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        held = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("second", nodes=2) as second:
            late = c.submit(inc, 1)
        await until(lambda: record(s, second).held, "the task is held")
        for _ in range(3):  # the scheduler looks at the limit when it is told to
            s._check_no_workers()
            await asyncio.sleep(limit)
        assert state_of(s, second) == "pending"
        gate.open()
    assert await late == 2
    assert await held == 1
    await second.wait(10)
    await asleep(s)
    assert s.no_workers_timeout == limit


@live(workers=2)
async def test_plain_work_is_cancelled_by_its_futures_only(c, s, *workers):
    gate = Gate()
    rt = await dask_hpc.install(c)
    async with rt.job("one", nodes=1) as job:
        await started(s, job)
        with dask.annotate(hpc_job="default"):
            plain = c.submit(through, 7, gate=gate, pure=False)
        await until(lambda: gate.arrived, "it runs")
        name = owner_of(s, plain.key)
        with pytest.raises(ValueError, match=r"plain work.*cancel its futures"):
            await rt.cancel(name)
        assert not plain.done()
        gate.open()
    assert await plain == 7


@live(workers=2)
async def test_a_plain_actor_that_waits_for_a_node_is_made_when_the_last_job_ends(c, s, *workers):
    gate = Gate()
    rt = await dask_hpc.install(c)
    job = rt.job("all", nodes=2)
    async with job:
        await started(s, job, 2)
        held = c.submit(through, 1, gate=gate, pure=False)
        await until(lambda: gate.arrived, "it runs")
    counter = c.submit(Counter, actor=True)
    used = c.submit(lambda actor: actor.add(1).result(), counter)
    gate.open()
    assert await held == 1
    assert await asyncio.wait_for(used, 15) == 1
    await asleep(s)


@live(workers=1)
async def test_a_job_with_all_nodes_makes_what_a_task_annotated_when_it_was_built_needs(c, s, a):
    rt = await dask_hpc.install(c)
    async with rt.job("all", nodes=1) as job:
        await started(s, job, 1)
        with dask.annotate(hpc_job="default"):
            waits = c.submit(inc, 1, key="plain-waits")
        with dask.annotate(hpc_job=job.id):
            built = dask.delayed(inc)(waits, dask_key_name="needs")
        with dask.annotate(hpc_job="default"):
            needs = c.compute(built, optimize_graph=False)
        assert await within(needs) == 3
    await asleep(s)


@pytest.mark.parametrize("annotated", ["submitted", "built"])
@pytest.mark.parametrize("asked", ["early", "while", "after"])
@live(workers=2)
async def test_a_job_makes_what_it_needs_of_plain_work_that_has_lost_its_last_node(
    c, s, *workers, asked, annotated
):
    gate = Gate()
    rt = await dask_hpc.install(c)
    async with rt.job("one", nodes=1) as job:
        await started(s, job, 1)
        with dask.annotate(hpc_job="default"):
            first = c.submit(through, 1, gate=gate, key="plain-first")
            second = c.submit(inc, first, key="plain-second")
            unneeded = c.submit(through, 10, gate=gate, key="plain-unneeded")

        def ask():
            if annotated == "submitted":
                return c.submit(inc, second, key="needs")
            with dask.annotate(hpc_job=job.id):
                built = dask.delayed(inc)(second, dask_key_name="needs")
            with dask.annotate(hpc_job="default"):
                return c.compute(built, optimize_graph=False)

        await until(lambda: gate.arrived, "it runs")
        if asked == "early":
            needs = ask()
            await until(lambda: "needs" in s.tasks, "it is known")
        lost = next(w for w in workers if w.address not in addresses_of(s, job))
        closing = asyncio.ensure_future(lost.close(reason="gone", executor_wait=False))
        await until(lambda: lost.address not in s.workers, "gone")
        await until(lambda: gate.arrived == 2, "it runs again")
        if asked == "after":  # plain work has the one, and no node for the other
            gate.open()
            await until(lambda: s.tasks["plain-second"].state == "no-worker", "it waits for a node")
        if asked != "early":
            needs = ask()
        await until(lambda: owner_of(s, "plain-second") == job.id, "its job makes it")
        gate.open()
        assert await within(needs) == 3
        assert owner_of(s, "plain-first") == job.id
    assert await within(unneeded) == 10
    await closing
    await asleep(s)


@live(workers=2)
async def test_a_job_whose_results_another_client_wants_completes_when_its_client_closes(c, s, *workers):
    gate = Gate()
    async with Client(s.address, asynchronous=True) as other:
        rt = await dask_hpc.install(other)
        async with rt.job("shared", nodes=1) as job:
            await started(s, job)
            future = other.submit(through, 5, gate=gate, key="shared-key")
            await until(lambda: gate.arrived, "it runs")
        mine = c.submit(through, 5, gate=gate, key="shared-key")
        await until(lambda: len(s.tasks["shared-key"].who_wants) == 2, "both want it")
        found = record(s, job)
        del future
    gate.open()
    assert await mine == 5
    await until(lambda: found.state == "completed", f"completed, is {found.state}")


@live(workers=2)
async def test_a_quiet_cluster_adds_nothing_to_the_trace(c, s, *workers):
    gate = Gate()
    rt = await dask_hpc.install(c, tick_s=0.02)
    async with rt.job("quiet", nodes=2) as job:
        await started(s, job, 2)
        future = c.submit(through, 1, gate=gate, pure=False)
        await until(lambda: gate.arrived, "it runs")
        controller = engine(s).controller
        ticks = 0
        decide = controller.decide

        def counted(trigger):
            nonlocal ticks
            ticks += 1
            decide(trigger)

        controller.decide = counted
        await until(lambda: ticks > 3, "some ticks")
        before = sum(isinstance(item, Pass) for item in engine(s).state.records)
        seen = ticks
        await until(lambda: ticks > seen + 10, "ten more ticks")
        assert sum(isinstance(item, Pass) for item in engine(s).state.records) == before
        gate.open()
    assert await future == 1


@live(workers=0, config={"hpc.node.by": "host"})
async def test_the_pool_is_counted_in_nodes_before_the_first_job(c, s):
    async with (
        Worker(s.address, name="host0-a", host="127.0.0.1"),
        Worker(s.address, name="host0-b", host="127.0.0.1"),
    ):
        rt = await dask_hpc.install(c)
        with pytest.raises(ValueError, match="2"):
            async with rt.job("too-large", nodes=2, rigid=True):
                pass
        async with rt.job("fits", nodes=1) as job:
            assert await c.submit(inc, 1) == 2
        await job.wait(10)


@live(workers=1)
async def test_messages_about_jobs_that_are_not_expected_change_nothing(c, s, a):
    rt = await dask_hpc.install(c)
    async with rt.job("one", nodes=1) as job:
        await started(s, job)
        s.stream_handlers[CLOSE](job=job.id, token="of-an-earlier-installation")
        s.stream_handlers[CLOSE](job=job.id)
        await s.stream_handlers[OPEN](job="never-announced", token="")
        assert not record(s, job).closed
        assert await c.submit(inc, 1) == 2
    assert (await job.wait(10))["state"] == "completed"
