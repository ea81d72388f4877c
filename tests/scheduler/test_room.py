"""How much room a worker has: tasks that wait there for a resource take no thread; a saturation is kept."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Gate, InFlight, live, started, through, until, within
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.scheduler.internals.crowds import starved
from dask_hpc.scheduler.internals.reads import room


def worker(offered: dict[str, float], *needs: dict[str, float], plain: int = 0, threads: int = 4) -> Any:
    """A worker that offers these resources, and has a task for each of `needs` and `plain` others."""
    sent = [SimpleNamespace(resource_restrictions=each) for each in needs]
    sent += [SimpleNamespace(resource_restrictions=None)] * plain
    return SimpleNamespace(nthreads=threads, resources=offered, processing=sent, long_running=())


GPU, BOTH, MEM = {"GPU": 1}, {"GPU": 1, "MEM": 8.0}, {"MEM": 8.0}


@pytest.mark.parametrize(
    ("offered", "needs", "waiting"),
    [
        ({}, [], 0),
        ({"GPU": 1}, [], 0),
        ({"GPU": 1}, [GPU], 0),
        ({"GPU": 1}, [GPU] * 40, 39),
        ({"GPU": 1.5}, [GPU] * 40, 39),
        ({"GPU": 3}, [{"GPU": 2}] * 10, 9),
        ({"GPU": 0.3}, [{"GPU": 0.1}] * 10, 7),
        # one executes of each kind
        ({"GPU": 1, "MEM": 10.0}, [GPU] * 5 + [MEM] * 5, 8),
        # who waits for both is one task
        ({"GPU": 1, "MEM": 10.0}, [BOTH] * 10, 9),
        ({"GPU": 1, "MEM": 100.0}, [BOTH] * 10, 9),
        ({"GPU": 1}, [GPU] * 3000, 2999),
    ],
)
def test_tasks_that_wait_for_a_resource_are_those_beyond_what_a_worker_offers(
    offered: dict[str, float], needs: list[dict[str, float]], waiting: int
) -> None:
    assert starved(worker(offered, *needs)) == waiting


def test_a_resource_that_is_offered_no_more_and_one_of_which_nothing_is_needed_keep_nobody_waiting() -> None:
    ws = worker({"GPU": 1}, GPU, GPU)
    assert starved(ws) == 1
    ws.resources = {}
    assert starved(ws) == 0
    assert starved(worker({"GPU": 0}, {"GPU": 0})) == 0


@pytest.mark.parametrize(("saturation", "slots", "idle"), [(0.5, 1, 1), (1.0, 3, 3), (1.5, 5, 3)])
def test_the_room_of_a_worker_is_what_it_is_without_tasks_that_wait_for_a_resource(
    saturation: float, slots: int, idle: int
) -> None:
    busy, free = worker({"GPU": 1}, *[GPU] * 40), worker({}, plain=1)
    scheduler: Any = SimpleNamespace(running=[busy, free], WORKER_SATURATION=saturation)
    assert room(scheduler, busy) == room(scheduler, free) == (slots, idle)


@live(1, threads=2, worker_kwargs={"resources": {"GPU": 1}})
async def test_tasks_of_a_job_run_beside_others_of_it_that_wait_for_a_resource(c, s, a):
    gate = Gate()
    rt = await dask_hpc.install(c)
    async with rt.job("learns", nodes=1) as job:
        await started(s, job)
        waiting = c.map(through, range(10), gate=gate, key="needs", resources={"GPU": 1}, pure=False)
        await until(lambda: gate.arrived == 1 and len(a.state.tasks) == 10, "one executes, all are there")
        asked = c.map(inc, range(3), key="asks", pure=False)
        assert await within(c.gather(asked)) == [1, 2, 3]
        assert gate.arrived == 1
        gate.open()
        assert await within(c.gather(waiting)) == list(range(10))


@live(
    2,
    threads=2,
    worker_kwargs={"resources": {"GPU": 1}},
    config={"distributed.scheduler.work-stealing-interval": "10 ms"},
)
async def test_a_worker_from_which_tasks_were_stolen_that_need_a_resource_has_no_more_threads_than_before(
    c, s, a, b
):
    """Stock counts what a stolen task needs at the worker that it was stolen from, for ever."""
    there = await c.scatter(b"x" * 1000, workers=[a.address])
    asked = c.map(lambda value, _: slow_inc(value, 0.05), range(20), [there] * 20, resources={"GPU": 1})
    assert await within(c.gather(asked)) == list(range(1, 21))
    assert s.workers[a.address].used_resources["GPU"] > 0
    gate = Gate()
    here = c.submit(through, 1, gate, resources={"GPU": 1}, workers=[a.address], pure=False)
    await until(lambda: gate.arrived == 1, "one of two threads is busy")
    assert room(s, s.workers[a.address]) == (2, 1)
    gate.open()
    await within(here)


@pytest.mark.parametrize("waits", [False, True])
@live(2, threads=4, lend="5 s", config={"distributed.scheduler.worker-saturation": 0.5})
async def test_tasks_of_a_job_leave_threads_idle_that_stock_would(c, s, a, b, waits):
    """Also those that are lent."""
    seen = InFlight(s)
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("idle", nodes=2) as job:
        await started(s, job)
        async with rt.job("waits", nodes=1) if waits else contextlib.nullcontext():
            futures = c.map(slow_inc, range(40), pure=False)
            assert await within(c.gather(futures)) == list(range(1, 41))
    assert seen.peak == 2
