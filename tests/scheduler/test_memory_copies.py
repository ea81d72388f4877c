"""Checkpoints in the memory of a host: what is refused, what is moved, and what a manager gives to whom."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import re
import signal
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.system import MEMORY_LIMIT
from distributed.utils_test import captured_logger
from helpers import Gate, live, until
from losses import kill
from saved import save

import dask_hpc
from dask_hpc.checkpoint import store_threads, whereabouts
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import held, memory
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker import host_memory, saved
from dask_hpc.worker.fetching import ask
from dask_hpc.worker.managers import listening
from dask_hpc.worker.repairing import TooManyLostError
from dask_hpc.worker.saved import MEMORY
from dask_hpc_policies.resilience.redundancy_sets import Scheme


def checkpoints(s):
    return of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))["checkpoints"]


@live(workers=1)
async def test_what_the_host_of_a_task_holds_is_read_without_its_worker(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    (value,) = await c.scatter([np.arange(5)])
    await rt.checkpoint([value], "values", levels=["L1"])
    (copy,) = of(s).commits.protected._of[value.key].copies
    # a turn of its loop takes longer than reading does, and there may be thousands
    monkeypatch.setattr(saved, "get_worker", lambda: pytest.fail("its loop is waited for"))
    np.testing.assert_array_equal(copy.read(), np.arange(5))


@pytest.mark.errors("no new version: .* do not fit")
@live(workers=2, config={"hpc.checkpoint.host-memory": 0.001})
async def test_a_host_without_room_says_so_and_the_store_has_it(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    (large,) = await c.scatter([np.zeros(MEMORY_LIMIT // 4000)])
    with captured_logger("distributed.worker") as log:
        commit = await rt.checkpoint(large, "large", levels=["L1", "L3"], store=tmp_path)
    # what may be every time is no error of a worker
    assert "Run Failed" not in log.getvalue()
    row = await commit.status()
    assert row["levels"] == ["L3"]
    assert re.search(r"L1: .* do not fit; raise hpc.checkpoint.host-memory", row["reason"])
    with pytest.raises(CheckpointError, match=r"raise hpc\.checkpoint\.host-memory"):
        await rt.checkpoint(large, "large", levels=["L1"])
    small = await c.scatter([np.zeros(10)])
    row = await (await rt.checkpoint(small, "small", levels=["L1", "L2"])).status()
    assert row["levels"] == ["L1"]
    assert re.search(r"L2: .* needs 2 failure domains", row["reason"])
    assert (await (await rt.checkpoint(small, "small", levels="L1")).status())["asked"] == ["L1"]
    for levels in ([], ["L2"], ["L2", "L3"], ["L4"], "", "L4"):
        with pytest.raises(ValueError, match="allowed: some of L1, L2, L3"):
            await rt.checkpoint(small, "small", levels=levels)


@live(workers=1, config={"hpc.checkpoint.host-memory": 0.001})
async def test_what_the_store_has_goes_from_memory_when_two_versions_do_not_fit(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    # a host may hold 1.5 of it
    data = await c.scatter([np.zeros(MEMORY_LIMIT // 12_000)])

    async def levels(*asked):
        return (await (await rt.checkpoint(data, "field", levels=asked)).status())["levels"]

    for _ in range(3):
        assert await levels("L1", "L3") == ["L1", "L3"]
    assert await levels("L1") == ["L1"]
    # that one is in memory alone: it stays until the store has the next one
    assert not of(s).commits._held.make_room("field")
    assert await levels("L1") == ["L3"]
    assert await levels("L1") == ["L1"]
    s.validate_state()


@pytest.mark.errors("version 3 in memory alone")
@live(workers=1)
async def test_a_version_has_one_number_in_memory_and_in_the_store(c, s, a, tmp_path, monkeypatch):
    # of an earlier cluster
    for _ in range(2):
        save(da.zeros(4, chunks=2), tmp_path)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    [field] = c.persist([da.ones(4, chunks=2)])

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "_fill", full)
        with pytest.raises(CheckpointError, match=r"'field' has version 3 in memory alone \(L1\): "):
            await rt.checkpoint(field, "field", levels=("L1", "L3"))
    commit = await rt.checkpoint(field, "field", levels=("L1", "L3"))
    assert (commit.version, (await commit.status())["path"]) == (4, str(tmp_path / "field" / "000004"))
    for version, value in ((2, 0.0), (4, 1.0), (None, 1.0)):
        back = await dask_hpc.restore("field", c, version=version)
        np.testing.assert_array_equal(await c.compute(back), np.full(4, value))
    for level in ("L1", "L3"):
        commit = await rt.checkpoint(field, "field", levels=level)
    assert commit.version == 6


@live(workers=1)
async def test_hosts_that_have_no_room_for_what_was_lost_are_told_of_once(c, s, a, monkeypatch, caplog):
    rt = await dask_hpc.install(c)
    small = await c.scatter([np.zeros(10)])
    await rt.checkpoint(small, "small", levels=["L1"])
    tries = []

    async def full(folders):
        tries.append(folders)
        raise CheckpointError("/dev/shm has no room")

    kept = of(s).commits._held
    monkeypatch.setattr(kept._memory, "lacking", full)
    monkeypatch.setattr(held, "_SETTLE_S", 0.0)
    for lost in (1, 2):
        kept.left(f"tcp://host{lost}")
        await kept._task
        assert len(tries) == lost * held._TRIES
        assert caplog.text.count("is not held elsewhere yet: /dev/shm has no room") == lost


@pytest.mark.usefixtures("memory")
@live(workers=1)
async def test_a_version_is_not_given_up_for_a_part_of_it_while_hosts_may_answer(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.zeros(10), np.ones(10)], hash=False)
    await rt.checkpoint(data, "data", levels=["L1"])
    kept, known = of(s).commits._held, of(s).commits._memory
    (version,), folder, asked = known.records, f"{MEMORY}{next(iter(known.records))}", []

    async def away(*_):
        raise TooManyLostError("too many of the hosts that held it are lost")

    # what workers say is not all: their managers answer
    with monkeypatch.context() as patched:
        patched.setattr(memory, "repaired", away)
        with pytest.raises(CheckpointError, match="have no worker just now"):
            await known.repair(folder, Scheme("single", 2))

    async def silent(folder):
        asked.append(folder)
        if len(asked) < 3:
            raise OSError("a manager does not answer")
        return True

    async def lacking(_):
        return [folder] if len(asked) < 3 else []

    async def nobody(_):
        return False

    data.pop().release()
    await until(lambda: len(of(s).commits.protected) == 1, "a part of it is left")
    for where, name, done in (
        (kept, "_remake", silent),
        (known, "lacking", lacking),
        (known, "answers", nobody),
        (held, "_SETTLE_S", 0.0),
    ):
        monkeypatch.setattr(where, name, done)
    kept.left("tcp://host1")
    await kept._task
    assert asked == [folder] * 3
    assert set(known.records) == {version}


#: What was computed; workers of these tests are in this process.
RUNS = []


def made(number):
    RUNS.append(number)
    return np.full(50, float(number))


@live(workers=3, config={"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"})
async def test_without_a_store_the_results_of_a_job_are_in_memory_and_a_warning_says_so(c, s, *workers):
    async def written(count):
        await until(lambda: len(of(s).commits.protected) == count, f"{count} results are written")

    RUNS.clear()
    rt = await dask_hpc.install(c, "fcfs")
    with pytest.warns(UserWarning, match=r"job night-1 is in the memory of hosts alone: hpc\.checkpoint"):
        job = await rt.job("night", nodes=3, protect=True).activate()
    first = c.map(made, range(4))
    await wait(first)
    await written(4)
    earlier = set(of(s).commits.protected.folders())
    second = c.map(made, range(4, 8))
    await wait(second)
    await written(8)
    latest = checkpoints(s)["latest"][0]
    # only what is new is written; the workers are of one host
    assert (latest["levels"], latest["path"]) == (["L1"], None)
    assert latest["blocks"] <= 4
    await kill(s, [workers[0], workers[1]])
    values = await c.gather([*first, *second])
    assert [value[0] for value in values] == list(range(8))
    assert len(RUNS) == 8
    assert checkpoints(s)["restored_results"] > 0
    (row,) = (await rt.status())["protected_jobs"]
    assert (row["written_results"], row["loss_core_s"]) == (8, 0)
    # what nobody wants any more is not held
    del first
    await written(4)
    await until(lambda: not earlier & of(s).commits.protected.folders(), "its versions go, too")
    await job.close()


@live(workers=2)
async def test_what_only_memory_has_is_moved_when_its_worker_has_to_go(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.arange(10)], workers=[a.address])
    await rt.checkpoint(data, "data", levels=["L1"])
    # the memory may go with the worker: nobody may say that it is kept
    protected = of(s).commits.protected
    assert protected.sole([a.address], [a.address]) == {}
    stored = await c.scatter([np.arange(20)], workers=[a.address])
    await rt.checkpoint(stored, "stored", levels=["L1", "L3"], store=tmp_path)
    assert protected.sole([a.address], [a.address]) == {a.address: [stored[0].key]}
    await c.retire_workers([a.address])
    assert data[0].key in b.data
    assert checkpoints(s)["restored_results"] == 0


@live(workers=1)
async def test_a_manager_gives_nothing_but_segments(c, s, a):
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.arange(10)])
    await rt.checkpoint(data, "data", levels=["L1"])
    section = a.metrics[HEARTBEAT].section("manager")
    address, folder = section()["address"], section.folder
    (folder / "private").write_text("secret")
    os.symlink(folder / "private", folder / ("0" * 32 + ".segment"))
    for name in ("../private", "private", "0" * 32, "1" * 32):
        with pytest.raises(CheckpointError):
            await ask(a.rpc, address, "read", segment=name, offset=0, nbytes=6)
        for op, more in (("keep", {"record": "", "segments": []}), ("drop", {"segments": [name]})):
            if len(name) != 32:
                with pytest.raises(CheckpointError, match="no version in memory"):
                    await ask(a.rpc, address, op, version=name, **more)
    (segment,) = {path.stem for path in folder.glob("*.segment")} - {"0" * 32}
    for offset, nbytes in ((-1, 4), (0, 1 << 40), (0, -1), (1 << 40, 4), ("0", 4)):
        with pytest.raises(CheckpointError):
            await ask(a.rpc, address, "read", segment=segment, offset=offset, nbytes=nbytes)


class Late:
    """A value whose bytes are there when a gate is opened."""

    def __init__(self, gate):
        self.gate = gate

    def __reduce__(self):
        return Late, (self.gate.wait(self.gate),)


class Unwritable:
    """A value that has no bytes."""

    def __reduce__(self):
        raise TypeError("it cannot be pickled")


def segments_of(*workers):
    folders = {worker.metrics[HEARTBEAT].section("manager").folder for worker in workers} - {None}
    return [path for folder in folders for path in folder.glob("*.segment")]


@pytest.mark.errors("no new version")
@live(workers=2)
async def test_of_a_version_that_has_failed_nothing_stays_whoever_still_writes(c, s, a, b, monkeypatch):
    rt = await dask_hpc.install(c)
    gate, asked = Gate(), []
    late = c.submit(Late, gate, workers=[a.address], pure=False)
    bad = c.submit(Unwritable, workers=[b.address], pure=False)
    await wait([late, bad])
    real = host_memory.reserved

    async def reserved(*args):
        asked.append(await real(*args))
        return asked[-1]

    monkeypatch.setattr(host_memory, "reserved", reserved)
    with pytest.raises(CheckpointError, match="Could not serialize object of type Unwritable"):
        await rt.checkpoint([late, bad], "values", levels=["L1"])
    assert gate.arrived
    gate.open()
    # it does not know that nobody waits for it any more
    await until(lambda: asked, "the other worker comes to write")
    good = c.submit(np.zeros, 10, workers=[a.address])
    await rt.checkpoint(good, "good", levels=["L1"])
    (_, named), (_, late) = asked[1], asked[0]
    assert [path.stem for path in segments_of(a, b)] == [named] != [late]


@pytest.mark.usefixtures("memory")
@live(workers=1)
async def test_what_a_manager_was_not_there_to_hear_of_it_drops_when_it_is_back(c, s, a, monkeypatch):
    # its worker does not have it started again before it is told
    monkeypatch.setattr(host_memory, "_DOWN_S", 1e9)
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.zeros(10)])
    await rt.checkpoint(data, "data", levels=["L1"])
    known, (old,) = of(s).commits._memory, segments_of(a)
    os.kill(listening(old.parent)["pid"], signal.SIGKILL)
    known.drop([f"{MEMORY}{next(iter(known.records))}"])
    await known._dropping.done(30.0)
    assert segments_of(a) == [old]
    await rt.checkpoint(data, "others", levels=["L1"])
    await until(lambda: old not in segments_of(a), "what nobody needs has gone")
    assert len(segments_of(a)) == 1


@live(workers=1)
async def test_a_store_that_fails_once_is_told_where_managers_are_with_the_next_version(
    c, s, a, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    store.touch()
    rt = await dask_hpc.install(c)
    of(s).engine.state.settings = dataclasses.replace(
        of(s).engine.state.settings, checkpoint_store=str(store)
    )
    data = await c.scatter([np.arange(10)])
    await rt.checkpoint(data, "data", levels=["L1"])
    store.unlink()
    assert whereabouts.load(str(store)) == []
    await rt.checkpoint(data, "data", levels=["L1"])
    (told,) = whereabouts.load(str(store))
    assert told.cluster == s.id
    # one whose mount hangs, whoever else asks it, keeps no version from the memory of hosts
    gate = threading.Event()
    monkeypatch.setattr(store_threads, "PATIENCE_S", 0.05)
    of(s).commits._memory._listed.clear()
    hang = [asyncio.ensure_future(store_threads.in_store(gate.wait, 60)) for _ in range(50)]
    try:
        commit = await rt.checkpoint(data, "data", levels=["L1"])
        assert (await commit.status())["levels"] == ["L1"]
        with (
            dask.config.set({"hpc.checkpoint.silence": "0.2 s"}),
            pytest.warns(UserWarning, match="version 3 of 'data' is restored from the memory of hosts"),
        ):
            back = await dask_hpc.restore("data", c)
    finally:
        gate.set()
    await asyncio.gather(*hang)
    np.testing.assert_array_equal((await c.gather(back))[0], np.arange(10))


@live(workers=2)
async def test_with_too_few_failure_domains_a_version_goes_to_the_store_and_says_why(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    [field] = c.persist([da.arange(60, chunks=20)])
    commit = await rt.checkpoint(field, "field", levels=("L1", "L2"))
    row = await commit.status()
    assert row["levels"] == ["L1", "L3"]
    assert row["reason"].startswith("L2: scheme partner with parity 1 needs 2 failure domains, and the ")
    assert row["reason"].endswith(f"; it is in the store instead ({tmp_path})")
    latest = (await rt.status())["checkpoints"]["latest"]
    assert [(each["reason"], each["path"]) for each in latest] == [(row["reason"], row["path"])]
    assert [(each["losses_survived"], each["storage_ratio"]) for each in latest] == [(0, 1.0)]
    np.testing.assert_array_equal(open_checkpoint(row["path"]).compute(scheduler="sync"), np.arange(60))
    # who asks for no copies elsewhere gets none
    assert (await (await rt.checkpoint(field, "field", levels="L1")).status())["levels"] == ["L1"]
    await rt.update(checkpoint_redundancy="single")
    row = await (await rt.checkpoint(field, "field", levels=("L1", "L2"))).status()
    assert row["levels"] == ["L1"]
    await rt.update(checkpoint_redundancy="partner")
    await rt.update(checkpoint_store=None)
    row = await (await rt.checkpoint(field, "field", levels=("L1", "L2"))).status()
    assert row["levels"] == ["L1"]
    assert "store" not in row["reason"]
