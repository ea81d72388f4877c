"""Jobs that asked for no nodes hold theirs together under `fair`; who asks for some, or steps, does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from helpers import Gate, addresses_of, engine, live, record, started, state_of, through, until, within
from tasks import Counter as CountingActor
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


class Counter:
    """An actor."""


def rechunked(gate):
    """A P2P rechunk whose inputs wait at a gate."""
    x = da.arange(160_000, chunks=10_000).reshape(400, 400).rechunk((25, 400), method="tasks")
    x = x.map_blocks(through, gate, meta=np.empty((0, 0), int))
    with dask.config.set({"array.rechunk.method": "p2p", "optimization.fuse.active": False}):
        return x.rechunk((400, 25), method="p2p")


EXPECTED = np.arange(160_000).reshape(400, 400)


@live(2, lend="5 s")
async def test_what_depends_on_others_runs_where_its_data_is_whoever_has_the_node(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("one") as one, rt.job("two") as two:
        await started(s, one, 1)
        await started(s, two, 1)
        assert engine(s).state.common == {a.address, b.address} == record(s, one).reach
        there = next(iter(addresses_of(s, two)))
        with dask.annotate(hpc_job=one.id):
            inputs = c.map(inc, range(20), key="input", pure=False)
            await within(c.gather(inputs))
            theirs = [f for f in inputs if s.tasks[f.key].who_has == {s.workers[there]}]
            assert theirs, "turns have sent none to the other node"
            outputs = c.map(inc, theirs, key="output", pure=False)
            await within(c.gather(outputs))
        assert all(s.tasks[f.key].who_has == {s.workers[there]} for f in outputs)
        with dask.annotate(hpc_job=one.id):
            actors = [await within(c.submit(Counter, actor=True, key=f"actor-{i}")) for i in range(3)]
        # an actor stays for long: it keeps to the nodes of its own job
        assert all(
            {ws.address for ws in s.tasks[actor.key].who_has} <= addresses_of(s, one) for actor in actors
        )
    for job in (one, two):
        await job.wait(10)
    assert not len(engine(s).state.common)


@live(4, lend="5 s")
async def test_a_job_comes_and_goes_beside_a_shuffle_without_a_wait(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fair")
    gate = Gate()
    async with rt.job("large") as large:
        await started(s, large, 4)
        result = c.compute(rechunked(gate))
        await until(lambda: gate.arrived == 4, "its inputs execute on every node")
        async with rt.job("small") as small:
            # nothing of the large one can end: its nodes change hands as they are
            await started(s, small)
            assert len(record(s, large).nodes) < 4
            shuffle = asyncio.ensure_future(c.compute(rechunked(gate)))
            gate.open()
            np.testing.assert_array_equal(await within(shuffle), EXPECTED)
        np.testing.assert_array_equal(await within(result), EXPECTED)
        assert record(s, large).shrinks >= 1


@live(2, lend="5 s")
async def test_nodes_for_a_job_that_asks_for_some_are_left_by_all_that_shared_them(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    gate = Gate()
    async with rt.job("one") as one, rt.job("two") as two:
        await started(s, one, 1)
        await started(s, two, 1)
        with dask.annotate(hpc_job=one.id):
            seeds = c.map(inc, range(8), key="seed", pure=False)
            await within(c.gather(seeds))
            # rest tasks of `one`, on the nodes of both
            later = c.map(through, seeds, gate=gate, key="later", pure=False)
        await until(lambda: gate.arrived == 2, "both nodes are busy")
        async with rt.job("asks", nodes=1) as asks:
            await until(lambda: asks.id in engine(s).state.jobs.active, "it waits for a node")
            await two.__aexit__(None, None, None)
            await two.wait(10)
            # nothing of its own is left on its node
            await until(lambda: any(n.reserved for n in engine(s).state.nodes.nodes.values()), "it drains")
            assert state_of(s, asks) == "adapting" or not addresses_of(s, asks)
            gate.open()
            await started(s, asks, 1)
            (own,) = addresses_of(s, asks)
            assert own not in engine(s).state.common
            assert sum(await within(c.gather(later))) == sum(range(1, 9))
            with dask.annotate(hpc_job=one.id):
                assert await within(c.gather(c.map(inc, range(8), key="after", pure=False))) == [*range(1, 9)]


@live(2, lend="5 s")
async def test_a_job_that_comes_to_iterate_has_its_nodes_for_itself(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("steps") as steps, rt.job("other") as other:
        await started(s, steps, 1)
        await started(s, other, 1)
        (own,) = addresses_of(s, steps)
        await steps.producer().start()
        assert engine(s).state.common == addresses_of(s, other)
        assert record(s, steps).reach == {own}
        with dask.annotate(hpc_job=other.id):
            first = c.map(inc, range(10), key="first", pure=False)
            second = c.map(inc, first, key="second", pure=False)
            await within(c.gather(second))
        places = {ws.address for f in [*first, *second] for ws in s.tasks[f.key].who_has}
        assert places == addresses_of(s, other)


@pytest.mark.parametrize("options", [{"nodes": 1}, {"exclusive": True}, {"min_nodes": 1}])
@live(2, lend="5 s")
async def test_who_asked_for_nodes_does_not_share_them(c, s, a, b, options):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("asks", **options) as asks:
        await started(s, asks)
        assert record(s, asks).reach is record(s, asks).allotment
        assert not len(engine(s).state.common)


@live(1, lend="5 s", config={"hpc.sweep": "10 s"})
async def test_an_actor_of_a_job_without_a_node_is_made_where_jobs_take_turns(c, s, a):
    """Stock makes it at once, and a job that has every node may be idle for ever."""
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("idle") as idle:
        await started(s, idle)
        async with rt.job("asks") as asks:
            # not before what it is made of
            seven = c.submit(inc, 6, pure=False)
            actor = await within(c.submit(CountingActor, seven, actor=True, key="actor"), 5)
            assert await actor.add(1) == 8
            assert state_of(s, asks) == "pending"
            await idle.close()
            await started(s, asks)
            assert await actor.add(1) == 9


@live(3, lend="5 s")
async def test_a_job_runs_on_the_nodes_of_its_that_are_pinned_too(c, s, *workers):
    """Nothing of others comes there, so it has all of its nodes for itself."""
    rt = await dask_hpc.install(c, policy="fair")
    releases = of(s).releases

    def its_own(job):
        return record(s, job).reach is record(s, job).allotment

    releases.pin([str(workers[1].name)], True)
    async with rt.job("early") as early:
        await started(s, early, 3)
        assert its_own(early)
        gate = Gate()
        inputs = c.map(inc, range(3), pure=False)
        outputs = [c.submit(through, future, gate, pure=False) for future in inputs]
        await until(lambda: gate.arrived == 3, "what depends on others executes on all three")
        gate.open()
        assert await within(c.gather(outputs)) == [1, 2, 3]
    await early.wait(20)
    releases.pin([str(workers[1].name)], False)
    gate = Gate()
    async with rt.job("late") as late:
        await started(s, late, 3)
        assert not its_own(late)
        shuffle = asyncio.ensure_future(c.compute(rechunked(gate)))
        await until(lambda: gate.arrived == 3, "inputs of a shuffle execute")
        releases.pin([str(worker.name) for worker in workers[:2]], True)
        assert its_own(late), "it has to share no more"
        gate.open()
        np.testing.assert_array_equal(await within(shuffle), EXPECTED)
        gate = Gate()
        again = asyncio.ensure_future(c.compute(rechunked(gate)))
        await until(lambda: gate.arrived == 3, "inputs of the next one execute")
        releases.pin([str(worker.name) for worker in workers], False)
        await until(lambda: not its_own(late), "it is seen that it shares again")
        assert engine(s).state.common == {worker.address for worker in workers}
        gate.open()
        np.testing.assert_array_equal(await within(again), EXPECTED)


@live(2, lend="5 s")
async def test_a_setting_that_changes_holds_for_jobs_that_are_there(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    gate = Gate()
    async with rt.job("one") as one, rt.job("two") as two:
        await started(s, one, 1)
        await started(s, two, 1)

        def shared():
            return {record(s, job).reach is engine(s).state.common for job in (one, two)}

        def chain(job):
            with dask.annotate(hpc_job=job.id):
                inputs = c.map(through, range(4), gate=gate, pure=False)
                return [c.submit(inc, each, pure=False) for each in inputs]

        chains = [*chain(one), *chain(two)]
        await until(lambda: gate.arrived == 2, "inputs execute on both nodes")
        changes = ({"lend": "0 s"}, False), ({"lend": "5 s"}, True), ({"policy": "fcfs"}, False)
        for change, together in (*changes, ({"policy": "fair"}, True)):
            await rt.update(**change)
            await until(lambda together=together: shared() == {together}, f"shared after {change}")
            # what was on its way goes on, and so does what comes
            chains += [*chain(one), *chain(two)]
        gate.open()
        assert await within(c.gather(chains)) == [1, 2, 3, 4] * 10


def bare(job: JobRecord, **tasks: Any) -> State:
    """A state with this job alone, whose tasks are in these lanes and run on its own nodes."""
    state = object.__new__(State)
    state.common, state.owner = AllotmentSet({"a", "b"}), tasks
    made = {key: SimpleNamespace(worker_restrictions=job.allotment) for key in tasks}
    state.scheduler = SimpleNamespace(tasks=made)
    job.expected.came_tasks = len(tasks)
    return state


def new_job() -> JobRecord:
    spec = job_spec("leaves")
    return JobRecord("leaves", spec, resolve(spec, 2), client=None)


def test_guests_of_a_job_that_leaves_run_where_it_does():
    job = new_job()
    state = bare(job)
    State.join_common(state, job)
    job.allotment.grant({"a"})
    guests = job.guest_lane("p2p")
    assert guests.restriction is job.reach is state.common
    State.leave_common(state, job)
    assert guests.restriction is job.reach is job.allotment
    assert state.common == {"b"}


def test_what_a_job_has_to_do_runs_on_common_nodes_again_but_for_its_actors():
    job = new_job()
    job.allotment.grant({"c"})
    lanes = {
        "root": job.lanes["root"],
        "rest": job.lanes["rest"],
        "guest": job.guest_lane("rest"),
        "actor": job.own_lane(),
    }
    state = bare(job, **lanes)
    pinned = state.owner["pinned"] = Lane(job, "rest", AllotmentSet({"c"}))
    job.inherited.add(pinned)
    state.scheduler.tasks["pinned"] = SimpleNamespace(worker_restrictions=pinned.restriction)
    for _ in range(2):  # leaving is the way back
        State.join_common(state, job)
        where = {key: ts.worker_restrictions for key, ts in state.scheduler.tasks.items()}
        assert [key for key, one in where.items() if one is state.common] == ["root", "rest", "guest"]
        assert where["actor"] is job.allotment
        assert where["pinned"] is pinned.restriction
        assert (state.common, job.reach is state.common) == ({"a", "b", "c"}, True)
        State.leave_common(state, job)
        assert [ts.worker_restrictions is job.allotment for ts in state.scheduler.tasks.values()] == [
            *[True] * 4, False,
        ]  # fmt: skip
        assert state.common == {"a", "b"}
