"""Life of a job: opened without waiting, closed, done, cancelled, failed."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import dask
import pytest
from distributed import Client
from distributed.client import FutureCancelledError
from helpers import (
    Gate,
    asleep,
    engine,
    idle_job,
    live,
    record,
    started,
    state_of,
    through,
    traces_of_ours,
    until,
    within,
)
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.errors import CouplingError, JobCancelled, JobFailed, UnknownJob


def fail(value):
    raise ZeroDivisionError(value)


def fail_once(attempts):
    attempts.wait()
    if attempts.arrived == 1:
        raise ValueError("first attempt")
    return "second attempt"


@live(workers=2)
async def test_entering_never_waits_for_nodes(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        held = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("second", nodes=2) as second:
            futures = c.map(inc, range(40), pure=False)
            row = await second.status()
            assert (row["state"], row["nodes"], row["closed"]) == ("pending", 0, False)
            await until(lambda: record(s, second).unfinished == 40, "submitted")
            assert {s.tasks[f.key].state for f in futures} == {"no-worker"}
        assert (await second.status())["reason"] != "submitted"
        gate.open()
    assert await c.gather(futures) == list(range(1, 41))
    assert await held == 1
    await second.wait(10)
    assert [r["state"] for r in await rt.jobs()] == ["completed", "completed"]
    assert (await second.status())["wait_s"] > 0


@live()
async def test_a_job_completes_when_closed_and_done_and_frees_its_nodes_and_keeps_its_results(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        futures = c.map(inc, range(20), pure=False)
        await c.gather(futures)
        # all done, but more may come: it is still open
        assert (await job.status())["state"] == "running"
        more = c.map(inc, futures)
    assert (await job.wait(10))["state"] == "completed"
    row = await job.status()
    assert (row["nodes"], row["unfinished_tasks"], row["held_tasks"]) == (0, 0, 0)
    assert row["turnaround_s"] >= row["wait_s"] >= 0
    assert await c.gather(more) == list(range(2, 22))
    await asleep(s)
    assert traces_of_ours(s) == []


@live()
async def test_an_empty_job_completes(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("nothing") as job:
        pass
    assert (await job.wait(10))["state"] == "completed"


@live()
async def test_an_exception_inside_cancels(c, s, *workers):
    rt = await dask_hpc.install(c)
    job = rt.job("main", nodes=2)
    futures = []

    async def program():
        async with job:
            futures.append(c.submit(inc, 1, pure=False))
            await futures[0]
            futures.extend(c.map(slow_inc, range(500), pure=False))
            await until(lambda: record(s, job).unfinished == 500, "submitted")
            raise ZeroDivisionError("division by tomatoes")

    with pytest.raises(ZeroDivisionError):
        await program()
    row = await job.status()
    assert row["state"] == "cancelled"
    assert "division by tomatoes" in row["reason"]
    with pytest.raises(JobCancelled, match="division by tomatoes"):
        await job.wait(10)
    with pytest.raises((FutureCancelledError, asyncio.CancelledError)):
        await c.gather(futures[1:])
    assert await futures[0] == 2
    await asleep(s)
    await until(lambda: not any(ws.processing for ws in s.workers.values()), "nothing of it runs")
    assert await c.submit(inc, 5, pure=False) == 6


@pytest.mark.parametrize("when", ["pending", "running", "adapting"])
@live()
async def test_cancel_by_handle(c, s, *workers, when):
    rt = await dask_hpc.install(c, "fcfs")
    gate, other_gate = Gate(), Gate()
    async with rt.job("other", nodes=1) as other:
        await started(s, other, 1)
        held = c.submit(through, 1, gate=other_gate, pure=False)
    nodes = 4 if when == "pending" else 3
    job = rt.job("main", nodes=nodes, min_nodes=1, max_nodes=4)
    async with job:
        futures = c.map(through, range(30), gate=gate, pure=False)
        await until(lambda: record(s, job).unfinished == 30, "submitted")
        if when != "pending":
            await until(lambda: gate.arrived == 3, "busy")
        resize = asyncio.ensure_future(job.resize(1)) if when == "adapting" else None
        await until(lambda: state_of(s, job) == when, when)
        row = await job.cancel("enough")
        assert (row["state"], row["reason"]) == ("cancelled", "enough")
        if resize is not None:
            assert (await asyncio.wait_for(resize, 10))["result"] in ("done", "aborted")
    gate.open()
    other_gate.open()
    with pytest.raises((FutureCancelledError, asyncio.CancelledError)):
        await c.gather(futures)
    with pytest.raises(JobCancelled, match="enough"):
        await job.wait(10)
    assert await held == 1
    await other.wait(10)
    await asleep(s)
    assert (await job.cancel())["reason"] == "enough"
    assert await c.gather(c.map(inc, range(10), pure=False)) == list(range(1, 11))


@live()
async def test_a_job_with_a_failed_task_fails_when_it_is_closed(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        good = c.map(inc, range(10), pure=False)
        bad = c.submit(fail, 7, pure=False)
    with pytest.raises(JobFailed, match=re.escape(bad.key)):
        await within(job.wait(10), 15)
    assert await c.gather(good) == list(range(1, 11))
    with pytest.raises(ZeroDivisionError):
        await bad
    assert (await job.why())[-1]["reason_code"] == "task-failed"


@live()
async def test_a_failed_task_that_is_retried_with_success_does_not_fail_the_job(c, s, *workers):
    rt = await dask_hpc.install(c)
    attempts = Gate()
    attempts.open()

    async with rt.job("main", nodes=1) as job:
        future = c.submit(fail_once, attempts, pure=False)
        with pytest.raises(ValueError, match="first attempt"):
            await future
        await future.retry()
        await until(lambda: s.tasks[future.key].state == "memory", "retried")
    assert (await job.wait(10))["state"] == "completed"


@live()
async def test_waiting_ends_with_a_time_out_that_says_what_is_left(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("main", nodes=1) as job:
        future = c.submit(through, 1, gate=gate, pure=False)
        await started(s, job, 1)
        with pytest.raises(TimeoutError, match="still open"):
            await job.wait(0.05)
    with pytest.raises(TimeoutError, match="1 unfinished"):
        await job.wait(0.05)
    gate.open()
    await job.wait()
    await job.wait(0)
    assert await future == 1
    with pytest.raises(UnknownJob, match="nonsense"):
        await rt.find("nonsense").status()


@live()
async def test_a_job_can_be_entered_once(c, s, *workers):
    rt = await dask_hpc.install(c)
    job = rt.job("main")
    with pytest.raises(RuntimeError, match="not been submitted"):
        await job.status()
    async with job:
        pass
    with pytest.raises(RuntimeError, match=job.id):
        async with job:
            pass
    with pytest.raises(TypeError, match="async with"), rt.job("sync"):
        pass


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
@live(1)
async def test_a_job_that_is_left_by_another_task_than_has_entered_it_ends(c, s, a, error):
    """As by an async generator that nobody iterates to its end, or a fixture of a test."""
    rt = await dask_hpc.install(c)
    job = rt.job("main")
    await asyncio.create_task(job.__aenter__())
    await asyncio.create_task(job.__aexit__(error and type(error), error, None))
    await until(lambda: state_of(s, job) == ("cancelled" if error else "completed"), "it has ended")
    await asleep(s)


@live()
async def test_a_job_can_be_cancelled_as_soon_as_it_has_been_entered(c, s, *workers):
    """The request is faster than the stream that opens the job."""
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        assert (await job.cancel("too late"))["state"] == "cancelled"
        future = c.submit(inc, 1, pure=False)
        assert await future == 2
    assert state_of(s, job) == "cancelled"
    with pytest.raises(ZeroDivisionError):
        async with rt.job("main", nodes=1) as other:
            raise ZeroDivisionError
    assert await c.submit(inc, 1, pure=False) == 2
    assert state_of(s, other) == "cancelled"
    await asleep(s)
    assert traces_of_ours(s) == []


def explode():
    raise ImportError("no module named theirs")


class Unreadable:
    """A function that the scheduler cannot unpickle, as one from a module that it cannot import."""

    def __call__(self):
        return 1

    def __reduce__(self):
        return explode, ()


@live()
async def test_a_graph_that_the_scheduler_cannot_read_fails_its_job(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        future = c.submit(Unreadable(), pure=False)
    with pytest.raises(JobFailed, match=r"could not take the graph of .*Unreadable"):
        await job.wait(10)
    await until(lambda: future.status == "error", "stock tells its client")


@live()
async def test_a_name_that_two_active_jobs_have_cancels_neither(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("same", nodes=1) as one, rt.job("same", nodes=1) as two:
        await started(s, two, 1)
        with pytest.raises(UnknownJob, match=f"2 active jobs are called 'same'.*{one.id}, {two.id}"):
            await rt.cancel("same")
        assert {state_of(s, one), state_of(s, two)} == {"running"}
        await rt.cancel(one.id)
        assert (await rt.cancel("same"))["id"] == two.id
    async with rt.job("default") as job:  # as plain work is called
        assert (await rt.cancel("default"))["id"] == job.id


@pytest.mark.parametrize("limit", [-1, "x", True])
def test_a_limit_that_is_none_is_refused(loop, limit):
    with (
        dask_hpc.LocalCluster(n_workers=1, processes=False, dashboard_address=":0", loop=loop) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        rt = dask_hpc.runtime(client)
        with pytest.raises(ValueError, match=r"limit is .* allowed"):
            rt.decisions(limit=limit)
        with rt.job("main") as job, pytest.raises(RuntimeError, match="its context is left"):
            job.wait()
        with pytest.raises(ValueError, match="timeout is '5 s'"):
            job.wait("5 s")


def test_what_ends_after_its_client_was_closed_ends_quietly(loop):
    with dask_hpc.LocalCluster(n_workers=1, processes=False, dashboard_address=":0", loop=loop) as cluster:
        client = Client(cluster, loop=loop)
        rt = dask_hpc.runtime(client)
        flow = rt.couple("heat", {"T": (("x",), (4,), "float64")})
        with pytest.raises(CouplingError, match="flow 'heat' has no steps yet"):
            flow.plan()
        job = rt.job("open").activate()

        def fails():
            with rt.job("main"):
                client.close()
                raise KeyError("first")

        # the first error stays the one that is seen
        with pytest.raises(KeyError, match="first"):
            fails()
        for end in (flow.close, flow.close, job.deactivate, job.close):
            assert end() is None


@live(workers=1)
async def test_a_job_that_is_cancelled_while_the_runtime_still_falls_asleep_is_cancelled(c, s, a):
    rt = await dask_hpc.install(c)
    # as while the last lines of a trace are written
    async with engine(s)._lock, rt.job("early") as job:
        await until(lambda: job.id in engine(s).state.jobs.active, "it is on its way")
        assert (await job.cancel())["state"] == "cancelled"
    with pytest.raises(JobCancelled):
        await job.wait(10)
    assert await c.submit(inc, 1, pure=False) == 2
    await asleep(s)
    assert traces_of_ours(s) == []


@live(workers=1)
async def test_who_interrupts_the_declaration_of_a_job_leaves_none_behind(c, s, a):
    rt = await dask_hpc.install(c)
    announced = engine(s).state.jobs.announced
    entering = asyncio.ensure_future(rt.job("interrupted").__aenter__())
    while not announced:
        await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    await until(lambda: not announced, "the scheduler is told")
    (row,) = await rt.jobs()
    assert (row["state"], row["reason"]) == ("cancelled", "interrupted before it was submitted")


def decided(s, job):
    """Whether something has been decided about a job."""
    return job.id in {row["job"] for row in engine(s).controller.decisions}


@live(workers=2)
async def test_what_a_job_waits_for_is_told_once_however_often_others_come_and_go(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", trace_keep=4)
    async with rt.job("first", nodes=2) as first, rt.job("waits", nodes=2) as waits:
        await started(s, first, 2)
        for number in range(3):
            async with rt.job(f"more-{number}", nodes=2) as more:
                await until(partial(decided, s, more), "it waits, too")
        held = [row["reason"] for row in await rt.decisions(job=waits.id) if row["result"] == "held"]
        assert len(held) == len(set(held)) > 0
        # of what has happened no more is kept than is said, also when that changes
        assert (await kept(rt))[0] == 4
        await rt.update(trace_keep=3, decisions_keep=2)
        assert await kept(rt) == (3, 2)
        latest = (await rt.decisions())[-1]
        await waits.cancel()
        await until(lambda: engine(s).controller.decisions[-1] != latest, "one more")
        assert await kept(rt) == (3, 2)


async def kept(rt):
    """Records (a trace begins with one that says whose it is) and decisions that are kept."""
    return len(await rt.trace()) - 1, len(await rt.decisions())


@live(1, lend="5 s")
async def test_what_is_on_borrowed_slots_as_the_last_job_ends_is_accounted_for_then(c, s, a):
    gate = Gate()
    async with idle_job(c, s) as (_, idle):
        with dask.annotate(hpc_job=None):
            future = c.submit(through, 1, gate, key="lent")
        await until(lambda: gate.arrived, "it runs on the borrowed node")
    await asleep(s)
    lending, row = engine(s).admission.lending, await idle.status()
    assert (lending.loans, lending._trials) == ({}, {})
    assert row["lent_s"] > 0
    gate.open()
    assert await within(future) == 1
