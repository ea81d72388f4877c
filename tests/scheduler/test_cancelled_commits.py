"""A version that is not whole can be given up: `Commit.cancel`."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from helpers import Gate, live, until
from losses import kill
from outside import until as from_outside

import dask_hpc
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import HEARTBEAT

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


def there(folder, worker):
    """What is in the store, and of blocks in the memory of a host."""
    manager = worker.metrics[HEARTBEAT].section("manager")
    held = [] if manager is None else list(Path(manager.folder).glob("*.segment"))
    return sorted([*held, *folder.rglob("*")])


def where(place, folder):
    return {"store": folder} if place == "store" else {"levels": ["L1"]}


@pytest.mark.parametrize("place", ["store", "memory"])
@live(workers=2)
async def test_what_can_never_be_whole_is_given_up_and_leaves_nothing(c, s, a, b, tmp_path, place):
    rt = await dask_hpc.install(c)
    data = await c.scatter(np.arange(5.0), workers=[a.address])
    await rt.checkpoint([data], "values", **where(place, tmp_path))
    before = there(tmp_path, a)
    new = await c.scatter(np.arange(9.0), workers=[b.address])
    never = c.submit(int, 7, resources={"none": 1})
    commit = await rt.checkpoint([new, never], "values", wait=False, **where(place, tmp_path))
    waiting = asyncio.ensure_future(commit.wait())
    await until(lambda: new.key in of(s).commits.protected, "what is there is written")
    assert there(tmp_path, a) != before
    behind = await rt.checkpoint([data], "values", wait=False, **where(place, tmp_path))
    assert await behind.cancel() is True, "also before its turn"
    assert (await commit.status())["state"] == "writing"
    assert await commit.cancel() is True
    with pytest.raises(CheckpointError, match="'values' has no new version: it was cancelled"):
        await waiting
    row = await commit.status()
    assert (row["state"], row["reason"], row["path"]) == ("failed", "it was cancelled", None)
    assert await commit.cancel() is True, "once more changes nothing"
    await until(lambda: there(tmp_path, a) == before, "nothing is left of it")
    assert not [name for name in s.clients if name.startswith("hpc-checkpoint")]
    assert never.status == "pending"
    # what was protected before is, and the next one is written; one that is whole stays
    assert new.key not in of(s).commits.protected
    await kill(s, [a])
    np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(5.0))
    again = await rt.checkpoint([new], "values", **where(place, tmp_path))
    assert await again.cancel() is False
    assert (await again.status())["state"] == "complete"
    s.validate_state()


@live(workers=1)
async def test_one_that_gets_its_name_becomes_whole(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    goes_on, finishing, finish = threading.Event(), threading.Event(), Draft.finish

    def slow(draft, *args, **options):
        finishing.set()
        goes_on.wait(30)
        return finish(draft, *args, **options)

    monkeypatch.setattr(Draft, "finish", slow)
    commit = await rt.checkpoint(await c.scatter([1, 2]), "values", store=tmp_path, wait=False)
    await until(finishing.is_set, "it is finished")
    cancelled = asyncio.ensure_future(commit.cancel())
    asyncio.get_running_loop().call_later(0.2, goes_on.set)
    assert await cancelled is False
    assert (await commit.wait()).version == 1


@live(workers=1)
async def test_the_next_one_of_a_loop_comes_after_the_interval(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate = Gate()
    field = c.submit(gate.wait, 1)
    first = await rt.checkpoint(field, "field", every="1 h", wait=False)
    # which has begun none, and names that one
    second = await rt.checkpoint(field, "field", every="1 h", wait=False)
    assert await second.cancel() is True
    assert (await first.status())["reason"] == "it was cancelled"
    third = await rt.checkpoint(field, "field", every="1 h", wait=False)
    assert (await third.status())["id"] == (await first.status())["id"]
    fourth = await rt.checkpoint(field, "field", wait=False)
    gate.open()
    assert (await fourth.wait(30)).version == 1


@live(workers=1)
async def test_who_interrupts_a_call_that_waits_has_given_up_what_it_has_begun_and_no_more(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate = Gate()
    field, never = c.submit(gate.wait, 1), c.submit(int, resources={"none": 1})
    first = await rt.checkpoint(field, "field", every="1 h", wait=False)
    # two that wait, before and after the cluster has answered, and one that has begun none
    waiting = asyncio.ensure_future(rt.checkpoint(never, "never"))
    await until(lambda: len(of(s).commits._commits) == 2, "it is begun")
    at_once = asyncio.ensure_future(rt.checkpoint(never, "never"))
    again = asyncio.ensure_future(rt.checkpoint(field, "field", every="1 h"))
    await asyncio.sleep(0)
    for one in (waiting, at_once, again):
        one.cancel()
    ended = await asyncio.gather(waiting, at_once, again, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    # what is asked from then on waits for that
    await rt.checkpoint(await c.scatter([1, 2]), "never")
    states = [each.row(0.0)["state"] for each in of(s).commits._commits.values()]
    assert states == ["writing", "failed", "failed", "complete"]
    gate.open()
    assert (await first.wait(30)).version == 1


@pytest.mark.errors("checkpoint.store is not set")
def test_a_client_that_is_not_asynchronous_gives_one_up_and_one_that_was_refused_is(tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client)
        never = client.submit(int, resources={"none": 1})
        commit = rt.checkpoint(never, "never", store=tmp_path, wait=False)
        assert commit.cancel() is True
        assert "failed" in repr(commit)
        refused = rt.checkpoint(never, "never", levels=["L3"], wait=False)
        assert refused.cancel() is True
        assert "checkpoint.store is not set" in refused.status()["reason"]


@pytest.mark.errors("Exception in callback")
def test_who_is_interrupted_before_the_loop_has_begun_what_was_called_has_given_it_up(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client, checkpoint_store=str(tmp_path))
        never = client.submit(int, resources={"none": 1})
        job = rt.job("late", nodes=1)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for call in (lambda: rt.checkpoint(never, "never"), job.__enter__):
                busy, go_on = threading.Event(), threading.Event()
                client.loop.add_callback(lambda busy=busy, go_on=go_on: (busy.set(), go_on.wait(30)))
                assert busy.wait(30)
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    call()
                go_on.set()
        finally:
            signal.signal(signal.SIGALRM, before)

        def latest():
            return [row["state"] for row in rt.status()["checkpoints"]["latest"]]

        from_outside(lambda: latest() == ["failed"], "given up")
        from_outside(lambda: {row["state"] for row in rt.jobs()} <= {"cancelled"}, "the job is withdrawn")
        # before the loop was told of anything
        monkeypatch.setattr(client, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rt.checkpoint(never, "other")
        monkeypatch.undo()
        assert latest() == ["failed"]
