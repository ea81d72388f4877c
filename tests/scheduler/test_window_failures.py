"""Peers of a window that are silent, fail or die end it, are named, and are not asked for ever."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Worker
from helpers import Gate, addresses_of, asleep, engine, live, record, started, state_of, through, until
from producers import BOUNDS, ask, lay_out, members, pending, producing

import dask_hpc
from dask_hpc.errors import JobCancelled, WindowError

# --------------------------------------------------------------- silent peers


@live(timeout=60)
@pytest.mark.parametrize("silent", ["joiner", "before begin", "after begin"])
@pytest.mark.parametrize("nodes", [4, 1])
async def test_a_silent_peer_ends_in_abort_and_the_old_size_goes_on(c, s, *workers, silent, nodes):
    if silent == "joiner" and nodes == 1:
        silent = "before begin"
    never, answers = asyncio.Event(), []

    async def join(change):
        answers.append(change)
        if silent == "joiner" and len(answers) == 1:
            await never.wait()

    settings = {"window_timeout_s": 0.3, "shrink_deadline_s": 0.3}
    async with producing(c, join, settings=settings) as (job, producer):
        old = producer.nodes
        resize = ask(job, nodes)
        if silent == "after begin":
            await pending(producer)
            change = await producer.begin()
        outcome = await asyncio.wait_for(resize, 20)
        words = {
            "joiner": "joiners are not ready",
            "before begin": "its step boundary has not come",
            "after begin": "its layout has not changed",
        }[silent]
        assert (outcome["result"], outcome["reason_code"]) == ("aborted", "deadline")
        assert words in outcome["reason"]
        assert "hpc.window-timeout" in outcome["reason"]
        await until(lambda: state_of(s, job) == "running" and not record(s, job).reconfig_id, "it goes on")
        assert members(s, job) == old == tuple(record(s, job).nodes)
        assert len(record(s, job).allotment) == 2
        if silent == "after begin":
            with pytest.raises(WindowError, match=rf"window {change.reconfig_id} .*over.*{words}"):
                await producer.commit()
            assert producer.nodes == old
        await until(lambda: producer.probe() is None, "the producer has heard")
        never.set()
        await producer._job.channel.ask("update", parameters={"window_timeout_s": 30.0})
        await until(lambda: engine(s).state.now_s() >= record(s, job).no_shrink_before_s, "may shrink again")
        resize = ask(job, nodes)
        change = await lay_out(producer)
        assert (await resize)["result"] == "done"
        assert len(change.nodes) == nodes


@live(timeout=60)
async def test_a_late_joiner_of_an_old_window_does_not_open_a_new_one(c, s, *workers):
    late, calls = asyncio.Event(), []

    async def join(change):
        calls.append(change)
        if len(calls) == 1:
            await late.wait()
        else:
            await asyncio.Event().wait()

    async with producing(c, join, settings={"window_timeout_s": 0.3}) as (job, producer):
        assert (await job.resize(4))["reason_code"] == "deadline"
        await producer._job.channel.ask("update", parameters={"window_timeout_s": 30.0})
        resize = ask(job, 4)
        await until(lambda: len(calls) == 2, "asked again")
        late.set()
        await until(lambda: len(producer._joining) == 1, "the first has answered")
        assert producer.probe() is None
        with pytest.raises(WindowError, match="is over or never was"):
            await producer._ask("begin", reconfig_id=calls[0].reconfig_id)
        await producer.stop()
        assert (await resize)["result"] == "aborted"
        await producer.start(10)


@live(timeout=60)
async def test_joiners_that_fail_are_named_and_go_back(c, s, *workers):
    async def join(change):
        raise OSError("no licence")

    async with producing(c, join) as (job, producer):
        outcome = await job.resize(4)
        assert outcome["result"] == "aborted"
        assert "a joining node is not ready: OSError: no licence" in outcome["reason"]
        assert engine(s).state.idle_nodes() == 2
        assert producer.probe() is None
        assert len(producer.nodes) == 2


@live(timeout=60)
async def test_the_next_probe_of_a_cancelled_job_says_so_and_why(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", **BOUNDS) as job:
        producer = job.producer()
        await producer.start(20)
        assert producer.probe() is None
        await rt.cancel(job.id, "the licence is over")
        told = []

        def over():
            try:
                return producer.probe()
            except JobCancelled as error:
                told.append(str(error))
                return True

        await until(over, "the producer has heard", 15)
        assert told == [f"job {job.id} has ended: the licence is over"]
        with pytest.raises(JobCancelled, match="the licence is over"):
            await producer.begin()
        await producer.stop()


# ------------------------------------------------------------ nodes that die


@live(timeout=60)
async def test_a_joiner_that_dies_ends_the_window(c, s, *workers):
    calls = []

    async def join(change):
        calls.append(change)
        await asyncio.Event().wait()

    async with producing(c, join) as (job, producer):
        resize = ask(job, 4)
        await until(lambda: calls, "asked")
        victim = calls[0].joining[0]
        await next(w for w in workers if str(w.name) == victim).close()
        outcome = await resize
        assert (outcome["result"], outcome["reason_code"]) == ("aborted", "nodes-gone")
        assert f"node {victim} was lost" in outcome["reason"]
        assert producer.probe() is None
        assert engine(s).state.idle_nodes() == 1
        assert record(s, job).no_grow_before_s == 0.0, "what was lost says nothing of others"


@live(timeout=60)
async def test_a_member_that_dies_in_a_shrink_does_not_keep_the_job_from_shrinking(c, s, *workers):
    async with producing(c) as (job, producer):
        resize = ask(job, 1)
        change = await pending(producer)
        [victim] = change.staying
        await next(w for w in workers if str(w.name) == victim).close()
        outcome = await resize
        assert (outcome["result"], outcome["reason_code"]) == ("aborted", "nodes-gone")
        assert record(s, job).no_shrink_before_s <= engine(s).state.now_s()


@live(timeout=60)
async def test_a_lost_member_opens_a_window_that_cannot_be_aborted_away(c, s, *workers):
    async with producing(c, settings={"window_timeout_s": 0.3}) as (job, producer):
        stays, victim = producer.nodes
        await next(w for w in workers if str(w.name) == victim).close()
        change = await pending(producer)
        assert (change.staying, change.joining, change.leaving) == ((stays,), (), (victim,))
        # there is no old size to go back to: time does not end it
        since = engine(s).state.now_s()
        await until(lambda: engine(s).state.now_s() > since + 0.6, "twice the time-out")
        assert producer.probe() == change
        # its client may not have been there when it was told
        producer._pending = None
        assert await pending(producer) == change
        await producer.begin()
        await producer.abort("not now")
        again = await pending(producer)
        assert again.leaving == (victim,)
        assert again.reconfig_id > change.reconfig_id
        await lay_out(producer)
        assert producer.nodes == (stays,)
        await until(lambda: not record(s, job).reconfig_id, "it may be resized again")
        resize = ask(job, 3)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_a_member_that_is_lost_leaves_before_nodes_that_came_back_join(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("main", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        tasks = c.map(through, range(4), gate=gate, pure=False)
        await until(lambda: gate.arrived == 4, "its nodes are busy")
        resize = ask(job, 2)
        await until(lambda: state_of(s, job) == "adapting", "two are being drained")
        # a producer that was told that the job runs, and whose registration comes after the shrink has begun
        windows, found = engine(s).rounds.windows, record(s, job)
        stays, victim = windows.register(found, "told", c.id)
        lost = next(worker for worker in workers if str(worker.name) == victim)
        await lost.close(executor_wait=False)
        await rt.update(shrink_deadline_s=0.05)
        assert (await resize)["result"] == "aborted"
        smaller = await until(lambda: windows.producers[job.id].window, "a window")
        assert (smaller.joining, smaller.leaving) == ((), (victim,))
        windows.begin(found, smaller.id)
        assert windows.commit(found, smaller.id) == [stays]
        larger = await until(lambda: windows.producers[job.id].window, "another window")
        assert (len(larger.joining), larger.leaving) == (2, ())
        gate.open()
        assert await c.gather(tasks) == list(range(4))
        windows.forget(found)
    await job.wait(10)


@live(workers=2, timeout=60)
async def test_when_all_members_die_new_ones_take_their_place_in_one_window(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=2, min_nodes=2) as job:
        producer = job.producer()
        old = await producer.start(20)
        await a.close()
        await b.close()
        await until(lambda: not addresses_of(s, job), "none is left")
        async with Worker(s.address, name="new-0", nthreads=1), Worker(s.address, name="new-1", nthreads=1):
            change = await pending(producer)
            assert set(change.leaving) == set(old)
            assert set(change.joining) <= {"new-0", "new-1"}
            assert not change.staying
            await lay_out(producer)
            while set(producer.nodes) != {"new-0", "new-1"}:
                await lay_out(producer)
            assert producer.windows[-1]["reconfig_id"] < change.reconfig_id + 10, "not opened in a loop"
            await producer.stop()
            await job.close()
            await job.wait(10)
            await asleep(s)


@live(timeout=60)
async def test_a_node_that_cannot_join_is_not_asked_for_ever(c, s, *workers):
    calls = []

    async def join(change):
        calls.append(change)
        raise OSError("no scratch here")

    async with producing(c, join) as (_, producer):
        victim = producer.nodes[1]
        worker = next(w for w in workers if str(w.name) == victim)
        name = worker.name
        await worker.close()
        await lay_out(producer)
        async with Worker(s.address, name=name, nthreads=1):
            await until(lambda: calls, "asked to join")
            since = engine(s).state.now_s()
            await until(lambda: engine(s).state.now_s() > since + 2, "some time")
            assert len(calls) <= 3, f"asked {len(calls)} times in two seconds"
