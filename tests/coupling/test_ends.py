"""Ends that take long: a reader that is away for an hour, a rank that leaves before the others."""

from __future__ import annotations

import asyncio

from coupled import HALVES, opened, started
from helpers import live
from sources import asked, nothing_left, producers, told


@live(workers=1, timeout=2 * 3600)
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
