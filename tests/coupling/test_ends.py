"""Ends of a process, a client or an hour: a staging node is killed, a reader is away, a rank leaves early."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading

import numpy as np
import pytest
from coupled import FIELDS, HALVES, Refers, first, opened, rings, sent, started
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from helpers import Gate, live, until
from sources import asked, nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.coupling import source
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling import joining
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import COUPLE, ROLE_RESOURCE
from dask_hpc.worker.coupling import receiver
from dask_hpc_policies.coupling.contract import block_key


@live(workers=1, timeout=90)
async def test_a_staging_node_that_is_killed_amid_an_analysis_costs_no_step(c, s, a, tmp_path):
    here, begun = os.getpid(), tmp_path / "begun"

    def which(ds):
        step = int(ds["step"][-1])
        if os.getpid() != here and step == 3:
            begun.touch()
            threading.Event().wait()
        return os.getpid() == here, float(ds["T"][-1, 0, 0])

    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    command = ["distributed.cli.dask_worker", s.address, "--name", "staging", "--nthreads", "1", "--no-nanny"]
    staging = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, "--resources", f"{ROLE_RESOURCE}staging=1", "--no-dashboard",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(lambda: len(s.running) == 2, "the staging node is there", 60)
        await flow.analyse(which, name="which", where="in-transit", window=2)
        values = flow.results("which", timeout=60)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            made[0].tell("many", first=0, last=6)
            assert [await anext(values) for _ in range(2)] == [(1, (False, 1.0)), (2, (False, 2.0))]
            await until(begun.exists, "the analysis of step 3 is under way")
            blocks = [s.tasks[block_key(flow._id, turn, 0)] for turn in (3, 4)]
            await until(lambda: all(len(ts.who_has or ()) == 2 for ts in blocks), "both are there for 4, too")
            # stock would drop copies where nothing waits for them to run; nor is it asked for any
            asked = []
            s.request_remove_replicas = lambda *args, **more: asked.append(args)
            s.extensions["amm"].run_once()
            del s.request_remove_replicas
            assert asked == []
            staging.kill()
            # its window came with blocks that are still where they were
            assert [await anext(values) for _ in range(3)] == [(n, (True, float(n))) for n in (3, 4, 5)]
            await told(made[0])
            made[0].tell("close")
            assert [each async for each in values] == []
    finally:
        if staging.returncode is None:
            staging.kill()
        await staging.wait()
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=3600 + 120)
async def test_a_reader_that_is_away_for_an_hour_costs_memory_for_the_queue_and_no_step(c, s, a):
    loop = asyncio.get_running_loop()
    clock, ahead_s = loop.time, 0.0
    # the clock of scheduler, worker and client; whoever sends has its own, and waits for word alone
    loop.time = lambda: clock() + ahead_s
    flow, values = await started(c, queue=2)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("many", first=0, last=8)
        # on this clock whatever is waited for times out
        answer = asyncio.ensure_future(asyncio.to_thread(made[0].answer))
        async with asyncio.timeout(60):
            while (await flow.status())["in_flight"] < 2:
                await asyncio.sleep(0.01)
        tasks = len(s.tasks)
        for _ in range(360):
            ahead_s += 10
            await asyncio.sleep(0)
            assert (await flow.status())["in_flight"] == 2
        # the two steps in flight, each with its value, and the one that waits to be taken
        assert (len(a.data) <= 2 * 2 + 1, len(s.tasks) == tasks, answer.done()) == (True, True, False)
        assert [(await anext(values))[0] for _ in range(8)] == list(range(8))
        assert sum(await answer) == 8
        assert await asked(made[0], "close") == "closed"
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_step_that_a_rank_has_left_without_is_refused_to_the_others(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            one.tell("send", step=0)
        assert await anext(values) == (0, 0.0)
        assert [await told(one) for one in made] == [True, True]
        assert await asked(made[1], "close") == "closed"
        answer = await asked(made[0], "send", step=1)
        assert answer == {"error": "ValueError", "text": "step 1 can never be whole: rank 1 has left"}
        assert await asked(made[0], "close") == "closed"
        assert [each async for each in values] == []
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_blocks_of_a_rank_that_has_left_wait_for_one_that_comes_later(c, s, a):
    flow, values = await started(c)
    go = threading.Event()

    class Late(dask_hpc.Source):
        async def _connected(self, told):
            await asyncio.to_thread(go.wait, 30)
            return await super()._connected(told)

    def send(kind, rank):
        with kind("heat", s.address, rank=rank, size=2) as source:
            source.send(0, {"T": np.zeros((4, 6))}, at={"y": HALVES[rank][0]})

    late = asyncio.create_task(asyncio.to_thread(send, Late, 1))
    await asyncio.to_thread(send, dask_hpc.Source, 0)
    go.set()
    await late
    assert [each async for each in values] == [(0, 0.0)]
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_whose_client_is_gone_says_so_to_its_sources_and_leaves_nothing(c, s, a):
    async with Client(s.address, asynchronous=True) as gone:
        lost, values = await started(gone)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            assert await asked(made[0], "send", step=0) is True
            assert await anext(values) == (0, 0.0)
            await gone.close()
            flows, join = of(s)._methods["flow_whole"].__self__, of(s)._methods["flow_join"]
            await until(lambda: flows.status() == {}, "nobody has to ask for it")
            # one step may be taken before the worker asks again
            answers = [await asked(made[0], "send", step=step) for step in (1, 2)]
            text = "flow 'heat' has failed: its client is gone, or had no connection"
            assert answers[-1] == {"error": "CouplingError", "text": text}
            # whoever asks later is told as well, and goes on with no other flow of that name
            another, _ = await started(c)
            with pytest.raises(CouplingError, match=text):
                await join("heat", 0, 1, "token", ["here"], before=lost._id)
            await another.close()
            with pytest.raises(CouplingError, match="its client is gone"):
                await flows.couple("heat", [], 2, "wait", gone.id)
    assert await (await dask_hpc.runtime(c)).flows() == []
    await nothing_left(s, a)


@live(workers=2, timeout=60)
async def test_steps_whose_blocks_nobody_has_any_more_fail_with_their_worker_and_later_ones_go_on(
    c, s, a, b, monkeypatch
):
    def full(*asked):
        raise OSError("the memory of this host is full")

    # blocks go over the connection: the program has them no more
    monkeypatch.setattr(receiver, "Ring", full)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, queue=2)
    await flow.analyse(first, name="first", window=2)
    values = flow.results("first", timeout=30)
    async with producers(s, *HALVES) as made:
        await opened(made)
        status = await flow.status()
        assert len(status["workers"]) == 2
        await sent(made, 0)
        made[0].tell("send", step=1)
        assert await told(made[0]) is True
        # the first worker has half of steps 0 and 1, and the other half of 1 has not been sent
        gone, stays = sorted((a, b), key=lambda worker: worker.address != status["workers"][0])
        await gone.close()
        made[1].tell("send", step=1)
        await told(made[1])
        # it notices with its next step
        for one in made:
            one.tell("send", step=2)
        with pytest.raises(CouplingError, match=r"step 1: [01] failed, worker .* was lost with blocks of it"):
            await anext(values)
        assert [await told(one) for one in made] == [True, True]
        await sent(made, 3)
        with pytest.raises(CouplingError, match="step 2: 1 failed"):
            await anext(values)
        assert await anext(values) == (3, 3.0)
    await flow.close()
    await nothing_left(s, stays)


@live(workers=1)
async def test_a_worker_that_cannot_be_reached_for_a_moment_is_asked_again(c, s, a, monkeypatch):
    flow, values = await started(c)
    tried, connect = [], source.connect

    async def once_in_vain(address, **kwargs):
        if address == a.address:
            tried.append(address)
            if len(tried) == 1:
                raise OSError("too many connections")
        return await connect(address, **kwargs)

    monkeypatch.setattr(source, "connect", once_in_vain)
    made = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    assert tried == [a.address] * 2
    # such as a file has them that was written by another machine
    assert await asyncio.to_thread(made.send, 7, {"T": whole(7).astype(">f8")}) is True
    assert await anext(values) == (7, 7.0)
    assert rings()
    await asyncio.to_thread(made.close)
    await flow.close()
    await nothing_left(s, a)
    await until(lambda: not rings(), "nothing is left of the ring, though its source is there")


@live(workers=1, timeout=60)
async def test_a_source_that_is_killed_while_it_waits_for_room_is_missed_at_once(c, s, a):
    flow, values = await started(c, queue=1)
    async with producers(s, *HALVES) as made:
        await opened(made)
        await sent(made, 0)
        await until(lambda: values._items, "the value of step 0 is there, and nobody reads it")
        (place,) = a.handlers[COUPLE].__self__._places.values()
        made[0].tell("send", step=1)
        await until(lambda: 1 in place.steps, "it waits for room")
        made[1].tell("send", step=1)
        made[0].process.kill()
        state = "running"
        async with asyncio.timeout(20):
            while state == "running":
                await asyncio.sleep(0.01)
                state = (await flow.status())["state"]
        # the other one is told so, too
        answer = await told(made[1])
        assert (answer["error"], "rank 0 is gone without" in answer["text"]) == ("CouplingError", True)
        await until(lambda: not place.steps and not a.data, "nothing is held for it any more")
        assert await anext(values) == (0, 0.0)
        with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
            await anext(values)
    await flow.close()
    await nothing_left(s, a)
    await until(lambda: not rings(), "nor is its ring")


@live(workers=1, timeout=60)
async def test_whose_value_ends_with_its_flow_is_told_why_that_has_failed(c, s, a):
    flow, gate = (await started(c))[0], Gate()
    await flow.analyse(lambda ds: gate.wait(), name="slow")
    values = flow.results("slow", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("send", step=0)
        await until(lambda: gate.arrived == 1, "its analysis runs")
    await until(lambda: values._items, "it is given up")
    with pytest.raises(CouplingError, match=r"'slow' of step 0: 0 failed, .* rank 0 is gone without a word"):
        await anext(values)
    gate.open()
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_source_whose_send_was_interrupted_is_gone_and_takes_no_answer_for_another(c, s, a):
    flow, values = await started(c, queue=1)
    made = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    assert await asyncio.to_thread(made.send, 0, {"T": whole(0)}) is True

    def interrupt():
        raise KeyboardInterrupt

    def interrupted():
        # there is no room: it waits
        made._loop.call_later(0.1, interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.send(1, {"T": whole(1)})

    await until(lambda: values._items, "the value of step 0 is there")
    await asyncio.to_thread(interrupted)
    # at once, although there is no room
    with pytest.raises(CouplingError, match="source 0 of 'heat' is closed"):
        made.send(2, {"T": whole(2)})
    made.close()
    assert await anext(values) == (0, 0.0)
    # what the worker had heard of by then may still come
    with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
        print([value async for value in values])
    await flow.close()
    await nothing_left(s, a)


@live(workers=1)
async def test_a_source_that_is_interrupted_before_its_flow_is_there_leaves_nothing_pending(
    c, s, a, monkeypatch
):
    class Interrupted(dask_hpc.Source):
        async def _join(self, lost=None):
            self._loop.call_later(0.3, interrupt)
            await super()._join(lost)

    def interrupt():
        raise KeyboardInterrupt

    def join():
        with pytest.raises(KeyboardInterrupt):
            Interrupted("heat", s.address)
        gc.collect()  # what is pending then says so in the log, which no test may

    await dask_hpc.install(c)
    # it is told at once to ask again, and waits until then
    monkeypatch.setattr(joining, "_MOST_S", 0.01)
    monkeypatch.setattr(source, "_AGAIN_S", 20.0)
    await asyncio.to_thread(join)


@live(workers=1)
async def test_a_source_is_closed_where_the_runtime_is_gone(c, s, a):
    await started(c)
    made = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    await (await dask_hpc.runtime(c)).uninstall()
    await a.close()
    for _ in range(2):
        await asyncio.to_thread(made.close)
    with pytest.raises(CouplingError, match="source 0 of 'heat' is closed"):
        made.send(1, {"T": whole(1)})


class Priorities(SchedulerPlugin):
    """Notes what stock gives to tasks."""

    def __init__(self):
        self.given = {}

    def update_graph(self, scheduler, *, priority, **kwargs):
        self.given |= priority


@live(workers=1, timeout=30)
async def test_what_somebody_else_wants_of_a_closed_flow_has_the_priority_that_stock_gave_it(c, s, a):
    flow, values = await started(c)
    stock = Priorities()
    s.add_plugin(stock, name="stock")
    async with Client(s.address, asynchronous=True) as other, producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("send", step=0)
        assert await anext(values) == (0, 0.0)
        keys = [key for key, ts in s.tasks.items() if key.startswith("first-") and ts.state == "waiting"]
        s.client_desires_keys(keys, other.id)
        assert keys
        assert all(s.tasks[key].priority != stock.given[key] for key in keys)
        await flow.close()
        assert {key: s.tasks[key].priority for key in keys} == {key: stock.given[key] for key in keys}
    s.remove_plugin("stock")
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_flow_whose_analysis_cannot_be_sent_any_more_fails_on_both_ends(c, s, a, monkeypatch):
    flow, values = await started(c)
    await flow.analyse(Refers(), name="refers")
    monkeypatch.setattr(Refers, "to", threading.Lock())
    async with producers(s, (0, 8)) as made:
        with pytest.raises(CouplingError, match=r"flow 'heat' has failed: .*serialize"):
            await anext(values)
        # it may have been there before
        if (answer := await told(made[0])) == "open":
            answer = await asked(made[0], "send", step=0)
        assert answer["error"] == "CouplingError"
    await flow.close()
    await nothing_left(s, a)
