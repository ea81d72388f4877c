"""A store whose mount hangs, on a cluster: the loops of scheduler and workers ask it nothing themselves."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import dask.array as da
import numpy as np
import pytest
from distributed import Worker, get_worker
from helpers import Gate, live, until
from losses import kill

import dask_hpc
from dask_hpc.checkpoint import passing, whereabouts
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.whereabouts import Whereabouts
from dask_hpc.config import settings
from dask_hpc.errors import CheckpointError, UnknownCheckpoint
from dask_hpc.scheduler.checkpoint import departing, jobs, reading
from dask_hpc.scheduler.checkpoint.departing import Departing
from dask_hpc.worker import saved
from dask_hpc.worker.fetching import Patience
from dask_hpc.worker.saved import Copy


class Seen:
    """The threads that call a method; the loop of the test is on the main one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
        self.threads: list[threading.Thread] = []
        real = getattr(of, name)

        def seen(*arguments: Any) -> Any:
            self.threads.append(threading.current_thread())
            return real(*arguments)

        monkeypatch.setattr(of, name, seen)

    @property
    def on_the_loop(self) -> bool:
        return threading.main_thread() in self.threads


@live(workers=1)
async def test_a_version_that_is_given_up_while_it_is_begun_is_removed_beside_the_loop(
    c, s, a, tmp_path, monkeypatch
):
    rt = await dask_hpc.install(c)
    gate, begin = Gate(), Store.begin
    monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
    abandoned = Seen(monkeypatch, Draft, "abandon")
    commit = await rt.checkpoint(c.submit(np.arange, 10), "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is begun")
    await commit.cancel()
    gate.open()
    await until(lambda: not list(Path(tmp_path).glob("value/.*")), "what was begun is given up")
    assert abandoned.threads
    assert not abandoned.on_the_loop


@live(workers=1)
async def test_a_version_that_is_read_no_more_is_let_go_of_beside_the_loop(c, s, a, tmp_path, monkeypatch):
    """To close a file that is locked asks the file system."""
    monkeypatch.setattr(reading, "_COMES_S", 0.0)
    monkeypatch.setattr(reading, "_LOOK_S", 0.05)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    await rt.checkpoint(c.persist(da.arange(80, chunks=10)), "field")
    back = await dask_hpc.restore("field", c)
    released = Seen(monkeypatch, Lock, "release")
    del back

    def wait_until_free() -> None:
        Lock.take(tmp_path / "field" / "000001").release()

    await asyncio.wait_for(asyncio.to_thread(wait_until_free), 20)
    assert not released.on_the_loop
    back = await dask_hpc.restore("field", c)
    assert back.npartitions == 8
    await rt.uninstall()
    await asyncio.wait_for(asyncio.to_thread(wait_until_free), 20)
    assert len(released.threads) >= 4
    assert not released.on_the_loop


@live(workers=1)
async def test_workers_whose_writes_hang_still_have_threads_for_all_else(c, s, a, tmp_path, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(saved, "write_blocks", lambda *_: gate.wait([""]))
    future = c.submit(np.arange, 10, key="value")
    await future
    array = describe(future, "value")[0].arrays[0]
    writes = [asyncio.ensure_future(saved.write(str(tmp_path), array, {0: "value"}, a)) for _ in range(50)]
    await until(lambda: gate.arrived >= 5, "some hang")
    # as versions in the memory of hosts do
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 10) == 1
    gate.open()
    assert await asyncio.gather(*writes) == [{0: ""}] * 50


@live(workers=1, threads=2)
async def test_what_is_read_back_from_a_store_that_hangs_keeps_no_other_task(c, s, a, tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "patience", lambda: Patience(0.2, 0.2))
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    data = await c.scatter([np.full(10, n) for n in range(4)])
    await rt.checkpoint(data, "data")
    gate, read = Gate(), saved.stored_value
    monkeypatch.setattr(saved, "stored_value", lambda *args, **more: gate.wait(read(*args, **more)))
    async with Worker(s.address, nthreads=2) as b:
        await kill(s, [a])
        await until(lambda: gate.arrived, "it is read")
        assert await asyncio.wait_for(c.submit(lambda: 1, workers=[b.address]), 20) == 1
        gate.open()
        for n, value in enumerate(await asyncio.wait_for(c.gather(data), 20)):
            np.testing.assert_array_equal(value, np.full(10, n))
        s.validate_state()


class OfWorker:
    """What becomes the address of the worker whose task loads it."""

    def __reduce__(self) -> Any:
        return _address, ()


def _address() -> str:
    return str(get_worker().address)


@live(workers=1)
async def test_a_value_that_is_read_back_is_made_by_a_task_of_its_worker(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    value = c.submit(OfWorker)
    await rt.checkpoint(value, "value")
    async with Worker(s.address, nthreads=1) as b:
        await kill(s, [a])
        assert await asyncio.wait_for(value, 20) == b.address


def a_copy(folder: str, monkeypatch: pytest.MonkeyPatch, reads: Callable[[], Any]) -> Copy:
    """A copy in a store that is read so."""
    array = Array("data", "opaque", None, (1,), ((1,),))
    found = Copy(folder, array, 0, Written(0, 1, 0))
    known.append((folder, reads))
    monkeypatch.setattr(Copy, "stored", lambda self: partial(str, dict(known)[self.folder]()))
    return found


known: list[tuple[str, Callable[[], Any]]] = []


@live(workers=1)
async def test_where_a_store_hangs_the_next_copy_is_read(c, s, a, monkeypatch):
    monkeypatch.setattr(saved, "patience", lambda: Patience(0.2, 0.2))
    gate = Gate()
    hangs = a_copy("/hangs", monkeypatch, lambda: gate.wait("late"))
    there = a_copy("/there", monkeypatch, lambda: "there")
    damaged = a_copy("/damaged", monkeypatch, lambda: 1 / 0)
    read = [c.submit(saved.load, [hangs, damaged, there]), c.submit(saved.load, [hangs, damaged])]
    assert await asyncio.wait_for(read[0], 20) == "there"
    await until(lambda: gate.arrived == 2, "both are asked")
    gate.open()
    assert await asyncio.wait_for(read[1], 20) == "late"


def spilling(folder: Path) -> Departing:
    """What has something in a folder, and is about to close."""
    state = SimpleNamespace(scheduler=None, settings=settings({"checkpoint": {"silence": "200 ms"}}))
    found = Departing(cast(Any, state), cast(Any, Mock()), cast(Any, SimpleNamespace(unused=[])))
    folder.mkdir()
    found._own["above"] = str(folder)
    found._used.have(str(folder))
    return found


def test_folders_of_what_was_spilled_are_let_go_of_beside_the_loop(tmp_path, monkeypatch):
    let_go = Seen(monkeypatch, passing.Owned, "let_go")
    asyncio.run(spilling(tmp_path / "mine").closing())
    assert let_go.threads
    assert not let_go.on_the_loop
    assert not list(tmp_path.iterdir())


def test_a_scheduler_closes_although_the_folder_of_what_was_spilled_hangs(tmp_path, monkeypatch, caplog):
    opens = threading.Event()
    monkeypatch.setattr(departing.shutil, "rmtree", lambda *_: opens.wait(60))

    async def closes() -> None:
        await asyncio.wait_for(spilling(tmp_path / "mine").closing(), 20)

    try:
        asyncio.run(closes())
    finally:
        opens.set()
    assert "stays: the store" in caplog.text


@live(workers=1)
async def test_a_store_that_hangs_as_what_is_gone_is_forgotten_keeps_nobody_from_memory(
    c, s, a, tmp_path, monkeypatch, memory_of_file
):
    gate = Gate()
    monkeypatch.setattr(whereabouts, "forget", lambda *_: gate.wait())
    nobody = Home("tcp://127.0.0.1:1", "/nowhere/dask-hpc-1-gone")
    whereabouts.save(str(tmp_path), Whereabouts("Scheduler-before", nobody.address, (nobody,)))
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    values = c.persist(da.arange(80, chunks=10))
    await rt.checkpoint(values, "field", levels=("L1",))
    # the gate gives up after 25 s
    back = await asyncio.wait_for(dask_hpc.restore("field", c), 20)
    assert (await c.compute(back)).sum() == 3160
    assert gate.arrived
    gate.open()


@live(workers=1)
async def test_who_does_not_see_the_store_is_told_that_memory_may_not_have_the_newest(c, s, a, tmp_path):
    store, away = tmp_path / "store", tmp_path / "away"
    rt = await dask_hpc.install(c, checkpoint_store=str(store))
    [first] = c.persist([da.ones(4, chunks=2)])
    await rt.checkpoint(first, "field", levels=("L1",))
    [second] = c.persist([da.zeros(4, chunks=2)])
    await rt.checkpoint(second, "field", levels=("L3",))
    store.rename(away)  # as on a host that has not mounted it
    told = r"version 1 of 'field' is restored from .* may have a later one: .* this host has no such folder"
    with pytest.warns(UserWarning, match=told):
        back = await dask_hpc.restore("field", c)
    # who asks for it by its number wants no later one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = await dask_hpc.restore("field", c, version=1)
    np.testing.assert_array_equal(await c.compute(back), np.ones(4))
    with pytest.raises(UnknownCheckpoint, match="this host has no such folder"):
        await dask_hpc.restore("other", c)
    away.rename(store)


@pytest.mark.parametrize(("of_what", "name"), [(Store, "problem"), (jobs, "found_in")])
@live(workers=1, config={"hpc.checkpoint.silence": "200 ms"})
async def test_a_job_whose_store_hangs_is_not_begun(c, s, a, tmp_path, monkeypatch, of_what, name):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate = Gate()
    with monkeypatch.context() as patch:
        patch.setattr(of_what, name, lambda *_: gate.wait())
        with pytest.raises(CheckpointError, match=r"the store .* has not answered for 0.2 s"):
            await asyncio.wait_for(rt.job("night", protect=True).activate(), 20)
    gate.open()
    job = await rt.job("night", protect=True).activate()
    assert job.id == "night-2"
    await job.cancel()
