"""Flows of steps from processes outside Dask: every value is right, and nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from coupled import HALVES, first, opened, started, under_way
from distributed import Worker, get_worker
from helpers import live, until
from sources import nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.steps import FIGURES, step_rows
from dask_hpc.wire import ROLE_RESOURCE, RPC

FIELDS = {"T": (("y", "x"), (8, 6), "float64")}


def peak(ds):
    return float(ds["T"].mean("step").max())


@live(workers=2, timeout=30)
async def test_values_come_in_order_and_are_those_of_the_whole_field(c, s, a, b):
    path = f"{a.local_directory}/trace.jsonl"
    rt = await dask_hpc.install(c, trace_path=path)
    flow = await rt.couple("heat", FIELDS)
    seen = []
    await flow.analyse(peak, name="peak", window=3, every=2)
    # its window is never full: what is known of it is what was said
    await flow.analyse(peak, name="rare", window=99, one_core_s=2.5, memory_bytes=1e9)
    with pytest.raises(ValueError, match="memory_bytes is -1; allowed: a finite number of bytes, 0 or more"):
        await flow.analyse(peak, name="other", memory_bytes=-1)

    async def look(step, ds):
        seen.append((step, ds["T"].chunks, float(await c.compute(ds["T"].sum()))))

    await flow.on_step(look)
    values = flow.results("peak", timeout=30)
    # unequal blocks
    async with producers(s, (0, 5), (5, 8)) as made:
        assert [await told(one) for one in made] == ["open", "open"]
        for one in made:
            one.tell("many", first=0, last=12)
            one.tell("close")
        # nobody waits for the producers: they wait for those who read
        got = [each async for each in values]
        ways = [await told(one) for one in made]
        assert [await told(one) for one in made] == ["closed", "closed"]
    last = {step: whole(step) for step in range(12)}
    assert got == [
        (step, pytest.approx(np.mean([last[step - 2], last[step - 1], last[step]], axis=0).max()))
        for step in (2, 4, 6, 8, 10)
    ]
    assert [(step, pytest.approx(float(last[step].sum()))) for step in range(12)] == [
        (step, total) for step, _, total in seen
    ]
    assert all(ring > 0 for ring, _ in ways), ways
    status = await flow.status()
    assert (status["in_flight"], status["steps"], status["bytes"] > 12 * 384) == (0, 12, True)
    assert status["analyses"]["peak"] == {"window": 3, "every": 2, "where": "auto", "first": 0}
    measured, said = (await flow.plan())["view"]["analyses"]
    step_bytes = status["bytes"] / 12
    assert 3 * step_bytes < measured["memory_bytes"] < 3 * step_bytes + 100, "and a number"
    assert measured["samples"] > said["samples"] == 0
    assert (said["one_core_s"], said["memory_bytes"]) == (2.5, 1e9)
    # of each step what workers have measured
    latest = status["latest"]
    assert [one["step"] for one in latest] == list(range(7, 12))
    assert all(one["step_s"] > 0 for one in latest)
    due = [one for one in latest if one["step"] % 2 == 0]
    assert all(one["in_situ_s"] > 0 and one["in_situ_work_share"] == 1 for one in due), latest
    assert all(0 <= one["in_situ_bytes"] - 3 * step_bytes < 100 for one in due), latest
    assert all(one["helper_cores"] >= 2 for one in latest), latest
    # what the panel shows
    (shown,) = (await rt.status())["coupling"]
    assert shown == (await rt.flows())[0]
    await flow.close()
    assert "coupling" not in await rt.status()
    await nothing_left(s, a, b)
    await rt.uninstall()
    # every step is in the trace, as it was told here
    traced = sorted(step_rows(read_trace(path).records)["heat"], key=lambda one: one["step"])
    assert [one["step"] for one in traced] == list(range(12))
    assert [{name: one[name] for name in FIGURES} for one in traced[-5:]] == [
        {name: one[name] for name in FIGURES} for one in latest
    ]


def computed(name):
    """An analysis that notes on its worker which step it is computed for."""

    def analyse(ds):
        step = int(ds["step"][-1])
        get_worker().order.append((step, name))
        time.sleep(0.01)
        return step

    return analyse


@live(workers=1, timeout=30)
async def test_values_of_earlier_steps_are_computed_first(c, s, a):
    rt = await dask_hpc.install(c)
    a.order = []
    flow = await rt.couple("heat", FIELDS, queue=3)
    for name in "abcd":
        await flow.analyse(computed(name), name=name)
    # its tasks are a graph of their own
    later = flow.results("d", timeout=30)
    async with producers(s, (0, 8)) as made:
        assert await told(made[0]) == "open"
        made[0].tell("many", first=0, last=30)
        made[0].tell("close")
        assert [step async for step, _ in later] == list(range(30))
        assert [await told(made[0]), await told(made[0])][1] == "closed"
    order = [step for step, _ in a.order]
    # what is being computed when a step comes is not stopped for it
    assert len(order) == 4 * 30
    assert order == sorted(order), order
    await flow.close()


@live(workers=2, timeout=30)
async def test_a_step_costs_each_worker_one_message_and_its_value_needs_no_other(c, s, a, b, monkeypatch):
    # on a busy machine a value may be late
    monkeypatch.setattr("dask_hpc.client.turns._ALONG_S", 30.0)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, queue=3)
    await flow.analyse(peak, name="peak")
    values = flow.results("peak", timeout=30)
    heard, handler, gather = [], s.handlers[RPC], s.handlers["gather"]

    async def hears(*args, method, **more):
        heard.append(method)
        return await handler(*args, method=method, **more)

    async def gathers(*args, **more):
        heard.append("gather")
        return await gather(*args, **more)

    woken, known, stream, hear = [], [], s.client_comms[c.id], c._stream_handlers["key-in-memory"]
    send = stream.send

    def sends(*messages):
        woken.extend(one["key"] for one in messages if one.get("key", "").startswith("hpc-flow-"))
        send(*messages)

    def knows(key, **more):
        known.append(key)
        hear(key=key, **more)

    monkeypatch.setattr(stream, "send", sends)
    monkeypatch.setitem(c._stream_handlers, "key-in-memory", knows)
    s.handlers.update({RPC: hears, "gather": gathers})
    try:
        async with producers(s, (0, 3), (3, 6), (6, 8)) as made:
            assert [await told(one) for one in made] == ["open"] * 3
            for step in range(6):
                for one in made:
                    one.tell("send", step=step)
                assert await anext(values) == (step, pytest.approx(whole(step).max()))
                assert [await told(one) for one in made] == [True] * 3
                if step == 0:
                    # each worker has asked about the first one
                    await until(lambda: heard.count("flow_done") == 1, "it is done")
                    heard.clear()
            assert heard.count("flow_whole") == 2 * 5
            assert {"flow_begin", "gather"}.isdisjoint(heard)
            # the client is told of both parts of a step at once
            assert len(woken) == 6, woken
            assert sum(key.startswith("hpc-flow-") for key in known) == 2 * 6, known
    finally:
        s.handlers.update({RPC: handler, "gather": gather})
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=2, timeout=60)
async def test_a_part_that_waits_while_the_other_comes_is_the_last_one_of_its_step(c, s, a, b, monkeypatch):
    path = f"{a.local_directory}/trace.jsonl"
    await dask_hpc.install(c, trace_path=path)
    flow, values = await started(c)
    chunks, flows, brought, tries = [], of(s)._methods["flow_whole"].__self__, [], itertools.count()
    await flow.on_step(lambda step, ds: chunks.append(ds["T"].chunks))
    bring, said, say = flows._bring, [], Flow.say
    aim, aimed = flows.splits.aim, set()

    def late(worker, key, *more):
        if key.endswith("-0-0") and (not brought or next(tries) < 5):
            return "later"
        brought.append(key)
        return bring(worker, key, *more)

    def hear(flow, kind, **what):
        said.append(kind)
        say(flow, kind, **what)

    def aims(flow, turn):
        aimed.add(tuple(brought))
        aim(flow, turn)

    monkeypatch.setattr(flows, "_bring", late)
    monkeypatch.setattr(flows.splits, "aim", aims)
    monkeypatch.setattr(Flow, "say", hear)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            one.tell("send", step=0)
        assert await anext(values) == (0, 0.0)
        await until(lambda: flow._done == 1, "its callback has returned")
    assert ([key[-4:] for key in brought], chunks) == (["-0-1", "-0-0"], [((4, 4), (6,))])
    assert said.count("layout") == 1, "however long it waited"
    assert aimed == {(brought[0],)}, "its values were placed with its last part, not with each"
    # what nobody has closed is in the trace as well
    await s.close()
    assert [row["step"] for row in step_rows(read_trace(path).records)["heat"]] == [0]


@live(workers=2, timeout=60)
async def test_an_analysis_runs_where_it_was_said_and_a_block_that_is_needed_goes_to_staging_once(c, s, a, b):
    steps, due, block = range(12), range(0, 12, 2), np.zeros((64, 1024))
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", {"T": (("y", "x"), block.shape, "float64")})
    with pytest.raises(CouplingError, match="no node has the role 'staging'"):
        await flow.analyse(peak, name="peak", where="in-transit")

    def send():
        with dask_hpc.Source("heat", s.address) as source:
            for step in steps:
                source.send(step, {"T": block})

    async with Worker(
        s.address, name="staging", nthreads=1, resources={f"{ROLE_RESOURCE}staging": 1}
    ) as staging:
        await flow.analyse(where_it_runs, name="here", where="in-situ")
        for name in ("there", "again"):
            await flow.analyse(where_it_runs, name=name, every=2, where="in-transit")
        here, there, again = (flow.results(name, timeout=30) for name in ("here", "there", "again"))
        sending = asyncio.ensure_future(asyncio.to_thread(send))
        got = await asyncio.gather(*map(all_of, (here, there, again)))
        await sending
        (holds,) = (await flow.status())["workers"]
        assert holds in (a.address, b.address)
        on_staging = [(step, staging.address) for step in due]
        assert got == [[(step, holds) for step in steps], on_staging, on_staging]
        moved = [item for one in staging.transfer_incoming_log for item in one["keys"].items()]
        # what the split needs there: of each step that is due its block, for both analyses
        assert len({key for key, _ in moved}) == len(moved) == len(due)
        nbytes = sum(size for _, size in moved)
        assert nbytes == pytest.approx(len(due) * block.nbytes, rel=0.05)
        # blocks that are dealt to all workers in turn: a third of the others would have come as well
        dealt = {step for step in steps if step % 3 == 2}
        assert nbytes < 0.8 * len(dealt | set(due)) * block.nbytes
        assert not a.transfer_incoming_log
        assert not b.transfer_incoming_log
        await flow.close()
    # a node that has another role keeps the runtime awake
    await until(lambda: not (s.tasks or a.data or b.data), "no task and no data is left")


@live(workers=1, timeout=60)
async def test_a_staging_node_that_is_lost_costs_no_step(c, s, a):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    async with Worker(
        s.address, name="staging", nthreads=1, resources={f"{ROLE_RESOURCE}staging": 1}
    ) as staging:
        await flow.analyse(where_it_runs, name="where", where="in-transit")
        values = flow.results("where", timeout=30)
        async with producers(s, (0, 8)) as made:
            assert await told(made[0]) == "open"
            made[0].tell("many", first=0, last=3)
            assert [await anext(values) for _ in range(3)] == [(step, staging.address) for step in range(3)]
            await told(made[0])
            await staging.close()
            # what was to run there runs where the blocks are
            made[0].tell("many", first=3, last=6)
            assert [await anext(values) for _ in range(3)] == [(step, a.address) for step in range(3, 6)]
            await told(made[0])
        await flow.close()
    await until(lambda: not (s.tasks or a.data), "no task and no data is left")


@live(workers=1, timeout=60)
async def test_a_step_is_done_though_its_callback_gives_a_future_of_what_never_ends(c, s, a):
    flow, values = await started(c)
    never = c.submit(int, 1, resources={"nobody has it": 1})
    await flow.on_step(lambda step, ds: never)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("many", first=0, last=3)
        made[0].tell("close")
        assert [each async for each in values] == [(step, float(step)) for step in range(3)]
    assert ((await flow.status())["callback_error"], never.status) == ("", "pending")
    never.release()
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_nobody_else_on_the_loop_waits_for_a_callback_that_does_not_return(c, s, a):
    flow, _ = await started(c)
    begun, ends = threading.Event(), threading.Event()

    def waits(step, ds):
        begun.set()
        ends.wait(30)

    await flow.on_step(waits)
    # as many threads as the loop has, whoever's callbacks are on them
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("send", step=0)
        await until(begun.is_set, "the callback was called")
        try:
            assert await asyncio.wait_for(asyncio.to_thread(int), 10) == 0
            await flow.close()
        finally:
            ends.set()
    await until(
        lambda: not any(each.name.startswith("dask-hpc-heat") for each in threading.enumerate()),
        "its thread is gone",
    )
    await nothing_left(s, a)


async def all_of(reader):
    return [each async for each in reader]


def where_it_runs(ds):
    return get_worker().address


@live(workers=1, timeout=30)
async def test_a_large_value_is_fetched_where_somebody_reads_it(c, s, a):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(lambda ds: np.tile(ds["T"].values, (1, 60, 60)), name="all")
    async with producers(s, (0, 8)) as made:
        made[0].tell("many", first=0, last=2)
        await until(lambda: flow._done == 2, "steps come that nobody reads")
        assert a.transfer_outgoing_count_total == 0
        values = flow.results("all", timeout=30)
        made[0].tell("many", first=2, last=4)
        for step in (2, 3):
            number, found = await anext(values)
            assert (number, np.array_equal(found[0, :8, :6], whole(step))) == (step, True)
    del found
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_an_analysis_is_said_again_whenever_saying_it_was_interrupted(c, s, a):
    flow, values = await started(c, queue=2)
    async with producers(s, *HALVES) as made:
        await under_way(made, values)
        # tasks of steps that come are submitted with it
        for turns in itertools.count():
            saying = asyncio.ensure_future(flow.analyse(first, name="second"))
            for _ in range(turns):
                await asyncio.sleep(0)
            saying.cancel()
            await asyncio.wait([saying])
            if not saying.cancelled():
                break
        assert turns > 3, "at several moments"
        second = flow.results("second", timeout=30)
        for one in made:
            one.tell("send", step=1)
        assert await anext(values) == (1, 1.0)
        assert [await told(one) for one in made] == [True, True]
        await until(lambda: second.has(1), "the value is there, and nobody reads it")
        late = flow.results("first", timeout=0.05)
        with pytest.raises(TimeoutError, match=r"a step waits until a reader of 'second' takes"):
            await anext(late)
        assert await anext(second) == (1, 1.0)
    await flow.close()
    await nothing_left(s, a)
