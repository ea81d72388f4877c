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
