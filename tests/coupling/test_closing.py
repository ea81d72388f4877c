"""A worker that is closed as any other, amid steps: they are sent again, and who has left has left."""

from __future__ import annotations

import asyncio

from coupled import opened, started
from distributed.core import Status
from helpers import Gate, live, through, until, within
from sources import asked, nothing_left, producers

from dask_hpc.scheduler.coupling import flow as of_flow
from dask_hpc.wire import COUPLE


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
    monkeypatch.setattr(of_flow, "back_s", lambda *so_far: 3.0)
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
