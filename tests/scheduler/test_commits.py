"""Commits: what becomes of a version from the call to its name, and what is left when there is none."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Worker, wait
from distributed.protocol import Serialize, serialize
from helpers import Gate, asleep, live, through, traces_of_ours, until
from losses import kill
from unchanged import unchanged

import dask_hpc
from dask_hpc.checkpoint import passing
from dask_hpc.checkpoint.layout import ALIGNMENT
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.scheduler.internals import reads, remote
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.sim.what_if import engine_from
from dask_hpc.worker import saved
from dask_hpc_policies.model import JobView


def checkpoints(s):
    return of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))["checkpoints"]


def folders(store):
    """Everything that lies directly in the folders of a store's names."""
    return sorted(f"{path.parent.name}/{path.name}" for path in Path(store).glob("*/*"))


def array(number):
    return np.full(100, number)


@live(workers=3)
async def test_results_that_come_back_are_followed_to_their_beginnings_together(
    c, s, *workers, tmp_path, monkeypatch
):
    counts, one_by_one = [], reads.not_remade

    def counted(scheduler, keys, *known):
        counts.append(len(keys))
        return one_by_one(scheduler, keys, *known)

    monkeypatch.setattr(reads, "not_remade", counted)
    rt = await dask_hpc.install(c)
    futures = c.map(array, range(60))
    await rt.checkpoint(futures, "values", store=tmp_path)
    counts.clear()
    await kill(s, [workers[0]])
    await c.gather(futures)
    back = checkpoints(s)["restored_results"]
    await until(lambda: sum(counts) == back, "all that came back is made as before")
    assert len(counts) <= back / 5


@live(workers=2)
async def test_what_is_not_computed_yet_is_written_when_it_is(c, s, a, b, tmp_path, monkeypatch):
    monkeypatch.setattr(passing, "TOUCHED_S", 0.01)
    rt = await dask_hpc.install(c)
    gate = Gate()
    values = [np.full(10, number) for number in range(4)]
    futures = [
        c.submit(through, value, gate, workers=[a.address], allow_other_workers=True) for value in values
    ]
    commit = await rt.checkpoint(futures, "values", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is computed")
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match="4 of 4 results are not written; it goes on"):
        await commit.wait(timeout=0.05)
    assert time.monotonic() - began_s < 5, "it was waited for no longer than asked"
    assert (await commit.status())["state"] == "writing"
    # nobody on another host, where locks may not be seen, takes it for one that was left hours ago
    (draft,) = (tmp_path / "values").glob(".*")
    os.utime(draft, (0, 0))
    await until(lambda: draft.stat().st_mtime, "it is said to be written")
    # and the worker that was to write it goes
    await kill(s, [a])
    gate.open()
    assert await commit.wait() is commit
    row = await commit.status()
    assert (row["state"], row["version"], row["blocks_left"]) == ("complete", 1, 0)
    assert row["bytes"] >= 4 * 80
    back = await dask_hpc.restore("values", c, store=tmp_path)
    for value, again in zip(values, await c.gather(back), strict=True):
        np.testing.assert_array_equal(value, again)


@live(workers=2)
async def test_a_version_shows_what_the_file_system_does_unless_results_were_waited_for(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    state = of(s).engine.state

    def told():
        return state.snapshot("tick").sections.get("file_system")

    small = c.map(array, range(4))
    await wait(small)
    await rt.checkpoint(small, "small", store=tmp_path)
    gate = Gate()
    late = c.submit(through, np.zeros(1_000_000), gate)
    commit = await rt.checkpoint([late], "late", store=tmp_path, wait=False)
    gate.open()
    await commit.wait(20)
    assert told() is None, "neither tells how fast it is"
    began_s = time.monotonic()
    await rt.checkpoint([late], "again", store=tmp_path)
    took_s = time.monotonic() - began_s
    assert 8_000_000 / took_s <= told()["written_bytes_s"] < 1e12
    view = replace(await rt.snapshot(), jobs=(JobView(id="x", start_nodes=1),), idle_nodes=1)
    assert (
        engine_from(view, "fcfs", default_s=1).world.machine.file_system_bytes_s == told()["written_bytes_s"]
    )


@live(workers=2)
async def test_a_client_may_forget_what_is_being_written(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    gate = Gate()
    commit = await rt.checkpoint(c.submit(through, 1, gate), "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is computed")
    gate.open()
    assert (await commit.wait()).version == 1
    await until(lambda: not s.tasks, "the handle does not keep it either")


@live(workers=1)
async def test_what_nobody_asks_about_is_written_and_then_let_go_of(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    gate = Gate()
    value = c.submit(through, 1, gate)
    await rt.checkpoint(value, "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is computed")
    await rt.checkpoint(await c.scatter(2), "other", store=tmp_path)
    del value
    gate.open()
    await until(lambda: not s.tasks, "nothing keeps it")
    assert Store(tmp_path).names() == ["other", "value"]


@pytest.mark.errors("no new version")
@live(workers=2)
async def test_what_cannot_be_written_leaves_the_version_before(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    good = c.submit(array, 1)
    await rt.checkpoint(good, "value", store=tmp_path)
    bad = c.submit(lambda: 1 / 0, key="bad")
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointError, match=r"'value' has no new version: .*'bad'.* its task has failed"),
    ):
        await rt.checkpoint(bad, "value", store=tmp_path)
    gate = Gate()
    dropped = c.submit(through, 1, gate, key="dropped")
    commit = await rt.checkpoint(dropped, "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is computed")
    await dropped.cancel()
    with pytest.raises(CheckpointError, match="'dropped' cannot be written: nobody wants it any more"):
        await commit.wait()
    unwritable = c.submit(threading.Lock, key="lock")
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointError, match=r"result 'lock'.* cannot be written by worker"),
    ):
        await rt.checkpoint(unwritable, "value", store=tmp_path)
    gate.open()
    actor = c.submit(Gate, actor=True, key="actor")
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointError, match="'actor' cannot be written: it is an actor"),
    ):
        await asyncio.wait_for(rt.checkpoint([good, actor], "value", store=tmp_path), 10)
    assert folders(tmp_path) == ["value/000001"]
    assert checkpoints(s)["commits"] == {"complete": 1, "failed": 4}
    np.testing.assert_array_equal(
        await c.gather(await dask_hpc.restore("value", c, store=tmp_path)), array(1)
    )


@live(workers=1)
async def test_bad_input_is_refused_at_once_with_the_remedy(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    value = c.submit(array, 1)
    await rt.checkpoint(value, "there", store=tmp_path)
    with unchanged(tmp_path):
        with pytest.raises(
            ConfigError, match=r"hpc\.checkpoint\.store is not set; .*rt\.update\(checkpoint_store="
        ):
            await rt.checkpoint(value, "value", levels=["L1", "L3"])
        for name in ("../value", "a/b", "", ".hidden", "x" * 300, "a\0b"):
            with pytest.raises(ValueError, match="is no name for a checkpoint"):
                await rt.checkpoint(value, name, store=tmp_path)
        with pytest.raises(ValueError, match="persist it first"):
            await rt.checkpoint(da.ones(10, chunks=5), "there", store=tmp_path)
        for flag in (None, 0, "later"):
            with pytest.raises(ValueError, match=r"'wait' cannot be .*: it must be true or false"):
                await rt.checkpoint(value, "there", store=tmp_path, wait=flag)
        with pytest.raises(TypeError, match="of type int cannot be in a checkpoint; allowed: a dask array"):
            await rt.checkpoint(3, "there", store=tmp_path)
        with pytest.raises(CheckpointError, match=r"no checkpoint is called 'value' in .*; there are there"):
            await dask_hpc.restore("value", c, store=tmp_path)
        with pytest.raises(CheckpointError, match=r"no version 9 .* there are 1"):
            await dask_hpc.restore("there", c, version=9, store=tmp_path)
        with pytest.raises(ValueError, match="no store is named"):
            await dask_hpc.restore("there", c)


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_a_store_that_cannot_be_written_to_is_named(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    (tmp_path / "file").write_text("no folder")
    value = c.submit(array, 1)
    with pytest.raises(CheckpointError, match="file"):
        await rt.checkpoint(value, "value", store=tmp_path / "file")


@pytest.mark.errors("no new version")
@live(workers=2)
async def test_uninstalling_leaves_nothing_but_the_store(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    computed = c.submit(array, 1, workers=[a.address], allow_other_workers=True)
    data = await c.scatter(array(2), workers=[b.address])
    child = c.submit(np.copy, data)
    await wait([computed, child])
    specs = {key: s.tasks[key].run_spec for key in (computed.key, data.key, child.key)}
    await rt.checkpoint([computed, data, child], "values", store=tmp_path)
    assert s.tasks[data.key].run_spec is not None
    gate = Gate()
    waiting = c.submit(through, 1, gate)
    commit = await rt.checkpoint(waiting, "never", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is computed")
    await rt.uninstall()
    assert traces_of_ours(s) == []
    assert {key: s.tasks[key].run_spec for key in specs} == specs
    assert s.tasks[child.key].dependencies == {s.tasks[data.key]}
    s.validate_state()
    await until(lambda: folders(tmp_path) == ["values/000001"], "what was not whole is given up")
    gate.open()
    await waiting
    del commit


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_a_version_that_is_given_up_while_it_is_begun_leaves_nothing(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    gate, begin = Gate(), Store.begin
    monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
    await rt.checkpoint(c.submit(array, 1), "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is begun")
    assert len(folders(tmp_path)) == 1
    await rt.uninstall()
    gate.open()
    await until(lambda: not folders(tmp_path), "what was begun is given up")


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_a_commit_of_a_runtime_that_was_uninstalled_is_none_of_the_next_one(c, s, a, tmp_path):
    rt, gate = await dask_hpc.install(c), Gate()
    waiting = c.submit(through, 1, gate)
    mine = await rt.checkpoint(waiting, "mine", store=tmp_path, wait=False)
    assert (await mine.status())["name"] == "mine"
    await rt.uninstall()
    rt = await dask_hpc.install(c)
    await rt.checkpoint(await c.scatter(array(1)), "other", store=tmp_path)
    with pytest.raises(ValueError, match="not known"):
        await mine.wait()
    assert (mine.name, mine.path) == ("mine", None)
    gate.open()
    await waiting


@pytest.mark.errors("no new version")
@live(workers=2)
async def test_what_is_lost_before_it_is_in_any_version_is_said_to_be_lost(c, s, a, b, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    gate, begin = Gate(), Store.begin
    monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
    data = await c.scatter(array(1), workers=[b.address])
    commit = await rt.checkpoint(data, "value", store=tmp_path, wait=False)
    await until(lambda: gate.arrived, "it is begun")
    await kill(s, [b])
    gate.open()
    with pytest.raises(CheckpointError, match=f"'{data.key}' cannot be written: it was lost with its worker"):
        await commit.wait()


@live(workers=1)
async def test_a_departing_worker_leaves_to_the_store_what_is_in_it(c, s, a, tmp_path):
    with dask.config.set({"hpc.spill.directory": str(tmp_path / "spill")}):
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path / "store"))
    data = await c.scatter([array(1), array(2)], hash=False)
    await rt.checkpoint(data[0], "value")
    left = await of(s).departures.depart(a.address, 1.0, "a test")
    assert (len(left["spilled"]), left["lost"]) == (2, [])
    [pack] = [path for path in (tmp_path / "spill").rglob("*") if path.is_file() and path.name != "zarr.json"]
    # one of the two
    assert pack.stat().st_size < 2 * ALIGNMENT
    # nobody takes away what is in use, however old it is
    assert Store(tmp_path / "spill").collect(older_than_s=0) == []
    async with Worker(s.address, nthreads=1):
        for number, future in enumerate(data):
            np.testing.assert_array_equal(await asyncio.wait_for(future, 30), array(number + 1))
    await asleep(s)
    s.validate_state()


@live(workers=2)
async def test_what_is_provided_comes_back_without_being_awaited_again(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    (source,) = await rt.expect(["step"])
    result = c.submit(np.sum, source)
    await c.submit(lambda: dask_hpc.provide({"step": array(3)}), workers=[a.address])
    assert await result == 300
    await rt.checkpoint(source, "step", store=tmp_path)
    await kill(s, [a])
    np.testing.assert_array_equal(await asyncio.wait_for(source, 30), array(3))
    s.validate_state()


@live(workers=2)
async def test_a_worker_that_has_lost_a_block_says_so(c, s, a, b, tmp_path):
    value = await c.submit(array, 1, key="value", workers=[a.address])
    assert value.sum() == 100
    from dask_hpc.checkpoint.describe import describe

    future = c.submit(array, 1, key="value", workers=[a.address])
    await future
    plan, keys = describe(future, "value")
    assert keys == ["value"]
    answers = await saved.write(str(tmp_path), plan.arrays[0], {0: "value"}, b)
    assert answers == {0: None}
    # of many blocks they go as one
    assert len(serialize(Serialize(type(answers)({0: None, 1: "", 2: None})))[1]) == 1


@live(workers=1)
async def test_a_worker_is_asked_at_once_for_no_more_than_a_small_share_of_its_memory(
    c, s, a, tmp_path, monkeypatch
):
    s.workers[a.address].memory_limit = 100 * (block_bytes := 80_000)
    under_way, most, run = 0, [], remote.run

    async def counted(scheduler, address, function, arguments, within_s):
        nonlocal under_way
        count = len(arguments["keys"]) if function is saved.write else 0
        under_way += count
        most.append(under_way)
        try:
            return await run(scheduler, address, function, arguments, within_s)
        finally:
            under_way -= count

    monkeypatch.setattr(remote, "run", counted)
    rt = await dask_hpc.install(c)
    small = c.map(np.zeros, [block_bytes // 32] * 40, pure=False)
    await rt.checkpoint(small, "small", store=tmp_path)
    assert 2 <= max(most) <= 8
    most.clear()
    # what is larger than that is written, one after the other
    large = c.map(np.zeros, [block_bytes] * 4, pure=False)
    await rt.checkpoint(large, "large", store=tmp_path)
    assert max(most) == 1


class OfNoPackage:
    """What a worker cannot load."""

    def __reduce__(self):
        return _of_no_package, ()


def _of_no_package():
    raise ModuleNotFoundError("No module named 'dask_hpc'")


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_a_worker_that_has_not_got_the_package_is_named(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    monkeypatch.setattr(saved, "write", OfNoPackage())
    with pytest.raises(CheckpointError, match=f"worker {a.address} cannot write: .*No module"):
        await rt.checkpoint(await c.scatter([1]), "value", store=tmp_path)
