"""Which worker a client was made on: heard from events, waited for once, forgotten with the client."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import pytest
from distributed import Client
from helpers import addresses_of, engine, live, started, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.origins import TOPIC


def places(s):
    return engine(s).ownership.worker_clients


@pytest.mark.parametrize(
    "event",
    [
        None,
        5,
        "text",
        {},
        {"client": 3, "worker": "tcp://x:1"},
        {"client": "Client-worker-1", "worker": None},
    ],
    ids=repr,
)
@live(workers=2)
async def test_events_that_make_no_sense_are_passed_over(c, s, *workers, event):
    s.log_event(TOPIC, event)
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1):
        s.log_event(TOPIC, event)
        assert await c.submit(inc, 1) == 2
    assert places(s).worker("Client-worker-1") is None


@asynccontextmanager
async def a_job_and_another_client(c, s):
    """A job of one node, and a client that has nothing to do with it but its name, as of a worker."""
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True, name="worker", set_as_default=False) as other:
        # no context of the job, whose annotation would be on what the other client submits
        job = await rt.job("main", nodes=1).activate()
        await started(s, job, 1)
        yield job, other
        await job.close()
        await job.wait(10)


@live(workers=2)
async def test_a_client_that_only_looks_like_one_of_a_worker_is_waited_for_once(c, s, *workers):
    async with a_job_and_another_client(c, s) as (job, other):
        assert other.id.startswith("Client-worker-")
        assert await within(other.submit(inc, 1)) == 2
        began_s = time.monotonic()
        assert await within(other.submit(inc, 2)) == 3
        assert time.monotonic() - began_s < 1, "the first time was enough"
        where = {ws.address for key in list(s.tasks) for ws in s.tasks[key].who_has or ()}
        assert not where & addresses_of(s, job), "it is plain work"


@live(workers=2)
async def test_a_client_that_is_heard_of_late_belongs_to_the_job_of_its_worker(c, s, *workers):
    async with a_job_and_another_client(c, s) as (job, other):
        (address,) = addresses_of(s, job)
        future = other.submit(inc, 1)
        await until(lambda: other.id in places(s)._awaited, "its graph waits")
        assert future.key not in s.tasks
        s.log_event(TOPIC, {"client": other.id, "worker": address})
        assert await within(future) == 2
        assert {ws.address for ws in s.tasks[future.key].who_has} == {address}
        assert places(s).worker(other.id) == address
        await other.close()
        await until(lambda: places(s).worker(other.id) is None, "it is forgotten")
