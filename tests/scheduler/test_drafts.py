"""What stock could not make again comes back from a version that is not whole yet, and only until it is."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Worker, wait
from helpers import Gate, live, through, until
from losses import kill

import dask_hpc
from dask_hpc.checkpoint import blocks
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import writing
from dask_hpc.scheduler.checkpoint.remade import Remade
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import saved
from dask_hpc.worker.saved import Copy


def fails(gate):
    """A task that waits at a gate, and has no result."""
    gate.wait(None)
    raise OSError("no result")


def protected(s):
    return of(s).commits.protected


#: Where versions are: in the folder of a test, or in the memory of its host.
PLACES = pytest.mark.parametrize("place", ["store", "memory"])


def where(place, folder):
    return {"store": folder} if place == "store" else {"levels": ["L1"]}


async def scattered(c, s, worker, rest, place):
    """Data of which a version has everything but `rest`."""
    data = await c.scatter({"data": np.arange(5.0)}, workers=[worker.address])
    made = c.submit(np.sum, data["data"], workers=[worker.address])
    await made
    rt = await dask_hpc.install(c)
    commit = await rt.checkpoint([data["data"], made, rest], "values", **place, wait=False)
    await until(lambda: {"data", made.key} <= protected(s)._of.keys(), "its blocks are written")
    assert (await commit.status())["state"] == "writing"
    return data["data"], made, commit


@PLACES
@live(workers=3)
async def test_scattered_data_that_is_lost_while_a_version_is_written_comes_back(
    c, s, a, b, d, tmp_path, place
):
    gate = Gate()
    rest = c.submit(gate.wait, 7, workers=[d.address])
    data, made, commit = await scattered(c, s, a, rest, where(place, tmp_path))
    assert protected(s).sole([a.address], [a.address]) == {}, "what may be given up is moved before it goes"
    assert data.key not in protected(s).in_versions
    await kill(s, [a])
    np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(5.0))
    assert await asyncio.wait_for(made, 30) == 10
    assert not protected(s)._returned, "it goes on to be read from there"
    assert (await commit.status())["state"] == "writing"
    gate.open()
    assert (await commit.wait(30)).version == 1
    # and now that it is whole, from there
    assert {one.copies[0].draft for one in protected(s)._of.values()} == {""}
    assert {len(one.copies) for one in protected(s)._of.values()} == {1}
    async with Worker(s.address, nthreads=1):
        await kill(s, [b, d])
        np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(5.0))
        assert await asyncio.wait_for(c.gather([made, rest]), 30) == [10, 7]
    s.validate_state()


@PLACES
@pytest.mark.errors("Checkpoint 'values': no new version")
@live(workers=2)
async def test_of_a_version_that_does_not_become_whole_nothing_is_read(c, s, a, b, tmp_path, place):
    gate = Gate()
    rest = c.submit(fails, gate, workers=[b.address])
    data, made, commit = await scattered(c, s, a, rest, where(place, tmp_path))
    (copy,) = protected(s)._of[data.key].copies
    assert s.tasks[data.key].run_spec is not None
    # who goes on with the version says what becomes of it, not who has its last result
    gone = []
    protected(s).unused.append(gone.append)
    gate.open()
    with pytest.raises(CheckpointError, match="its task has failed"):
        await commit.wait(30)
    assert len(protected(s)) == 0
    await until(lambda: not protected(s)._unused, "all is told")
    assert not any(gone)
    assert s.tasks[data.key].run_spec is None
    assert s.tasks[made.key].dependencies == {s.tasks[data.key]}
    np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(5.0))
    if place == "memory":
        return
    with pytest.raises(FileNotFoundError):
        copy.stored()()
    # of one that has become whole meanwhile it is
    await (await dask_hpc.install(c)).checkpoint([data, made], "values", store=tmp_path)
    (there,) = protected(s)._of[data.key].copies
    late = Copy(there.folder, there.array, 0, there.written, draft=copy.draft)
    np.testing.assert_array_equal(late.stored()(), np.arange(5.0))
    # one that fails before it has a name takes nothing from those that are whole
    protected(s).give_up("")
    assert protected(s)._of[data.key].copies == (there,)
    s.validate_state()


def after(before, rest):
    """A step that hangs on the one before."""
    return before + 1


@PLACES
@pytest.mark.parametrize("scattered", [False, True])
@live(workers=1)
async def test_what_results_were_made_from_is_followed_once(
    c, s, a, tmp_path, monkeypatch, place, scattered
):
    monkeypatch.setattr(writing, "_BATCH_BLOCKS", 1)  # of many results, thousands, there are many
    looked, follows = [], reads.not_remade

    def counted(scheduler, keys, known=None):
        known = {} if known is None else known
        before = len(known)
        found = follows(scheduler, keys, known)
        looked.append(len(known) - before)
        return found

    monkeypatch.setattr(reads, "not_remade", counted)
    first = await c.scatter(0) if scattered else c.submit(int, 0, key="first")
    rt = await dask_hpc.install(c)
    steps = [[first]]
    for step in range(5):
        for number in range(5 * step, 5 * step + 5):
            steps.append(c.map(after, steps[-1] * 5 if number == 0 else steps[-1], rest=number, pure=False))
        await c.gather(steps[-1])
        await rt.checkpoint(steps[-1], "values", **where(place, tmp_path))
        del steps[1:-1]
    # 25 steps of 5 each, what they begin with, and once that what hangs on data is read back by now
    assert sum(looked) <= 25 * 5 + 1 + 5


def test_what_is_forgotten_when_it_was_written_says_nothing_of_what_has_its_name_later():
    tasks = {}
    find = Remade(SimpleNamespace(made_plain=0, scheduler=SimpleNamespace(tasks=tasks))).finder()
    assert find(["x"]) == set()
    data = {"run_spec": None, "actor": False, "has_lost_dependencies": False, "dependencies": ()}
    tasks["x"] = SimpleNamespace(key="x", **data)
    assert [find(["x"]) for _ in range(2)] == [{"x"}] * 2, "it stays so"


@pytest.mark.parametrize("root", [{"run_spec": None}, {"actor": True}, {"has_lost_dependencies": True}])
def test_what_hangs_on_data_on_an_actor_or_on_what_is_lost_could_not_be_made_again(root):
    tasks = {}

    def add(key, *of, **fields):
        made = {"run_spec": "a task", "actor": False, "has_lost_dependencies": False} | fields
        tasks[key] = SimpleNamespace(key=key, dependencies=[tasks[name] for name in of], **made)

    add("root", **root)
    add("plain")
    add("between", "plain", "root")
    add("child", "between")
    add("other", "plain")
    found = reads.not_remade(SimpleNamespace(tasks=tasks), ["child", "other", "unknown"])
    assert found == {"child"}


@live(workers=1)
async def test_a_store_whose_mount_has_gone_is_said_and_no_number_is_given_twice(c, s, a, tmp_path, caplog):
    rt = await dask_hpc.install(c)
    store, value = tmp_path / "store", await c.scatter(1)
    assert (await rt.checkpoint(value, "value", store=store)).version == 1
    store.rename(tmp_path / "gone")
    assert (await rt.checkpoint(value, "value", store=store)).version == 2
    assert (await rt.checkpoint(value, "value", store=store)).version == 3
    told = [text for text in caplog.messages if "of value is not in" in text]
    assert [text.partition(" is ")[0] for text in told] == ["Version 1 of value"]


@live(workers=1)
async def test_small_results_that_come_while_others_are_written_are_written_together(
    c, s, a, tmp_path, monkeypatch
):
    rt = await dask_hpc.install(c)
    others, written, calls = Gate(), threading.Event(), []

    def write_blocks(folder, array, numbers, values):
        calls.append(len(numbers))
        written.wait(30)
        return blocks.write_blocks(folder, array, numbers, values)

    monkeypatch.setattr(saved, "write_blocks", write_blocks)
    first = c.submit(int, 1)
    await first
    late = c.map(through, range(20), gate=others)
    commit = await rt.checkpoint([first, *late], "values", store=tmp_path, wait=False)
    await until(lambda: calls, "the first one is being written")
    others.open()
    await wait(late)
    written.set()
    await commit.wait()
    assert calls == [1, 20]
