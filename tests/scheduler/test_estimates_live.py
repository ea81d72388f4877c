"""What jobs took is what the next ones of their name are expected to take."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Gate, engine, live, record, started, through, until
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.scheduler.tables.job_table import JobTable
from dask_hpc_policies.jobs.jobspec import JobSpec, resolve
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


@live(workers=2)
async def test_a_row_tells_for_how_long_the_longest_task_of_its_job_has_run(c, s, *workers):
    rt, gate = await dask_hpc.install(c, "fcfs"), Gate()
    async with rt.job("idle", nodes=1) as idle, rt.job("runs", nodes=1) as runs:
        held = c.submit(through, 1, gate=gate)
        await until(lambda: gate.arrived and any(ws.executing for ws in s.workers.values()), "it is said")
        [[seconds]] = [ws.executing.values() for ws in s.workers.values() if ws.executing]
        rows = {row["id"]: row["executing_s"] for row in await rt.jobs()}
        assert (rows[idle.id], seconds <= rows[runs.id]) == (0.0, True)
        assert (await runs.status())["executing_s"] >= rows[runs.id]
        for worker in workers:  # which say nothing of its end but that
            worker.periodic_callbacks["heartbeat"].stop()
        gate.open()
        assert await held == 1
        assert (await runs.status())["executing_s"] == 0.0


@pytest.mark.parametrize(
    ("odd", "nodes_up"),
    [
        ({}, 2),
        ({"expansions": 1}, 2),
        ({"shrinks": 1}, 2),
        ({"interrupted_s": 5.0}, 2),
        ({"start_s": None}, 2),
        ({}, 1),
        ({"nodes": {}}, 0),
        ({"is_default": True}, 2),
    ],
)
def test_a_run_teaches_how_long_the_next_one_takes_if_it_was_of_one_size_from_start_to_end(odd, nodes_up):
    table, spec = JobTable(), JobSpec(name="j", nodes=2)
    ran, waits = (table.add(spec, resolve(spec, 2), submit_s=0.0, client="c") for _ in range(2))
    for job in (ran, waits):
        table.queue(job.id, 1.0)
    for name, value in {"start_s": 2.0, "nodes": {"a": None, "b": None}, **odd}.items():
        setattr(ran, name, value)
    table.completed(ran, nodes_up, 10.0)
    assert waits.request.recorded_s == (8.0 if (odd, nodes_up) == ({}, 2) else None)


def test_a_run_of_which_tasks_were_let_go_teaches_nothing():
    table, spec = JobTable(), JobSpec(name="j", nodes=1)
    job = table.add(spec, resolve(spec, 1), submit_s=0.0, client="c")
    job.start_s, job.nodes = 0.0, {"a": None}
    job.expected.came(None, 2)  # type: ignore[arg-type]
    job.expected.ended(None, 1.0)  # type: ignore[arg-type]
    table.completed(job, 1, 10.0)
    assert not table.recorded.totals
