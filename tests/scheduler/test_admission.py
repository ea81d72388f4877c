"""Root tasks of jobs wait on the scheduler, as they do in stock Dask: the queue stays with it."""

from __future__ import annotations

import asyncio
import math

import pytest
from helpers import (
    ENTRIES,
    Gate,
    InFlight,
    Starts,
    addresses_of,
    asleep,
    engine,
    live,
    owner_of,
    record,
    started,
    state_of,
    through,
    until,
    within,
    without_validation,
)
from tasks import inc, slow_inc

import dask_hpc

#: Far more than workers are given at once.
ROOTS = 400


def add(value, other):
    return value + other


async def _stock_peak(c, s, n):
    peak = InFlight(s)
    await c.gather(c.map(inc, range(n), pure=False))
    s.remove_plugin("in-flight")
    return peak.peak


@pytest.mark.parametrize("shape", ["free", "one dependency"])
@live(workers=2, timeout=60)
async def test_roots_stay_within_the_bound_of_one_thread(c, s, a, b, shape):
    without_validation(s, [a, b])
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        peak = InFlight(s)
        if shape == "free":
            futures = c.map(inc, range(ROOTS), pure=False)
        else:
            shared = c.submit(inc, 0, pure=False)
            futures = c.map(add, range(ROOTS), other=shared, pure=False)
        await until(lambda: record(s, job).held > ROOTS / 2, "held")
        total = c.submit(sum, futures, pure=False)
        assert await total == sum(range(1, ROOTS + 1))
    assert peak.peak == 2
    s.remove_plugin("in-flight")
    await job.wait(10)


@live(workers=2, threads=4, timeout=60)
async def test_roots_stay_within_the_bound_of_four_threads(c, s, a, b):
    without_validation(s, [a, b])
    stock = await _stock_peak(c, s, 200)
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        peak = InFlight(s)
        futures = c.map(inc, range(ROOTS), pure=False)
        assert await c.submit(sum, futures, pure=False) == sum(range(1, ROOTS + 1))
    assert peak.peak == stock == 5
    s.remove_plugin("in-flight")
    await job.wait(10)


@live(workers=3, timeout=60)
async def test_roots_that_a_worker_loses_stay_within_the_bound(c, s, *workers):
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        futures = c.map(inc, range(300), pure=False)
        await until(lambda: sum(len(w.data) for w in workers) > 150, "half are done")
        peak = InFlight(s)
        await workers[1].close()
        assert await c.gather(futures) == list(range(1, 301))
    assert peak.peak == 2
    s.remove_plugin("in-flight")
    await job.wait(10)


@live(timeout=60)
async def test_roots_stay_within_the_bound_beside_plain_tasks(c, s, *workers):
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    plain = c.map(inc, range(200), pure=False)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        peak = InFlight(s)
        futures = c.map(inc, range(200), pure=False)
        assert await c.gather(futures) == list(range(1, 201))
        assert await c.gather(plain) == list(range(1, 201))
    assert peak.peak <= 2
    s.remove_plugin("in-flight")
    await job.wait(10)


@live(workers=2, config={"distributed.scheduler.worker-saturation": math.inf})
async def test_without_queuing_nothing_is_held(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        peak = InFlight(s)
        home = addresses_of(s, job)
        starts = Starts()
        await starts.watch([a, b])
        futures = c.map(inc, range(100), pure=False)
        assert await c.gather(futures) == list(range(1, 101))
        assert starts.places(f.key for f in futures) == home
    # as stock does it with infinite saturation, all of them at once
    assert peak.peak == 100
    s.remove_plugin("in-flight")
    await job.wait(10)


@live(workers=2, config={"distributed.worker.memory.pause": False})  # or their monitor resumes them
async def test_a_paused_worker_gets_nothing_and_work_goes_on_when_it_resumes(c, s, a, b):
    from distributed.core import Status

    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        a.status = b.status = Status.paused
        await until(lambda: not s.running, "paused")
        futures = c.map(inc, range(20), pure=False)
        await until(lambda: record(s, job).held == 20, "all held")
        a.status = Status.running
        assert await c.gather(futures) == list(range(1, 21))
        assert not s.workers[b.address].processing
        b.status = Status.running
    await job.wait(10)


@live(workers=2, lend="5 s", config={"distributed.worker.memory.pause": False})
async def test_what_a_paused_node_could_not_take_goes_to_the_one_that_comes_for_it(c, s, a, b):
    from distributed.core import Status

    rt = await dask_hpc.install(c, "fcfs")
    gate, one = Gate(), await c.scatter(1, broadcast=True)
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        busy = c.map(through, range(2), gate=gate, pure=False)
        await until(lambda: gate.arrived == 2, "busy")
        waits = await rt.job("waits", nodes=1).__aenter__()
        future = c.submit(inc, one, pure=False)
        await until(lambda: record(s, waits).nodeless, "held, for it has no node")
    a.status = b.status = Status.paused
    await until(lambda: not s.running, "paused")
    gate.open()
    await started(s, waits, 1)
    passes = engine(s).admission._counter
    await until(lambda: engine(s).admission._counter > passes + 2, "sent, if there was a worker")
    assert record(s, waits).nodeless, "held again, to be lent a thread"
    [address] = addresses_of(s, waits)
    taken, other = (a, b) if a.address == address else (b, a)
    other.status = Status.running
    await until(lambda: s.running, "the other one goes on")
    await taken.close()
    assert await within(future) == 2
    assert await c.gather(busy) == [0, 1]
    await waits.__aexit__(None, None, None)


@live(workers=2)
async def test_held_tasks_are_admitted_in_order_of_their_dask_priority(c, s, a, b):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        first = c.map(through, range(2), gate=gate, pure=False)
        await until(lambda: gate.arrived == 1, "busy")
        order = []

        low = c.map(order_of, range(5), who="low", pure=False, priority=-10)
        high = c.map(order_of, range(5), who="high", pure=False, priority=10)
        await until(lambda: record(s, job).held >= 10, "held")
        ORDER.clear()
        gate.open()
        await c.gather([*first, *low, *high])
        order = list(ORDER)
    assert order == ["high"] * 5 + ["low"] * 5
    await job.wait(10)


ORDER = []


def order_of(value, who):
    ORDER.append(who)


# ------------------------------------------------------------- the default job


@live()
async def test_plain_tasks_run_on_the_nodes_that_no_job_holds(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        free = set(s.workers) - addresses_of(s, job)
        mine = c.map(through, range(30), gate=gate, pure=False)
        with plain_context():
            plain = c.map(inc, range(50), pure=False)
            after = c.map(inc, plain, pure=False)
        assert await c.gather(after) == list(range(2, 52))
        assert starts.places(f.key for f in [*plain, *after]) == free
        assert {owner_of(s, f.key) for f in plain} != {job.id}
        gate.open()
        assert await c.gather(mine) == list(range(30))
        assert starts.places(f.key for f in mine).isdisjoint(free)
    await job.wait(10)
    await asleep(s)
    assert await c.gather(after) == list(range(2, 52))


def plain_context():
    """Take out what the surrounding job context says: tasks submitted here are plain."""
    import dask

    return dask.annotate(hpc_job="default")


@live(workers=3)
async def test_plain_work_gets_the_nodes_that_a_job_frees(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("anchor", nodes=1) as anchor:
        await started(s, anchor, 1)
        async with rt.job("other", nodes=1) as other:
            await started(s, other, 1)
            freed = addresses_of(s, other)
            with plain_context():
                plain = c.map(through, range(20), gate=gate, pure=False)
            await until(lambda: gate.arrived == 1, "it runs on the third node")
            assert {ws.address for ws in s.workers.values() if ws.processing}.isdisjoint(freed)
        await other.wait(10)
        await until(lambda: gate.arrived == 2, "it runs on the freed node too")
        assert {ws.address for ws in s.workers.values() if ws.processing} > freed
        assert state_of(s, anchor) == "running"
        gate.open()
        assert await c.gather(plain) == list(range(20))
    await anchor.wait(10)


@live()
async def test_plain_tasks_are_held_like_those_of_a_job(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    plain = c.map(through, range(100), gate=gate, pure=False)
    async with rt.job("main", nodes=2) as job:
        await until(lambda: gate.arrived >= 2, "plain work runs")
        assert all(len(ws.processing) <= 2 for ws in s.workers.values())
        gate.open()
        await started(s, job, 2)
        assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))
    await job.wait(10)
    assert await c.gather(plain) == list(range(100))


@live(timeout=60)
async def test_a_job_beside_a_plain_backlog_does_not_wait_for_it(c, s, *workers):
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    plain = c.map(slow_inc, range(1000), delay_s=0.02, pure=False)
    async with rt.job("main", nodes=2) as job:
        futures = c.map(slow_inc, range(100), delay_s=0.02, pure=False)
    await job.wait(30)
    assert await c.gather(futures) == list(range(1, 101))
    done = sum(s.tasks[f.key].state == "memory" for f in plain)
    assert done < 500
    await c.cancel(plain)


@live()
async def test_plain_tasks_submitted_behind_a_pool_wide_job_wait_for_it(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma")
    gate, job_gate = Gate(), Gate()
    before = c.map(through, range(6), gate=gate, pure=False)
    await until(lambda: gate.arrived >= 1, "plain work runs")
    async with rt.job("wide", nodes=4) as job:
        with plain_context():
            after = c.map(inc, range(6), pure=False)
        mine = c.map(through, range(6), gate=job_gate, pure=False)
        await until(lambda: record(s, job).unfinished == 6, "submitted")
        assert state_of(s, job) == "pending"
        gate.open()
        await started(s, job, 4)
        assert await c.gather(before) == list(range(6))
        assert {s.tasks[f.key].state for f in after} == {"no-worker"}
        job_gate.open()
    assert await c.gather(mine) == list(range(6))
    await job.wait(10)
    assert await asyncio.wait_for(c.gather(after), 10) == list(range(1, 7))


@live()
async def test_a_job_does_not_overtake_the_plain_graph_submitted_before_it(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    before = c.map(through, range(6), gate=gate, pure=False)
    async with rt.job("wide", nodes=4) as job:
        await until(lambda: gate.arrived >= 1, "plain work runs")
        assert state_of(s, job) == "pending"
        gate.open()
        await started(s, job, 4)
    await job.wait(10)
    assert await c.gather(before) == list(range(6))


@live()
async def test_plain_work_gets_a_node_when_a_malleable_job_holds_all_of_them(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma")
    async with rt.job("main", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        futures = c.map(slow_inc, range(200), pure=False)
        with plain_context():
            plain = c.map(inc, range(10), pure=False)
        assert await asyncio.wait_for(c.gather(plain), 15) == list(range(1, 11))
        assert await c.gather(futures) == list(range(1, 201))
    await job.wait(10)


@live()
async def test_results_of_plain_tasks_feed_jobs_and_back(c, s, *workers):
    rt = await dask_hpc.install(c)
    plain = c.map(inc, range(10), pure=False)
    async with rt.job("main", nodes=2) as job:
        mine = c.map(inc, plain, pure=False)
    back = c.map(inc, mine, pure=False)
    assert await c.gather(back) == list(range(3, 13))
    await job.wait(10)
    await asleep(s)
    assert await c.gather(c.map(inc, back)) == list(range(4, 14))


@live()
async def test_with_no_job_declared_the_scheduler_is_stock(c, s, *workers):
    def picture():
        return (
            dict(s.plugins),
            {k: v for k, v in s.stream_handlers.items() if k not in ENTRIES},
            dict(s.periodic_callbacks),
            "valid_workers" in vars(s),
            {k for k in s.handlers if k != "hpc"},
            set(s.extensions),
        )

    stock = picture()
    rt = await dask_hpc.install(c)
    assert picture() == stock
    peak = InFlight(s)
    futures = c.map(inc, range(100), pure=False)
    assert await c.gather(futures) == list(range(1, 101))
    assert peak.peak == 2
    s.remove_plugin("in-flight")
    assert all(ts.worker_restrictions is None for ts in s.tasks.values())
    assert picture() == stock
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        assert picture() != stock
        more = c.map(inc, futures)
        await c.gather(more)
    await job.wait(10)
    await asleep(s)
    assert picture() == stock
    assert all(ts.worker_restrictions is None for ts in s.tasks.values())
    assert await c.gather(more) == list(range(2, 102))


@live(2)
async def test_no_workers_are_weighed_for_a_task_that_is_held_or_sent_to_a_free_slot(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("main", nodes=2) as job:
        await started(s, job)
        weighed, valid_workers = set(), s.valid_workers
        s.valid_workers = lambda ts: weighed.add(ts.key) or valid_workers(ts)
        roots = c.map(inc, range(20), key="root", pure=False)
        last = c.submit(sum, roots, key="last")
        assert await within(last) == sum(range(1, 21))
        assert weighed == {"last"}
