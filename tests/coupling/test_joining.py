"""Producers come to their workers and come back to others, to one of the same address, or to none."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from coupled import FIELDS, HALVES, first, opened, started, under_way
from distributed import Client, Future, LocalCluster, Worker, get_worker
from helpers import Gate, asleep, live, record, state_of, through, until
from sources import asked, nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.coupling.this_host import hosts
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling import flow as of_flow
from dask_hpc.scheduler.coupling.bells import Bell, rung
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.joining import Joining
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.coupling import receiver

GONE = "flow 'heat' has failed: the cluster was restarted, or somebody has cancelled the tasks of"


def full(*asked):
    raise OSError("the memory of this host is full")


@live(workers=1)
async def test_producers_that_wait_for_a_flow_and_for_each_other_ask_twice(c, s, a):
    rt = await dask_hpc.install(c)
    join = of(s)._methods["flow_join"]

    async def asking(ranks):
        asked = [asyncio.ensure_future(join("heat", n, 3, f"{n}", ["here"], within_s=30)) for n in ranks]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(one.done() for one in asked)
        return asked

    # of the last one nobody is left: it has no rank when the flow is there
    early = await asking(range(3))
    flow = await rt.couple("heat", FIELDS)
    again = {"wait": "flow 'heat' was declared a moment ago", "again_s": 0}
    assert await asyncio.gather(*early) == [again] * 3
    early = await asking(range(2))
    late = await join("heat", 2, 3, "started anew", ["here"])
    assert [told["worker"] for told in (*await asyncio.gather(*early), late)] == [a.address] * 3
    # who does not wait is told why
    assert "there is no flow 'none'" in (await join("none", 0, 1, "token", ["here"]))["wait"]
    await flow.close()
    await nothing_left(s, a)


@live(workers=2, timeout=60)
async def test_blocks_do_not_go_to_a_node_that_a_job_of_somebody_else_has_for_itself(c, s, a, b):
    gate = Gate()
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        theirs = await dask_hpc.install(other)
        async with theirs.job("theirs", nodes=1, exclusive=True) as job:
            running = other.submit(through, 1, gate)
            await until(lambda: gate.arrived, "it runs")
            rt = await dask_hpc.runtime(c)
            flow = await rt.couple("heat", FIELDS)
            await flow.analyse(first, name="first", where="in-situ")
            values = flow.results("first", timeout=20)
            async with producers(s, *HALVES) as made:
                await under_way(made, values)
                free = {a.address, b.address} - set(record(s, job).allotment)
                assert (await flow.status())["workers"] == list(free)
            await flow.close()
            gate.open()
            assert await running == 1
        await job.wait(10)
        del running
    await nothing_left(s, a, b)


def where(ds):
    return get_worker().address


@live(workers=2, timeout=60)
async def test_analyses_of_blocks_leave_a_node_that_a_job_of_somebody_else_gets_for_itself(c, s, a, b):
    gate, ends = Gate(), asyncio.Event()

    async def hold(job):
        async with job:
            await ends.wait()

    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        theirs = await dask_hpc.install(other)
        holding = asyncio.ensure_future(hold(job := theirs.job("before", nodes=1, exclusive=True)))
        await until(lambda: job.id is not None and state_of(s, job) == "running", "it has a node")
        flow = await (await dask_hpc.runtime(c)).couple("heat", FIELDS)
        await flow.analyse(where, name="where", where="in-situ")
        values = flow.results("where", timeout=20)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            assert await asked(made[0], "send", step=0) is True
            _, place = await anext(values)
            async with theirs.job("theirs", nodes=1, exclusive=True) as job:
                running = other.submit(through, 1, gate)
                await until(lambda: gate.arrived, "it runs")
                assert list(record(s, job).allotment) == [place]
                ends.set()
                await holding
                await asked(made[0], "send", step=1)
                # what that runs may take long
                assert await anext(values) == (1, *({a.address, b.address} - {place}))
                # what is asked for a step that is whole may be answered with the next one
                for step in range(2, 5):
                    await asked(made[0], "send", step=step)
                    await anext(values)
                assert place not in (await flow.status())["workers"]
        await flow.close()
        gate.open()
        assert await running == 1
        await job.wait(10)
        del running
    await nothing_left(s, a, b)


def test_producers_are_woken_once_the_last_of_them_is_there() -> None:
    flow = Flow("heat", "id", (), 2, "wait", "client")
    rung = []
    flow.bell.ring = lambda: rung.append(len(flow.ranks))
    for rank in range(3):
        flow.admit(rank, 3, str(rank), ["here"])
    assert rung == [3]


def test_who_is_started_anew_sends_to_the_worker_of_the_one_before() -> None:
    flow = Flow("heat", "id", (), 2, "wait", "client")
    flow.admit(0, 2, "first", ["here"])
    flow.ranks[0].place = 3
    flow.admit(0, 2, "anew", ["here"])
    assert flow.ranks[0].place == 3


def test_producers_wait_for_the_first_worker_as_for_one_that_is_lost() -> None:
    async def check() -> None:
        there: dict[str, list[str]] = {}

        def hosts(client: str) -> dict[str, list[str]]:
            if not there:
                raise CouplingError("no worker is there; add workers")
            return there

        engine, workers = (
            SimpleNamespace(scheduler=SimpleNamespace(workers=there)),
            SimpleNamespace(hosts=hosts),
        )
        flow = Flow("heat", "id", (), 2, "wait", "client")
        joining = Joining(engine, workers, None, {"heat": flow}.get, None)  # type: ignore[arg-type]
        assert await joining.flow_join("heat", 0, 1, "token", ["here"]) == {
            "wait": "no worker is there; add workers"
        }
        there |= {"tcp://elsewhere:1": ["elsewhere"], "tcp://here:1": ["here"]}
        assert (await joining.flow_join("heat", 0, 1, "token", ["here"]))["worker"] == "tcp://here:1"

    asyncio.run(check())


def test_of_two_sources_of_one_rank_that_come_at_once_one_is_refused(monkeypatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(of_flow, "stopwatch_s", lambda: now_s[0])
    there = {"tcp://here:1": ["here"]}

    async def check() -> None:
        engine = SimpleNamespace(scheduler=SimpleNamespace(workers=there))
        flow = Flow("heat", "id", (), 2, "wait", "client")
        workers = SimpleNamespace(hosts=lambda client: there)
        joining = Joining(engine, workers, None, {"heat": flow}.get, None)  # type: ignore[arg-type]

        async def join(token: str, rank: int = 0, within_s: float = 0.0) -> dict:
            return await joining.flow_join("heat", rank, 2, token, ["here"], within_s=within_s)

        # while others are waited for, who comes later may be the same one, started anew
        first = asyncio.ensure_future(join("first", within_s=30))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(join("second", within_s=30))
        await asyncio.sleep(0)
        await asyncio.ensure_future(join("other", rank=1))  # over a connection that ends with it
        with pytest.raises(ValueError, match="rank is 0, which another source of 'heat' that came later has"):
            await first
        assert (await second)["worker"] == "tcp://here:1"
        # it is about to connect
        assert await join("third") == {"wait": "another source of rank 0 is on its way"}
        flow.came(0)
        with pytest.raises(ValueError, match="rank is 0, which another source of 'heat' has or had"):
            await join("third")
        # rank 1 has died on its way
        now_s[0] = 11.0
        assert (await join("anew", rank=1))["worker"] == "tcp://here:1"

    asyncio.run(check())


def test_who_computes_while_its_worker_is_lost_is_waited_for_as_long_as_it_is_there(monkeypatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(of_flow, "stopwatch_s", lambda: now_s[0])
    there, engine = {"tcp://here:1": ["here"]}, SimpleNamespace(scheduler=SimpleNamespace(workers={}))
    workers = SimpleNamespace(hosts=lambda client: there)
    flow = Flow("heat", "id", (), 2, "wait", "client")
    joining = Joining(engine, workers, None, {"heat": flow}.get, None)  # type: ignore[arg-type]

    async def check() -> None:
        gone = asyncio.Event()

        async def connected() -> None:
            await joining.flow_join("heat", 0, 1, "token", ["here"])
            await gone.wait()

        serves = asyncio.ensure_future(connected())
        await asyncio.sleep(0)
        flow.came(0)
        flow.await_all([0])
        for now_s[0] in (59.0, 9_000.0):
            flow.check()
        gone.set()
        await serves
        # it may have lost its connection, or have another by then
        now_s[0] = 9_059.0
        flow.check()
        now_s[0] = 9_061.0
        with pytest.raises(CouplingError, match="rank 0 has died: it has not come for 60 s"):
            flow.check()

    asyncio.run(check())


def test_who_gives_up_waiting_is_not_remembered() -> None:
    async def check() -> None:
        bell = Bell()
        assert [await rung(bell, 0.001) for _ in range(3)] == [False] * 3
        assert not bell._waiting
        waits = asyncio.ensure_future(rung(bell, 30))
        await asyncio.sleep(0)
        bell.ring()
        assert await waits

    asyncio.run(check())


def test_what_a_client_was_told_and_has_not_heard_it_is_told_at_once() -> None:
    async def check() -> None:
        flow = Flow("heat", "id", (), 2, "wait", "client")
        flow.say("value")
        told = [(1, {"kind": "value"})]
        async with asyncio.timeout(10):
            assert await flow.news(0, 30) == told
            # the answer was lost on its way
            assert await flow.news(0, 30) == told
        assert await flow.news(1, 0.01) == []

    asyncio.run(check())


def test_a_host_is_known_by_the_addresses_of_all_its_interfaces(monkeypatch) -> None:
    def address(text, family=socket.AF_INET):
        return SimpleNamespace(address=text, family=family)

    there = {
        "lo": [address("127.0.0.1"), address("::1", socket.AF_INET6)],
        "eth0": [address("192.168.7.3"), address("00:11:22:33:44:55", psutil.AF_LINK)],
        "ib0": [address("10.1.2.3"), address("fe80::9%ib0", socket.AF_INET6)],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    named = {socket.gethostname(), "192.168.7.3", "10.1.2.3", "fe80::9"}
    assert set(hosts("tcp://10.1.2.1:8786")) == named
    assert set(hosts("tls://localhost:8786")) == named | {"127.0.0.1", "::1", "localhost"}


@live(workers=1, timeout=60)
async def test_a_worker_that_comes_back_under_its_address_takes_the_blocks_again(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            assert await asked(one, "send", step=0) is True
        assert await anext(values) == (0, 0.0)
        address, port = a.address, a.port
        await a.close()
        async with Worker(s.address, host="127.0.0.1", port=port, nthreads=1) as back:
            assert back.address == address
            for one in made:
                one.tell("send", step=1)
            assert await anext(values) == (1, 1.0)
            for one in made:
                assert await told(one) is True
                assert await asked(one, "close") == "closed"
            assert [each async for each in values] == []
            await flow.close()
            await nothing_left(s, back)


@live(workers=1, timeout=60)
async def test_a_cluster_that_is_restarted_fails_its_flows_on_both_ends(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        assert await asked(made[0], "send", step=0) is True
        assert await anext(values) == (0, 0.0)
        await c.restart(wait_for_workers=False)
        with pytest.raises(CouplingError, match=GONE):
            await anext(values)
        # its worker may take one before it is gone
        answer = [await asked(made[0], "send", step=step) for step in (1, 2)][-1]
        assert (answer["error"], answer["text"].startswith(GONE)) == ("CouplingError", True)
    await flow.close()
    await asleep(s)


@live(workers=2, timeout=60)
async def test_a_cancelled_task_of_one_part_of_the_next_step_fails_the_flow_on_both_ends(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await under_way(made, values)
        (key,) = [key for key in s.tasks if key.startswith("hpc-flow-heat-") and key.endswith("-1-1")]
        await c.cancel([Future(key, c)])
        with pytest.raises(CouplingError, match=GONE):
            await anext(values)
        for one in made:
            # two of them may be taken unasked
            answer = [await asked(one, "send", step=step) for step in (1, 2, 3)][-1]
            assert (answer["error"], answer["text"].startswith(GONE)) == ("CouplingError", True)
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=2, timeout=60)
async def test_blocks_that_went_over_the_connection_are_sent_again_by_who_has_copies(c, s, a, b, monkeypatch):
    monkeypatch.setattr(receiver, "Ring", full)
    flow, values = await started(c)
    async with producers(s, *HALVES, copies=True) as made:
        await opened(made)
        place = (await flow.status())["workers"][0]
        gone, stays = sorted((a, b), key=lambda worker: worker.address != place)
        assert await asked(made[0], "send", step=0) is True
        await gone.close()
        made[0].tell("send", step=1)
        for step in (0, 1):
            made[1].tell("send", step=step)
        assert await anext(values) == (0, 0.0)
        assert await anext(values) == (1, 1.0)
        assert [await told(one) for one in (made[0], made[1], made[1])] == [True] * 3
        assert await asked(made[0], "ways") == [0, 2]
    await flow.close()
    await nothing_left(s, stays)


def test_within_one_process_an_array_is_its_callers_again_as_well(monkeypatch) -> None:
    monkeypatch.setattr(receiver, "Ring", full)
    gate = Gate()

    def late(ds):
        gate.wait()
        return first(ds)

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        flow = dask_hpc.install(client).couple("heat", FIELDS)
        flow.analyse(late, name="late")
        values = flow.results("late", timeout=30)
        with dask_hpc.Source("heat", cluster.scheduler_address) as source:
            block = np.array(whole(1))
            assert source.send(1, {"T": block}) is True
            block[:] = -1
            gate.open()
            assert (next(values), source.by_comm) == ((1, 1.0), 1)
        flow.close()


@live(workers=1, timeout=60)
async def test_tasks_of_coming_steps_that_come_after_the_end_of_their_flow_are_not_run(c, s, a, monkeypatch):
    graphs, ended, came = s.stream_handlers["update-graph"], asyncio.Event(), asyncio.Event()

    async def late(**said):
        await ended.wait()
        await graphs(**said)
        came.set()

    monkeypatch.setitem(s.stream_handlers, "update-graph", late)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    async with producers(s, (0, 8)):
        await until(lambda: of(s).engine.state.awaited, "steps are announced")
        await flow.close()
        ended.set()
        await came.wait()
    await nothing_left(s, a)
    assert "processing" not in {finish for _, _, finish, *_ in s.transition_log}
