"""A flow between processes: a client that blocks, workers of their own, that are killed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time

import dask
import numpy as np
import pytest
from coupled import FIELDS, opened, started
from helpers import live
from sources import Producer, asked, nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.coupling import source as source_of
from dask_hpc.errors import CouplingError
from dask_hpc.worker.coupling import receiver, ring


def lies_in_a_ring(array):
    """Whether an array is a view of a slot that the program has written to."""
    while isinstance(array, np.ndarray):
        array = array.base
    return type(array) is ring._Slot


@live(workers=1, timeout=60)
async def test_a_program_that_is_killed_is_missed_while_a_child_that_it_has_forked_goes_on(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        assert await asked(made[0], "send", step=0) is True
        assert await anext(values) == (0, 0.0)
        child = await asked(made[0], "child")
        try:
            assert await asked(made[0], "send", step=1) is True
            assert await anext(values) == (1, 1.0)
            made[0].end()
            with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
                await anext(values)
        finally:
            os.kill(child, signal.SIGKILL)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_block_is_copied_once_into_the_slot_that_its_analysis_reads(c, s, a):
    flow, values = await started(c)
    await flow.analyse(lambda ds: lies_in_a_ring(ds["T"].values), name="in_the_ring")
    inside = flow.results("in_the_ring", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        for step in range(3):
            made[0].tell("send", step=step)
            # the program has other values in its array by then
            assert (await anext(values), await told(made[0])) == ((step, float(step)), True)
            assert await anext(inside) == (step, True)
        assert await asked(made[0], "ways") == [3, 0]
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_worker_that_had_no_memory_for_a_ring_is_asked_again(c, s, a, monkeypatch):
    asked_for: list[tuple] = []

    def full(*told):
        asked_for.append(told)
        raise OSError("the memory of this host is full")

    def elsewhere(told):
        raise OSError("no such file")

    flow, values = await started(c)
    source = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    steps = itertools.count()

    async def sent() -> tuple[int, int]:
        step = next(steps)
        assert await asyncio.to_thread(source.send, step, {"T": whole(step)}) is True
        assert await anext(values) == (step, float(step))
        return source.by_ring, source.by_comm

    with monkeypatch.context() as patch:
        patch.setattr(receiver, "Ring", full)
        assert [await sent() for _ in range(2)] == [(0, 1), (0, 2)]
        assert len(asked_for) == 1
    monkeypatch.setattr(source, "_ring_due_s", time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(source_of, "RingEnd", elsewhere)
        assert (await sent(), source._ring_due_s) == ((0, 3), float("inf"))
    monkeypatch.setattr(source, "_ring_due_s", time.monotonic())
    assert await sent() == (1, 3)
    await asyncio.to_thread(source.close)
    await flow.close()
    await nothing_left(s, a)


def test_workers_that_are_killed_cost_no_step_as_their_blocks_are_sent_again():
    with (
        dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client)
        flow = rt.couple("heat", {"T": (("y", "x"), (8, 6), "float64")})
        flow.analyse(lambda ds: float(ds["T"].sum()), name="sum", window=3)
        seen = []
        flow.on_step(lambda step, ds: seen.append((step, float(ds["T"].mean()))))
        values = flow.results("sum", timeout=60)
        made = [
            Producer(cluster.scheduler_address, rank, 2, rows) for rank, rows in enumerate([(0, 4), (4, 8)])
        ]
        got = []

        def kill(number):
            address = flow.status()["workers"][number]
            os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)

        try:
            for one in made:
                one.tell("open")
            assert [one.answer() for one in made] == ["open", "open"]
            for step in (0, 1, 2):
                for one in made:
                    one.tell("send", step=step)
                assert [one.answer() for one in made] == [True, True]
            got.append(next(values))
            # one of the two has half of step 3, and of those before it what the next window needs
            assert made[0].ask("send", step=3) is True
            kill(0)
            assert [made[1].ask("send", step=3), made[0].ask("send", step=4)] == [True, True]
            assert made[1].ask("send", step=4) is True
            got.append(next(values))
            for one in made:
                one.tell("many", first=5, last=24)
            got += [next(values) for _ in range(6)]
            # that of both by now
            kill(0)
            for one in made:
                one.tell("close")
            got += list(values)
            assert [sum(one.answer()) for one in made] == [24, 24]
            assert made[0].answer() == made[1].answer() == "closed"
        finally:
            for one in made:
                one.end()
        sums = [float(np.sum([whole(n) for n in range(last - 2, last + 1)])) for last in range(2, 24)]
        assert [step for step, _ in got] == list(range(2, 24))
        assert [value for _, value in got] == pytest.approx(sums)
        assert [step for step, _ in seen] == list(range(24))
        assert [mean for _, mean in seen] == pytest.approx([float(whole(n).mean()) for n in range(24)])
        flow.close()
        deadline_s = time.monotonic() + 20
        while left := client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)):
            # errors refer to what they come from until they are collected
            gc.collect()
            assert time.monotonic() < deadline_s, left


def test_what_data_sets_need_is_loaded_where_a_worker_reads_its_messages():
    def watch():
        import sys
        import threading

        class Watch:
            """Sees on which threads packages are looked for."""

            def __init__(self):
                self.found = {}

            def find_spec(self, name, path=None, target=None):
                self.found[name] = self.found.get(name, True) and threading.get_ident() == reads

        reads = threading.get_ident()
        sys.meta_path.insert(0, Watch())

    def seen(ds):
        import sys

        found = sys.meta_path[0].found
        return [found[name] for name in ("xarray", "dask.array")]

    with (
        # those of other tests are forked from a process that has loaded all that
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),
        dask_hpc.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        flow = dask_hpc.install(client).couple("heat", FIELDS)
        flow.analyse(seen, name="seen")
        values = flow.results("seen", timeout=60)
        client.run(watch)
        made = Producer(cluster.scheduler_address)
        try:
            assert [made.ask("open"), made.ask("send", step=0)] == ["open", True]
            # a message that comes meanwhile, and names a part of them, would end the worker
            assert next(values) == (0, [True, True])
        finally:
            made.end()
