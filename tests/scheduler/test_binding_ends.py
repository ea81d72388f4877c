"""A binding ends with its job, its client or the runtime; what cannot be bound says why."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from distributed import Client
from helpers import Gate, asleep, engine, live, owner_of, record, started, state_of, through, until
from submissions import bound, plain, pool
from tasks import inc

import dask_hpc
from dask_hpc.errors import InstallError, JobCancelled, UnknownJob
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import BIND, CLOSE


async def another_client_cancels(rt, job):
    async with Client(rt.client.scheduler.address, asynchronous=True) as other:
        await (await dask_hpc.runtime(other)).cancel(job.id)


async def leaves(rt, job, error=None):
    with suppress(ZeroDivisionError):
        async with job:
            if error is not None:
                raise error


ENDS = {
    "completed": lambda rt, job: job.close(),
    "completed, block": leaves,
    "cancelled": lambda rt, job: job.cancel("enough"),
    "cancelled by the runtime": lambda rt, job: rt.cancel(job.id),
    "cancelled by another client": another_client_cancels,
    "cancelled by an error": lambda rt, job: leaves(rt, job, ZeroDivisionError()),
}


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize("end", ENDS)
@live()
async def test_after_the_end_of_a_bound_job_submissions_are_plain_and_nothing_is_left(
    c, s, *workers, end, other
):
    rt = await dask_hpc.install(c)
    anchor = rt.job("anchor", nodes=1)
    if other:
        async with rt.job("first", nodes=1):
            await anchor.activate()
            await anchor.deactivate()
    job = await rt.job("main", nodes=1).activate()
    future = c.submit(inc, 1, pure=False)
    assert await future == 2
    assert owner_of(s, future.key) == job.id
    await ENDS[end](rt, job)
    later = c.submit(inc, 2, pure=False)
    assert await later == 3
    assert bound(s) == {}
    if other:
        assert plain(s, later.key)
        await anchor.close()
    await until(lambda: record(s, job).ended.is_set(), "ended")
    assert state_of(s, job) == re.match("[a-z]+", end)[0]
    await job.deactivate()
    await job.close()
    await asleep(s)
    assert await c.submit(inc, 3, pure=False) == 4
    assert c.id in s.clients
    assert of(s)._due[CLOSE] == {}


@pytest.mark.parametrize("block", [True, False])
@live()
async def test_a_closed_job_that_still_works_gets_nothing_more_from_its_client(c, s, *workers, block):
    rt = await dask_hpc.install(c)
    gate = Gate()
    job = await rt.job("main", nodes=1).activate()
    held = c.submit(through, 1, gate=gate, pure=False)
    await until(lambda: gate.arrived, "busy")
    if block:
        async with job:
            pass
    else:
        await job.close()
    later = c.submit(inc, 2, pure=False)
    assert await later == 3
    assert plain(s, later.key)
    assert bound(s) == {}
    assert not record(s, job).ended.is_set()
    gate.open()
    assert await held == 1
    assert (await job.wait(10))["state"] == "completed"


@live()
async def test_closing_the_bound_client_ends_binding_and_job(c, s, *workers):
    await dask_hpc.install(c)
    other = await Client(s.address, asynchronous=True)
    rt = await dask_hpc.runtime(other)
    job = await rt.job("main", nodes=1).activate()
    await until(lambda: bound(s) == {other.id: job.id}, "bound")
    await other.close()
    await until(lambda: record(s, job).state == "cancelled", "cancelled")
    assert bound(s) == {}
    # nobody is there to be told
    await job.deactivate()
    await job.close()
    await asleep(s)


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("last", ["close", "deactivate"])
@live()
async def test_uninstall_while_bound_leaves_nothing_and_keeps_the_connection(c, s, *workers, block, last):
    streams = dict(s.stream_handlers)
    rt = await dask_hpc.install(c)
    job, gate = rt.job("main", nodes=2), Gate()

    async def story():
        await job.activate()
        await started(s, job, 2)
        mind = engine(s).ownership
        futures = await pool(lambda: c.map(through, range(6), gate=gate, pure=False))
        await until(lambda: gate.arrived == 2, "busy")
        await rt.uninstall()
        assert mind._bound == {}
        assert set(s.stream_handlers) - set(streams) == {BIND, CLOSE}
        gate.open()
        assert await c.gather(futures) == list(range(6))
        if last == "deactivate":
            await job.deactivate()
            assert await c.submit(inc, 1, pure=False) == 2
        with pytest.raises(InstallError):
            await job.activate()
        assert await c.submit(inc, 2, pure=False) == 3

    if block:
        async with job:
            await story()
    else:
        await story()
        await job.close()
    assert await c.submit(inc, 3, pure=False) == 4
    await until(lambda: dict(s.stream_handlers) == streams, "the last handlers have gone")
    await job.close()
    await job.deactivate()
    assert await c.submit(inc, 4, pure=False) == 5
    assert c.id in s.clients


@live(workers=2)
async def test_a_handle_from_before_a_new_installation_binds_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    old = await rt.job("main", nodes=1).activate()
    await rt.uninstall()
    rt = await dask_hpc.install(c)
    new = rt.job("main", nodes=1)
    async with new:
        assert new.id == old.id
        with pytest.raises(UnknownJob, match="not open"):
            await old.activate()
        await old.deactivate()
        await old.close()
        future = await pool(lambda: c.submit(inc, 1, pure=False))
        assert await future == 2
        assert plain(s, future.key)
        assert not record(s, new).closed
    await new.wait(10)


@live(workers=2)
async def test_messages_about_other_jobs_or_with_other_tokens_bind_and_unbind_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    handler = s.stream_handlers[BIND]
    idle = await rt.job("idle", nodes=1).activate()
    await idle.deactivate()
    job = await rt.job("main", nodes=1).activate()
    await until(lambda: bound(s) == {c.id: job.id}, "bound")
    to_idle = [(idle.id, "other", True), (idle.id, "", True), (idle.id, None, True)]
    to_none = [("nobody-7", job._token, True), ("nobody-7", None, True), (job.id, "other", False)]
    others = [(job.id, idle._token, False), (idle.id, idle._token, False)]
    for id, token, on in (*to_idle, *to_none, *others):
        handler(client=c.id, job=id, token=token, bound=on)
        assert bound(s) == {c.id: job.id}, (id, token, on)
    handler(client=c.id, job=job.id)
    assert bound(s) == {c.id: job.id}
    await job.close()
    await job.wait(10)
    handler(client=c.id, job=job.id, token=job._token, bound=True)
    assert bound(s) == {}
    await idle.close()


@live(workers=2)
async def test_what_cannot_be_activated_says_why(c, s, *workers):
    rt = await dask_hpc.install(c)
    with pytest.raises(ValueError, match="3"):
        await rt.job("large", nodes=3, rigid=True).activate()
    assert await rt.jobs() == []
    with pytest.raises(RuntimeError, match=r"not been submitted.*activate"):
        await rt.job("new").close()
    await rt.job("new").deactivate()
    job = await rt.job("main", nodes=1).activate()
    found = rt.find(job.id)
    for act in (found.activate, found.close):
        with pytest.raises(RuntimeError, match="not declared by this handle"):
            await act()
    await found.deactivate()
    await until(lambda: bound(s) == {c.id: job.id}, "bound")
    await job.close()
    await job.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await job.activate()
    with pytest.raises(RuntimeError, match="submitted already"):
        async with job:
            pass
    cancelled = await rt.job("cancelled", nodes=1).activate()
    await cancelled.cancel("no more")
    with pytest.raises(JobCancelled, match="no more"):
        await cancelled.activate()
    await cancelled.close()
    await until(lambda: not bound(s), "nobody is bound")
