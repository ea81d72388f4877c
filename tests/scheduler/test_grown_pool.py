"""Jobs that are there when the pool grows, or a setting says another size, go by what holds now."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

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
