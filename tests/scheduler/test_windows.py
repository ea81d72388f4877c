"""Cooperative windows, at the low level: who is told what and when, and what becomes of silent peers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from distributed import Client, Worker
from helpers import addresses_of, asleep, engine, live, record, started, state_of, until

import dask_hpc
from dask_hpc.errors import JobCancelled, JobError, WindowError
from dask_hpc.program.producer import Change, Status

BOUNDS = {"nodes": 2, "min_nodes": 1, "max_nodes": 4}


async def pending(producer):
    """Wait until the producer is told of a change."""
    return await until(producer.probe, "a pending window")


def members(s, job):
    return tuple(engine(s).rounds.windows.producers[job.id].members)


def ask(job, nodes):
    return asyncio.ensure_future(job.resize(nodes))


async def lay_out(producer):
    """One window from probe to commit."""
    change = await pending(producer)
    assert await producer.begin() == change
    assert await producer.commit() == change.nodes
    return change


@contextlib.asynccontextmanager
async def producing(c, join=None, *, policy="fcfs", settings=None, **fields):
    """A running job with a producer that has begun."""
    rt = await dask_hpc.install(c, policy, **(settings or {}))
    async with rt.job("main", **{**BOUNDS, **fields}) as job:
        producer = job.producer(join)
        await producer.start(20)
        yield job, producer
        await producer.stop()
    await job.wait(10)


# ------------------------------------------------------------------- changes


@live(timeout=60)
async def test_a_grow_and_a_shrink_name_who_stays_joins_and_leaves(c, s, *workers):
    async with producing(c) as (job, producer):
        old = producer.nodes
        assert len(old) == 2
        assert producer.probe() is None
        resize = ask(job, 4)
        grow = await lay_out(producer)
        assert grow.staying == old
        assert not grow.leaving
        assert grow.counts == {Status.STAYING: 2, Status.JOINING: 2, Status.LEAVING: 0}
        assert {grow.status(node) for node in old} == {Status.STAYING}
        assert {grow.status(node) for node in grow.joining} == {Status.JOINING}
        assert (await resize)["result"] == "done"
        resize = ask(job, 1)
        shrink = await lay_out(producer)
        assert not shrink.joining
        assert shrink.counts == {Status.STAYING: 1, Status.JOINING: 0, Status.LEAVING: 3}
        assert {shrink.status(node) for node in shrink.leaving} == {Status.LEAVING}
        assert set(shrink.staying) | set(shrink.leaving) == set(grow.nodes)
        assert (await resize)["result"] == "done"
        assert producer.nodes == members(s, job) == tuple(record(s, job).nodes)
        assert [row["result"] for row in producer.windows] == ["done", "done"]
        with pytest.raises(ValueError, match="takes no part in window"):
            shrink.status("nobody")
    await asleep(s)


@live(timeout=60)
async def test_the_producer_is_told_when_all_joiners_are_ready_and_not_before(c, s, *workers):
    asked, ready = [], asyncio.Event()

    async def join(change):
        asked.append(change)
        await ready.wait()

    async with producing(c, join) as (job, producer):
        resize = ask(job, 4)
        await until(lambda: asked, "joiners are asked")
        assert producer.probe() is None
        with pytest.raises(WindowError, match=r"no window of .* is pending"):
            await producer.begin()
        # not even one that guesses the id may begin
        with pytest.raises(WindowError, match="its joiners are not ready yet"):
            await producer._ask("begin", reconfig_id=asked[0].reconfig_id)
        ready.set()
        assert await lay_out(producer) == asked[0]
        assert (await resize)["result"] == "done"
        # nobody joins in a shrink
        resize = ask(job, 2)
        await lay_out(producer)
        assert (await resize)["result"] == "done"
        assert len(asked) == 1


@live(timeout=60)
async def test_windows_never_nest(c, s, *workers):
    async with producing(c) as (job, producer):
        resize = ask(job, 3)
        change = await pending(producer)
        for nodes in (1, 4):
            refused = await job.resize(nodes)
            assert (refused["result"], refused["reason_code"]) == ("refused", "locked")
            assert refused["reason"] == f"{job.id} is reconfiguring"
        assert (await job.request(1))["reason_code"] == "locked"
        await producer.begin()
        assert (await job.resize(1))["reason_code"] == "locked"
        with pytest.raises(WindowError, match=rf"probe inside window {change.reconfig_id}.*commit or abort"):
            producer.probe()
        with pytest.raises(WindowError, match="inside window"):
            await producer.begin()
        await producer.commit()
        assert (await resize)["result"] == "done"
        resize = ask(job, 1)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_a_change_of_two_jobs_at_once_is_two_windows(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("a", nodes=2, min_nodes=1, max_nodes=3) as a, rt.job("b", nodes=2, min_nodes=1) as b:
        one, two = a.producer(), b.producer()
        await one.start(20)
        await two.start(20)
        small, large = ask(a, 1), None
        await pending(one)
        assert two.probe() is None
        other = ask(b, 1)
        assert (await pending(two)).reconfig_id != one.probe().reconfig_id
        await lay_out(two)
        assert (await other)["result"] == "done"
        assert one.probe() is not None
        await lay_out(one)
        assert (await small)["result"] == "done"
        large = ask(a, 3)
        assert len((await lay_out(one)).joining) == 2
        assert (await large)["result"] == "done"
        await one.stop()
        await two.stop()
    await a.wait(10)
    await b.wait(10)


@live(timeout=60)
async def test_nodes_change_hands_at_the_commit(c, s, *workers):
    async with producing(c) as (job, producer):
        before = addresses_of(s, job)
        resize = ask(job, 4)
        await pending(producer)
        held = record(s, job).allotment
        assert set(held) == before, "joiners take no ordinary tasks before the commit"
        await producer.begin()
        assert set(held) == before
        await producer.commit()
        assert (await resize)["result"] == "done"
        assert set(held) == {worker.address for worker in workers}
        resize = ask(job, 1)
        await pending(producer)
        await producer.begin()
        assert len(held) == 4, "leavers serve until the commit"
        assert engine(s).state.idle_nodes() == 0
        await producer.commit()
        assert (await resize)["result"] == "done"
        assert len(held) == 1
        assert engine(s).state.idle_nodes() == 3


@live(timeout=60)
async def test_an_abort_gives_its_reason_to_who_asked_and_changes_nothing(c, s, *workers):
    async with producing(c) as (job, producer):
        old = producer.nodes
        for nodes in (4, 1):
            resize = ask(job, nodes)
            await pending(producer)
            await producer.begin()
            await producer.abort("the mesh is odd")
            outcome = await resize
            assert (outcome["result"], outcome["reason"]) == ("aborted", "the mesh is odd")
            assert producer.nodes == old == members(s, job) == tuple(record(s, job).nodes)
            assert producer.probe() is None
            with pytest.raises(WindowError, match=r"no window of .* is open"):
                await producer.commit()
            with pytest.raises(WindowError, match=r"no window of .* is open"):
                await producer.abort()
            assert engine(s).state.idle_nodes() == 2
        assert [row["result"] for row in producer.windows] == ["aborted", "aborted"]
        # a shrink that was taken back is not tried again at once, a grow may be
        assert (await job.resize(1))["reason_code"] == "cooldown"
        resize = ask(job, 3)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


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

        await until(over, "the producer has heard")
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


# --------------------------------------------------------- beginning and end


@live(timeout=60)
async def test_a_window_that_opens_right_after_the_start_is_heard(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", window_timeout_s=2)
    for _ in range(5):
        async with rt.job("main", **BOUNDS) as job:
            await started(s, job, 2)
            producer = job.producer()
            await producer.start()
            # on the way to the scheduler at once, past everything that is buffered
            resize = ask(job, 1)
            await lay_out(producer)
            assert (await resize)["result"] == "done"
            await producer.stop()
        await job.wait(10)


@live(timeout=60)
async def test_a_second_producer_is_refused_and_the_first_still_hears(c, s, *workers):
    async with producing(c) as (job, producer):
        with pytest.raises(WindowError, match="has a producer already"):
            await job.producer().start(10)
        resize = ask(job, 1)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_a_producer_on_another_client_hears_of_its_windows(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", window_timeout_s=3)
    async with rt.job("main", **BOUNDS) as job, Client(s.address, asynchronous=True) as other:
        await started(s, job, 2)
        found = (await dask_hpc.runtime(other)).find(job.id)
        producer = found.producer()
        await producer.start(10)
        resize = ask(job, 1)
        await lay_out(producer)
        assert (await resize)["result"] == "done"
        await producer.stop()
    await job.wait(10)


@live(timeout=60)
async def test_without_a_producer_resizes_need_no_window_again(c, s, *workers):
    async with producing(c) as (job, producer):
        resize = ask(job, 1)
        await pending(producer)
        await producer.stop()
        # nobody keeps state there any more, so it may go
        assert (await resize)["result"] == "done"
        assert producer.nodes == ()
        assert (await job.resize(3))["result"] == "done"
        assert len(await producer.start(10)) == 3
        assert producer.probe() is None
        resize = ask(job, 4)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_start_waits_for_the_job_and_says_when_it_is_in_vain(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("first", nodes=4) as first:
        await started(s, first, 4)
        async with rt.job("second", nodes=2) as second:
            producer = second.producer()
            with pytest.raises(TimeoutError, match=r"is pending after 0\.1 s"):
                await producer.start(0.1)
            for wrong in ("x", -1, True):
                with pytest.raises(ValueError, match=f"timeout is {wrong!r}; allowed: seconds"):
                    await producer.start(wrong)
            waiting = asyncio.ensure_future(producer.start())
            await first.close()
            assert len(await asyncio.wait_for(waiting, 20)) == 2
            await producer.stop()
        await second.wait(10)
        with pytest.raises(JobError, match=r"second-3 has ended .*declare another one"):
            await second.producer().start()


@live(timeout=60)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("nodes", [4, 1])
@pytest.mark.parametrize("end", ["cancel", "close", "uninstall"])
async def test_whatever_ends_the_job_inside_a_window_frees_everything(c, s, *workers, begun, nodes, end):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", **BOUNDS) as job:
        producer = job.producer()
        await producer.start(20)
        resize = ask(job, nodes)
        await pending(producer)
        if begun:
            await producer.begin()
        if end == "cancel":
            await job.cancel("enough")
        elif end == "close":
            await job.close()
        else:
            await rt.uninstall()
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] in (("done", "aborted") if end != "uninstall" else ("aborted",))
        if begun:
            with pytest.raises(dask_hpc.errors.DaskHPCError):
                await producer.commit()
        else:
            await until(lambda: producer._pending is None or producer._over, "it has heard")
    if end == "uninstall":
        assert not [name for name in s.handlers if name == "hpc"]
    else:
        await asleep(s)
    assert await asyncio.gather(*c.map(int, range(8))) == list(range(8))


@live(timeout=60)
async def test_a_client_that_closes_inside_a_window_leaves_nothing_locked(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with Client(s.address, asynchronous=True) as other:
        job = (await dask_hpc.runtime(other)).job("main", **BOUNDS)
        await job.activate()
        producer = job.producer()
        await producer.start(20)
        resize = asyncio.ensure_future(rt.find(job.id).resize(4))
        await pending(producer)
        await producer.begin()
    outcome = await asyncio.wait_for(resize, 20)
    assert outcome["result"] == "aborted"
    await until(lambda: not record(s, job).active, "the job ends with its client")
    await asleep(s)


# --------------------------------------------------------------------- rigid


@live(timeout=60)
async def test_a_rigid_phase_vetoes_and_an_elastic_one_allows(c, s, *workers):
    async with producing(c) as (job, producer):
        await producer.phase("assemble", elastic=False)
        for nodes in (1, 4):
            outcome = await job.resize(nodes)
            assert (outcome["result"], outcome["reason_code"]) == ("refused", "rigid-phase")
            assert outcome["reason"] == f"{job.id} is in its rigid phase 'assemble'"
        assert producer.probe() is None
        await producer.phase("march", elastic=True)
        resize = ask(job, 4)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


@live(timeout=60)
async def test_a_window_that_waits_when_a_rigid_phase_begins_waits_for_its_end(c, s, *workers):
    async with producing(c) as (job, producer):
        resize = ask(job, 4)
        change = await pending(producer)
        await producer.phase("assemble", elastic=False)
        assert not resize.done()
        assert len(members(s, job)) == 2
        await producer.phase("march", elastic=True)
        assert await lay_out(producer) == change
        assert (await resize)["result"] == "done"


# -------------------------------------------------------------------- misuse


@live(timeout=60)
async def test_calls_out_of_order_say_what_would_be_right(c, s, *workers):
    async with producing(c) as (job, producer):
        with pytest.raises(WindowError, match="begin follows a probe"):
            await producer.begin()
        with pytest.raises(WindowError, match="begin one first"):
            await producer.commit()
        with pytest.raises(WindowError, match="begin one first"):
            await producer.abort()
        producer.busy = 2
        with pytest.raises(WindowError, match="2 steps have not ended; probe between steps"):
            producer.probe()
        producer.busy = 0
        resize = ask(job, 4)
        change = await pending(producer)
        with pytest.raises(WindowError, match="is preparing, must be redistributing"):
            await producer._ask("commit", reconfig_id=change.reconfig_id)
        for id in (change.reconfig_id + 1, 0, -1, None, "x"):
            for method in ("begin", "commit", "joined"):
                with pytest.raises(WindowError, match=f"window {change.reconfig_id} is open"):
                    await producer._ask(method, reconfig_id=id)
        await lay_out(producer)
        assert (await resize)["result"] == "done"
    with pytest.raises(WindowError, match=r"no producer; make one with job\.producer"):
        await producer.phase("x", elastic=True)


def test_a_change_is_counted_and_ordered():
    change = Change(7, ("a", "b"), ("c",), ())
    assert change.nodes == ("a", "b", "c")
    assert sum(change.counts.values()) == 3
    assert {status.value for status in Status} == {"NEW", "JOINING", "STAYING", "LEAVING"}
