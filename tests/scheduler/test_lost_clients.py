"""A job lives as long as its client, or until it is clear that the client does not come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from distributed import Client, SchedulerPlugin
from helpers import asleep, engine, live, record, started, state_of, until, within
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.errors import JobCancelled
from dask_hpc.scheduler.core.lifecycle import Lifecycle
from dask_hpc.scheduler.rpc.service import of
from dask_hpc_policies.codec import encode
from dask_hpc_policies.jobs.jobspec import job_spec


@live()
async def test_an_open_job_whose_client_has_gone_is_cancelled_after_the_time_out(c, s, *workers):
    rt = await dask_hpc.install(c, client_timeout_s=0.2, tick_s=0.05)
    async with Client(s.address, asynchronous=True) as other:
        job = (await dask_hpc.install(other)).job("orphan", nodes=1)
        await job._open()
        await started(s, job, 1)
    await until(lambda: state_of(s, job) == "cancelled", "cancelled")
    row = await rt.find(job.id).status()
    assert "client" in row["reason"]
    assert "client-gone" in [d["reason_code"] for d in await rt.find(job.id).why()]
    await asleep(s)


@live()
async def test_a_client_that_comes_back_in_time_keeps_its_job(c, s, *workers):
    rt = await dask_hpc.install(c, client_timeout_s=5, tick_s=0.05)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        # the connection breaks, while somebody else declares a job; the client makes a new one under its id
        gone, others = [], []

        class Watch(SchedulerPlugin):
            def remove_client(self, scheduler, client):
                gone.append((client, record(s, job).client_gone_s))
                declared = of(s).announce(encode(job_spec("meanwhile")), client="another", token="theirs")
                others.append(asyncio.ensure_future(declared))

        s.add_plugin(Watch(), name="watch")
        s.client_comms[c.id].comm.abort()
        await until(lambda: gone, "the loss is seen")
        assert gone[0][0] == c.id
        assert gone[0][1] is not None
        await until(lambda: c.id in s.clients, "it is back")
        await until(lambda: record(s, job).client_gone_s is None, "the return is seen")
        assert await c.gather(c.map(inc, range(5), pure=False)) == [1, 2, 3, 4, 5]
    # its end is still heard
    assert (await job.wait(10))["state"] == "completed"
    assert [(await other)["name"] for other in others] == ["meanwhile"]


@live(1)
async def test_a_job_whose_end_was_lost_with_the_connection_ends_when_it_is_waited_for(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_hpc.client.job._POLL_S", 0.05)
    rt = await dask_hpc.install(c)
    job = rt.job("main")
    await job.__aenter__()
    with monkeypatch.context() as lost:
        lost.setattr(job, "_send", lambda *args: None)
        await job.__aexit__(None, None, None)
    assert (await job.wait(10))["state"] == "completed"


@live(1)
async def test_a_job_whose_beginning_was_lost_with_the_connection_is_cancelled_as_it_is_closed(
    c, s, a, monkeypatch
):
    rt = await dask_hpc.install(c)
    job = rt.job("main")
    with monkeypatch.context() as lost:
        lost.setattr(job, "_send", lambda *args, **kwargs: None)
        await job.activate()
    assert await c.submit(inc, 1) == 2
    monkeypatch.setattr("dask_hpc.scheduler.rpc.jobs._MARK_S", 0.05)
    assert (await within(job.resize(1)))["result"] == "refused"
    await job.close()
    with pytest.raises(JobCancelled, match="what opens it was lost with its client's connection"):
        await job.wait(10)


@live(1)
async def test_an_end_that_was_lost_with_the_connection_is_said_again_when_the_client_is_back(
    c, s, a, monkeypatch
):
    rt = await dask_hpc.install(c)
    job, open_one = rt.job("main"), await rt.job("open").activate()
    await job.activate()
    active = engine(s).state.jobs.active
    await until(lambda: job.id in active and open_one.id in active, "both are open")
    with monkeypatch.context() as lost:
        lost.setattr(job, "_send", lambda *args: None)
        await job.close()
    s.client_comms[c.id].comm.abort()
    await until(lambda: state_of(s, job) == "completed", "it ends", timeout_s=10)
    assert record(s, open_one).active
    assert not record(s, open_one).closed
    await open_one.close()


@live()
async def test_the_job_of_a_client_that_closes_is_cancelled_when_nobody_wants_its_results(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        async with (await dask_hpc.install(other)).job("main", nodes=1) as job:
            futures = other.map(slow_inc, range(1000), pure=False)
        await started(s, job, 1)
        assert len(futures) == 1000
    await until(lambda: state_of(s, job) == "cancelled", "cancelled")
    assert "client" in (await rt.find(job.id).status())["reason"]
    await asleep(s)


@live()
async def test_closing_the_client_inside_a_context_cancels_the_job_at_once(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        theirs = await dask_hpc.install(other)
        async with theirs.job("wide", nodes=4) as job:
            await started(s, job, 4)
            await other.close()
    await until(lambda: state_of(s, job) == "cancelled", "nobody can come back", timeout_s=5)
    (row,) = [row for row in await rt.jobs() if row["id"] == job.id]
    assert "closed inside its context" in row["reason"]
    await asleep(s)


@pytest.mark.parametrize("resized", [False, True])
@live()
async def test_a_job_whose_client_goes_before_it_is_opened_does_not_wait_for_ever(c, s, *workers, resized):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        job = (await dask_hpc.install(other)).job("never", nodes=1)
        # all but the message that opens it, which goes on the stream that breaks
        asked = {"spec": job._spec, "client": other.id, "token": job._token}
        row = await job.channel.ask("announce", **asked)
        assert (row["state"], [each["id"] for each in await rt.jobs()]) == ("pending", [row["id"]])
    await until(lambda: other.id not in s.clients, "it has gone")
    # asleep nobody hears of that: who announces the next one finds it, or resizes this one
    if resized:
        assert (await within(rt.find(row["id"]).resize(2)))["reason_code"] == "unknown-job"
    else:
        async with rt.job("next"):
            assert row["id"] not in engine(s).state.jobs.announced
    row, *_ = await rt.jobs()
    assert row["state"] == "cancelled"
    assert "before it was submitted" in row["reason"]


def test_what_becomes_of_the_jobs_of_a_client_that_goes_comes_back_or_is_closed():
    def job(client, *, closed=False, done=False):
        return SimpleNamespace(client=client, closed=closed, done=done, dropped=False, client_gone_s=None)

    open_, busy, over, theirs, shares = jobs = [
        job("a", done=True), job("a", closed=True), job("a", closed=True, done=True), job("b"),
        job("a", closed=True, done=True),
    ]  # fmt: skip
    announced = job("a")
    lifecycle, cancelled, looked_at = object.__new__(Lifecycle), [], []
    lifecycle.cancel = lambda job, code, text: cancelled.append(job)
    lifecycle.maybe_done = looked_at.append
    lifecycle.scheduler = SimpleNamespace(clients={"b"}, loop=SimpleNamespace(call_later=lambda *asked: None))
    lifecycle.ownership = SimpleNamespace(
        guests=SimpleNamespace(of_others=lambda job, states: "key" if job is shares else None)
    )
    lifecycle.state = state = SimpleNamespace(
        now_s=lambda: 7.0,
        settings=SimpleNamespace(client_timeout_s=5.0, sweep_s=0.1),
        jobs=SimpleNamespace(named=jobs, active={}, announced={"new": announced}),
    )
    lifecycle.client_left("a")
    assert cancelled == [announced], "nobody will open it"
    assert [each.client_gone_s for each in jobs] == [7.0, 7.0, 7.0, None, 7.0]
    # of what is closed, only that of which nothing is left that somebody wants, or another one makes
    assert [each.dropped for each in jobs] == [False, False, True, False, False]
    cancelled.clear()
    lifecycle.sweep()
    lifecycle.tick(11.9)
    assert (cancelled, looked_at) == ([], [over, shares]), "it ends, whoever has made its last tasks"
    lifecycle.tick(12.0)
    assert cancelled == [open_], "what is closed needs no client"
    cancelled.clear()
    lifecycle.client_joined("a")
    assert [each.client_gone_s for each in jobs] == [None] * 5
    theirs.client_gone_s = 1.0
    lifecycle.client_joined("a")
    assert theirs.client_gone_s == 1.0
    lifecycle.client_closed("a")
    assert cancelled == [open_]
    assert (busy.dropped, over.dropped, state.jobs.named) == (False, True, jobs)
