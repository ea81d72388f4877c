"""What was cancelled while it executed goes on to have its thread: nodes with such threads are given last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed.metrics import time
from helpers import Gate, addresses_of, asleep, engine, live, started, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.lingering import Lingering


@live(workers=3)
async def test_jobs_after_a_cancel_get_nodes_whose_threads_are_idle(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    lingering = engine(s).state.lingering
    async with rt.job("first", nodes=1) as first:
        await started(s, first)
        (busy,) = addresses_of(s, first)
        held = c.submit(through, 1, gate=gate, pure=False)
        await until(lambda: gate.arrived == 1, "it executes")
        await first.cancel()
    held.release()

    async def next_one():
        async with rt.job("next", nodes=1) as job:
            await started(s, job)
            assert busy not in addresses_of(s, job)
            assert await within(c.submit(inc, 1, pure=False)) == 2
        await job.wait(10)

    # at once, and when heartbeats have told, also after the runtime has slept
    await next_one()
    said = s.workers[busy]
    await until(lambda: said.metrics["task_counts"].get("cancelled") == 1, "its worker says so")
    await asleep(s)
    await until(lambda: said.last_seen > time() - 0.3 and lingering.threads(said) == 1, "still so")
    await next_one()
    async with rt.job("wide", nodes=3) as wide:
        await started(s, wide, 3)
        assert busy in addresses_of(s, wide)
    await wide.wait(10)
    gate.open()
    await until(lambda: lingering.threads(said) == 0, "its thread is idle")
    async with rt.job("last", nodes=1) as last:
        await started(s, last)
        assert addresses_of(s, last) == {busy}


class Known(SimpleNamespace):
    """A task or a worker, in as far as it is looked at."""

    __hash__ = object.__hash__


class Scheduler:
    """What is read of one: a worker with two threads, and its tasks."""

    def __init__(self, **tasks: bool) -> None:
        """By key, whether the task is on the worker."""
        self.worker: Any = Known(address="a", nthreads=2, long_running=set(), last_seen=time(), metrics={})
        self.workers = {self.worker.address: self.worker}
        self.tasks = {
            key: Known(key=key, processing_on=self.worker if there else None) for key, there in tasks.items()
        }


def test_what_was_cut_off_counts_until_a_later_heartbeat_says_what_there_is():
    scheduler: Any = Scheduler(cut=True, goes_on=True, waits=False)
    lingering, ws = Lingering(scheduler), scheduler.worker
    with lingering.cancelling(["cut", "goes_on", "waits", "unknown"]):
        scheduler.tasks["cut"].processing_on = None
    assert lingering.threads(ws) == 1
    # sent before the worker knew
    ws.last_seen, ws.metrics = time(), {"task_counts": {"executing": 2}}
    assert lingering.threads(ws) == 1
    ws.last_seen = time() + 2.0
    assert lingering.threads(ws) == 0


def test_cancels_add_up_to_all_threads_of_a_worker_and_what_has_left_its_thread_has_none():
    scheduler: Any = Scheduler(first=True, second=True, third=True, seceded=True)
    lingering, ws, tasks = Lingering(scheduler), scheduler.worker, scheduler.tasks
    ws.nthreads, ws.long_running = 3, {tasks["seceded"]}
    for keys, threads in ((["first"], 1), (["second", "seceded"], 2), ([], 2)):
        with lingering.cancelling(keys):
            for key in keys:
                tasks[key].processing_on = None
        assert lingering.threads(ws) == threads
    ws.nthreads = 1  # some have waited for a thread
    assert lingering.threads(ws) == 1
    scheduler.workers.clear()
    with lingering.cancelling(["third"]):
        pass
    assert not lingering._cut, "nothing is known of what has gone"


@pytest.mark.parametrize(
    ("counts", "threads"),
    [
        ({"cancelled": 1, "memory": 7}, 1),
        ({"resumed": 1, "cancelled": 1}, 2),
        ({"cancelled": 9}, 2),
        (None, 0),
    ],
)
def test_heartbeats_say_how_many_threads_execute_what_is_not_wanted(counts, threads):
    scheduler: Any = Scheduler()
    scheduler.worker.metrics = {"task_counts": counts}
    assert Lingering(scheduler).threads(scheduler.worker) == threads
