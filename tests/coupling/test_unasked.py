"""Steps that workers take without asking the scheduler, and hold back for a program: what becomes of them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from coupled import FIELDS, HALVES, opened, sent, started
from distributed.core import Status
from helpers import live, until
from sources import asked, nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.internals import data
from dask_hpc.wire import COUPLE
from dask_hpc.worker.coupling import receiver
from dask_hpc.worker.coupling.places import Place, Step


@live(workers=2, timeout=60)
async def test_a_step_that_only_a_lost_worker_knew_of_is_sent_again_by_whoever_closes_then(c, s, a, b):
    flow, values = await started(c, queue=2)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for step in (0, 1):
            await sent(made, step)
            assert await anext(values) == (step, float(step))
        workers = (await flow.status())["workers"]
        gone, stays = sorted((a, b), key=lambda worker: worker.address != workers[0])
        # the worker is lost before it could tell of its half of step 2, which it has taken without asking
        taking = gone.handlers[COUPLE].__self__

        async def silent(*args):
            await asyncio.sleep(60)

        taking._whole = silent
        assert await asked(made[0], "send", step=2) is True
        await gone.close()
        assert await asked(made[0], "close") == "closed"
        assert await asked(made[1], "send", step=2) is True
        assert await anext(values) == (2, 2.0)
        assert await asked(made[1], "close") == "closed"
        assert [each async for each in values] == []
    await flow.close()
    await nothing_left(s, stays)


@live(workers=2, timeout=60)
async def test_other_steps_on_other_workers_fail_the_flow(c, s, a, b):
    flow, values = await started(c, queue=3)
    async with producers(s, *HALVES) as made:
        await opened(made)
        for step in (0, 1):
            await sent(made, step)
            assert await anext(values) == (step, float(step))
        assert await asked(made[0], "send", step=2) is True
        assert await asked(made[1], "send", step=3) is True
        with pytest.raises(CouplingError, match=r"step [23] was sent where other producers have sent [23]"):
            await anext(values)
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=1, timeout=60)
async def test_no_transfer_begins_while_a_program_exchanges_data_itself(c, s, a, monkeypatch):
    monkeypatch.setattr(receiver, "_HOLD_S", 30.0)
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        answer = await asked(made[0], "inside")
        assert (answer["error"], "or afterwards" in answer["text"]) == ("RuntimeError", True)
        assert await asked(made[0], "send", step=0) is True
        assert await asked(made[0], "communicate") == "communicating"
        assert await asked(made[1], "send", step=0) is True
        coming = asyncio.ensure_future(anext(values))
        # the whole step is on the worker by now, and nobody was told
        for _ in range(3):
            assert (await flow.status())["in_flight"] == 1
        assert not coming.done()
        assert not a.data
        made[0].tell("go on")
        assert await told(made[0]) == "done"
        assert await coming == (0, 0.0)
        # ranks that wait for each other do not wait for ever
        monkeypatch.setattr(receiver, "_HOLD_S", 0.01)
        assert await asked(made[0], "send", step=1) is True
        assert await asked(made[0], "communicate") == "communicating"
        assert await asked(made[1], "send", step=1) is True
        assert await anext(values) == (1, 1.0)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_rank_goes_on_beyond_a_step_that_was_left_out_while_another_asks_for_that(c, s, a):
    flow, values = await started(c, queue=1, when_full="drop-newest")
    gate, begun = asyncio.Event(), []

    async def later(place, number, again):
        begun.append(number)
        if begun.count(1) == 2 and number == 1:
            await gate.wait()
        return await ask(place, number, again)

    async with producers(s, *HALVES) as made:
        await opened(made)
        asks = a.handlers[COUPLE].__self__
        ask, asks._ask = asks._ask, later
        await sent(made, 0)
        # nobody reads yet: there is no room
        assert await asked(made[0], "send", step=1) is False
        # as where a worker has come in the place of another, which knows of no step that was left out
        (place,) = asks._places.values()
        place.out.clear()
        made[1].tell("send", step=1)
        await until(lambda: begun == [0, 1, 1], "it asks")
        assert await asked(made[0], "send", step=2) is False
        gate.set()
        assert [await told(made[1]), await asked(made[1], "send", step=2)] == [False, False]
        assert await anext(values) == (0, 0.0)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_rank_far_behind_another_of_its_worker_is_told_what_that_was_told(c, s, a):
    for when_full, steps in (("drop-newest", [0, 1]), ("drop-oldest", [0, 99])):
        flow, values = await started(c, queue=2, when_full=when_full)
        async with producers(s, *HALVES) as made:
            await opened(made)
            (place,) = a.handlers[COUPLE].__self__._places.values()
            # the scheduler remembers fewer
            for one in made:
                one.tell("many", first=0, last=100)
                assert sum(await told(one)) == 100
            assert (place.out, place.steps) == ({}, {})
            for one in made:
                one.tell("close")
            assert [each async for each in values] == [(step, float(step)) for step in steps]
        await flow.close()
        await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_blocks_lie_where_they_do_after_a_step_that_had_to_make_room_before_it_was_whole(c, s, a):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, queue=2, when_full="drop-oldest")
    seen = {}
    await flow.on_step(lambda step, ds: seen.update({step: np.array_equal(ds["T"].compute(), whole(step))}))
    async with producers(s, *HALVES) as made:
        await opened(made)
        # the second one is behind: steps 1 and 2 make room, and the blocks of step 2 lie elsewhere
        for one, mine, other in zip(made, HALVES, reversed(HALVES), strict=True):
            for step, rows in enumerate((mine, mine, other, mine)):
                assert await asked(one, "send", step=step, rows=rows) is True
        await until(lambda: flow._done == 4, "all are seen")
    assert seen == {0: True, 3: True}
    await flow.close()
    await nothing_left(s, a)


def test_of_steps_that_went_to_a_lost_worker_those_stay_that_are_sent_again() -> None:
    async def check() -> None:
        place = Place("flow", 0, frozenset({0, 1}), "tcp://here:1")
        verdict = asyncio.ensure_future(asyncio.sleep(0))
        for number, blocks in ((1, {}), (2, {}), (3, {0: []}), (4, {})):
            place.steps[number] = Step(verdict, blocks)  # type: ignore[arg-type]
        # a producer comes that has sent the third step here, and comes anew with the first three
        place.drop(3, 0, again=[2])
        assert list(place.steps) == [2, 3, 4]
        place.drop(None, 1, again=[])
        assert list(place.steps) == [2, 3, 4]
        await verdict

    asyncio.run(check())


@live(workers=2, timeout=60)
async def test_a_step_of_which_an_emptied_worker_has_a_part_comes_to_it_as_a_whole(c, s, a, b, monkeypatch):
    # what has come over the connection nobody can send again
    monkeypatch.setattr(receiver, "Ring", full)
    flow, values = await started(c)
    async with producers(s, (0, 3), (3, 6), (6, 8)) as made:
        await opened(made)
        place = (await flow.status())["workers"][0]
        goes, stays = sorted((a, b), key=lambda worker: worker.address != place)
        assert await asked(made[0], "send", step=0) is True
        data.stop_intake(s, [goes.address], "test")
        await until(lambda: goes.status == Status.closing_gracefully, "it has heard")
        for one in made[1:]:
            one.tell("send", step=0)
        assert await anext(values) == (0, 0.0)
        assert [*await data.retire(s, [goes.address], "test")] == [goes.address]
        assert [await told(one) for one in made[1:]] == [True, True]
        await sent(made, 1)
        assert await anext(values) == (1, 1.0)
    await flow.close()
    await nothing_left(s, stays)


def full(*asked):
    raise OSError("the memory of this host is full")
