"""Tasks that coroutines and actors submit are their job's, and do not block it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Event, Nanny, get_client, get_worker
from helpers import PATIENCE_S, addresses_of, live, owner_of, record, started, state_of, until, within

import dask_hpc
from dask_hpc.scheduler.placing.ownership import Ownership


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


class _Actor:
    """What Dask's scheduler has of one."""

    who_has: list[Any]

    def __init__(self, key: str) -> None:
        self.key = key


def job_of(
    holder: str | None, tasks: dict[str, str], actors: dict[str, str], submitter: Any = None
) -> str | None:
    """The job of what submits from a worker whose node `holder` has; its tasks and actors with their jobs."""
    lanes = {key: SimpleNamespace(job=SimpleNamespace(id=job)) for key, job in {**tasks, **actors}.items()}
    there = SimpleNamespace(
        processing=[SimpleNamespace(key=key) for key in tasks],
        actors={_Actor(key) for key in actors},
    )
    for actor in there.actors:
        actor.who_has = [there]
    ownership = object.__new__(Ownership)
    ownership.state = SimpleNamespace(  # type: ignore[assignment]
        nodes=SimpleNamespace(at={"w": SimpleNamespace(job=holder)}),
        scheduler=SimpleNamespace(workers={"w": there}),
        owner=lanes,
        plain=[SimpleNamespace(id="plain")],
    )
    return ownership._job_on("w", submitter)


@pytest.mark.parametrize("holder", [None, "has"])
def test_it_is_the_job_of_what_is_on_the_worker_whoever_has_the_node(holder):
    assert job_of(holder, {"a": "plain", "b": "plain"}, {}) == "plain"
    assert job_of(holder, {"a": "lent"}, {}) == "lent"
    assert job_of(holder, {}, {"Caller-1": "lent"}) == "lent"
    # a thread that a task has left behind
    assert job_of(holder, {}, {}) == holder


def test_of_several_it_is_the_one_that_has_the_node_that_of_the_actors_or_plain_work():
    assert job_of("has", {"a": "plain", "b": "has"}, {}) == "has"
    assert job_of("has", {"a": "plain"}, {"Caller-1": "has"}) == "has"
    assert job_of("has", {"a": "plain"}, {"Caller-1": "lent"}) == "lent"
    assert job_of("has", {"a": "plain", "b": "lent"}, {}) == "plain"
    assert job_of(None, {"a": "one", "b": "two"}, {}) is None


def test_a_method_in_a_thread_is_its_actors():
    actors = {"Caller-1": "one", "Other-1": "two"}
    assert job_of("has", {"a": "has"}, actors, "Caller.fan_out") == "one"
    assert job_of("has", {"a": "has"}, {**actors, "Caller-2": "has"}, "Caller.fan_out") == "has"
    assert job_of("two", {"a": "two"}, {**actors, "Caller-2": "plain"}, "Caller.fan_out") == "plain"


def fails_at(go):
    """A task that waits, then fails."""
    Event(go).wait()
    raise ValueError("a child has failed")


async def parent(go):
    """A coroutine task whose child fails."""
    return str(await get_client().submit(fails_at, go, key="child").exception())


@pytest.mark.parametrize("end", ["closed", "cancelled"])
@live(workers=2, threads=2, lend="5 s", Worker=Nanny, timeout=240)
async def test_what_plain_coroutines_submit_is_no_matter_of_a_job_that_rests(c, s, *nannies, end):
    rt = await dask_hpc.install(c, "fair")
    async with rt.job("idle") as idle:
        await started(s, idle, 2)
        await until(lambda: record(s, idle).resting, "it rests")
        with dask.annotate(hpc_job=None):
            answer = c.submit(parent, "go")
        await until(lambda: "child" in s.tasks, "a coroutine has submitted something")
        assert owner_of(s, "child") != idle.id
        if end == "cancelled":
            await idle.cancel()
        await Event("go").set()
        assert await within(answer) == "a child has failed"
    state = {"closed": "completed"}.get(end, end)
    await until(lambda: state_of(s, idle) == state, f"its job has {state}")
