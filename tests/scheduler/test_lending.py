"""Idle threads of a job's nodes run what others wait for, and come back when one task has ended."""

from __future__ import annotations

import gc
from collections import Counter
from types import SimpleNamespace

import dask
import pytest
from helpers import (
    Gate,
    Starts,
    addresses_of,
    engine,
    idle_job,
    live,
    record,
    started,
    state_of,
    through,
    until,
    within,
)
from tasks import Counter as CountingActor

import dask_hpc
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.placing import lending as of_lending
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import registered
from dask_hpc.trace.records import LENDING
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


def quick(i):
    """A task of a kind of its own, so that what is learned of it is known."""
    return i


async def learn(c, s):
    """Have Dask know how long `quick` takes, before there is a job."""
    await c.gather(c.map(quick, range(2), key="quick", pure=False))
    await until(lambda: not s.tasks, "what it took is known, and the results are gone")


async def idle_and_busy(c, s, *, gate, lender_options=None, policy="fcfs"):
    """A job with one node that has nothing to do, and one with the other node that it fills."""
    rt = await dask_hpc.install(c, policy=policy)
    idle = await rt.job("idle", nodes=1, **(lender_options or {})).__aenter__()
    busy = await rt.job("busy", nodes=1).__aenter__()
    await started(s, idle)
    await started(s, busy)
    stop = c.submit(through, 0, gate, key="fills-the-node")
    await until(lambda: gate.arrived, "its node is busy")
    return rt, idle, busy, stop


@live(2, lend="5 s")
async def test_an_idle_node_of_a_job_runs_what_another_job_waits_for(c, s, a, b):
    starts, gate = Starts(), Gate()
    await starts.watch([a, b])
    await learn(c, s)
    _rt, idle, busy, _stop = await idle_and_busy(c, s, gate=gate)
    [lent] = addresses_of(s, idle)
    futures = c.map(quick, range(20), key="quick", pure=False)
    # nobody comes behind what fills the node while a thread is idle elsewhere, but for the last one
    await until(lambda: sum(f.done() for f in futures) >= 19, "lent slots are enough")
    assert all(starts.where[f.key] == {lent} for f in futures if f.done())
    gate.open()
    assert await c.gather(futures) == list(range(20))
    row, theirs = await busy.status(), await idle.status()
    assert row["borrowed_tasks"] == theirs["lent_tasks"] >= 19
    assert row["borrowed_s"] == pytest.approx(theirs["lent_s"])
    assert theirs["lent_s"] > 0
    said = "borrowed: its threads are busy", "lent: it has no task for a thread"
    assert (row["lending"], theirs["lending"]) == said
    assert not starts.twice(starts.count)
    await busy.__aexit__(None, None, None)
    await busy.wait(20)
    await idle.__aexit__(None, None, None)
    await idle.wait(20)
    # the trace is told once, of the whole, when a job has ended: it keeps a number of records
    for job in (busy, idle):
        row = await job.status()
        told = [each.data for each in engine(s).state.records if getattr(each, "kind", "") == LENDING]
        (last,) = [data for data in told if data["job"] == job.id]
        assert last.items() - {("job", job.id), ("t_s", last["t_s"])} <= row.items()
        assert last["lent_tasks"] + last["borrowed_tasks"] >= 19


@live(1, lend="5 s")
async def test_a_job_that_waits_for_nodes_is_done_on_borrowed_ones(c, s, a):
    await learn(c, s)
    async with idle_job(c, s) as (rt, _):
        async with rt.job("waits", nodes=1) as waits:
            inputs = c.map(quick, range(5), key="quick", pure=False)
            total = c.submit(sum, inputs, key="total")
            assert await within(total.result()) == 10
            assert state_of(s, waits) == "pending"
        row = await waits.wait(20)
        assert (row["state"], row["start_s"]) == ("completed", None)
        assert row["borrowed_tasks"] == 6


@live(1, lend="5 s")
async def test_plain_work_borrows_too(c, s, a):
    await learn(c, s)
    async with idle_job(c, s):
        with dask.annotate(hpc_job=None):
            assert await within(c.gather(c.map(quick, range(5), key="quick", pure=False))) == list(range(5))


@pytest.mark.parametrize("how", ["exclusive", "borrower", "producer", "pinned", "setting"])
@live(1, lend="5 s")
async def test_what_is_not_lent(c, s, a, how):
    await learn(c, s)
    with dask.config.set({"hpc.lend": "0 s"} if how == "setting" else {}):
        rt = await dask_hpc.install(c, policy="fcfs")
    job = rt.job("idle", nodes=1, exclusive=how == "exclusive")
    async with job:
        await started(s, job)
        if how == "producer":
            await job.producer().start()
        if how == "pinned":
            of(s).releases.pin([str(a.name)], True)
        async with rt.job("waits", nodes=1, exclusive=how == "borrower") as waits:
            future = c.submit(quick, 1, key="quick-later")
            await until(lambda: record(s, waits).held == 1, "it is held")
            # admission has looked, more than once
            passes = engine(s).admission._counter
            await until(lambda: engine(s).admission._counter > passes + 2, "nobody lends")
            assert s.tasks[future.key].state == "no-worker"
            assert record(s, waits).borrowed_tasks == 0
    assert await within(future.result()) == 1


@live(1, lend="30 min", threads=4)
async def test_the_first_of_a_name_goes_alone_and_long_ones_not_at_all(c, s, a, monkeypatch):
    monkeypatch.setattr(of_lending, "ALONE_S", 1000.0)
    gate = Gate()
    async with idle_job(c, s) as (rt, _), rt.job("waits", nodes=1) as waits:
        futures = c.map(through, range(4), gate=gate, key="new", pure=False)
        await until(lambda: gate.arrived, "the first runs")
        passes = engine(s).admission._counter
        await until(lambda: engine(s).admission._counter > passes + 2, "admission has looked again")
        assert (gate.arrived, record(s, waits).held) == (1, 3)
        # as if others had taken long
        s.tasks[futures[0].key].prefix.duration_average = 2000.0
        await until(lambda: engine(s).admission._counter > passes + 5, "and again")
        assert gate.arrived == 1
        await rt.update(lend="1 h")
        await until(lambda: gate.arrived == 4, "now they are short enough")
        gate.open()
        assert await c.gather(futures) == list(range(4))


@live(1, lend="2 s", threads=4, config={"hpc.sweep": "10 s"})
async def test_unknown_tasks_that_wait_for_each_other_all_get_a_slot_before_any_sweep(c, s, a):
    gate = Gate()
    async with idle_job(c, s) as (rt, _):
        async with rt.job("waits", nodes=1):
            futures = c.map(through, range(4), gate=gate, key="barrier", pure=False)
        await until(lambda: gate.arrived == 4, "all have come to the barrier", 1.5)
        gate.open()
        assert await c.gather(futures) == list(range(4))
        lending = engine(s).admission.lending
        await until(lambda: not lending.loans, "the slots are back")
        assert (lending._trials, lending._tried) == ({}, {})


@live(1, lend="5 s")
async def test_dependents_of_a_job_without_a_node_find_a_slot_when_nothing_else_happens(c, s, a):
    await learn(c, s)
    async with idle_job(c, s) as (rt, _):
        async with rt.job("waits", nodes=1):
            first = c.map(quick, range(5), key="quick", pure=False)
            second = c.map(quick, first, key="quick-second", pure=False)
            total = c.submit(sum, second, key="quick-total")
        assert await within(total.result()) == 10


@live(2, lend="5 s")
async def test_a_resize_does_not_wait_for_what_is_lent(c, s, a, b):
    gate, stays = Gate(), Gate()
    rt, idle, busy, stop = await idle_and_busy(c, s, gate=gate)
    future = c.submit(through, 1, stays, key="lent")
    await until(lambda: stays.arrived or record(s, busy).held == 0, "it is on its way")
    await until(lambda: stays.arrived == 1, "it runs on the borrowed node")
    # the lender ends, its node goes to the next job, and the task goes on
    await idle.__aexit__(None, None, None)
    await within(idle.wait())
    async with rt.job("next", nodes=1) as following:
        await started(s, following)
        assert not future.done()
        stays.open()
        assert await within(future.result()) == 1
    gate.open()
    await stop
    await busy.__aexit__(None, None, None)


@live(1, lend="5 s")
async def test_a_cancelled_task_gives_its_slot_back(c, s, a):
    gate = Gate()
    async with idle_job(c, s) as (rt, _):
        async with rt.job("waits", nodes=1) as waits:
            future = c.submit(through, 1, gate, key="lent")
            await until(lambda: gate.arrived, "it runs on the borrowed node")
            await waits.cancel()
            await until(future.cancelled, "it is told")
        await until(lambda: not engine(s).admission.lending.loans, "nothing is lent")
        gate.open()


@pytest.mark.parametrize(("priority", "borrowed"), [(0, (1, 1)), (1, (0, 2))])
@live(1, threads=2)
async def test_slots_go_to_the_larger_priority_then_to_who_has_fewer_and_none_twice(
    c, s, a, priority, borrowed
):
    gate, open_one = Gate(), Gate()
    open_one.open()
    await c.gather(c.map(through, range(2), gate=open_one, key="known", pure=False))
    await until(lambda: not s.tasks, "what it took is known, and the results are gone")
    async with idle_job(c, s) as (rt, _), rt.job("first", nodes=1) as first:
        futures = c.map(through, range(3), gate=gate, key="known", pure=False)
        async with rt.job("later", nodes=1, priority=priority) as later:
            futures += c.map(through, range(3), gate=gate, key="known", pure=False)
            await until(lambda: len(s.tasks) == 6, "all are known")
            assert not any(ts.processing_on for ts in s.tasks.values())
            lending = engine(s).admission.lending
            state = lending.state
            settings, state.settings = state.settings, state.settings.updated(lend_s=5.0)
            # the lender is about to send tasks of its own
            assert lending.choose([a.address], Counter({a.address: 2})) == []
            state.settings = settings
            await rt.update(lend="5 s")
            await until(lambda: gate.arrived == 2, "both threads are lent")
            assert (record(s, first).borrowed_tasks, record(s, later).borrowed_tasks) == borrowed
            gate.open()
            assert sorted(await within(c.gather(futures))) == [0, 0, 1, 1, 2, 2]


@live(2, lend="5 s")
async def test_an_actor_of_a_job_that_waits_is_made_at_once_and_ends_with_its_job(c, s, a, b):
    """Stock makes it at once, too; it hinders neither a resize of the lender nor its end."""
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("idle", nodes=2, min_nodes=1, max_nodes=2) as idle:
        await started(s, idle, 2)
        async with rt.job("waits", nodes=2) as waits:
            future = c.submit(CountingActor, 7, actor=True, key="actor")
            actor = await within(future)
            assert state_of(s, waits) == "pending"
            assert await actor.add(1) == 8
            there = {ws.address for ws in s.tasks["actor"].who_has}
            assert there <= addresses_of(s, idle)
            assert (await within(idle.resize(1)))["result"] == "done"
            assert await actor.add(1) == 9
            del actor, future
            # an actor's handle is in a cycle
            gc.collect()
        assert (await within(waits.wait(20)))["state"] == "completed"
        await until(lambda: "actor" not in s.tasks, "it has ended with what wanted it")


@live(1, lend="5 s")
async def test_a_job_that_may_not_use_its_thread_now_does_not_lend_it_while_it_holds_tasks(c, s, a):
    """What a part of the runtime has wait comes first when it may go on."""
    room = {"holds": 0}

    class Limit:
        def slots(self, job, worker):
            return room.get(job.name, 1000)

    await learn(c, s)
    with registered(lambda engine: Limit()):
        rt = await dask_hpc.install(c, policy="fcfs")
        async with rt.job("holds", nodes=1) as holds:
            await started(s, holds)
            lending = engine(s).admission.lending
            assert lending.idle() == {a.address: 1}
            held = c.map(quick, range(3), key="quick", pure=False)
            await until(lambda: record(s, holds).held == 3, "they are held")
            assert lending.idle() == {}
            async with rt.job("waits", nodes=1) as waits:
                other = c.submit(quick, 5, key="quick-other")
                await until(lambda: record(s, waits).held == 1, "it is held")
                passes = engine(s).admission._counter
                await until(lambda: engine(s).admission._counter > passes + 2, "admission has looked again")
                assert record(s, waits).borrowed_tasks == 0
                room.clear()
                assert await within(c.gather([*held, other])) == [0, 1, 2, 5]


def test_few_of_an_unknown_kind_are_lent_a_slot_soon_and_many_when_they_are_seen_to_last():
    ages_s = (0.0, 0.005, 0.015, 0.025, 0.035, 0.1, 0.3, 0.5, 1.0, 2.6)
    most = [of_lending._most(age_s, 5.0)[0] for age_s in ages_s]
    assert most == [1, 1, 2, 4, 8, 8, 8, 11, 21, 53]
    # who is refused is looked at again when there may be more, and not before
    for age_s in ages_s:
        now, next_s = of_lending._most(age_s, 5.0)
        assert age_s < next_s <= age_s + 0.05 + 1e-9
        assert of_lending._most(next_s + 1e-6, 5.0)[0] > now or now == 8


def test_a_kind_is_on_trial_for_as_long_as_the_limit_and_until_its_last_task_has_left():
    now_s, tasks = [0.0], {}
    state = SimpleNamespace(
        settings=SimpleNamespace(lend_s=5.0),
        now_s=lambda: now_s[0],
        nodes=SimpleNamespace(at={}),
        serving={},
        scheduler=SimpleNamespace(tasks=tasks, running=(), workers={}),
    )
    lending = of_lending.Lending(state, None)
    lending._look_again = lambda in_s: None
    worker, kind = SimpleNamespace(address="a"), SimpleNamespace(name="unknown", duration_average=-1)
    lane = SimpleNamespace(job=SimpleNamespace(borrowed_tasks=0, borrowed_s=0.0, reach=()))

    def lend(key, on):
        ts = tasks[key] = SimpleNamespace(key=key, prefix=kind, run_id=1, processing_on=on)
        lending.tried(ts)
        lending.lent([(ts, worker, lane)])
        return ts

    refused = lend("refused", None)
    now_s[0] = 99.0
    assert lending.takes(refused), "what did not get to the worker says nothing of its kind"
    first, second = lend("first", worker), lend("second", worker)
    assert not lending.takes(refused)
    assert lending.may_take(refused), "soon, more of them"
    now_s[0] += 5.1
    first = lend("first", worker)  # it was released, and has been submitted again
    assert not any([lending.takes(refused), lending.may_take(refused)]), "it is long"
    for left, at in ((first, None), (second, SimpleNamespace(address="b"))):
        assert not lending.takes(refused)
        left.processing_on = at
        lending.settle("a")
    assert lending.takes(refused), "nothing was learned of it: they were cancelled"
    assert (lane.job.borrowed_tasks, lane.job.borrowed_s) == (3, pytest.approx(10.2))


@pytest.mark.parametrize(
    ("there", "lends", "is_lent"),
    [(True, True, True), (False, True, False), (True, False, False), (None, True, False)],
    ids=["idle", "in a round", "kept by a part", "gone"],
)
def test_whose_idle_threads_are_lent(there, lends, is_lent):
    at = {} if there is None else {"a": SimpleNamespace(serves=there, job=None)}
    state = SimpleNamespace(nodes=SimpleNamespace(at=at), jobs=SimpleNamespace(active={}))
    lending = of_lending.Lending(state, SimpleNamespace(lends=lambda node: lends))
    assert lending.lends("a") == is_lent
    for node in at.values():
        node.job = "ended"
    assert not lending.lends("a"), "nor those of a job that is not there any more"


def test_a_job_without_a_node_holds_what_may_run_anywhere_and_nothing_that_is_bound():
    spec = job_spec("waits")
    job = JobRecord("waits", spec, resolve(spec, 1), client=None)
    lanes = {**job.lanes, "pinned": Lane(job, "rest", AllotmentSet()), "of a shuffle": job.lanes["p2p"]}
    lanes |= {"aimed": lanes["free"]}
    kinds = ("rest", "p2p", "free", "aimed", "pinned", "of a shuffle")
    none = dict.fromkeys(("annotations", "host_restrictions", "resource_restrictions"))
    waits = {"state": "no-worker", "priority": (0,), **none}
    tasks = {
        kind: SimpleNamespace(key=kind, worker_restrictions=lanes[kind].restriction, **waits)
        for kind in kinds
    }
    tasks["free"].resource_restrictions = {"GPU": 1}
    tasks["of a shuffle"].worker_restrictions = {"where its input is"}
    tasks["sent"] = SimpleNamespace(key="sent", state="processing", worker_restrictions=job.reach)
    owner = {kind: lanes[kind] for kind in kinds} | {"sent": lanes["rest"]}
    job.stranded = dict.fromkeys([*tasks, "gone"])
    scheduler = SimpleNamespace(tasks=tasks, running=(), workers={})
    lending = of_lending.Lending(SimpleNamespace(scheduler=scheduler, owner=owner), None)
    assert lending.wants(job)
    assert [entry[2].key for entry in job.queue] == ["rest", "p2p"]
    assert (job.stranded, [*job.bound]) == ({}, ["free", "aimed", "pinned", "of a shuffle"]), "seen once"
    # with its first node; those that a user has restricted are placed by stock, when their worker comes
    assert lending.unplaced(job) == ["aimed", "pinned", "of a shuffle", "rest", "p2p"]
    assert (job.stranded, [*job.bound]) == ({}, ["free"])
    tasks["free"].state = "processing"
    assert (lending.unplaced(job), job.bound) == ([], {})
