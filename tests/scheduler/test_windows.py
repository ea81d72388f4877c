"""Cooperative windows, at the low level: who is told what and when, and which calls are refused."""

from __future__ import annotations

import asyncio

import dask
import pytest
from distributed import get_worker
from helpers import Gate, addresses_of, asleep, engine, live, record, through, until, within
from producers import ask, lay_out, members, pending, producing

import dask_hpc
from dask_hpc.errors import WindowError
from dask_hpc.program.producer import Change, Status
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import NODE_ANNOTATION

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
        told = engine(s).state.snapshot("tick").sections["resizes"][record(s, job).id]
        assert (told["expands"], told["shrinks"]) == (1, 1)
        assert 0 <= told["expand_s"] < 30, "from its begin to its commit"
        assert 0 <= told["shrink_s"] < 30
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
        assert (await within(job.resize(1)))["reason_code"] == "cooldown"
        resize = ask(job, 3)
        await lay_out(producer)
        assert (await resize)["result"] == "done"


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


# ------------------------------------------------------------------- analytics


def on_which_worker():
    """Name of the worker that executes this."""
    return str(get_worker().name)


@live(timeout=60)
async def test_what_was_sent_to_a_node_is_done_there_before_the_node_leaves(c, s, *workers):
    async with producing(c) as (job, producer):
        gate, nodes = Gate(), producer.nodes
        busy, seen = [], []
        for node in nodes:
            with dask.annotate(**{NODE_ANNOTATION: node}):
                busy.append(c.submit(through, node, gate, key=f"busy-{node}"))
                seen.append(c.submit(on_which_worker, key=f"seen-{node}"))
        sent = [future.key for future in (*busy, *seen)]
        await until(lambda: all(k in s.tasks and s.tasks[k].processing_on for k in sent), "they are sent")
        await until(lambda: gate.arrived == 2, "both nodes are busy")
        runs = [s.tasks[future.key].run_id for future in seen]
        looks, drain = [], engine(s).rounds.drain
        look = drain.busy
        drain.busy = lambda *args: looks.append(args) or look(*args)
        resize = ask(job, 1)
        await lay_out(producer)
        await until(lambda: len(looks) > 2, "the node is being drained")
        # asked back, it would come to the same place again, and be asked back again
        assert [s.tasks[future.key].run_id for future in seen] == runs
        gate.open()
        assert await within(c.gather(seen)) == list(nodes)
        assert (await within(resize))["result"] == "done"


@live(timeout=60)
async def test_what_belongs_on_a_node_whose_walltime_ends_runs_there_until_its_window(c, s, *workers):
    async with producing(c) as (_, producer):
        going = producer.nodes[-1]
        address = next(iter(engine(s).state.nodes.nodes[going].workers))
        departures = of(s).departures
        # the node looks idle all the time: its producer is between two steps
        leaving = asyncio.ensure_future(departures.depart(address, 20.0, "its walltime ends"))
        change = await pending(producer)
        assert change.leaving == (going,)
        with dask.annotate(**{NODE_ANNOTATION: going}):
            seen = c.submit(on_which_worker, key="seen")
        assert await within(seen) == going
        await producer.begin()
        await producer.commit()
        assert (await within(leaving))["lost"] == []
        assert address not in s.workers
