"""What jobs took is what the next ones of their name are expected to take."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import engine, live, record, started, until
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc_policies.model import JobView


def views(s: Any) -> dict[str, JobView]:
    """Jobs as a policy would see them now."""
    return {view.id: view for view in engine(s).state.snapshot("tick").jobs}


@live(workers=4)
async def test_a_job_is_expected_to_take_what_the_last_of_its_name_took(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick="50 ms")
    async with rt.job("heat", nodes=2, walltime="10 min") as first:
        await started(s, first, 2)
        seen = views(s)[first.id]
        assert seen.recorded_s is None
        assert 590 < seen.remaining_s <= 600, "nothing but the walltime is known"
        assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))
    await until(lambda: record(s, first).state == "completed", "the job has ended")
    took_s = record(s, first).end_s - record(s, first).start_s
    async with rt.job("heat", nodes=2, walltime="10 min") as second, rt.job("other", nodes=2) as other:
        await started(s, second, 2)
        await started(s, other, 2)
        future = c.submit(slow_inc, 1, delay_s=0.01)
        seen = views(s)
        assert seen[second.id].recorded_s == pytest.approx(took_s, abs=1e-3)
        assert seen[other.id].recorded_s is None
        assert await future == 2
    async with rt.job("heat", nodes=4, walltime="10 min") as wider:
        await started(s, wider, 4)
        assert views(s)[wider.id].recorded_s < took_s, "as much work on more nodes"


@live(workers=4)
async def test_a_job_that_was_resized_teaches_nothing(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma", tick="50 ms")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 2)
        await until(lambda: record(s, job).expansions == 1, "it grows into the idle nodes")
        assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))
    await until(lambda: record(s, job).state == "completed", "the job has ended")
    assert engine(s).state.jobs.recorded.totals == {}


@live(workers=2)
async def test_held_tasks_are_expected_to_take_what_earlier_ones_of_their_names_took(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick="50 ms")
    assert await c.submit(slow_inc, 1, delay_s=0.01, key="known-1") == 2
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        async with rt.job("waits", nodes=2) as waits:
            known = c.map(slow_inc, range(30), delay_s=0.01, key="known", pure=False)
        async with rt.job("strange", nodes=2) as strange:
            strangers = c.map(slow_inc, range(30), delay_s=0.01, key="strange", pure=False)
        await until(lambda: record(s, strange).held == 30, "all of them are held")
        rows = {row["id"]: row for row in await rt.jobs()}
        assert rows[waits.id]["held_tasks"] == 30
        average_s = s.task_prefixes["known"].duration_average
        assert average_s >= 0.01
        assert rows[waits.id]["held_task_s"] == pytest.approx(average_s)
        assert rows[strange.id]["held_task_s"] is None
        assert rows[first.id]["held_task_s"] is None
    assert len(await c.gather([*known, *strangers])) == 60
