"""What both ends see of failures, a row of the README's table a test; nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
import importlib
import statistics
from types import SimpleNamespace

import dask
import encrypted
import pytest
from coupled import FIELDS, HALVES, Refers, first, opened, rings, started, under_way
from distributed import Client, Scheduler, Security, Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_test
from helpers import Gate, live, through, until
from sources import asked, nothing_left, producers, told, whole
from tasks import inc

import dask_hpc
from dask_hpc.client.turns import value_of
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling import flow as of_flow
from dask_hpc.worker.coupling.receiver import Receiver
from dask_hpc_policies.coupling.contract import value_key


@live(workers=1, timeout=60)
async def test_a_source_that_is_killed_fails_the_flow_and_leaves_no_file(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            one.tell("send", step=0)
        assert await anext(values) == (0, 0.0)
        assert [await told(one) for one in made] == [True, True]
        assert len(rings()) == 2
        made[0].process.kill()
        with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
            await anext(values)
        answer = await asked(made[1], "send", step=1)
        assert (answer["error"], "rank 0 is gone" in answer["text"]) == ("CouplingError", True)
    assert (await flow.status())["state"] == "failed"
    await flow.close()
    await nothing_left(s, a)
    await until(lambda: not rings(), "the worker has let go of the ring")


@live(workers=2, timeout=60)
async def test_a_source_that_dies_with_its_worker_is_not_waited_for_for_ever(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await under_way(made, values)
        host = (await flow.status())["workers"][0]
        gone, stays = sorted((a, b), key=lambda worker: worker.address != host)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of_flow, "_BACK_S", 0.5)
            await gone.close()
            made[0].process.kill()
            made[1].tell("many", first=1, last=9)
            with pytest.raises(CouplingError, match="rank 0 has died: it has not come"):
                await anext(values)
        assert (await told(made[1]))["error"] == "CouplingError"
    await flow.close()
    await nothing_left(s, stays)


@live(workers=1, timeout=60)
async def test_a_block_or_step_that_cannot_be_is_refused_in_one_line_and_nothing_changed(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        one, other = made
        for what, said in (
            ({"dim": "z"}, "at has 'z'"),
            ({"rows": [2, 8], "dim": "x"}, "2 to 8 along 'x'; allowed: at least one, within 0 to 6"),
            ({"dtype": "float32"}, "type float32; allowed: float64"),
            ({"field": "U"}, "blocks are of 'U'; needed: one of each of 'T'"),
            ({"bare": True}, "blocks is of type ndarray; needed: a dict"),
        ):
            answer = await asked(one, "send", step=0, **what)
            assert (answer["error"], said in answer["text"]) == ("ValueError", True), answer
        assert await asked(one, "send", step=0) is True
        for told_one, step, said in (
            (one, 0, "allowed: above 0, the last one"),
            (other, 1, "allowed: 0, which other producers have sent"),
        ):
            answer = await asked(told_one, "send", step=step)
            assert (answer["error"], said in answer["text"], "\n" in answer["text"]) == (
                "ValueError",
                True,
                False,
            )
        assert await asked(other, "send", step=0) is True
        assert await anext(values) == (0, 0.0)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_field_that_its_blocks_leave_a_gap_in_fails_the_flow(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 4), (5, 8)) as made:
        await opened(made)
        for one in made:
            one.tell("send", step=0)
        with pytest.raises(CouplingError, match="no block at y=4"):
            await anext(values)
    await flow.close()
    await nothing_left(s, a)


@live(workers=2, timeout=60)
async def test_a_block_that_overlaps_another_is_refused_and_the_right_one_is_taken_then(c, s, a, b):
    flow, values = await started(c, queue=4)
    # with the first one on a worker, and on the other
    async with producers(s, (0, 3), (3, 6), (6, 8)) as made:
        await opened(made)
        assert await asked(made[0], "send", step=0) is True
        for wrong, rows in ((1, [2, 6]), (2, [5, 8])):
            if wrong == 2:
                assert await asked(made[1], "send", step=0) is True
            for _ in range(2):
                answer = await asked(made[wrong], "send", step=0, rows=rows)
                said = f"'T' has two blocks at y={rows[0]}, x=0: one is that of rank {wrong - 1}"
                assert answer == {"error": "ValueError", "text": said}
        assert (await flow.status())["state"] == "running"
        assert await asked(made[2], "send", step=0) is True
        assert await anext(values) == (0, 0.0)
        # they may lie otherwise later
        for one, rows in zip(made, ([0, 2], [2, 4], [4, 8]), strict=True):
            one.tell("send", step=1, rows=rows)
        assert [await told(one) for one in made] == [True] * 3
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=1, timeout=60)
async def test_a_source_that_leaves_before_the_others_fails_the_flow_when_a_step_lacks_its_blocks(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        assert await asked(made[0], "send", step=0) is True
        assert await asked(made[1], "close") == "closed"
        with pytest.raises(CouplingError, match="rank 1 has left without step 0"):
            await anext(values)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_that_nobody_reads_goes_on_and_holds_no_more_than_its_queue(c, s, a):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(first, name="first", window=2)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        await asked(made[0], "many", first=0, last=20)
        seen = []
        # two of each turn: of the queue, those ahead, the window, and those that are being let go of
        tasks = 2 * (2 + 16 + 2 + 2)
        made[0].tell("many", first=20, last=100)
        answer = asyncio.ensure_future(told(made[0]))
        while not answer.done():
            bundles = sum(key.startswith("hpc-flow-") for key in a.data)
            seen.append(max(bundles, (await flow.status())["in_flight"]))
            await asyncio.sleep(0.005)
        by_ring, by_comm = await answer
        assert by_ring + by_comm == 100
        # on a busy machine the word that some are not needed any more takes a moment to the worker
        held = statistics.median(seen) <= 2 + 2 + 2 and max(seen) <= 2 * (2 + 2 + 2)
        assert (held, len(s.tasks) <= tasks) == (True, True), (seen, len(s.tasks), tasks)
        while (await flow.status())["in_flight"]:
            await asyncio.sleep(0.01)
        # who comes late begins with the next step
        late = flow.results("first", timeout=30)
        made[0].tell("send", step=500)
        assert await anext(late) == (500, 500.0)
    await flow.close()
    await nothing_left(s, a)


@pytest.mark.parametrize(("when_full", "steps"), [("wait", [0, 1, 2]), ("drop-newest", [0, 1, 5])])
def test_a_slow_reader_bounds_what_is_in_flight(when_full, steps):
    @live(workers=1, timeout=60)
    async def run(c, s, a):
        flow, values = await started(c, queue=2, when_full=when_full)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            for step in range(5):
                made[0].tell("send", step=step)
            if when_full == "wait":
                await until(lambda: a.data, "a step is there")
                for _ in range(3):
                    assert (await flow.status())["in_flight"] <= 2
            else:
                assert [await told(made[0]) for _ in range(5)] == [True, True, False, False, False]
                assert [await anext(values), await anext(values)] == [(0, 0.0), (1, 1.0)]
                while (await flow.status())["in_flight"]:
                    await asyncio.sleep(0.01)
                made[0].tell("send", step=5)
            got = []
            while not got or got[-1] != steps[-1]:
                got.append((await anext(values))[0])
            assert got == steps[-len(got) :]
        await flow.close()
        await nothing_left(s, a)

    run()


@live(workers=1, timeout=60)
async def test_who_is_away_finds_the_latest_steps_where_the_oldest_make_room(c, s, a):
    flow, values = await started(c, queue=3, when_full="drop-oldest")
    async with producers(s, (0, 8)) as made:
        await opened(made)
        taken = []
        while len(taken) < 12:
            # one that comes while all are being analysed is left out
            step = len(taken) and taken[-1] + 1
            while not await asked(made[0], "send", step=step):
                step += 1
            # while no analysis of it has begun it would make room before older ones
            value = s.tasks[value_key(flow._id, len(taken), "first")]
            await until(lambda value=value: value.state == "memory", f"the value of step {step} is there")
            taken.append(step)
        made[0].tell("close")
        got = [step async for step, _ in values]
        assert (got, (await flow.status())["in_flight"]) == (taken[-3:], 0)
    await flow.close()
    await nothing_left(s, a)


@pytest.mark.parametrize(("queue", "kept"), [(1, [0]), (2, [0, 59])])
def test_an_analysis_slower_than_its_producer_is_let_end_and_goes_on_with_the_latest_step(queue, kept):
    gate = Gate()

    def slow(ds):
        gate.wait()
        return first(ds)

    @live(workers=1, timeout=60)
    async def run(c, s, a):
        rt = await dask_hpc.install(c)
        flow = await rt.couple("heat", FIELDS, queue=queue, when_full="drop-oldest")
        await flow.analyse(slow, name="slow", window=2)
        values = flow.results("slow", timeout=30)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            assert await asked(made[0], "send", step=-1) is True
            await until(lambda: flow._done == 1, "its window is not full, so it is done")
            await asked(made[0], "many", first=0, last=60)
            # those in flight, and of each the one before it
            await until(lambda: len([key for key in a.data if "flow" in key]) <= 2 * queue, "others are gone")
            gate.open()
            made[0].tell("close")
            assert [each async for each in values] == [(step, float(step)) for step in kept]
        await flow.close()
        await nothing_left(s, a)

    run()


@live(workers=1)
async def test_a_value_that_is_given_up_takes_no_other_with_it(c, s, a):
    futures = c.map(inc, range(4))
    await wait(futures)
    for turns in range(12):
        given_up, *others = [asyncio.ensure_future(value_of(future)) for future in futures]
        for _ in range(turns):
            await asyncio.sleep(0)
        given_up.cancel()
        assert await asyncio.gather(*others) == [(2, None), (3, None), (4, None)]


@live(workers=1, timeout=60)
async def test_a_step_goes_over_the_connection_while_the_ring_is_full(c, s, a):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, queue=1)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        # it has a ring of four slots by now; this analysis holds more steps than that
        await asked(made[0], "send", step=0)
        # an analysis begins with the next step that its client has not heard of
        await until(lambda: flow._done == 1, "the step is done")
        await flow.analyse(lambda ds: ds["T"][:, 0, 0].values.tolist(), name="all", window=5)
        values = flow.results("all", timeout=30)
        made[0].tell("many", first=1, last=9)
        assert await anext(values) == (5, [1.0, 2.0, 3.0, 4.0, 5.0])
        assert await anext(values) == (6, [2.0, 3.0, 4.0, 5.0, 6.0])
        assert (await anext(values), await anext(values))[1] == (8, [4.0, 5.0, 6.0, 7.0, 8.0])
        by_ring, by_comm = await told(made[0])
        assert (by_ring + by_comm, by_ring >= 2, by_comm >= 2) == (9, True, True)
    await flow.close()
    await nothing_left(s, a)


@gen_test(timeout=60)
async def test_a_source_over_tls_hands_over_by_the_ring_all_the_same(tmp_path):
    fields = encrypted.fields(tmp_path)
    security = Security(**fields)
    async with (
        Scheduler(
            host="tls://127.0.0.1", port=0, dashboard_address=":0", security=security, validate=True
        ) as s,
        Worker(s.address, security=security, nthreads=1) as a,
        Client(s.address, security=security, asynchronous=True) as c,
    ):
        flow, values = await started(c)
        async with producers(s, (0, 8), security=fields) as made:
            await opened(made)
            made[0].tell("many", first=0, last=2)
            assert [await anext(values), await anext(values)] == [(0, 0.0), (1, 1.0)]
            assert await told(made[0]) == [2, 0]
        await flow.close()
        await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_that_is_closed_says_so_to_its_sources_and_readers(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        for step in (0, 1):
            assert await asked(made[0], "send", step=step) is True
            assert await anext(values) == (step, float(step))
        waits = asyncio.ensure_future(anext(values))
        await asyncio.sleep(0)
        await flow.close()
        with pytest.raises(CouplingError, match="flow 'heat' is closed"):
            await waits
        # the worker, which has room for it, takes it no more
        answer = await asked(made[0], "send", step=2)
        assert answer == {"error": "CouplingError", "text": answer["text"]}
        assert "closed" in answer["text"]
    with pytest.raises(CouplingError, match="flow 'heat' is closed"):
        await flow.on_step(print)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_whose_scheduler_is_gone_says_so_on_both_ends(c, s, a):
    flow, values = await started(c)
    source = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=30)
    assert await asyncio.to_thread(source.send, 0, {"T": whole(0)})
    assert await anext(values) == (0, 0.0)
    await s.close()
    gone = pytest.raises(CouplingError, match="flow 'heat' has failed: the scheduler cannot be reached")
    with gone:
        await anext(values)
    await until(lambda: a.status == Status.closed, "the worker has heard")
    with dask.config.set({"distributed.comm.timeouts.connect": "500 ms"}):
        with gone:
            await asyncio.to_thread(source.send, 1, {"T": whole(1)})
        await asyncio.to_thread(source.close)
    await flow.close()


@live(workers=1)
async def test_blocks_that_come_while_the_task_of_a_failed_step_runs_leave_the_worker_alone(c, s, a):
    gate = Gate()
    running = c.submit(through, 5, gate=gate, key="flow-3-0")
    await until(lambda: gate.arrived == 1, "it runs")
    step = SimpleNamespace(blocks={0: []}, layouts={0: []})
    await Receiver(a)._whole(SimpleNamespace(flow="flow", number=0), 7, 3, step)
    gate.open()
    assert await running == 5
    assert a.address in s.workers


class FromElsewhere:
    """What an analysis refers to, of a module that the client alone has."""

    def __reduce__(self):
        return importlib.import_module, ("module_of_the_client_alone",)


@live(workers=1, timeout=60)
async def test_an_analysis_that_the_scheduler_cannot_import_fails_the_flow(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(Refers(), name="alone")
    monkeypatch.setattr(Refers, "to", FromElsewhere())
    values = flow.results("alone", timeout=20)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            one.tell("many", first=0, last=20)
        told_why = "cannot read what an analysis calls, .*: No module named .module_of_the_client_alone"
        with pytest.raises(CouplingError, match=told_why):
            await anext(values)
        for one in made:
            answer = await told(one)
            assert (answer["error"], "cannot read" in answer["text"]) == ("CouplingError", True)
    await flow.close()
    await nothing_left(s, a)
