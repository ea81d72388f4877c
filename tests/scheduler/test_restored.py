"""What was restored, while newer versions of its name are written; and what who restores may get wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import SchedulerPlugin, wait
from helpers import live, until
from losses import kill
from saved import save
from unchanged import unchanged

import dask_hpc
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.opening import open_checkpoint, readers
from dask_hpc.checkpoint.store import Store
from dask_hpc.client.checkpoints import restored
from dask_hpc.errors import CheckpointError, CheckpointTypeError, CheckpointValueError, InstallError
from dask_hpc.scheduler.checkpoint import reading
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.host_memory import manager_folder


def versions(store, name="field"):
    return [version.version for version in Store(store).versions(name)]


class Bytes:
    """A path of bytes."""

    def __fspath__(self):
        return b"folder"


@live(workers=2)
async def test_bags_values_of_collections_and_dicts_of_futures_come_back(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    bag = db.from_sequence(range(10), npartitions=3).map(lambda each: {"n": each})
    table = dd.from_pandas(pd.DataFrame({"a": np.arange(40)}), npartitions=4)
    sent = await c.scatter({"one": [1], ("a", 2): {2}})
    written = {"bag": c.persist(bag), "count": c.persist(bag.count()), "sum": c.persist(table.a.sum())}
    written["sent"] = sent
    for name, made in written.items():
        await rt.checkpoint(made, name)
    await kill(s, [a])
    expected = {"bag": [{"n": each} for each in range(10)], "count": 10, "sum": 780}
    expected["sent"] = {"one": [1], ("a", 2): {2}}
    assert (await c.gather(sent), await c.compute(written["bag"])) == (expected["sent"], expected["bag"])
    for name, value in expected.items():
        made = await dask_hpc.restore(name, c, allow_pickle=True)
        assert await (c.compute(made) if name == "bag" else c.gather(made)) == value
    with pytest.raises(CheckpointTypeError, match=r"a dict with the key True .* allowed keys: text, numbers"):
        await rt.checkpoint({True: sent["one"]}, "sent")


@live(workers=2)
async def test_a_version_stays_while_what_was_restored_from_it_is_there(c, s, a, b, tmp_path, monkeypatch):
    # its tasks have come when they are there
    monkeypatch.setattr(reading, "_COMES_S", 0.0)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    first = c.persist(da.arange(800, chunks=100))
    await rt.checkpoint(first, "field")
    back = await dask_hpc.restore("field", c)
    del first
    newer = c.persist(da.zeros(800, chunks=100))
    for _ in range(4):
        await rt.checkpoint(newer, "field")
    assert versions(tmp_path) == [1, 4, 5]
    await wait(back)
    await kill(s, [a])
    np.testing.assert_array_equal(await c.compute(back), np.arange(800))
    del back
    await rt.checkpoint(newer, "field")
    assert versions(tmp_path) == [5, 6]
    # nor is one removed of which nobody can tell at the moment who reads it
    hidden = tmp_path / "field" / "000005" / "manifest.json"
    hidden.unlink()
    hidden.mkdir()
    await rt.checkpoint(newer, "field")
    assert versions(tmp_path) == [5, 6, 7]


class Graphs(SchedulerPlugin):
    """How many tasks each graph that comes has."""

    def __init__(self):
        self.sizes = []

    def update_graph(self, scheduler, *, tasks, **kwargs):
        self.sizes.append(len(list(tasks)))


@live(workers=1)
async def test_results_come_back_in_one_graph_however_many_they_are(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    version = await rt.checkpoint(await c.scatter(list(range(400)), hash=False), "values")
    values = open_checkpoint(version.path, allow_pickle=True)
    assert [len(each.__dask_graph__()) for each in values] == [1] * 400
    graphs = Graphs()
    s.add_plugin(graphs)
    assert await c.gather(await dask_hpc.restore("values", c, allow_pickle=True)) == list(range(400))
    assert graphs.sizes == [400]


@live(workers=2)
async def test_a_version_stays_while_what_was_made_of_it_may_be_lost(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    table = pd.DataFrame({"a": np.arange(40)})
    written = {
        "field": c.persist(da.arange(800, chunks=100)),
        "frame": c.persist(dd.from_pandas(table, npartitions=4)),
    }
    for name, made in written.items():
        await rt.checkpoint(made, name)
    frame = await dask_hpc.restore("frame", c, allow_pickle=True)
    field = c.persist(await dask_hpc.restore("field", c) + 1)
    await wait([frame, field])
    # what they were made of needs the version no more
    del written, made
    # nobody wants the blocks themselves: none is in memory, or about to be
    blocks = [group for name, group in s.task_groups.items() if name.startswith("checkpoint-")]
    assert len(blocks) == 2
    await until(lambda: all(g.states["released"] == len(g) for g in blocks), "the blocks are released")
    for name in ("field", "frame"):
        newer = c.persist(da.zeros(800, chunks=100))
        for _ in range(3):
            await rt.checkpoint(newer, name)
        assert versions(tmp_path, name) == [1, 3, 4]
    await kill(s, [a])
    pd.testing.assert_frame_equal((await c.compute(frame)).sort_index(), table)
    np.testing.assert_array_equal(await c.compute(field), np.arange(800) + 1)


@live(workers=1)
async def test_who_knows_nothing_of_the_cluster_leaves_what_its_tasks_read(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    # they have come when they are there
    monkeypatch.setattr(reading, "_COMES_S", 0.0)

    def run(steps):
        with dask_hpc.CheckpointSession("heat", store=tmp_path) as session:
            heat = session.add("heat", np.zeros(100))
            session.restart_all()
            for _ in range(steps):
                heat += 1
                session.commit()

    await asyncio.to_thread(run, 1)
    back = await dask_hpc.restore("heat", c, store=tmp_path)
    await wait(back)
    await of(s).commits._reading.look()
    await asyncio.to_thread(run, 3)
    assert versions(tmp_path, "heat") == [1, 3, 4]
    assert Store(tmp_path).collect(dry_run=True) == Store(tmp_path).collect() == []
    assert (await c.compute(back)).heat.sum() == 100
    del back
    await until(lambda: not s.tasks, "nobody reads it")
    await of(s).commits._reading.look()
    assert Store(tmp_path).collect() == [str(tmp_path / "heat" / "000001")]
    # nor do other writers of a name remove what protects results here
    made = c.submit(np.ones, 3)
    await rt.checkpoint(made, "made", store=tmp_path)
    for _ in range(3):
        save(da.arange(20, chunks=6), tmp_path, "made")
    await of(s).commits._reading.look()
    assert Store(tmp_path).collect() == [str(tmp_path / "made" / "000002")]


@live(workers=1)
async def test_a_version_is_locked_while_it_may_be_read(c, s, a, tmp_path, monkeypatch):
    await dask_hpc.install(c)
    read = of(s).commits._reading
    save(da.arange(20, chunks=6), tmp_path)
    path = Store(tmp_path).find("field").path
    # nor is what is no version, or not there
    for wrong in ("a\0b", str(tmp_path / "field"), 5):
        with pytest.raises(CheckpointValueError, match="allowed: the folder of a version"):
            await read.version_is_read(wrong)
    (tmp_path / "field" / "000007").mkdir()
    for wrong in ("000006", "000007"):
        assert await read.version_is_read(str(tmp_path / "field" / wrong)) == {"locked": False}
    (tmp_path / "field" / "000007").rmdir()
    # somebody else has it locked for a moment
    lock = Lock.attempt(path)
    asyncio.get_running_loop().call_later(0.1, lock.release)
    assert await read.version_is_read(path) == {"locked": True}
    # the tasks of one client are there, then those of another one come
    back = await dask_hpc.restore("field", c, store=tmp_path)
    await wait(back)
    read.look()
    del back
    await until(lambda: not s.tasks, "nobody reads it")
    read.look()
    assert Lock.attempt(path) is None
    for one in read._read.values():
        one.until_s = 0.0
    await read.look()
    assert Lock.attempt(path).release() is None
    # its tasks come later than they are waited for: opening takes long
    monkeypatch.setattr(reading, "_COMES_S", 0.0)
    loop, there = asyncio.get_running_loop(), []

    def slow(path, **options):
        loop.call_soon_threadsafe(read.look)
        loop.call_soon_threadsafe(lambda: there.append(path in read._read))
        return open_checkpoint(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("dask_hpc.checkpoint.opening.open_checkpoint", slow)
        back = await dask_hpc.restore("field", c, store=tmp_path)
    assert there == [False]
    assert Lock.attempt(path) is None
    del back
    await until(lambda: not s.tasks, "nobody reads it")
    await read.look()
    # who restores hears that somebody has it
    monkeypatch.setattr(reading, "_HELD_S", 0.0)
    with Lock.attempt(path), pytest.warns(UserWarning, match="version 1 of 'field' may be removed while"):
        await dask_hpc.restore("field", c, store=tmp_path)
    # the scheduler ends while it takes the lock
    asked = asyncio.ensure_future(read.version_is_read(path))
    await asyncio.sleep(0)
    read.end()
    assert await asked == {"locked": False}
    assert read._looking is None
    # which is let go of without being waited for
    await until(lambda: (lock := Lock.attempt(path)) is not None and lock.release() is None, "it is free")


@live(workers=1)
async def test_what_reads_a_version_is_known_by_its_name(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for number, made in enumerate((c.persist(da.ones(30, chunks=10)), c.map(dict, [{"a": 1}, {"b": 2}]))):
        commit = await rt.checkpoint(made, f"field{number}", store=tmp_path)
        names = readers(commit.path)
        # whoever restores may call the store otherwise than who writes
        path = str(link / Path(commit.path).relative_to(tmp_path))
        for trusted in {bool(number), True}:
            opened = open_checkpoint(path, allow_pickle=trusted)
            opened = opened[0] if number else opened
            assert {key[0] for key in opened.__dask_graph__()} <= names
    Path(commit.path, "manifest.json").write_text("{")
    assert readers(commit.path) == set()


@live(workers=1)
async def test_what_cannot_be_is_refused_at_once_and_leaves_the_store_as_it_was(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    value = c.submit(np.ones, 3)
    commit = await rt.checkpoint(value, "field", store=tmp_path)
    with unchanged(tmp_path):
        for store in ("", 5, "a\0b", Bytes(), "~no-such-user/store"):
            with pytest.raises(CheckpointValueError, match=r"store is .*; allowed: the path of a folder"):
                await rt.checkpoint(value, "field", store=store)
            with pytest.raises(CheckpointValueError, match=r"store is .*; allowed: the path of a folder"):
                await dask_hpc.restore("field", c, store=store)
            with pytest.raises(CheckpointValueError, match=r"store is .*; allowed: the path of a folder"):
                dask_hpc.CheckpointSession("field", store=store)
        for levels in (3, [["L1"]], ("L4",)):
            with pytest.raises(ValueError, match=r"levels is .*; allowed: some of L1, L2, L3"):
                await rt.checkpoint(value, "field", store=tmp_path, levels=levels)
        for version in ("1", 1.5, True):
            with pytest.raises(CheckpointValueError, match=r"version is .*; allowed: a whole number"):
                await dask_hpc.restore("field", c, store=tmp_path, version=version)
            with pytest.raises(CheckpointValueError, match=r"version is .*; allowed: a whole number"):
                Store(tmp_path).newest("field", version)
        for client in (None, "field"):
            with pytest.raises(CheckpointTypeError, match=r"client is .*; allowed: a connected Client"):
                dask_hpc.restore("field", client, store=tmp_path)
        with pytest.raises(ValueError, match=r"no host holds version 7 of 'field' in memory"):
            await dask_hpc.restore("field", c, version=7)
        for timeout in (-1, "soon", True):
            with pytest.raises(ValueError, match="parameter 'timeout' cannot be"):
                await commit.wait(timeout)
    # one that is whole needs no time
    assert (await commit.wait(0)).version == (await commit.wait("1 min")).version == 1
    assert (await dask_hpc.restore("field", c, store=str(tmp_path), version=np.int64(1))) is not None
    await asyncio.shield(c.close())
    with pytest.raises(InstallError, match="connect a new one"):
        dask_hpc.restore("field", c, store=tmp_path)


@live(workers=1)
async def test_who_gets_an_older_version_of_memory_for_a_damaged_one_is_told(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    first, second = await c.scatter([np.zeros(3), np.ones(3)])
    await rt.checkpoint(first, "field", levels="L1")
    commit = await rt.checkpoint(second, "field", levels="L3")
    Path(commit.path, "manifest.json").write_text("{")
    told = "version 1 of .field. is restored from .* the store may have a later one: .*000002"
    with pytest.warns(UserWarning, match=told):
        back = await dask_hpc.restore("field", c)
    np.testing.assert_array_equal(await back, np.zeros(3))


@live(workers=1)
async def test_a_byte_that_has_changed_in_memory_is_never_another_value(c, s, a):
    rt = await dask_hpc.install(c)
    value = c.submit(np.arange, 3000)
    await rt.checkpoint(value, "field", levels="L1")
    (segment,) = manager_folder(a).glob("*.segment")
    with segment.open("r+b") as file:
        file.seek(9000)
        file.write(b"\xaa")
    back = await restored(c, "field", None, None, False, None)
    assert (back.version, back.path, back.bytes > 24_000) == (1, None, True)
    with pytest.raises(CheckpointError, match=r"its checksum differs; restore a version of the store"):
        await back.made


@live(workers=1)
async def test_memory_is_read_also_where_its_folder_is_named_by_a_way_round(c, s, a, memory, monkeypatch):
    monkeypatch.setenv("DASK_HPC__NODE__MEMORY_FOLDER", f"{memory}/../{memory.name}")
    rt = await dask_hpc.install(c)
    value = c.submit(np.arange, 3)
    await rt.checkpoint(value, "value", levels="L1")
    back = await dask_hpc.restore("value", c)
    np.testing.assert_array_equal(await back, np.arange(3))
