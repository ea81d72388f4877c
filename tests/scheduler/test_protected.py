"""What a checkpoint protects comes back when its worker is lost: right, and without being computed again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import Worker, futures_of, wait
from distributed.utils_test import inc
from helpers import Gate, asleep, engine, live, started, until
from losses import kill

import dask_hpc
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.protected_result import Result
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables import losses
from dask_hpc.worker import saved

#: How often `counted` has run, by what it was given.
RUNS: Counter[int] = Counter()


@pytest.fixture(autouse=True)
def _no_runs():
    RUNS.clear()


def counted(number):
    """A task that counts how often it has run."""
    RUNS[number] += 1
    return np.full(1000, number)


def noted(block, block_info=None):
    """A block that counts how often it was computed, by its number."""
    RUNS[block_info[0]["chunk-location"]] += 1
    return 2 * block + 1


def sums(future):
    return float(future.sum())


def slow_once(value, gate):
    """A task that waits at a gate when it runs a second time."""
    RUNS["slow"] += 1
    return gate.wait(value) if RUNS["slow"] > 1 else value


def source():
    """A task that fails once its input is gone."""
    if RUNS["input is gone"]:
        raise OSError("the input is gone")
    return 1


class Counter_:
    """An actor."""

    def value(self):
        return 7


def checkpoints(s):
    return of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))["checkpoints"]


async def all_in(futures, what):
    await asyncio.wait_for(wait(futures), 30)
    assert [future.status for future in futures] == ["finished"] * len(futures), what


async def by_worker(c, a, b):
    """Six results on two workers, three on each."""
    left = c.map(counted, range(3), workers=a.address, key=[f"left-{n}" for n in range(3)])
    right = c.map(counted, range(3, 6), workers=b.address, key=[f"right-{n}" for n in range(3)])
    await all_in([*left, *right], "computed")
    return [*left, *right]


@pytest.mark.parametrize("lost", [1, 2])
@live(workers=3)
async def test_an_array_is_read_back_and_not_computed_again(c, s, *workers, lost, tmp_path):
    rt = await dask_hpc.install(c)
    source = da.random.default_rng(1).random((60, 50), chunks=(10, 10))
    lazy = da.map_blocks(noted, source, dtype=float)
    expected = lazy.compute(scheduler="sync")
    field = c.persist(lazy)
    await all_in(futures_of(field), "computed")
    RUNS.clear()
    commit = await rt.checkpoint(field, "field", store=tmp_path)
    assert (commit.version, commit.name) == (1, "field")
    await asleep(s)
    before = {ts.key for ts in s.tasks.values() if ts.state == "memory"}
    await kill(s, list(workers[:lost]))
    np.testing.assert_array_equal(await c.compute(field), expected)
    assert RUNS == {}
    told = checkpoints(s)
    assert told["protected_results"] == 30
    assert 0 < told["restored_results"] <= 30
    assert (told["recomputed_results"], told["lost_results"]) == (0, 0)
    s.validate_state()
    # the same graph once more does no work either
    again = c.persist(da.map_blocks(noted, source, dtype=float))
    np.testing.assert_array_equal(await c.compute(again), expected)
    assert RUNS == {}
    assert before <= set(s.tasks)
    del field, again, source, lazy
    await until(lambda: not s.tasks, "no task outlives the last future")
    assert checkpoints(s)["protected_results"] == 0
    await until(lambda: "dask-hpc-watched" not in s.plugins, "stock is left alone")
    assert Path(commit.path).is_dir()


@live(workers=2)
async def test_a_restart_forgets_what_only_a_protected_result_was_made_from(c, s, a, b, tmp_path):
    squares = c.submit(counted, 3, key="squares", workers=[b.address])
    made = c.submit(sums, squares, key="made", workers=[a.address], allow_other_workers=True)
    await all_in([made], "computed")
    del squares
    await until(lambda: s.tasks["squares"].state == "released", "only the sum is wanted")
    rt = await dask_hpc.install(c)
    await rt.checkpoint([made], "made", store=tmp_path)
    await kill(s, [a])
    assert not s.tasks["squares"].dependents
    await c.restart(wait_for_workers=False)
    assert not s.tasks
    await until(lambda: "_clear_task_state" not in vars(s), "a restart is stock's again")


@live(workers=2, config={"hpc.tick": "50 ms", "hpc.checkpoint.small": 0})
async def test_in_a_job_lost_results_are_counted_as_restored(c, s, a, b, tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER_S", 0.0)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    async with rt.job("main", nodes=2, min_nodes=1) as job:
        await started(s, job, 2)
        futures = await by_worker(c, a, b)
        await rt.checkpoint(futures, "results")
        others = c.map(sums, futures, pure=False, workers=[a.address], allow_other_workers=True)
        await all_in(others, "computed")
        await kill(s, [a])
        values = await c.gather(futures)
        assert [value[0] for value in values] == list(range(6))
        assert set(RUNS.values()) == {1}
        await all_in(others, "computed again")
        count = engine(s).losses
        await until(lambda: count.results, "the loss is told")
        told = (await rt.status())["losses"]
        assert told["restored_results"] == 3
        assert told["recomputed_results"] == told["lost_results"] - 3 > 0
        assert (await rt.status())["checkpoints"]["restored_results"] == 3
    await asleep(s)
    s.validate_state()


@live(workers=2)
async def test_scattered_data_comes_back(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.arange(n) for n in range(4)], workers=[a.address], hash=False)
    alone = await c.scatter({"text": "not an array"}, workers=[a.address], hash=False)
    await rt.checkpoint(data, "data", store=tmp_path)
    await rt.checkpoint(alone["text"], "alone", store=tmp_path)
    await kill(s, [a])
    for number, future in enumerate(data):
        np.testing.assert_array_equal(await asyncio.wait_for(future, 30), np.arange(number))
    assert await asyncio.wait_for(alone["text"], 30) == "not an array"
    assert checkpoints(s)["restored_results"] == 5
    # and again: it is on the other worker now
    async with Worker(s.address, nthreads=1):
        await kill(s, [b])
        np.testing.assert_array_equal(await asyncio.wait_for(data[3], 30), np.arange(3))
    s.validate_state()
    del data, alone, future
    await until(lambda: not s.tasks, "no task outlives the last future")


@live(workers=3)
async def test_a_scattered_parent_is_lost_first(c, s, a, b, d, tmp_path):
    rt = await dask_hpc.install(c)
    parent = await c.scatter(np.arange(5), workers=[a.address])
    between = c.submit(np.copy, parent, workers=[a.address])
    children = [c.submit(np.add, between, n, workers=[b.address], pure=False) for n in range(10)]
    await all_in(children, "computed")
    await rt.checkpoint(children, "children", store=tmp_path)
    await kill(s, [a])
    await until(lambda: parent.key not in s.tasks or s.tasks[parent.key].state == "forgotten", "it is gone")
    await kill(s, [b])
    for number, child in enumerate(children):
        np.testing.assert_array_equal(await asyncio.wait_for(child, 30), np.arange(5) + number)
    assert checkpoints(s)["restored_results"] == 10
    s.validate_state()


@live(workers=3)
async def test_the_host_of_an_actor_is_lost_first(c, s, a, b, d, tmp_path):
    rt = await dask_hpc.install(c)
    actor = c.submit(Counter_, actor=True, workers=[a.address])
    await actor
    children = [
        c.submit(lambda actor, n: actor.value().result() + n, actor, n, workers=[b.address], pure=False)
        for n in range(3)
    ]
    await all_in(children, "computed")
    await rt.checkpoint(children, "children", store=tmp_path)
    await kill(s, [a])
    await until(lambda: s.tasks[actor.key].state == "erred", "the actor is lost")
    await kill(s, [b])
    for number, child in enumerate(children):
        assert await asyncio.wait_for(child, 30) == 7 + number
    s.validate_state()


@live(workers=2)
async def test_what_it_was_made_from_has_failed_meanwhile(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    parent = c.submit(source, workers=[b.address], key="parent", pure=False)
    child = c.submit(inc, parent, workers=[b.address], allow_other_workers=True, key="child")
    await child
    await rt.checkpoint(child, "child", store=tmp_path)
    RUNS["input is gone"] = 1
    s.set_restrictions({"parent": {a.address}})
    await kill(s, [b])
    with pytest.raises(OSError, match="the input is gone"):
        await parent
    assert await asyncio.wait_for(child, 30) == 2
    async with Worker(s.address, nthreads=1):
        await kill(s, [a])
        assert await asyncio.wait_for(child, 30) == 2
    assert checkpoints(s)["restored_results"] == 2
    s.validate_state()


@live(workers=3)
async def test_what_is_lost_before_its_version_is_whole_is_protected_once_it_is_back(
    c, s, a, b, d, monkeypatch
):
    # it was known when what it hangs on could be made again: else it comes back before (`test_drafts`)
    monkeypatch.setattr(Protected, "from_draft", lambda self, copies_of: None)
    write, written, whole, again = Memory.write, asyncio.Event(), asyncio.Event(), Gate()

    async def write_slowly(*args):
        found = await write(*args)
        written.set()
        await whole.wait()
        return found

    monkeypatch.setattr(Memory, "write", write_slowly)
    rt = await dask_hpc.install(c)
    data = await c.scatter(np.arange(5), workers=[a.address])
    child = c.submit(slow_once, data, again, workers=[b.address, d.address], key="child")
    await child
    first = next(
        worker for worker in (b, d) if worker.address in {ws.address for ws in s.tasks["child"].who_has}
    )
    commit = await rt.checkpoint(child, "child", levels=("L1",), wait=False)
    await asyncio.wait_for(written.wait(), 30)
    await kill(s, [first])
    await until(lambda: again.arrived, "it is computed again")
    whole.set()
    await commit.wait()
    assert s.tasks["child"].state == "processing"
    s.validate_state()
    again.open()
    np.testing.assert_array_equal(await asyncio.wait_for(child, 30), np.arange(5))
    # stock forgets it before the child is lost
    parent = s.tasks[data.key]
    for copied in {ws.address for ws in parent.who_has} - {a.address}:
        s.request_remove_replicas(copied, [data.key], stimulus_id="test")
    await until(lambda: {ws.address for ws in parent.who_has} == {a.address}, "it is there alone")
    await kill(s, [a])
    assert data.key not in s.tasks
    async with Worker(s.address, nthreads=1):
        await kill(s, [worker for worker in (b, d) if worker is not first])
        np.testing.assert_array_equal(await asyncio.wait_for(child, 30), np.arange(5))
    assert checkpoints(s)["restored_results"] == 1
    s.validate_state()


def damage(path):
    """Flip one bit of what has been written of values, in every file below a folder."""
    for file in Path(path).rglob("*"):
        if file.is_file() and file.suffix != ".json":
            content = bytearray(file.read_bytes())
            content[len(content) // 2 if len(content) < 8000 else 100] ^= 1
            file.chmod(0o600)
            file.write_bytes(bytes(content))


@pytest.mark.errors("no copy is of use")
@live(workers=2)
async def test_a_damaged_copy_is_computed_again_where_that_can_be(c, s, a, b, tmp_path, caplog):
    rt = await dask_hpc.install(c)
    computed = c.submit(counted, 1, workers=[a.address], allow_other_workers=True)
    await computed
    data = await c.scatter(np.arange(1000), workers=[a.address])
    for future, name in ((computed, "computed"), (data, "data")):
        damage((await rt.checkpoint(future, name, store=tmp_path)).path)
    events = []
    c.subscribe_topic(saved.TOPIC, events.append)
    await kill(s, [a])
    assert (await asyncio.wait_for(computed, 30))[0] == 1
    assert RUNS == {1: 2}
    await until(lambda: data.status in ("lost", "cancelled"), "it says that it is lost")
    await until(lambda: any(message.get("action") == "hpc-lost" for _, message in events), "it is named")
    # whoever has it reads in their own log what "lost" means
    text = f"Protected result {data.key!r} is lost: no copy is of use"
    await until(lambda: text in caplog.text, "its owner is told")
    told = checkpoints(s)
    assert (told["restored_results"], told["recomputed_results"], told["lost_results"]) == (0, 1, 1)
    s.validate_state()


@live(workers=2)
async def test_the_version_before_is_tried_when_the_newest_is_damaged(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    data = await c.scatter(np.arange(1000), workers=[a.address])
    first = await rt.checkpoint(data, "data", store=tmp_path)
    second = await rt.checkpoint(data, "data", store=tmp_path)
    third = await rt.checkpoint(data, "data", store=tmp_path)
    assert [one.version for one in (first, second, third)] == [1, 2, 3]
    assert [Path(one.path).exists() for one in (first, second, third)] == [False, True, True]
    damage(third.path)
    await kill(s, [a])
    np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(1000))
    assert checkpoints(s)["restored_results"] == 1


@live(workers=2)
async def test_versions_that_results_may_be_read_from_are_kept(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    old = await c.scatter(np.arange(1000), workers=[a.address])
    first = await rt.checkpoint(old, "data", store=tmp_path)
    for number in range(3):
        new = await c.scatter(np.arange(number), workers=[b.address])
        await rt.checkpoint(new, "data", store=tmp_path)
    assert Path(first.path).exists()
    await kill(s, [a])
    np.testing.assert_array_equal(await asyncio.wait_for(old, 30), np.arange(1000))
    del old
    await until(lambda: checkpoints(s)["protected_results"] == 1, "nobody wants it any more")
    await rt.checkpoint(new, "data", store=tmp_path)
    assert not Path(first.path).exists()


@live(workers=2, config={"distributed.scheduler.allowed-failures": 1})
async def test_workers_that_are_lost_while_it_is_read_do_not_count(c, s, a, b, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    data = await c.scatter(np.arange(1000), workers=[a.address])
    await rt.checkpoint(data, "data", store=tmp_path)
    gate, read = Gate(), saved.stored_value
    monkeypatch.setattr(saved, "stored_value", lambda *args, **kwargs: gate.wait(read(*args, **kwargs)))
    there = {worker.address: worker for worker in (a, b)}
    await kill(s, [a])
    async with AsyncExitStack() as more:
        for number in range(4):
            ts = s.tasks[data.key]
            await until(lambda ts=ts: ts.state == "processing", "it is being read")
            victim = ts.processing_on.address
            worker = await more.enter_async_context(Worker(s.address, nthreads=1, name=f"more-{number}"))
            there[worker.address] = worker
            await kill(s, [there[victim]])
        gate.open()
        np.testing.assert_array_equal(await asyncio.wait_for(data, 30), np.arange(1000))
    s.validate_state()


def test_what_could_not_be_made_again_stays_protected_by_a_version_that_is_old():
    ts = SimpleNamespace(key="key", state="released", who_wants=None, waiters=None)
    one, dropped = Result((SimpleNamespace(folder="old"),), "int", always=True), []
    protected = object.__new__(Protected)
    vars(protected).update(_uses={"old": 1}, _of={"key": one}, _drop=dropped.append)
    protected._scheduler = SimpleNamespace(tasks={"key": ts})
    protected.let_go_of({"old"})
    assert dropped == []
    one.always = False
    protected.let_go_of({"old"})
    assert dropped == ["key"]
