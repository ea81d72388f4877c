"""Results of jobs of a few bytes, as the None of a written block, come back when their worker is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import dask
import dask.array as da
import encrypted
import numpy as np
import outside
import pytest
import zarr
from distributed import Client, Worker, wait
from helpers import Gate, asleep, engine, live, through, traces_of_ours, until
from losses import kill
from peer_to_peer import P2P

import dask_hpc
from dask_hpc.scheduler.internals.reads import is_barrier
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables import losses
from dask_hpc.wire import TELL
from dask_hpc.worker import small

SOON = {"hpc.tick": "20 ms"}
#: How often each thing was computed; workers of these tests are in this process.
RUNS: Counter[object] = Counter()


@pytest.fixture(autouse=True)
def none_computed():
    RUNS.clear()


def block(values, gate, before, block_info=None):
    """A block of a field; those that come after so many others wait."""
    place = block_info[0]["chunk-location"]
    RUNS[place] += 1
    if len(RUNS) > before:
        RUNS["waits", place] += 1
        gate.wait()
    return values + place[0]


def number(value, *others):
    RUNS[value] += 1
    return float(value)


def total(values):
    return sum(values)


def changed(*others):
    """A result that is another one each time."""
    RUNS["changed"] += 1
    return RUNS["changed"]


def held(s):
    return engine(s).small.held


def small_part(s):
    return next(call.__self__ for call in engine(s).parts._of["tick"] if "small" in call.__module__)


async def told(s, keys):
    await until(lambda: set(keys) <= held(s).keys(), "the scheduler has them")


def in_memory(s):
    return {ts.key for ts in s.tasks.values() if ts.state == "memory"}


def on(s, worker):
    """Keys of the results of a worker."""
    return {ts.key for ts in s.workers[worker.address].has_what}


@live(workers=3, threads=2, config=SOON, clean_kwargs={"threads": False})  # zarr has threads of its own
async def test_blocks_that_are_written_are_not_computed_again_after_a_loss(
    c, s, *workers, tmp_path, monkeypatch
):
    monkeypatch.setattr(losses, "TOGETHER_S", 0.0)
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    field = da.zeros((60, 50), chunks=5).map_blocks(block, gate, 80, dtype=float, name="field")
    async with rt.job("night", nodes=3, min_nodes=1):
        writing = c.compute(field.to_zarr(tmp_path / "field.zarr", compute=False))
        await until(lambda: gate.arrived == 6, "the others are written")
        written = {place for place in RUNS if ("waits", place) not in RUNS and place[0] != "waits"}
        # their values are gone; what is there says that they are written
        await until(lambda: len(in_memory(s)) > 60 and in_memory(s) <= held(s).keys(), "it is told")
        lost = on(s, workers[0]) & held(s).keys()
        assert len(lost) > 10
        await kill(s, [workers[0]])
        gate.open()
        await asyncio.wait_for(writing, 30)
        assert {RUNS[place] for place in written} == {1}
        count = engine(s).losses
        await until(lambda: count.results, "the loss is told")
        status = (await rt.status())["losses"]
        assert status["lost_results"] == status["restored_results"] == len(lost)
        assert status["recomputed_results"] == 0
    found = zarr.open_array(tmp_path / "field.zarr")[:]
    np.testing.assert_array_equal(found, np.repeat(np.arange(12.0), 5)[:, None] * np.ones(50))
    s.validate_state()
    await asleep(s)
    del writing
    await until(lambda: not s.tasks, "no task outlives the last future")
    assert traces_of_ours(s) == []


@live(workers=3, config=SOON)
async def test_results_are_read_again_whoever_is_lost_next(c, s, a, b, d):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=3, min_nodes=1):
        futures = c.map(number, range(30))
        await wait(futures)
        await told(s, [future.key for future in futures])
        assert (await rt.status())["small_results"]["held"] == 30
        for worker in (a, b):
            await kill(s, [worker])
            assert await asyncio.wait_for(c.gather(futures), 30) == list(range(30))
            s.validate_state()
        assert set(RUNS.values()) == {1}
        del futures
        await until(lambda: not s.tasks, "no task outlives the last future")
        assert held(s) == {}
        assert engine(s).small.nbytes == 0


@live(workers=3, config=SOON)
async def test_results_of_scattered_data_that_is_lost_before_come_back(c, s, a, b, d):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=3, min_nodes=1):
        data = await c.scatter(np.zeros(1000), workers=[a.address])
        futures = [
            c.submit(number, n, data, workers=[b.address], allow_other_workers=False) for n in range(5)
        ]
        await wait(futures)
        protected = of(s).commits.protected
        await until(lambda: len(protected) == 5, "the scheduler has them")
        s.validate_state()
        # stock drops a copy that was fetched, sooner or later
        await kill(s, [a])
        await kill(s, [b])
        assert await asyncio.wait_for(c.gather(futures), 30) == list(range(5))
        assert set(RUNS.values()) == {1}
        del futures, data
        await until(lambda: not s.tasks, "no task outlives the last future")
        assert (len(protected), protected.small_bytes) == (0, 0)


@live(workers=2, config=SOON)
async def test_results_of_what_is_made_plain_data_later_come_back_when_both_are_lost(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=2, min_nodes=1) as job:
        state = c.submit(np.zeros, 1000, workers=[a.address], allow_other_workers=True)
        probe = c.submit(number, 1, state, workers=[a.address], allow_other_workers=True)
        await wait(probe)
        await told(s, [probe.key])
        node = engine(s).state.nodes.at[a.address].id
        keep = engine(s).parts.methods()["keep_copies"]
        assert await keep(job=job.id, copies=[(state.key, node)])
        protected = of(s).commits.protected
        await until(lambda: probe.key in protected, "it is looked at again")
        assert held(s) == {}
        await kill(s, [a])
        assert await asyncio.wait_for(probe, 30) == 1
        assert RUNS == {1: 1}


@live(workers=2, config={"hpc.tick": "1 h"})
async def test_bytes_of_one_run_never_stand_for_the_result_of_another(c, s, a, b, monkeypatch):
    rt = await dask_hpc.install(c, "fcfs")
    gate, to_content = Gate(), small.to_content
    monkeypatch.setattr(small, "to_content", lambda *args: gate.wait(to_content(*args)))
    copies = small_part(s)
    async with rt.job("night", nodes=2, min_nodes=1):
        first = c.submit(changed, key="x", workers=[a.address])
        assert await first == 1
        # a worker is asked once its heartbeats say that it knows the question
        await until(lambda: copies.tick(0.0) or gate.arrived, "its bytes are on their way")
        first.release()
        await until(lambda: "x" not in s.tasks, "it is forgotten")
        second = c.submit(changed, key="x", workers=[a.address], allow_other_workers=True)
        assert await second == 2
        gate.open()
        await until(lambda: not copies._calls, "they have come")
        assert "x" not in held(s)
        # nobody has asked for those of the second yet
        await kill(s, [a])
        assert await asyncio.wait_for(second, 30) == 3
        copies.tick(0.0)
        await told(s, ["x"])
        second.release()
        await until(lambda: "x" not in s.tasks, "it is forgotten")
        assert held(s) == {}


@live(workers=2, config=SOON)
async def test_nothing_is_held_of_what_is_cancelled_or_forgotten_in_a_restart(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=2, min_nodes=1):
        for forget in (c.cancel, lambda _: c.restart(wait_for_workers=False)):
            future = c.submit(changed, pure=False)
            await wait(future)
            await told(s, [future.key])
            await forget([future])
            await until(lambda: not s.tasks, "it is forgotten")
            assert held(s) == {}


@live(workers=2, config=SOON)
async def test_plain_work_and_what_is_not_small_have_no_copies_and_0_means_none(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    plain = c.submit(through, 2, gate := Gate())
    async with rt.job("night", nodes=1):
        await until(lambda: gate.arrived, "plain work runs")
        gate.open()
        futures = [plain, c.submit(np.zeros, 200), last := c.submit(number, 1)]
        await wait(futures)
        await told(s, [last.key])
        assert held(s).keys() == {last.key}
        await rt.update(checkpoint_small_bytes=0)
        await wait(none := c.submit(number, 3))
        assert not engine(s).small.fresh
    await asleep(s)
    assert held(s) == {}
    assert none.status == "finished"


@live(workers=3, config=SOON)
async def test_what_tasks_before_a_shuffle_leave_has_no_copy(c, s, *workers):
    """Their results are small; what they have sent to the lost worker is in none of them."""
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    values = np.random.default_rng(1).random((800, 800))
    async with rt.job("night", nodes=3, min_nodes=1):
        with dask.config.set(P2P | {"array.chunk-size": "640 kB"}):
            rows = da.from_array(values, chunks=(100, 800)).map_blocks(block, gate, 7, dtype=float)
            future = c.compute(rows.rechunk((800, 100)).sum())
        await until(lambda: gate.arrived, "the last block waits")
        (barrier,) = [key for key in s.tasks if is_barrier(key)]
        inputs = s.tasks[barrier].dependencies
        # one or the other may be behind the block that waits
        await until(lambda: sum(ts.state == "memory" for ts in inputs) >= 5, "shards are sent")
        assert {ts.nbytes < 1024 for ts in inputs if ts.state == "memory"} == {True}
        await until(lambda: small_part(s).equipped, "workers know the question")
        small = engine(s).small
        await until(lambda: not (small.fresh or small.waiting or small_part(s)._calls), "all have been asked")
        assert not held(s).keys() & {ts.key for ts in inputs}
        waits = next(
            ws.address for ws in s.workers.values() if any("block" in str(ts.key) for ts in ws.processing)
        )
        await kill(s, [next(worker for worker in workers if worker.address != waits)])
        gate.open()
        expected = (values + np.repeat(np.arange(8), 100)[:, None]).sum()
        np.testing.assert_allclose(await asyncio.wait_for(future, 30), expected)


@live(workers=1, config=SOON)
async def test_what_a_worker_holds_that_has_to_go_comes_back(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=1):
        futures = c.map(number, range(6))
        await wait(futures)
        await told(s, [future.key for future in futures])
        left = await of(s).departures.depart(a.address, 0.2, "released by force")
        assert left["lost"] == []
        assert set(left["spilled"]) == {future.key for future in futures}
        async with Worker(s.address, nthreads=1):
            assert await asyncio.wait_for(c.gather(futures), 30) == list(range(6))
        assert set(RUNS.values()) == {1}


@live(workers=1, config=SOON)
async def test_results_of_data_that_is_lost_with_the_worker_are_not_named_as_lost(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=1):
        data = await c.scatter(np.zeros(1000))
        futures = [c.submit(number, n, data) for n in range(3)]
        await wait(futures)
        await until(lambda: len(of(s).commits.protected) == 3, "the scheduler has them")
        left = await of(s).departures.depart(a.address, 0.2, "released by force")
        assert left["lost"] == [data.key]
        assert set(left["spilled"]) == {future.key for future in futures}
        async with Worker(s.address, nthreads=1):
            assert await asyncio.wait_for(c.gather(futures), 30) == list(range(3))
        assert set(RUNS.values()) == {1}


@live(workers=2, config=SOON)
async def test_uninstalling_leaves_nothing_and_results_are_computed_as_in_stock(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=2, min_nodes=1):
        futures = c.map(number, range(6))
        await wait(futures)
        await told(s, [future.key for future in futures])
        service = of(s)
        await rt.uninstall()
    assert service.engine.small.held == {}
    assert traces_of_ours(s) == []
    await kill(s, [a])
    assert await asyncio.wait_for(c.gather(futures), 30) == list(range(6))
    assert max(RUNS.values()) == 2
    s.validate_state()


@live(workers=2, config=SOON)
async def test_a_question_that_is_on_its_way_is_answered_by_workers_that_close_and_before_an_uninstall(
    c, s, a, b, monkeypatch
):
    asked, answer = asyncio.Event(), asyncio.Event()
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("night", nodes=2, min_nodes=1):
        await until(lambda: TELL in a.handlers and TELL in b.handlers, "both know the question")
        tell = b.handlers[TELL]

        async def late(**question):
            asked.set()
            await answer.wait()
            return await tell(**question)

        b.handlers[TELL] = late
        held = c.submit(number, 1, workers=[b.address])
        await wait(held)
        await asyncio.wait_for(asked.wait(), 30)
        await a.close()
        assert TELL in a.handlers
        leaving = asyncio.ensure_future(rt.uninstall())
        await until(lambda: not of(s).engine.awake, "nobody asks any more")
        assert b.handlers[TELL] is late
        answer.set()
        await leaving
    assert TELL not in b.handlers


def computed(number, folder):
    """A block, noted in a file."""
    with open(os.path.join(folder, f"computed-{number}"), "a") as file:
        file.write("x")
    return np.full(1000, number)


def blocks(folder):
    """Numbers of the blocks that are written."""
    return {int(name.removesuffix(".npy")) for name in os.listdir(folder) if name.endswith(".npy")}


def stored(values, folder, number):
    """What `to_zarr` does with a block; the last ones wait."""
    while len(blocks(folder)) >= 300 and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    np.save(os.path.join(folder, f"{number}.npy"), values)


@pytest.mark.slow
def test_a_killed_process_takes_no_work_with_it_over_tls_and_without_a_store(tmp_path):
    folder = str(tmp_path)
    with (
        dask.config.set({"hpc.tick": "100 ms"}),
        dask_hpc.LocalCluster(
            n_workers=3,
            threads_per_worker=2,
            protocol="tls",
            security=encrypted.keys(tmp_path),
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        rt = dask_hpc.install(client, "fcfs")
        pids = client.run(os.getpid)
        with rt.job("night", nodes=3, min_nodes=1):
            values = [dask.delayed(computed)(number, folder) for number in range(320)]
            nones = [dask.delayed(stored)(block, folder, n) for n, block in enumerate(values)]
            counted = client.compute(dask.delayed(len)(nones))
            outside.until(lambda: rt.status().get("small_results", {}).get("held", 0) >= 300, "they are told")
            written = blocks(folder)
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            outside.until(lambda: len(client.scheduler_info()["workers"]) < 3, "it is lost")
            (tmp_path / "go").touch()
            assert counted.result(60) == 320
            runs = Counter(len((tmp_path / f"computed-{number}").read_text()) for number in written)
            assert runs == {1: len(written)}
            outside.until(lambda: rt.status()["losses"]["lost_results"], "the loss is told")
            told = rt.status()["losses"]
            assert told["restored_results"] > 50
            assert told["lost_results"] - told["restored_results"] == told["recomputed_results"] <= 6
    for number in range(320):
        assert np.load(tmp_path / f"{number}.npy")[0] == number
