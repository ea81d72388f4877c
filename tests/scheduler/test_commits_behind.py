"""Commits that are not waited for: the call returns before the cluster has heard of them."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from distributed import Client, LocalCluster
from helpers import Gate, live, until

import dask_hpc
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.scheduler.checkpoint import held, to_levels
from dask_hpc.scheduler.rpc.service import of

#: A call that waits for nobody has returned by then, in seconds; the cluster does not hear for so long.
RETURNS_S, DEAF_S = 1.0, 1.5


def deaf(begun):
    begun.set()
    time.sleep(DEAF_S)


def test_the_call_waits_for_neither_the_scheduler_nor_its_loop(tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client, checkpoint_store=str(tmp_path))
        value = client.submit(np.zeros, 10)
        rt.checkpoint(value, "value")
        # the loop of the client is that of its cluster, and stands still
        cluster.loop.add_callback(deaf, begun := threading.Event())
        assert begun.wait(10)
        began_s = time.monotonic()
        commits = [rt.checkpoint(value, "value", wait=False) for _ in range(3)]
        assert time.monotonic() - began_s < RETURNS_S
        assert [(one.name, one.version) for one in commits] == [("value", None)] * 3
        del value
        # what was asked for one after the other is written one after the other
        assert [one.wait().version for one in commits] == [2, 3, 4]
        assert time.monotonic() - began_s > DEAF_S / 2


@live(workers=1)
async def test_what_is_asked_next_is_asked_next(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path / "first"))
    value = c.submit(np.zeros, 10)
    commit = await rt.checkpoint(value, "value", wait=False)
    assert not of(s).commits.status(), "the cluster has not heard of it"
    await rt.update(checkpoint_store=str(tmp_path / "second"))
    assert [one["name"] for one in (await rt.status())["checkpoints"]["latest"]] == ["value"]
    await commit.wait()
    assert Store(tmp_path / "first").names() == ["value"]


@live(workers=1)
async def test_commits_are_begun_in_the_order_in_which_they_were_asked_for(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    method, second_heard = of(s).commits.checkpoint, asyncio.Event()

    async def slow(plan, **arguments):
        if plan["name"] == "first":
            # long enough for the other one to overtake it
            await asyncio.wait([asyncio.ensure_future(second_heard.wait())], timeout=0.3)
        second_heard.set()
        return await method(plan, **arguments)

    monkeypatch.setitem(of(s)._methods, "checkpoint", slow)
    value = c.submit(np.zeros, 10)
    first = await rt.checkpoint(value, "first", wait=False)
    second = await rt.checkpoint(value, "second", wait=False)
    assert (await first.status())["id"] < (await second.status())["id"]
    await first.wait()
    await second.wait()


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_what_the_cluster_refuses_is_told_later(c, s, a, caplog):
    rt = await dask_hpc.install(c)
    value = c.submit(np.zeros, 10)
    commit = await rt.checkpoint(value, "value", levels=("L3",), wait=False)
    row = await commit.status()
    assert row["state"] == "failed"
    assert "hpc.checkpoint.store is not set" in row["reason"]
    with pytest.raises(ConfigError, match=r"hpc\.checkpoint\.store is not set"):
        await commit.wait()
    # whoever never asks reads it
    assert "Checkpoint 'value': no new version: hpc.checkpoint.store is not set" in caplog.text
    # what can be seen to be wrong is refused at once
    with pytest.raises(ValueError, match="levels is"):
        await rt.checkpoint(value, "value", levels=("L4",), wait=False)
    del value
    await until(lambda: not s.tasks, "the handle does not keep it")


@pytest.mark.errors("the scheduler closes")
@live(workers=1)
async def test_a_scheduler_that_closes_leaves_nothing_half_written(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    field = c.map(np.zeros, [10, 20])
    await rt.checkpoint(field, "field")
    never = c.submit(np.zeros, 3, workers="tcp://127.0.0.1:1")
    commits = [await rt.checkpoint([*field, never], name, wait=False) for name in ("field", "other")]
    await until(lambda: len(list(tmp_path.glob("*/.0*"))) == 2, "both are written")
    await s.close()
    assert [path.name for path in tmp_path.glob("*/*")] == ["000001"], commits


@pytest.mark.errors("the scheduler closes")
@live(workers=1)
async def test_nor_does_one_that_closes_while_a_version_is_begun(c, s, a, tmp_path, monkeypatch):
    fill, filling, closes = Draft._fill, threading.Event(), threading.Event()

    def slow(draft):
        filling.set()
        assert closes.wait(10)
        # longer than a scheduler takes to close that does not wait for it
        time.sleep(0.2)
        fill(draft)

    monkeypatch.setattr(Draft, "_fill", slow)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    commit = await rt.checkpoint(c.submit(np.zeros, 10), "field", wait=False)
    await until(filling.is_set, "it is begun")
    asyncio.get_running_loop().call_soon(closes.set)
    await s.close()
    assert not list(tmp_path.glob("*/*")), commit


@pytest.mark.errors("the process of the scheduler ends")
@live(workers=1)
async def test_what_a_script_leaves_that_ends_is_told_in_words(c, s, a, monkeypatch, caplog):
    rt = await dask_hpc.install(c)
    field = c.map(np.zeros, [10, 20])
    await rt.checkpoint(field, "field", levels=["L1"])

    def no_threads(plan):
        raise RuntimeError("cannot schedule new futures after shutdown")

    # its cluster is closed when Python has ended its threads
    monkeypatch.setattr(to_levels, "closed", no_threads)
    with pytest.raises(
        CheckpointError, match="'field' has no new version: the process of the scheduler ends"
    ):
        await rt.checkpoint(field, "field", levels=["L1"])
    assert "Traceback" not in caplog.text
    monkeypatch.setattr(held, "_SETTLE_S", 0.0)
    await a.close()
    await of(s).commits._held._task
    assert "is not held elsewhere yet" not in caplog.text


@live(workers=1)
async def test_what_goes_to_the_store_instead_of_memory_is_waited_for_there(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate, begin = Gate(), Store.begin
    monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
    value = await c.scatter([np.zeros(10)], hash=False)
    # one host holds no parities of another
    memory = await rt.checkpoint(value, "value", levels=("L1", "L2"), wait=False)
    await until(lambda: gate.arrived, "it goes to the store instead")
    later = await rt.checkpoint(value, "value", wait=False)
    assert (await later.status())["state"] == "waiting"
    gate.open()
    rows = [await (await each.wait()).status() for each in (memory, later)]
    assert [(row["version"], row["levels"]) for row in rows] == [(1, ["L1", "L3"]), (2, ["L3"])]
