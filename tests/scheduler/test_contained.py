"""An error of ours costs nobody a connection: no worker and no client is lost because of it."""

from __future__ import annotations

import pytest
from distributed import Client, secede
from helpers import engine, live, started, traces_of_ours, within
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobFailed
from dask_hpc.scheduler.tables.events import GraphTaken, SlotsOpened, TaskAnswered


def seceding(x):
    """A task that tells the scheduler that its thread is free."""
    secede()
    return x


def fails(*args, **kwargs):
    raise ZeroDivisionError("no node to divide by")


@pytest.mark.errors("failed in _handle; work goes on", "failed in _implied; work goes on")
@live(workers=2)
async def test_workers_and_clients_stay_connected_when_we_fail_over_what_they_say(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        workers, clients = dict(s.workers), dict(s.clients)
        job = rt.job("main", nodes=1)
        await job.activate()
        await started(s, job, 1)
        hears, heard = engine(s)._hears, []
        kept = {event: hears[event] for event in (GraphTaken, SlotsOpened, TaskAnswered)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine(s).ownership, "implied", fails)
            hears.update(dict.fromkeys(kept, (lambda event: heard.append(type(event)), fails)))
            for client in (c, other):
                futures = client.map(seceding, range(4), pure=False)
                assert await within(client.gather(futures)) == [0, 1, 2, 3]
            answer = s.stream_handlers["steal-response"]
            answer(key="none", state=None, stimulus_id="hpc-recall-1", worker=a.address)
            hears.update(kept)
        assert set(heard) == set(kept)
        assert await within(c.submit(inc, 1, pure=False)) == 2
        assert (dict(s.workers), dict(s.clients)) == (workers, clients)
        await job.close()
        await job.wait(20)


@pytest.mark.errors("cannot be queued")
@live(workers=2)
async def test_a_job_for_which_we_cannot_wake_fails_and_stock_goes_on(c, s, a, b):
    rt = await dask_hpc.install(c)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine(s)._overrides, "place", fails)
        async with rt.job("main", nodes=1) as job:
            assert await within(c.submit(inc, 1, pure=False)) == 2
        with pytest.raises(JobFailed):
            await job.wait(10)
        assert traces_of_ours(s) == []
    async with rt.job("main", nodes=1) as job:
        assert await within(c.submit(inc, 2, pure=False)) == 3
    assert (await job.wait(10))["state"] == "completed"


@pytest.mark.errors("failed in bind_job; work goes on", "failed in close_job; work goes on")
@live(workers=2)
async def test_a_client_stays_connected_when_we_fail_over_its_job(c, s, a, b):
    rt = await dask_hpc.install(c)
    clients = dict(s.clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine(s).ownership, "bind", fails)
        patch.setattr(engine(s).lifecycle, "close", fails)
        job = rt.job("main", nodes=1)
        await job.activate()
        assert await within(c.submit(inc, 1, pure=False)) == 2
        await job.close()
        assert await within(c.submit(inc, 2, pure=False)) == 3
    assert dict(s.clients) == clients
    await rt.uninstall()
