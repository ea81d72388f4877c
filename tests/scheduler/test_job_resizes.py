"""A job is resized while its tasks run, none of them twice, or the resize is refused with its reason."""

from __future__ import annotations

import asyncio

import pytest
from helpers import Gate, Starts, addresses_of, engine, live, record, started, state_of, through, until
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.scheduler.rpc.service import of
from dask_hpc_policies.jobs.jobspec import job_spec


@live(workers=4, threads=2)
async def test_a_shrink_recalls_what_has_not_started_and_runs_nothing_twice(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("main", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        futures = c.map(through, range(40), gate=gate, pure=False)
        await until(lambda: gate.arrived == 8, "every thread is busy")
        resize = asyncio.ensure_future(job.resize(2))
        await until(lambda: state_of(s, job) == "adapting" or resize.done(), "adapts")
        executing = {w.address: len(w.state.executing) for w in workers}
        assert set(executing.values()) == {2}
        leaving = {
            a for node in engine(s).state.nodes_of(record(s, job)) if node.reserved for a in node.workers
        }
        assert len(leaving) == 2
        # unstarted tasks leave, executing ones stay
        await until(lambda: all(len(s.workers[a].processing) <= 2 for a in leaving), "recalled")
        assert all(len(s.workers[a].processing) == 2 for a in leaving)
        assert not resize.done()
        gate.open()
        assert (await asyncio.wait_for(resize, 10))["result"] == "done"
        assert addresses_of(s, job).isdisjoint(leaving)
        assert await c.gather(futures) == list(range(40))
    assert starts.twice(starts.count) == []
    await job.wait(10)


@live()
async def test_a_job_grows_and_shrinks_while_tasks_run(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=1, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 1)
        futures = c.map(slow_inc, range(150), pure=False)
        sizes = []
        for size in (4, 2, 3, 1, 4):
            out = await asyncio.wait_for(job.resize(size), 10)
            assert out["result"] == "done", out
            sizes.append((await job.status())["nodes"])
        assert sizes == [4, 2, 3, 1, 4]
        assert await c.gather(futures) == list(range(1, 151))
        row = await job.status()
        assert (row["expansions"], row["shrinks"]) == (3, 2)
    assert starts.twice(starts.count) == []
    assert starts.places(starts.count) == set(s.workers)
    await job.wait(10)


@live()
async def test_a_shrink_is_taken_back_at_the_deadline_and_intake_resumes(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c, shrink_deadline_s=0.2)
    gate = Gate()
    async with rt.job("main", nodes=3, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 3)
        home = addresses_of(s, job)
        futures = c.map(through, range(3), gate=gate, pure=False)
        await until(lambda: gate.arrived == 3, "busy")
        out = await asyncio.wait_for(job.resize(1), 10)
        assert (out["result"], out["reason_code"]) == ("aborted", "deadline")
        assert "shrink-deadline" in out["reason"]
        assert addresses_of(s, job) == home
        assert state_of(s, job) == "running"
        more = c.map(inc, range(30), pure=False)
        gate.open()
        assert await c.gather(futures) == [0, 1, 2]
        assert await c.gather(more) == list(range(1, 31))
        assert starts.places(f.key for f in more) == home
    assert starts.twice(starts.count) == []
    assert (await job.wait(10))["state"] == "completed"
    assert ("aborted", "deadline") in [(d["result"], d["reason_code"]) for d in await job.why()]


REFUSALS = [
    ({"nodes": 2, "min_nodes": 1, "max_nodes": 4}, 2, "stale"),
    ({"nodes": 2, "min_nodes": 2, "max_nodes": 4}, 1, "out-of-bounds"),
    ({"nodes": 2, "min_nodes": 1, "max_nodes": 2}, 3, "out-of-bounds"),
    ({"nodes": 2}, 3, "out-of-bounds"),
    ({"nodes": 2, "min_nodes": 1, "max_nodes": 4, "constraint": "pof2"}, 3, "no-legal-size"),
    ({"nodes": 2, "min_nodes": 1, "max_nodes": 4}, 4, "not-enough-nodes"),
]


@pytest.mark.parametrize(("fields", "size", "code"), REFUSALS)
@live()
async def test_a_resize_that_cannot_be_is_refused_with_its_reason(c, s, *workers, fields, size, code):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("other", nodes=1) as other:
        await started(s, other, 1)
        held = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("main", **fields) as job:
            await started(s, job, 2)
            before = addresses_of(s, job)
            out = await asyncio.wait_for(job.resize(size), 10)
            assert (out["result"], out["reason_code"]) == ("refused", code)
            assert out["reason"]
            assert addresses_of(s, job) == before
            assert out["reason"] in [d["reason"] for d in await job.why()]
        gate.open()
    await job.wait(10)
    out = await job.resize(1)
    assert (out["result"], out["reason_code"]) == ("refused", "unknown-job")
    await other.wait(10)
    assert await held == 1


@live()
async def test_a_refusal_has_its_reason_also_when_no_trace_is_kept(c, s, *workers):
    rt = await dask_hpc.install(c, trace_keep=0, decisions_keep=0)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        out = await job.resize(3)
        assert (out["result"], out["reason_code"]) == ("refused", "out-of-bounds")
    await job.wait(10)


@live()
async def test_a_job_that_is_reconfiguring_is_locked(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("main", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        futures = c.map(through, range(4), gate=gate, pure=False)
        await until(lambda: gate.arrived == 4, "busy")
        first = asyncio.ensure_future(job.resize(2))
        await until(lambda: state_of(s, job) == "adapting", "adapts")
        second = await job.resize(1)
        assert (second["result"], second["reason_code"]) == ("refused", "locked")
        gate.open()
        assert (await first)["result"] == "done"
    await job.wait(10)
    assert await c.gather(futures) == [0, 1, 2, 3]


@live()
async def test_a_pending_job_is_not_resized_and_wrong_sizes_are_errors(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("main", nodes=4) as job:
        await started(s, job, 4)
        f = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("late", nodes=4) as late:
            await until(lambda: engine(s).state.jobs.active.get(late.id), "in the queue")
            out = await late.resize(2)
            assert (out["result"], out["reason_code"]) == ("refused", "wrong-state")
            for size in (0, -1, "many", 1.5, True):
                with pytest.raises(ValueError, match="nodes"):
                    await late.resize(size)
        gate.open()
    await late.wait(10)
    assert await f == 1


@live()
async def test_every_decision_is_one_row_that_its_outcome_completes(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=2, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 2)
        await job.resize(1)
    await job.wait(10)
    rows = [row for row in await rt.decisions(job.id) if row["action"] in ("start", "shrink")]
    assert [(row["action"], row["result"]) for row in rows[:1]] == [("start", "done")]
    assert next(row for row in rows if row["reason_code"] == "user-request")["latency_s"] is not None
    assert "under way" not in {row["result"] for row in rows}


@live(workers=3)
async def test_a_job_that_has_just_been_opened_is_resized_once_it_has_started(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    adopt, taken_over = engine(s).ownership.adopt, asyncio.Event()

    async def many_tasks(plain):
        """There may be many tasks of others to take over."""
        await taken_over.wait()
        await adopt(plain)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine(s).ownership, "adopt", many_tasks)
        async with rt.job("first", nodes=1, min_nodes=1, max_nodes=2) as job:
            await until(lambda: job.id in engine(s).state.jobs.active, "it is open")
            resizing = asyncio.ensure_future(of(s).jobs.resize(job.id, 2))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not resizing.done()
            taken_over.set()
            assert (await asyncio.wait_for(resizing, 10))["result"] == "done"
            # the runtime is awake: the pass that starts this one is the next thing that happens
            spec = job_spec("second", nodes=1, min_nodes=1, max_nodes=1)
            late = engine(s).lifecycle.announce(spec, c.id, 0)
            await engine(s).open_job(late.id)
            assert late.state == "pending"
            out = await of(s).jobs.resize(late.id, 1)
            assert out["reason_code"] == "stale", "it has one already"
            await rt.cancel(late.id)
    await job.wait(10)
