"""Who submits what a waiting job has submitted, too, does not wait for that job; each gets the result."""

from __future__ import annotations

from contextlib import asynccontextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from helpers import (
    Gate,
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
)
from peer_to_peer import P2P
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobFailed
from dask_hpc.scheduler.internals import reads


async def queued(s, job):
    """Wait until a job waits for nodes."""
    await until(lambda: job.id in engine(s).state.jobs.active, "it is queued")
    assert state_of(s, job) == "pending"


@asynccontextmanager
async def behind_another(c, s, nodes):
    """A job of `nodes` of three nodes that waits for one that has two, and a client of others."""
    rt = await dask_hpc.install(c, "fcfs")
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        busy = await rt.job("busy", nodes=2).activate()
        await started(s, busy, 2)
        waits = await rt.job("waits", nodes=nodes, exclusive=True).activate()
        await queued(s, waits)
        yield busy, waits, other


def chain(client, job=None):
    """Three tasks that depend on each other, submitted as one graph; the last one."""
    first = dask.delayed(inc)(1, dask_key_name="first")
    second = dask.delayed(inc)(first, dask_key_name="second")
    with dask.annotate(hpc_job=job):
        return client.compute(dask.delayed(inc)(second, dask_key_name="third"))


@pytest.mark.parametrize("queuing", [1.1, float("inf")])
@live(3)
async def test_a_person_without_a_job_gets_what_a_waiting_job_has_submitted(c, s, *workers, queuing):
    s.WORKER_SATURATION = queuing
    async with behind_another(c, s, 2) as (busy, waits, other):
        mine = chain(c, waits.id)
        await until(lambda: record(s, waits).held, "it is held")
        # not what they ask for, but what that is made from
        again = dask.delayed(inc)(dask.delayed(inc)(1, dask_key_name="first"), dask_key_name="second")
        with dask.annotate(hpc_job=None):
            assert await within(other.compute(dask.delayed(str)(again, dask_key_name="theirs")), 10) == "3"
        assert not mine.done()
        assert await within(chain(other), 10) == 4
        assert await within(mine) == 4
        assert record(s, waits).unfinished == record(s, waits).held == 0
        await waits.close()
        assert (await waits.wait(10))["state"] == "completed"
        await busy.close()


@pytest.mark.parametrize("runs_first", [True, False])
@live(3)
async def test_two_jobs_that_submit_the_same_do_not_wait_for_each_other(c, s, *workers, runs_first):
    """Whether the other one has its nodes before it submits, or gets them later."""
    async with behind_another(c, s, 3) as (busy, waits, other):
        mine = chain(c, waits.id)
        runs = await (await dask_hpc.install(other)).job("runs", nodes=2, priority=1).activate()
        await queued(s, runs)
        if runs_first:
            await busy.close()
            await started(s, runs, 2)
        theirs = chain(other, runs.id)
        await until(lambda: "third" in s.tasks and len(s.tasks["third"].who_wants) == 2, "both want it")
        if not runs_first:
            await busy.close()
        assert await within(theirs, 10) == 4
        assert await within(mine) == 4
        assert state_of(s, waits) == "pending"
        await runs.close()
        await waits.close()


@pytest.mark.parametrize("end", ["first cancelled", "second cancelled", "second closed"])
@live(3)
async def test_the_end_of_one_of_two_jobs_takes_nothing_from_the_other(c, s, *workers, end):
    gate = Gate()
    async with behind_another(c, s, 2) as (busy, waits, other):
        # the other job has what is left, and is busy
        runs = await (await dask_hpc.install(other)).job("runs", nodes=1, priority=1).activate()
        await started(s, runs, 1)
        with dask.annotate(hpc_job=runs.id):
            blocks = other.submit(through, 0, gate, pure=False)
        await until(lambda: gate.arrived, "it is busy")
        mine, theirs = chain(c, waits.id), chain(other, runs.id)
        await until(lambda: owner_of(s, "third") == runs.id, "it is to make it")
        if end == "first cancelled":
            await waits.cancel()
        elif end == "second cancelled":
            await runs.cancel()
        else:
            await runs.close()
        gate.open()
        if end != "second cancelled":
            assert await within(other.gather([theirs, blocks]), 10) == [4, 0]
        assert await within(mine, 10) == 4
        for job in (busy, waits, runs):
            await job.close()


@pytest.mark.parametrize("also", ["in another job", "in one that is closed", "in a cancelled one", "in none"])
@live(3)
async def test_a_cancel_takes_nothing_that_its_client_has_submitted_elsewhere_too(c, s, *workers, also):
    rt, gate = await dask_hpc.install(c, "fcfs"), Gate()
    first, other = await rt.job("first", nodes=1).activate(), await rt.job("other", nodes=1).activate()
    await started(s, other)

    def both():
        """Of these some execute, and others wait."""
        return c.compute([dask.delayed(through)(n, gate, dask_key_name=f"both-{n}") for n in range(4)])

    with dask.annotate(hpc_job=first.id):
        mine = both()
        alone = c.submit(through, 5, gate, key="alone")
    await until(lambda: gate.arrived, "one executes")
    with dask.annotate(hpc_job=None if also == "in none" else other.id):
        again = both()
        assert await within(c.submit(inc, 1, pure=False)) == 2
    if also == "in one that is closed":
        await other.close()
        await until(lambda: record(s, other).closed, "it is closed")
    elif also == "in a cancelled one":
        await other.cancel()
    await first.cancel()
    await until(lambda: alone.cancelled(), "that nobody else wants")
    gate.open()
    if also == "in a cancelled one":
        assert all(future.cancelled() for future in again)
    else:
        assert await within(c.gather([*mine, *again]), 10) == [0, 1, 2, 3] * 2
    await other.close()


@live(1, config={"hpc.sweep": "5 s"})  # no look at what is done meanwhile
async def test_who_has_submitted_what_is_forgotten_when_all_is_handed_back(c, s, worker):
    rt, first, second = await dask_hpc.install(c), Gate(), Gate()

    def both(gate):
        return c.compute(dask.delayed(through)(1, gate, dask_key_name="both"))

    async with rt.job("first", nodes=1) as job:
        await started(s, job)
        mine = both(first)
        await until(lambda: first.arrived, "it executes")
        with dask.annotate(hpc_job=None):
            again = both(first)
        await until(lambda: engine(s).guests._asked, "it is wanted in no job, too")
        first.open()
        assert await within(c.gather([mine, again])) == [1, 1]
    await asleep(s)
    del mine, again
    await until(lambda: "both" not in s.tasks, "nobody wants it")
    async with rt.job("second", nodes=1) as job:
        future = both(second)
        await until(lambda: second.arrived, "it executes")
        await job.cancel()
        await until(future.cancelled, "in no other job")
    second.open()


@pytest.mark.parametrize("plain", [True, False])
@live(3)
async def test_it_is_made_by_the_first_that_has_a_node_when_who_took_it_over_has_none(c, s, *workers, plain):
    """The waiting job runs by then, on every node."""
    async with behind_another(c, s, 3) as (busy, waits, other):
        rt, gate = await dask_hpc.install(other, default_job_min_nodes=0), Gate()
        takes = None if plain else await rt.job("takes", nodes=1, priority=1).activate()
        with dask.annotate(hpc_job=takes and takes.id):
            blocks = other.submit(through, 0, gate, pure=False)
        await until(lambda: gate.arrived, "it is busy")
        mine, theirs = chain(c, waits.id), chain(other, takes and takes.id)
        await until(lambda: owner_of(s, "third") not in (None, waits.id), "another is to make it")
        await busy.close()
        if takes is not None:
            await takes.cancel()
        else:
            await other.cancel([blocks])
        gate.open()
        await started(s, waits, 3)
        assert await within(mine, 10) == 4
        assert await within(theirs, 10) == 4
        await waits.close()


@live(3)
async def test_a_task_that_needs_the_future_of_a_waiting_job_waits_for_that_job(c, s, *workers):
    """Where a user has put it is where it runs."""
    async with behind_another(c, s, 2) as (busy, waits, _):
        mine = chain(c, waits.id)
        with dask.annotate(hpc_job=None):
            needs = c.submit(inc, mine, pure=False)
            assert await within(c.submit(inc, 5, pure=False)) == 6
        assert {owner_of(s, key) for key in ("first", "second", "third")} == {waits.id}
        await busy.close()
        assert await within(needs) == 5
        assert owner_of(s, "third") == waits.id
        await waits.close()


@live(3)
async def test_a_shuffle_that_a_waiting_job_has_submitted_runs_where_it_is_asked_for(c, s, *workers):
    with dask.config.set(P2P):
        total = da.ones((40, 40), chunks=(5, 40)).rechunk((40, 5)).map_blocks(np.cumsum, 0).sum()
    async with behind_another(c, s, 2) as (busy, waits, other):
        with dask.annotate(hpc_job=waits.id):
            mine = c.compute(total)
        await until(lambda: record(s, waits).held, "it is held")
        with dask.annotate(hpc_job=None):
            assert await within(other.compute(total), 10) == 40 * sum(range(1, 41))
        # its last task is another one, and is made where it was meant to
        assert not mine.done()
        await busy.close()
        assert await within(mine) == 40 * sum(range(1, 41))
        await waits.close()


def fail(_, gate):
    """A task: wait at `gate`, then fail."""
    gate.wait()
    raise ValueError("a failure")


@pytest.mark.parametrize("ends", ["well", "in a failure"])
@pytest.mark.parametrize("first", ["plain work", "a job that runs", "a job that waits"])
@live(3)
async def test_a_job_ends_with_what_others_make_of_it(c, s, *workers, first, ends):
    """Who was first to submit it makes it, or whoever has a node; it is whole, or fails, for both."""
    gate = Gate()
    async with behind_another(c, s, 2) as (busy, waits, other):
        both = await (await dask_hpc.install(other)).job("both", nodes=1, priority=1).activate()
        await started(s, both, 1)
        before = None if first == "plain work" else busy if first == "a job that runs" else waits
        if before is None:
            await waits.cancel()
            await busy.close()
            await busy.wait(10)
        futures = []
        for client, job in ((c, before), (other, both)):
            with dask.annotate(hpc_job=job and job.id):
                futures.append(client.submit(through if ends == "well" else fail, 1, gate, key="shared"))
            await until(lambda: len(futures) == len(reads.wanted_by(s, ["shared"])), "it is sent")
        jobs = [job for job in (before, both) if job is not None]
        await until(lambda: gate.arrived, "it executes")
        for job in jobs:
            await job.close()
        await until(lambda: all(record(s, job).closed for job in jobs), "they are closed")
        # one that has nothing to wait for comes and goes meanwhile
        async with (await dask_hpc.install(c)).job("empty") as empty:
            pass
        await empty.wait(10)
        assert not any(record(s, job).ended.is_set() for job in jobs)
        gate.open()
        for job, future in zip(reversed(jobs), reversed(futures), strict=False):
            if ends == "well":
                assert (await job.wait(10))["state"] == "completed"
                # that goes another way
                await until(lambda future=future: future.status == "finished", "its client hears of it")
            else:
                with pytest.raises(JobFailed, match="shared"):
                    await job.wait(10)
        await wait(futures)
        assert [future.status for future in futures] == ["finished" if ends == "well" else "error"] * 2
        for job in (busy, waits):
            await job.close()


@live(3)
async def test_a_job_ends_when_another_that_needs_its_task_has_made_that(c, s, *workers):
    """It has no node, and nor has plain work, for which the other one computes as well."""
    gate = Gate()
    async with behind_another(c, s, 2) as (busy, waits, _):
        rt = await dask_hpc.install(c)
        needs = await rt.job("needs", nodes=1, priority=1).activate()
        await started(s, needs, 1)
        with dask.annotate(hpc_job=None):
            plain = c.submit(inc, 1, key="plain")
        await until(lambda: owner_of(s, "plain"), "plain work waits for a node")
        with dask.annotate(hpc_job=waits.id):
            made = c.submit(through, 1, gate, key="made")
        with dask.annotate(hpc_job=needs.id):
            used = c.submit(inc, made)
        await until(lambda: gate.arrived, "it executes")
        await waits.close()
        await until(lambda: record(s, waits).closed, "it is closed")
        async with rt.job("empty") as empty:
            pass
        await empty.wait(10)
        assert state_of(s, waits) == "pending"
        gate.open()
        assert (await waits.wait(10))["state"] == "completed"
        assert await within(used) == 2
        await busy.close()
        await needs.close()
        assert await within(plain) == 2


@live(2)
async def test_a_job_that_submits_what_has_failed_in_another_one_fails(c, s, *workers):
    gate, failed = Gate(), []
    gate.open()
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        for client in (c, other):
            async with (await dask_hpc.install(client, "fcfs")).job("fails", nodes=1) as job:
                failed.append(client.submit(fail, 1, gate, key="shared"))
                await until(lambda: all(future.status == "error" for future in failed), "it has failed")
            with pytest.raises(JobFailed, match="shared"):
                await job.wait(10)


@live(3)
async def test_what_a_job_was_to_make_for_others_is_made_when_it_loses_its_node(c, s, *workers):
    """By another one that has submitted it, too; nobody counts it twice."""
    gate = Gate()
    async with behind_another(c, s, 3) as (busy, waits, other):
        takes = await (await dask_hpc.install(other)).job("takes", nodes=1, priority=2).activate()
        await started(s, takes, 1)
        with dask.annotate(hpc_job=takes.id):
            blocks = other.submit(through, 0, gate, pure=False)
        await until(lambda: gate.arrived, "it is busy")
        mine, theirs = chain(c, waits.id), chain(other, takes.id)
        await until(lambda: owner_of(s, "third") == takes.id, "it is to make it")
        again = chain(c, busy.id)
        (lost,) = addresses_of(s, takes)
        await next(worker for worker in workers if worker.address == lost).close(executor_wait=False)
        assert [await within(future, 20) for future in (mine, theirs, again)] == [4, 4, 4]
        assert (record(s, takes).guests, record(s, takes).unfinished) == (0, 1)
        gate.open()
        await blocks.cancel()
        for job in (busy, takes, waits):
            await job.close()


@live(3)
async def test_a_closed_job_that_others_make_everything_for_keeps_nobody_from_nodes(c, s, *workers):
    gate = Gate()
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("makes", nodes=2) as makes:
        first = c.submit(through, 1, gate, key="shared")
        await until(lambda: gate.arrived, "it executes")
        async with Client(s.address, asynchronous=True, set_as_default=False) as other:
            async with (await dask_hpc.runtime(other)).job("waits", nodes=2) as waits:
                second = other.submit(through, 1, gate, key="shared")
                await until(lambda: len(reads.wanted_by(s, ["shared"])) == 2, "it is sent")
                # as long as it is open more may come
                assert [job.id for job in (await rt.snapshot()).jobs] == [makes.id, waits.id]
            async with rt.job("behind", nodes=1) as behind:
                await started(s, behind, 1)
            await behind.wait(10)
            assert record(s, waits).state == "pending"
            gate.open()
            assert [await first, await second] == [1, 1]
            await waits.wait(10)
