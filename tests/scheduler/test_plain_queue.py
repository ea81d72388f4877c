"""Root tasks of plain work wait in stock's own queue, and go to the nodes of plain work alone."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import dask
from distributed.collections import HeapSet
from helpers import (
    Gate,
    Starts,
    addresses_of,
    asleep,
    engine,
    idle_job,
    live,
    owner_of,
    record,
    started,
    through,
    until,
    within,
)
from tasks import slow_inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.placing import queue as of_queue
from dask_hpc.scheduler.placing.past import Pace
from dask_hpc.scheduler.placing.queue import PlainQueue


@live(2)
async def test_plain_tasks_are_queued_by_stock_and_run_on_nodes_that_no_job_holds(c, s, a, b):
    starts, gate = Starts(), Gate()
    await starts.watch([a, b])
    async with idle_job(c, s) as (_, idle):
        with dask.annotate(hpc_job=None):
            futures = c.map(through, range(20), gate=gate, key="plain", pure=False)
        await until(lambda: gate.arrived, "they run")
        waiting = [f.key for f in futures if s.tasks[f.key].state == "queued"]
        assert len(waiting) == 20 - 2
        assert all(s.tasks[f.key].worker_restrictions is None for f in futures)
        assert engine(s).state.plain[0].held == 18
        gate.open()
        assert await within(c.gather(futures)) == list(range(20))
        assert starts.places([f.key for f in futures]).isdisjoint(addresses_of(s, idle))
        assert not starts.twice(starts.count)
    await asleep(s)
    assert type(s.idle_task_count) is set
    assert {ws.address for ws in s.idle_task_count} == {a.address, b.address}


@live(2)
async def test_a_node_that_plain_work_gives_up_gets_none_of_its_queue(c, s, a, b):
    gate = Gate()
    rt = await dask_hpc.install(c, policy="fcfs", default_job_min_nodes=1)
    async with rt.job("wakes", nodes=1) as wakes:
        await started(s, wakes)
    with dask.annotate(hpc_job=None):
        plain = c.map(through, range(30), gate=gate, key="plain", pure=False)
    await until(lambda: gate.arrived == 2, "both nodes are busy")
    async with rt.job("late", nodes=1) as late:
        await until(lambda: engine(s).rounds.active, "a node is asked for")
        gate.open()
        await started(s, late)
        own = c.map(through, range(3), gate=gate, key="own", pure=False)
        assert await within(c.gather(own)) == list(range(3))
    assert await within(c.gather(plain)) == list(range(30))
    assert owner_of(s, plain[0].key) is None or record(s, late).state == "completed"


@live(2, lend="5 s")
async def test_what_is_queued_is_drawn_for_threads_that_are_lent(c, s, a, b):
    starts, gate = Starts(), Gate()
    await starts.watch([a, b])
    async with idle_job(c, s) as (_, idle):
        with dask.annotate(hpc_job=None):
            stop = c.submit(through, 0, gate, key="stop")
            await until(lambda: gate.arrived, "a node is busy")
            quick = c.map(abs, range(20), key="quick", pure=False)
        assert await within(c.gather(quick[1:10]), 20) == list(range(1, 10))
        assert addresses_of(s, idle) <= starts.places([f.key for f in quick])
        gate.open()
        assert await within(c.gather([stop, *quick])) == [0, *range(20)]
        assert record(s, idle).lent_tasks > 8
        await until(lambda: not engine(s).queue.closed, "the queue is stock's again")


@live(4, config={"distributed.scheduler.worker-saturation": math.inf})
async def test_without_queuing_siblings_stay_together_on_the_nodes_that_no_job_holds(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    async with idle_job(c, s) as (_, idle):
        gate = Gate()
        with dask.annotate(hpc_job=None):
            futures = c.map(through, range(12), gate=gate, key=[f"plain-{i:02}" for i in range(12)])
        await until(lambda: all(f.key in s.tasks and s.tasks[f.key].processing_on for f in futures), "sent")
        where = [s.tasks[f.key].processing_on.address for f in futures]
        gate.open()
        assert await within(c.gather(futures)) == list(range(12))
    assert addresses_of(s, idle).isdisjoint(where)
    # one worker after the other is filled with what belongs together
    assert [len(list(group)) for _, group in itertools.groupby(where)] == [4, 4, 4]


@live(4, config={"distributed.scheduler.worker-saturation": math.inf})
async def test_without_queuing_what_a_lost_worker_had_goes_to_no_node_of_a_job(c, s, *workers):
    starts, gate = Starts(), Gate()
    await starts.watch(workers)
    async with idle_job(c, s) as (_, idle):
        with dask.annotate(hpc_job=None):
            first = c.submit(through, 0, gate=gate, key="first")
            keys = [f"plain-{i:02}" for i in range(12)]
            futures = c.map(through, [*range(10), first, first], gate=gate, key=keys)
        sent = keys[:10]
        await until(lambda: all(key in s.tasks and s.tasks[key].processing_on for key in sent), "sent")
        group = s.tasks[keys[0]].group
        # the worker that stock has chosen for the next of the group
        assert group.last_worker_tasks_left
        await s.remove_worker(group.last_worker.address, stimulus_id="test", close=False)
        await until(lambda: all(s.tasks[key].processing_on for key in sent), "sent anew")
        where = {s.tasks[key].processing_on.address for key in sent}
        gate.open()
        assert await within(c.gather(futures)) == [*range(10), 0, 0]
    assert addresses_of(s, idle).isdisjoint(where)


@live(3, lend="5 s")
async def test_jobs_that_take_turns_on_their_own_nodes_leave_plain_work_its_node(c, s, *workers):
    gate = Gate()
    plain = c.map(through, range(60), gate=gate, key="plain", pure=False)
    await until(lambda: s.queued, "it is queued")
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("one") as one, rt.job("two") as two:
        backlogs = []
        for job in (one, two):
            with dask.annotate(hpc_job=job.id):
                backlogs += c.map(slow_inc, range(400), delay_s=0.02, key=job.id, pure=False)
        await until(lambda: record(s, one).held and record(s, two).held, "both hold tasks")
        assert s.queued
        gate.open()
        with dask.annotate(hpc_job=None):
            assert await within(c.gather(plain)) == list(range(60))
        assert record(s, one).held
        assert record(s, two).held
        for job in (one, two):
            await job.cancel()


class Task:
    """A task in stock's queue."""

    state = "queued"

    def __init__(self, key):
        self.key = key


def test_what_is_nobodys_yet_does_not_keep_what_is_behind_it_in_the_queue_from_being_drawn():
    root = Lane(SimpleNamespace(is_default=True), "root", None)
    queued = HeapSet(key=lambda ts: ts.key)
    tasks = {number: Task(number) for number in range(6)}
    for ts in tasks.values():
        queued.add(ts)

    def transitions(recommendations, stimulus_id):
        for key in recommendations:
            queued.discard(tasks[key])

    scheduler = SimpleNamespace(queued=queued, transitions=transitions)
    plain = Lane(SimpleNamespace(is_default=True, lanes={"root": root}), "queue", None)
    owner = {key: plain for key in tasks if key != 1}
    PlainQueue(SimpleNamespace(scheduler=scheduler, owner=owner), print).draw(4, "test")
    assert sorted(ts.key for ts in queued) == [1, 4, 5]
    assert [key for key, lane in owner.items() if lane is root] == [0, 2, 3]


def test_of_a_queue_that_is_longer_than_a_look_those_that_come_first_are_looked_at(monkeypatch):
    monkeypatch.setattr(of_queue, "MOST", 50)
    queued = HeapSet(key=lambda ts: ts.priority)
    tasks = [Task(number) for number in range(2000)]
    for ts in tasks:
        ts.priority, ts.prefix = (0, ts.key), "long" if ts.key % 10 else "quick"
        queued.add(ts)
    for ts in tasks[10:1000:10]:  # drawn before
        queued.discard(ts)
    tasks[0].prefix, tasks[2].prefix, drawn = "long", "quick", {}
    scheduler = SimpleNamespace(queued=queued, transitions=lambda wanted, _: drawn.update(wanted))
    plain = Lane(SimpleNamespace(is_default=True, lanes={"root": None}), "queue", None)
    owner = {ts.key: plain for ts in tasks}
    settings = SimpleNamespace(lend_s=5.0)
    state = SimpleNamespace(scheduler=scheduler, owner=owner, settings=settings, plain=[None])
    lending = SimpleNamespace(takes=lambda ts: ts.prefix == "quick", draws=Pace(print))
    PlainQueue(state, print).draw_lendable(4, lending, "test")
    assert [*drawn] == [2]
