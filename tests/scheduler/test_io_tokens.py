"""Tasks of a job that write one file system wait for tokens, whose number is learned; others pass them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from time import sleep

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import secede
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from helpers import Gate, engine, live, record, started, through, until, within
from tasks import inc
from throttled import ThrottledStore

import dask_hpc
from dask_hpc.scheduler.install import service_of
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.sim.what_if import simulate_from

CHUNK = 1 << 18


def write(store, number):
    zarr.open_array(store, mode="r+")[number : number + 1] = np.full((1, CHUNK), number, "u1")


def nap(number):
    sleep(0.005)
    return number


def make(folder, chunks):
    """An array whose chunks take 25 ms to be written by one or two at once, and longer by more."""
    store = ThrottledStore(folder, bytes_s=2 * CHUNK / 0.025, fall=0.3)
    zarr.create_array(store, shape=(chunks, CHUNK), chunks=(1, CHUNK), dtype="u1", compressors=None)
    store.reset()
    return store


@live(1, threads=4, clean_kwargs={"threads": False}, config={"hpc.tick": "50 ms"})
async def test_writers_are_held_to_the_tokens_learned_and_what_needs_none_passes(c, s, a):
    rt = await dask_hpc.install(c, policy="fcfs")
    chunks = 120
    store = make(Path(a.local_directory) / "z", chunks)
    metered = dask_hpc.metered(store, "shared")
    gate = engine(s).admission.gate
    target = (metered.kind, "shared")
    gate.limits = Kept()
    async with beating(a):
        async with rt.job("writer", nodes=1) as job:
            await started(s, job)
            writers = c.map(write, [metered] * chunks, range(chunks), pure=False)
            await until(lambda: target in gate.limits, "the first are measured")
            assert record(s, job).gate is gate
            # also those have tokens that were on workers before
            on_workers = {ts.key for ws in s.workers.values() for ts in ws.processing}
            assert on_workers == gate.holders(target)
            assert gate.needs == {("writer", "write"): (target,)}
            # those that are behind it do not wait
            naps = c.map(nap, range(40))
            assert await within(c.gather(naps)) == list(range(40))
            assert not all(future.done() for future in writers)
            await within(c.gather(writers))
        found = (await rt.io())["targets"][0]
        assert (found["tokens"] in gate.limits.ever, found["writers"]) == (True, 0)
        # four threads write at first; what is found in the end is a matter of time, and of the machine
        assert min(gate.limits.ever) <= 2
        # the next of its name is held to them from the first task on
        store.reset()
        gate.limits.ever = {gate.limits[target]}
        async with rt.job("writer", nodes=1) as job:
            await started(s, job)
            # a simulation that goes on from here has the file system that was learned
            view = await rt.snapshot()
            rate_bytes_s = view.sections["io"]["file_system_bytes_s"]
            # no write is shorter than 25 ms, and no more than four threads wrote
            assert 0 < rate_bytes_s <= 4 * CHUNK / 0.025
            assert simulate_from(view, "fcfs").machine.file_system_bytes_s == rate_bytes_s
            await within(c.gather(c.map(write, [metered] * 12, range(12), pure=False)))
        assert 1 <= store.most <= max(gate.limits.ever)
        # nobody else is
        store.reset()
        with dask.annotate(hpc_job=None):
            await within(c.gather(c.map(write, [metered] * 40, range(40), pure=False)))
        assert store.most == 4
        assert not gate.waiting


@live(2, threads=2, clean_kwargs={"threads": False}, config={"hpc.tick": "50 ms"})
async def test_a_shuffle_of_what_waits_for_tokens_gives_what_stock_does_and_takes_none(c, s, *workers):
    values = np.random.default_rng(3).random((512, 512))
    folder, target = Path(workers[0].local_directory) / "z", ("store", "shared")
    array = zarr.create_array(folder, shape=values.shape, chunks=(32, 512), dtype="f8", compressors=None)
    array[:] = values

    def shuffled():
        read = da.from_zarr(dask_hpc.metered(folder, "shared"), name="read")
        with dask.config.set({"optimization.fuse.active": False}):
            return read.rechunk((512, 32), method="p2p")

    stock = await within(c.compute(shuffled()))
    assert np.array_equal(stock, values)
    rt = await dask_hpc.install(c, policy="fcfs")
    gate, took = engine(s).admission.gate, set()

    class Took(SchedulerPlugin):
        def transition(self, key, *step, **more):
            took.update(s.tasks[held].prefix.name for held in gate.holders(target))

    s.add_plugin(Took(), name="took")
    # P2P writes its shards to disk, which is counted as well
    async with rt.job("shuffles", nodes=2, measure_io=True) as job:
        await started(s, job, 2)
        for _ in range(2):  # by what was learned of the first, as well
            gate.needs["shuffles", "read"], gate.limits[target] = (target,), 2
            record(s, job).gate = gate
            assert np.array_equal(await within(c.compute(shuffled())), stock)
            await asyncio.gather(*(worker.heartbeat() for worker in workers))
            service_of(s)._io.tick(engine(s).state.now_s())
    s.remove_plugin("took")
    assert took == {"read"}
    assert set(gate.needs) == {("shuffles", "read")}
    assert not gate.waiting


def tokens_for(s, job, tokens):
    """Tasks of a job need one of so many tokens, as if that had been learned."""
    gate = engine(s).admission.gate
    gate.needs["gated", "gated"], gate.limits["store", "shared"] = (("store", "shared"),), tokens
    record(s, job).gate = gate


@live(4, config={"hpc.sweep": "10 s"})
async def test_a_token_goes_on_where_its_task_has_ended_and_no_other_worker_is_looked_at(
    c, s, *workers, monkeypatch
):
    rt = await dask_hpc.install(c, policy="fcfs")
    looks, look = [], Admission._look_everywhere

    def counted(self, *args):
        looks.append(1)
        return look(self, *args)

    monkeypatch.setattr(Admission, "_look_everywhere", counted)
    async with rt.job("gated", nodes=4) as job:
        await started(s, job, 4)
        tokens_for(s, job, 2)
        assert await within(c.gather(c.map(inc, range(60), key="gated", pure=False))) == list(range(1, 61))
    assert len(looks) < 20


@live(2, config={"hpc.sweep": "10 s"}, worker_kwargs={"memory_limit": 0})
async def test_a_token_goes_elsewhere_when_the_worker_of_its_task_is_paused(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs")
    gates = Gate(), Gate()
    async with rt.job("gated", nodes=2) as job:
        await started(s, job, 2)
        tokens_for(s, job, 1)
        first, second = c.map(through, range(2), gates, key="gated", pure=False)
        await until(lambda: gates[0].arrived, "it runs")
        (busy,) = [worker for worker in workers if worker.state.executing_count]
        busy.status = Status.paused
        await until(lambda: s.workers[busy.address] not in s.running, "it is paused")
        gates[0].open()
        await until(lambda: gates[1].arrived, "the other has the next one", 5)
        assert [worker.state.executing_count for worker in workers if worker is not busy] == [1]
        gates[1].open()
        assert await within(c.gather([first, second])) == [0, 1]


def leave(gates):
    secede()
    return through(0, gates[0])


@live(1, threads=2, config={"hpc.sweep": "10 s"})
async def test_a_task_that_leaves_its_thread_gives_its_token_to_the_next(c, s, a):
    rt = await dask_hpc.install(c, policy="fcfs")
    gates = (Gate(),)
    async with rt.job("gated", nodes=1) as job:
        await started(s, job)
        tokens_for(s, job, 1)
        outer = c.submit(leave, gates, key="gated-0")
        inner = c.submit(inc, 1, key="gated-1")
        assert await within(inner, 5) == 2
        assert not outer.done()
        gates[0].open()
        assert await within(outer) == 0


class Sent(SchedulerPlugin):
    """How tasks went from state to state, and how many were on workers at once."""

    def __init__(self):
        self.steps, self.there, self.most = [], set(), 0

    def transition(self, key, start, finish, *args, **more):
        self.steps.append((key, start, finish))
        (self.there.add if finish == "processing" else self.there.discard)(key)
        self.most = max(self.most, len(self.there))


@live(2, config={"hpc.sweep": "10 s", "hpc.lend": "0 s"}, worker_kwargs={"memory_limit": 0})
async def test_what_a_task_was_waited_for_by_has_its_token_next_and_no_other_has_one(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs")
    gate = Gate()
    async with rt.job("gated", nodes=1) as job:
        await started(s, job)
        tokens_for(s, job, 1)
        s.add_plugin(sent := Sent(), name="sent")
        last = c.submit(through, 0, gate, key="gated-0")
        for number in range(1, 6):
            last = c.submit(inc, last, key=f"gated-{number}")
        gate.open()
        assert await within(last) == 5
        assert not [step for step in sent.steps if step[0] != "gated-0" and "no-worker" in step]
        # several at once; while no worker takes tasks they wait for one
        gate = Gate()
        first = c.submit(through, 0, gate, key="gated-first")
        both = [c.submit(inc, first, key=f"gated-both{number}") for number in range(2)]
        after = c.submit(sum, both, key="gated-after")
        await until(lambda: gate.arrived, "it runs")
        (mine,) = [worker for worker in workers if worker.state.executing_count]
        mine.status = Status.paused
        await until(lambda: s.workers[mine.address] not in s.running, "it is paused")
        gate.open()
        await until(lambda: [s.tasks[each.key].state for each in both] == ["no-worker"] * 2, "they wait")
        mine.status = Status.running
        assert await within(after) == 2
        assert sent.most == 1
    s.remove_plugin("sent")


class Kept(dict):
    """Limits that remember what they ever were."""

    def __init__(self):
        self.ever = set()

    def __setitem__(self, target, limit):
        super().__setitem__(target, limit)
        self.ever.add(limit)


@asynccontextmanager
async def beating(worker):
    """What was measured is told often, for a test that is soon over."""

    async def beat():
        while True:
            await worker.heartbeat()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
