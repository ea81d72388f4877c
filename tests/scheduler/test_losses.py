"""Jobs outlive workers, restarts and the loss of everything."""

from __future__ import annotations

import asyncio
import os
import signal

import dask
from distributed import Nanny, Worker, wait
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
)
from tasks import inc, slow_inc

import dask_hpc


def nodes_up(s, job):
    return engine(s).state.nodes_up(record(s, job))


@live()
async def test_a_job_goes_on_with_its_survivors_and_is_served_first(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("other", nodes=1) as other:
        held = c.map(through, range(2), gate=gate, pure=False)
        await started(s, other, 1)
    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        waiting = rt.job("late", nodes=1)
        async with waiting:
            late = c.submit(inc, 1, pure=False)
        futures = c.map(slow_inc, range(60), pure=False)
        lost = next(w for w in workers if w.address in addresses_of(s, job))
        await lost.close()
        await until(lambda: nodes_up(s, job) == 2, "two survivors")
        row = await job.status()
        assert row["below_minimum"]
        assert row["state"] == "running"
        assert await c.gather(futures) == list(range(1, 61))
        assert state_of(s, waiting) == "pending"
        gate.open()
        # the node that the other job frees goes to the one below its minimum
        await until(lambda: nodes_up(s, job) == 3, "served")
        assert state_of(s, waiting) == "pending"
        why = await job.why()
        assert "worker-lost" in [d["reason_code"] for d in why]
    await job.wait(10)
    await waiting.wait(10)
    assert await late == 2
    await c.gather(held)
    await asleep(s)


@live(workers=2, Worker=Nanny, timeout=60)
async def test_a_worker_restarted_under_its_name_returns_to_its_job(c, s, *nannies):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        before = addresses_of(s, job)
        futures = c.map(slow_inc, range(50), pure=False)
        victim = next(n for n in nannies if n.worker_address in before)
        name = victim.name
        os.kill(victim.pid, signal.SIGKILL)
        await until(lambda: nodes_up(s, job) == 1, "one left")
        await until(lambda: nodes_up(s, job) == 2, "back", 30)
        assert str(name) in record(s, job).nodes
        assert addresses_of(s, job) != before
        assert await c.gather(futures) == list(range(1, 51))
        assert {"worker-lost", "node-returned"} <= {d["reason_code"] for d in await job.why()}
    await job.wait(10)
    await asleep(s)


@live(workers=2)
async def test_a_job_that_loses_all_workers_goes_on_when_new_ones_come(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(slow_inc, range(40), pure=False)
        await a.close()
        await b.close()
        await until(lambda: nodes_up(s, job) == 0, "none left")
        async with Worker(s.address, name="new-0", nthreads=1), Worker(s.address, name="new-1", nthreads=1):
            assert await asyncio.wait_for(c.gather(futures), 20) == list(range(1, 41))
            await until(lambda: nodes_up(s, job) == 2, "restored")
            await job.close()
            await job.wait(10)
            await asleep(s)


@live(Worker=Nanny, timeout=60)
async def test_restart_cancels_a_closed_job_and_keeps_an_open_one(c, s, *nannies):
    rt = await dask_hpc.install(c)
    async with rt.job("closed", nodes=1) as closed:
        await started(s, closed, 1)
        lost = c.map(slow_inc, range(100), delay_s=1, pure=False)
        await until(lambda: record(s, closed).unfinished == 100, "submitted")
    async with rt.job("open", nodes=2) as job:
        await started(s, job, 2)
        more = c.map(slow_inc, range(100), delay_s=1, pure=False)
        await until(lambda: record(s, job).unfinished == 100, "submitted")
        await c.restart()
        row = await closed.status()
        assert (row["state"], row["reason"]) == ("cancelled", "the cluster was restarted")
        assert {f.status for f in [*lost, *more]} == {"cancelled"}
        assert state_of(s, job) == "running"
        await until(lambda: nodes_up(s, job) == 2, "back", 30)
        assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)
    assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))


@live(workers=3)
async def test_results_lost_after_completion_are_recomputed_elsewhere(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        home = addresses_of(s, job)
        futures = c.map(inc, range(20), pure=False)
    await job.wait(10)
    await asleep(s)
    victim = next(w for w in workers if w.address in home)
    await victim.close()
    assert await c.gather(futures) == list(range(1, 21))


@live(workers=3)
async def test_results_lost_while_another_job_runs_are_recomputed(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        home = addresses_of(s, job)
        futures = c.map(inc, range(20), pure=False)
        more = c.map(inc, futures)
        await c.gather(more)
    async with rt.job("other", nodes=1) as other:
        await job.wait(10)
        await started(s, other, 1)
        victim = next(w for w in workers if w.address in home)
        await victim.close()
        assert await c.gather(more) == list(range(2, 22))
    await other.wait(10)
    await asleep(s)


@live(workers=3)
async def test_a_node_that_returns_while_it_is_set_aside_is_used_again(c, s, *workers):
    """Of two nodes that a round sets aside, one restarts before the other has fallen quiet."""
    rt = await dask_hpc.install(c, "fcfs", default_job_min_nodes=0)
    gate = Gate()
    async with rt.job("anchor", nodes=1) as anchor:
        await started(s, anchor, 1)
        # plain work keeps one of the two free nodes busy
        with dask.annotate(hpc_job="default"):
            plain = c.submit(through, 1, gate=gate, pure=False)
        await until(lambda: gate.arrived == 1, "plain work runs")
        in_use = {s.tasks[plain.key].processing_on.address} | addresses_of(s, anchor)
        (quiet,) = [w for w in workers if w.address not in in_use]
        async with rt.job("wide", nodes=2) as wide:
            await until(lambda: engine(s).state.nodes.nodes[str(quiet.name)].reserved, "set aside")
            await quiet.close()
            async with Worker(s.address, name=quiet.name, nthreads=1):
                await until(lambda: len(s.workers) == 3, "back")
                gate.open()
                await started(s, wide, 2)
                future = c.map(inc, range(4), pure=False)
                assert await c.gather(future) == [1, 2, 3, 4]
                wide._close()
                await wide.wait(10)
                assert await plain == 1
                assert not any(node.reserved for node in engine(s).state.nodes.nodes.values())
    await anchor.wait(10)


@live()
async def test_a_node_that_is_lost_while_it_is_set_aside_is_used_when_it_returns(c, s, *workers):
    """A round has one node ready and waits for another; the ready one goes, and comes back later."""
    rt = await dask_hpc.install(c, "pwma-fpsma")
    gate = Gate()
    async with rt.job("malleable", nodes=3, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 3)
        tasks = c.map(through, range(6), gate=gate, pure=False)
        await until(lambda: gate.arrived == 3, "its nodes are busy")
        (ready,) = [w for w in workers if w.address not in addresses_of(s, job)]
        async with rt.job("wide", nodes=3) as wide:
            node = engine(s).state.nodes.nodes[str(ready.name)]
            await until(lambda: node.reserved and state_of(s, job) == "adapting", "set aside")
            await ready.close()
            gate.open()
            await until(lambda: not engine(s).rounds.active, "the round has ended")
            async with Worker(s.address, name=ready.name, nthreads=1):
                await started(s, wide, 3)
                assert await c.gather(c.map(inc, range(9), pure=False)) == list(range(1, 10))
                await c.gather(tasks)
                wide._close()
                await wide.wait(10)


@live(3)
async def test_what_an_ended_job_released_is_recomputed_where_plain_work_may_run(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("keeps the engine awake", nodes=1):
        async with rt.job("main", nodes=1) as job:
            first = c.submit(inc, 1, key="first")
            second = c.submit(inc, first, key="second")
            third = c.submit(inc, second, key="third")
            del first, second
        await job.wait(10)
        await until(lambda: s.tasks["second"].state == "released", "nobody wants what lies between")
        (holder,) = s.tasks["third"].who_has
        await next(w for w in workers if w.address == holder.address).close()
        assert await asyncio.wait_for(third, 10) == 4


@live()
async def test_lost_plain_data_is_recomputed_by_the_job_that_needs_it(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    data = c.map(inc, range(40), pure=False)
    await wait(data)
    async with rt.job("wide", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        gate = Gate()
        used = c.map(through, data, gate=gate, pure=False)
        await until(lambda: gate.arrived >= 4, "it runs everywhere")
        lost = [ts.key for ts in s.workers[workers[0].address].has_what if len(ts.who_has) == 1]
        assert lost
        await workers[0].close(executor_wait=False)
        await until(lambda: all(owner_of(s, key) == job.id for key in lost), "the job makes them anew")
        gate.open()
        assert await asyncio.wait_for(c.gather(used), 20) == list(range(1, 41))
    await job.wait(10)


@live(3)
async def test_plain_work_that_has_lost_its_last_node_queues_for_another(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma")
    gate = Gate()
    plain = c.submit(through, 1, gate)
    await until(lambda: gate.arrived, "it runs")
    holder = s.tasks[plain.key].processing_on
    async with rt.job("main", nodes=2, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 2)
        futures = c.map(slow_inc, range(60), pure=False)
        await next(w for w in workers if w.address == holder.address).close(executor_wait=False)
        gate.open()
        assert await asyncio.wait_for(plain, 10) == 1
        assert await c.gather(futures) == list(range(1, 61))
    await job.wait(10)
    rows = await rt.decisions(job.id)
    assert any(row["action"] == "shrink" and row["result"] == "done" for row in rows)


@live(3)
async def test_a_job_makes_what_it_needs_of_plain_work_that_has_lost_its_last_node(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    plain = c.submit(through, 1, gate)
    await until(lambda: gate.arrived, "it runs")
    holder = s.tasks[plain.key].processing_on
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        await next(w for w in workers if w.address == holder.address).close(executor_wait=False)
        await until(lambda: s.tasks[plain.key].state == "no-worker", "it waits for a node")
        gate.open()
        assert await asyncio.wait_for(c.submit(inc, plain), 10) == 2
        assert owner_of(s, plain.key) == job.id
    await job.wait(10)
