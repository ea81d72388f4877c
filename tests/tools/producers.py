"""What the tests of cooperative windows share: a job with a producer, and a window from probe to commit."""

from __future__ import annotations

import asyncio
import contextlib

from helpers import engine, until

import dask_hpc

BOUNDS = {"nodes": 2, "min_nodes": 1, "max_nodes": 4}


async def pending(producer):
    """Wait until the producer is told of a change."""
    return await until(producer.probe, "a pending window")


def members(s, job):
    return tuple(engine(s).rounds.windows.producers[job.id].members)


def ask(job, nodes):
    return asyncio.ensure_future(job.resize(nodes))


async def lay_out(producer):
    """One window from probe to commit."""
    change = await pending(producer)
    assert await producer.begin() == change
    assert await producer.commit() == change.nodes
    return change


@contextlib.asynccontextmanager
async def producing(c, join=None, *, policy="fcfs", settings=None, **fields):
    """A running job with a producer that has begun."""
    rt = await dask_hpc.install(c, policy, **(settings or {}))
    async with rt.job("main", **{**BOUNDS, **fields}) as job:
        producer = job.producer(join)
        await producer.start(20)
        yield job, producer
        await producer.stop()
    await job.wait(10)
