"""A worker that calls itself by a name, while the scheduler knows it by the address that this resolves to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coupled import opened, started
from distributed import Client, Scheduler, Worker
from distributed.utils import open_port
from distributed.utils_test import gen_test, inc
from sources import nothing_left, producers

import dask_hpc


@asynccontextmanager
async def named() -> AsyncIterator[tuple[Any, Any, Any]]:
    """A client, a scheduler and its one worker, started with ``--contact-address`` and a host's name."""
    port = open_port(host="127.0.0.1")
    name = f"tcp://localhost:{port}"
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address=":0", validate=True) as s,
        Worker(s.address, host="127.0.0.1", port=port, contact_address=name, nthreads=1) as a,
        Client(s.address, asynchronous=True) as c,
    ):
        assert (a.address, list(s.workers)) == (name, [f"tcp://127.0.0.1:{port}"])
        yield c, s, a


@gen_test(timeout=60)
async def test_steps_come_to_a_worker_that_calls_itself_by_a_name():
    async with named() as (c, s, a):
        flow, values = await started(c)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            made[0].tell("many", first=0, last=6)
            made[0].tell("close")
            assert [each async for each in values] == [(step, float(step)) for step in range(6)]
        await flow.close()
        await nothing_left(s, a)


@gen_test(timeout=60)
async def test_a_worker_that_calls_itself_by_a_name_provides_what_is_awaited():
    async with named() as (c, *_):
        rt = await dask_hpc.install(c)
        (expected,) = await rt.expect(["given"])
        after = c.submit(inc, expected)
        await c.submit(dask_hpc.provide, {"given": 4})
        assert await after == 5
