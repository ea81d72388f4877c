"""A worker that is closed as any other, amid steps or after them: they are sent again, or said to be lost."""

from __future__ import annotations

import asyncio

import distributed.worker
import numpy as np
import pytest
from coupled import FIELDS, HALVES, opened, sent, started
from distributed import get_worker
from distributed.core import Status
from helpers import Gate, engine, live, through, until, within
from sources import asked, nothing_left, producers, told

import dask_hpc
from dask_hpc.errors import CouplingError, NotProvided
from dask_hpc.scheduler.coupling import flow as of_flow
from dask_hpc.scheduler.internals import data
from dask_hpc.wire import COUPLE
from dask_hpc.worker.coupling import receiver as of_worker
from dask_hpc_policies.coupling import turns

#: State of data on a worker whose transfer nobody needs any more, and its state before that.
CANCELLED = "cancelled", "flight"


async def begun(made, flow, values, *workers):
    """Have a first step; gives the worker that has its blocks, and the other one."""
    await opened(made)
    assert await asked(made[0], "send", step=0) is True
    assert await anext(values) == (0, 0.0)
    row = await flow.status()
    return sorted(workers, key=lambda worker: worker.address != row["workers"][0])


@live(workers=2, timeout=60)
async def test_a_worker_that_closes_before_it_hears_that_a_step_is_whole_costs_no_step(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, (0, 8), copies=True) as made:
        goes, stays = await begun(made, flow, values, a, b)
        receiver, closing = goes.handlers[COUPLE].__self__, []
        tell = receiver._tell

        async def broken_off(method, **arguments):
            answer = await tell(method, **arguments)
            if method == "flow_whole":
                # what this worker can still say is heard, its calls are broken off
                closing.append(asyncio.ensure_future(goes.close()))
                while goes.status != Status.closing:
                    await asyncio.sleep(0)
                raise OSError("the connection is closed")
            return answer

        receiver._tell = broken_off
        made[0].tell("many", first=1, last=6)
        made[0].tell("close")
        assert [each async for each in values] == [(step, float(step)) for step in range(1, 6)]
        assert len(closing) == 1
        await within(closing[0])
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_source_that_closes_while_its_worker_is_closing_has_left(c, s, a, b, monkeypatch):
    # else who waits for it in vain does so for a minute
    monkeypatch.setattr(of_flow, "_BACK_S", 3.0)
    flow, values = await started(c)
    async with producers(s, (0, 8), copies=True) as made:
        goes, stays = await begun(made, flow, values, a, b)
        gate = Gate()
        c.submit(through, 1, gate, workers=[goes.address], pure=False, key="long")
        await until(lambda: gate.arrived, "a task runs")
        closing = asyncio.ensure_future(goes.close())
        await until(lambda: goes.address not in s.workers, "the worker waits for its task alone")
        assert await asked(made[0], "send", step=1) is True
        assert await asked(made[0], "close") == "closed"
        assert [each async for each in values] == [(1, 1.0)]
        gate.open()
        await within(closing)
    await flow.close()
    await nothing_left(s, stays)


def full(*asked):
    raise OSError("the memory of this host is full")


async def emptied(s, worker):
    """Have a worker emptied, as one that retires or whose walltime ends."""
    data.stop_intake(s, [worker.address], "test")
    await until(lambda: worker.status == Status.closing_gracefully, "it has heard")


@live(workers=2, timeout=60)
async def test_steps_that_come_while_their_worker_is_emptied_go_to_one_that_comes(c, s, a, b, monkeypatch):
    # what a worker has taken over the connection the program has no more
    monkeypatch.setattr(of_worker, "Ring", full)
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        goes, stays = await begun(made, flow, values, a, b)
        s.handle_worker_status_change("paused", stays.address, "test")
        await emptied(s, goes)
        made[0].tell("many", first=1, last=6)
        made[0].tell("close")
        await until(lambda: any(str(key).endswith("-1-0") for key in goes.data), "a step has come")
        s.handle_worker_status_change("running", stays.address, "test")
        await data.remove(s, goes.address)
        assert [each async for each in values] == [(step, float(step)) for step in range(1, 6)]
        assert [await told(made[0]) for _ in range(2)] == [[0, 6], "closed"]
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_who_sends_to_a_worker_that_is_emptied_goes_on_with_the_next_one_between_two_steps(c, s, a, b):
    flow, values = await started(c)
    # the first and the last one have a worker in common
    async with producers(s, (0, 3), (3, 6), (6, 8)) as made:
        await opened(made)
        place = (await flow.status())["workers"][0]
        goes, stays = sorted((a, b), key=lambda worker: worker.address != place)
        await sent(made, 0)
        await emptied(s, goes)
        for step in range(1, 4):
            assert await anext(values) == (step - 1, step - 1.0)
            await sent(made, step)
        assert await anext(values) == (3, 3.0)
        assert (goes.status, (await flow.status())["workers"]) == (Status.closing_gracefully, [stays.address])
        for one in made:
            assert await asked(one, "close") == "closed"
        assert [each async for each in values] == []
    await flow.close()
    await nothing_left(s, goes, stays)


@live(workers=2, timeout=60)
async def test_a_step_that_was_moved_to_the_worker_that_it_is_sent_to_then_stays_there(c, s, a, b):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(lambda ds: ds["T"].values[:, 0, 0].tolist(), name="both", window=2)
    values = flow.results("both", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        there = (await flow.status())["workers"]
        goes, stays = sorted((a, b), key=lambda worker: worker.address not in there)
        assert await asked(made[0], "send", step=0) is True
        s.handle_worker_status_change("paused", stays.address, "test")
        await emptied(s, goes)
        made[0].tell("send", step=1)
        key = await until(lambda: next((k for k in goes.data if k.endswith("-1-0")), None), "it has come")
        s.handle_worker_status_change("running", stays.address, "test")
        # stock could not move all at first, and has it go on for a moment
        s.handle_worker_status_change("running", goes.address, "test")
        await until(lambda: s.tasks[key].state == "memory", "it is a result")
        data.stop_intake(s, [goes.address], "test")
        assert [*await data.retire(s, [goes.address], "test")] == [goes.address]
        assert await told(made[0]) is True
        assert await asked(made[0], "send", step=2) is True
        assert [await anext(values) for _ in range(2)] == [(1, [0.0, 1.0]), (2, [1.0, 2.0])]
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_step_that_nobody_can_send_again_is_moved_with_what_its_worker_holds(c, s, a, b, monkeypatch):
    monkeypatch.setattr(of_worker, "Ring", full)
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        goes, stays = await begun(made, flow, values, a, b)
        # it has not heard yet that it is to be emptied
        s.handle_worker_status_change("closing_gracefully", goes.address, "test")
        assert await asked(made[0], "send", step=1) is True
        assert [*await data.retire(s, [goes.address], "test")] == [goes.address]
        made[0].tell("close")
        assert [each async for each in values] == [(1, 1.0)]
        assert await told(made[0]) == "closed"
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_step_that_goes_with_its_emptied_worker_is_sent_again_by_whoever_has_closed(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        goes, stays = await begun(made, flow, values, a, b)
        # the scheduler takes no result of it any more, and it has not heard yet
        s.handle_worker_status_change("closing_gracefully", goes.address, "test")
        assert await asked(made[0], "send", step=1) is True
        made[0].tell("close")
        await emptied(s, goes)
        await s.remove_worker(goes.address, stimulus_id="test", expected=True, close=False)
        assert [each async for each in values] == [(1, 1.0)]
        assert await told(made[0]) == "closed"
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_source_that_closes_while_its_worker_is_emptied_has_left_also_when_that_stays(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        stays, other = await begun(made, flow, values, a, b)
        await emptied(s, stays)
        made[0].tell("close")
        s.handle_worker_status_change("running", stays.address, "test")
        s.worker_send(stays.address, {"op": "worker-status-change", "status": "running", "stimulus_id": "x"})
        assert await told(made[0]) == "closed"
        assert [each async for each in values] == []
    await flow.close()
    await nothing_left(s, stays, other)


@live(workers=2, timeout=60)
async def test_a_source_that_is_killed_while_its_worker_is_emptied_is_missed_at_once(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        goes, other = await begun(made, flow, values, a, b)
        await emptied(s, goes)
        # one that sends now may be on its way to another worker as it is killed
        made[0].end()
        with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
            await anext(values)
    await flow.close()
    await nothing_left(s, goes, other)


@live(workers=2, timeout=60)
async def test_a_node_that_is_to_leave_gets_no_more_analyses_of_the_blocks_that_come_to_it(c, s, a, b):
    gates = [Gate() for _ in range(4)]
    for gate in gates[0], gates[3]:
        gate.open()

    def where(ds):
        gates[int(ds["step"][0])].wait()
        return get_worker().address

    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    await flow.analyse(where, name="where", where="in-situ")
    values = flow.results("where", timeout=30)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        there = (await flow.status())["workers"]
        goes, stays = sorted((a, b), key=lambda worker: worker.address not in there)
        for step in range(2):
            assert await asked(made[0], "send", step=step) is True
        assert await anext(values) == (0, goes.address)
        await until(lambda: gates[1].arrived, "a step is analysed")
        release = {"count": 1, "among": [goes.name]}
        releasing = asyncio.ensure_future(rt.channel.ask("release", **release))
        await until(lambda: engine(s).state.nodes.at[goes.address].reserved, "it is drained")
        made[0].tell("many", first=2, last=4)
        await until(lambda: gates[2].arrived, "the next one is analysed elsewhere")
        Gate.open_all()
        assert await anext(values) == (1, goes.address)
        assert [await anext(values) for _ in range(2)] == [(step, stays.address) for step in (2, 3)]
        assert (await within(releasing))["released"] == {str(goes.name): [goes.name]}
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_step_is_lost_with_its_worker_where_one_of_its_producers_there_has_left(c, s, a, b):
    flow, values = await started(c)
    # the first and the last one have a worker in common
    async with producers(s, (0, 3), (3, 6), (6, 8)) as made:
        await opened(made)
        place = (await flow.status())["workers"][0]
        gone, stays = sorted((a, b), key=lambda worker: worker.address != place)
        assert await asked(made[0], "send", step=0) is True
        assert await asked(made[0], "close") == "closed"
        made[1].tell("send", step=0)
        assert await told(made[1]) is True
        await gone.close()
        # the last one may come back with its part, the first one does not
        with pytest.raises(CouplingError, match=f"worker {place} was lost with blocks of it"):
            await anext(values)
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_steps_in_a_ring_that_became_too_small_are_sent_again_by_who_has_copies(c, s, a, b):
    rt = await dask_hpc.install(c)
    # a row takes a page of its ring
    flow = await rt.couple("heat", {"T": (("y", "x"), (8, 512), "float64")})
    await flow.analyse(lambda ds: ds["T"].values.mean((1, 2)).tolist(), name="all", window=3)
    values = flow.results("all", timeout=30)
    ranks = [{"rank": rank, "size": 2, "copies": True, "timeout": 20} for rank in range(2)]
    opening = [asyncio.to_thread(dask_hpc.Source, "heat", s.address, **more) for more in ranks]
    sources = await asyncio.gather(*opening)
    for step, middle in enumerate((2, 5, 5)):
        if step == 2:
            place = (await flow.status())["workers"][0]
            goes, stays = sorted((a, b), key=lambda worker: worker.address != place)
            await goes.close()
        for source, first, last in zip(sources, (0, middle), (middle, 8), strict=True):
            block = np.full((last - first, 512), float(step))
            assert await asyncio.to_thread(source.send, step, {"T": block}, {"y": first}) is True
    assert await anext(values) == (2, [0.0, 1.0, 2.0])
    for source in sources:
        assert (source.by_ring, source.by_comm) == (3, 0)
        await asyncio.to_thread(source.close)
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_a_step_that_is_sent_again_where_it_is_fetched_from_a_host_that_hangs_comes(
    c, s, a, b, monkeypatch
):
    flow, values = await started(c)
    fetch, landed, ends = distributed.worker.get_data_from_worker, of_worker.landed, asyncio.Event()
    fetched_from, looked_at = [], []

    async def hanging(*args, worker, **more):
        fetched_from.append(worker)
        if len(fetched_from) > 1:
            return await fetch(*args, worker=worker, **more)
        await ends.wait()
        raise OSError("the host does not answer")

    async def looked(worker, keys):
        looked_at.extend(keys)
        await landed(worker, keys)

    monkeypatch.setattr(distributed.worker, "get_data_from_worker", hanging)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for one in made:
            one.tell("send", step=0)
        await until(lambda: fetched_from, "one worker fetches the half that the other has")
        lost, stays = sorted((a, b), key=lambda worker: worker.address != fetched_from[0])
        await lost.close()
        there = stays.state.tasks
        (key,) = await until(
            lambda: [key for key, ts in there.items() if (ts.state, ts.previous) == CANCELLED],
            "nobody needs what is fetched",
        )
        monkeypatch.setattr(of_worker, "landed", looked)
        for one in made:
            assert await told(one) is True
            one.tell("close")
        await until(lambda: key in looked_at, "it was sent again")
        ends.set()
        assert [each async for each in values] == [(0, 0.0)]
    await flow.close()
    await nothing_left(s, stays)


@live(workers=3, timeout=60)
async def test_steps_that_were_kept_and_are_lost_are_not_waited_for(c, s, *workers, monkeypatch):
    monkeypatch.setattr(turns, "_REMEMBERED", 1)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    made_of_them = []

    async def keep(step, ds):
        made_of_them.append(c.persist(ds["T"] + 1, workers=(await flow.status())["workers"]))

    async def released(step):
        (key,) = [key for key in s.tasks if str(key).endswith(f"-{step}-0")]
        await until(lambda: s.tasks[key].state == "released", "of the step there is what is made of it")
        # while there is an array of it, its producer has it still and sends it again
        there = [worker.data for worker in workers if worker.address in s.workers]
        await until(lambda: not any(one == key or "T-" in str(one) for its in there for one in its), "that")

    async def closed(there):
        await next(worker for worker in workers if worker.address in there).close()

    await flow.on_step(keep)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        for step in range(4):
            assert await asked(made[0], "send", step=step) is True
        await until(lambda: len(made_of_them) == 4, "all are kept")
        for step in 0, 2:
            await released(step)
        # their producer hears so
        assert await asked(made[0], "send", step=4) is True
        await closed((await flow.status())["workers"])
        made[0].tell("send", step=5)
        # of a few steps alone it is known that they were
        for step in 0, 2:
            assert isinstance(await c.compute(made_of_them[step].sum()).exception(), NotProvided)
        assert await told(made[0]) is True
        await until(lambda: len(made_of_them) == 6, "the flow goes on")
        assert await asked(made[0], "close") == "closed"
        there = (await flow.status())["workers"]
    # of a flow that is closed nobody asks any more
    await flow.close()
    await released(5)
    await closed(there)
    assert isinstance(await c.compute(made_of_them[5].sum()).exception(), NotProvided)
    made_of_them.clear()
    await nothing_left(s, *[worker for worker in workers if worker.status == Status.running])
