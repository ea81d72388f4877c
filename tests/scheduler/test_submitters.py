"""Tasks that coroutines and actors submit are their job's, and do not block it."""

from __future__ import annotations

import dask
from distributed import Nanny, get_client, get_worker
from helpers import PATIENCE_S, addresses_of, live, started, within

import dask_hpc


def where(_):
    """A task: the address of the worker it runs on."""
    return get_worker().address


async def fan_out_async(n):
    """A coroutine task that submits tasks."""
    client = get_client()
    return await client.gather(client.map(where, range(n), pure=False))


class Caller:
    """An actor whose methods submit tasks."""

    def fan_out(self, n):
        """In the actor's thread."""
        client = get_client()
        return client.gather(client.map(where, range(n), pure=False))

    async def fan_out_async(self, n):
        """On the worker's event loop."""
        return await fan_out_async(n)


SUBMITTERS = ("coroutine", "actor", "coroutine of an actor")


async def _fan_out(c, by, n):
    """The answer that `n` tasks give which a coroutine or an actor submits."""
    if by == "coroutine":
        return await within(c.submit(fan_out_async, n, pure=False))
    actor = await c.submit(Caller, actor=True, pure=False)
    return await within(actor.fan_out(n) if by == "actor" else actor.fan_out_async(n))


@live(workers=2, Worker=Nanny, timeout=240)
async def test_tasks_that_coroutines_and_actors_submit_do_not_block_a_job_that_holds_every_node(
    c, s, *nannies
):
    rt = await dask_hpc.install(c)
    for by in SUBMITTERS:
        async with rt.job(by, nodes=2) as job:
            await started(s, job, 2)
            assert len(await _fan_out(c, by, 5)) == 5, by
        assert (await job.wait(PATIENCE_S))["state"] == "completed"


@live(workers=2, threads=2, Worker=Nanny, timeout=240)  # a coroutine takes one of the threads
async def test_tasks_of_coroutines_and_actors_run_on_the_nodes_of_their_job(c, s, *nannies):
    # workers make their clients before there is a job, and before anybody listens
    with dask.annotate(workers=list(s.workers)):
        await within(c.gather(c.map(fan_out_async, [1, 1], pure=False)))
    assert any(client.startswith("Client-worker-") for client in s.clients)
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=1) as first, rt.job("second", nodes=1) as second:
        for job in (first, second):
            await started(s, job, 1)
            for by in SUBMITTERS:
                with dask.annotate(hpc_job=job.id):
                    assert set(await _fan_out(c, by, 8)) == set(addresses_of(s, job)), by
