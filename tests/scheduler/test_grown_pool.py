"""Who is there when the pool changes, or a setting says another size, goes by what holds now."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Worker
from helpers import Gate, engine, live, started, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.core.lifecycle import Lifecycle
from dask_hpc.scheduler.tables.job_table import JobTable
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


def lifecycle(pool: int, **settings: Any) -> Any:
    """What `Lifecycle` knows of a pool of so many nodes."""
    state = SimpleNamespace(pool_nodes=lambda: pool, jobs=JobTable(), settings=SimpleNamespace(**settings))
    made = object.__new__(Lifecycle)
    made.state = state  # type: ignore[assignment]
    return made


def declared(made: Any, was: int, **fields: Any) -> Any:
    """A job that was declared when the pool had so many nodes."""
    spec = job_spec("grows", **fields)
    job = made.state.jobs.add(spec, resolve(spec, was), submit_s=3.0, client="Client-1")
    return made.state.jobs.queue(job.id, 5.0)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 8),
        ({"max_nodes": 6}, 6),
        ({"nodes": 2, "max_nodes": 16}, 8),
        ({"constraint": "odd"}, 7),
        ({"min_nodes": 2, "rigid": True}, 8),
        ({"nodes": 2}, 2),
        ({"max_nodes": 2}, 2),
    ],
)
def test_a_job_may_use_what_has_joined_if_it_may_use_so_many(fields: dict[str, Any], most: int) -> None:
    made = lifecycle(8)
    job = declared(made, 2, **fields)
    job.measured(io_intensity=0.5)
    made.pool_grew()
    assert job.request.max_nodes == most
    # whose it is, and what was measured of it, is not forgotten
    assert (job.request.user, job.request.submit_s, job.request.io_intensity) == ("Client-1", 5.0, 0.5)


def test_a_pool_that_is_smaller_than_it_was_changes_nothing() -> None:
    made = lifecycle(2)
    job = declared(made, 8, min_nodes=4)
    before = job.request
    made.pool_grew()
    assert job.request == before


def test_settings_that_change_hold_for_jobs_that_are_there() -> None:
    made = lifecycle(4, default_job_min_nodes=2)
    plain = made.state.jobs.add_default(submit_s=1.0, min_nodes=0)
    job = declared(made, 2)
    before = job.request
    made.settings_changed()
    assert (plain.request.start_nodes, plain.request.min_nodes, plain.request.max_nodes) == (2, 2, 2)
    assert job.request == replace(before, max_nodes=4)


@live(3)
async def test_plain_work_queues_behind_no_job_of_more_nodes_than_are_left_until_they_are_back(
    c, s, *workers
):
    rt = await dask_hpc.install(c, policy="fcfs")
    gate = Gate()
    first = c.submit(through, 1, gate, pure=False)
    await until(lambda: gate.arrived, "plain work has a node")
    async with rt.job("wide", nodes=3) as wide:
        with dask.annotate(hpc_job=None):
            await next(w for w in workers if not w.state.tasks).close()
            assert await within(c.submit(inc, 1, pure=False), 10) == 2
            async with Worker(s.address, nthreads=1):
                # else plain work would keep its node for ever
                behind = c.submit(inc, 2, pure=False)
                await until(lambda: len(engine(s).state.jobs.active) == 3, "it is a job of its own", 10)
                gate.open()
                await started(s, wide, 3)
    assert await within(c.gather([first, behind])) == [1, 3]


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, 1), ({"nodes": 4}, 4), ({"min_nodes": 2}, 2), ({"nodes": 2, "max_nodes": 8}, 8)],
)
def test_while_no_worker_has_come_a_job_may_be_as_large_as_its_user_says(
    fields: dict[str, Any], most: int
) -> None:
    made = lifecycle(0)
    made.scheduler = SimpleNamespace(clients={"Client-1"})
    made.state.pool_hint, made.state.now_s = 3, lambda: 7.0
    job = made.announce(job_spec("early", **fields), "Client-1", 2)
    assert (job.request.max_nodes, job.submit_s, made.state.pool_hint) == (most, 7.0, 3)
    made.announce(job_spec("later"), "Client-1", 5)
    assert made.state.pool_hint == 5


@pytest.mark.parametrize(
    ("roles", "workers", "hint", "limit", "pool"),
    [
        (["compute"] * 3, 3, 0, None, 3),
        (["compute", "staging", "compute"], 3, 0, None, 2),
        ([], 3, 0, None, 3),
        ([], 0, 0, None, 0),
        (["compute"] * 2, 2, 8, None, 8),
        (["compute"] * 2, 2, 1, None, 2),
        (["compute"] * 3, 3, 8, 2, 2),
    ],
    ids=["there", "one that stages", "asleep", "none", "more may come", "fewer were said", "a setting"],
)
def test_what_the_pool_can_have(
    roles: list[str], workers: int, hint: int, limit: int | None, pool: int
) -> None:
    facts: dict[str, Any] = {"host": "h", "nthreads": 1, "memory_limit": 0}
    at = {f"tcp://{n}": SimpleNamespace(name=n, **facts) for n in range(workers)}
    nodes = SimpleNamespace(
        by="worker", nodes={str(n): SimpleNamespace(role=role) for n, role in enumerate(roles)}
    )
    made: Any = SimpleNamespace(
        settings=SimpleNamespace(pool_max_nodes=limit),
        nodes=nodes,
        scheduler=SimpleNamespace(workers=at),
        pool_hint=hint,
    )
    assert State.pool_nodes(made) == pool
