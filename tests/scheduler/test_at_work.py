"""Plain tasks that their user has restricted to what is not there keep no node from jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask
import pytest
from helpers import engine, live, record, started, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.tables.at_work import at_work


async def waits_for_gpu(c, s):
    with dask.annotate(hpc_job=None):
        future = c.submit(inc, 1, key="needs-gpu", resources={"gpu": 1})
    await until(lambda: "needs-gpu" in s.tasks and s.tasks["needs-gpu"].state == "no-worker", "it waits")
    await until(lambda: any(job.stranded or job.bound for job in engine(s).state.plain), "as plain work")
    return future


@live(workers=2)
async def test_a_job_for_all_nodes_starts_beside_a_task_that_no_worker_can_run(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("first", nodes=1) as first:
        await started(s, first)
        nowhere = await waits_for_gpu(c, s)
    await first.wait(10)
    async with rt.job("wide", nodes=2) as wide:
        await started(s, wide, 2)
        assert await within(c.submit(inc, 2)) == 3
        assert s.tasks["needs-gpu"].state == "no-worker"
        nowhere.release()


@live(workers=2)
async def test_a_job_has_all_nodes_beside_such_a_task_and_makes_room_for_others(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=1) as first:
        await started(s, first)
        nowhere = await waits_for_gpu(c, s)
    await first.wait(10)
    async with rt.job("open", nodes=2, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 2)
        state = engine(s).state
        plain = next(one for one in state.plain if one.stranded or one.bound)
        assert (plain.held, state.unserved(plain), state.starving(plain)) == (1, True, False)
        with dask.annotate(hpc_job=None):
            other = c.submit(inc, 1, pure=False)
        assert await within(other) == 2
        await until(lambda: len(record(s, job).nodes) == 2, "it has both again")
        nowhere.release()


def plain_work(**states: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A job with a task in each state, by lane and number, as in ``free0``; all have once found no worker."""
    job: Any = SimpleNamespace(processing=0, stranded={}, bound={}, inherited=set(), is_default=True)
    job.looked_at = (None, False)
    job.lanes = {kind: Lane(job, kind, AllotmentSet()) for kind in ("queue", "rest", "free")}
    for key, state in states.items():
        job.processing += state == "processing"
        if state != "queued":
            job.stranded[key] = None
    job.held = sum(state in ("no-worker", "queued") for state in states.values())
    tasks = {key: SimpleNamespace(state=state) for key, state in states.items()}
    return job, tasks, {key: job.lanes[key.rstrip("0123456789")] for key in states}


@pytest.mark.parametrize(
    ("states", "busy"),
    [
        ({}, False),
        ({"free0": "processing"}, True),
        ({"free0": "no-worker"}, False),
        ({"free0": "no-worker", "free1": "processing"}, True),
        ({"free0": "no-worker", "rest0": "no-worker"}, True),
        ({"free0": "no-worker", "queue0": "queued"}, True),
        # the first two have found workers since
        ({"free0": "memory", "free1": "waiting", "rest0": "no-worker"}, True),
        ({"free0": "memory", "free1": "waiting", "free2": "no-worker"}, False),
    ],
)
def test_work_is_what_executes_or_may_run_on_any_node(states: dict[str, str], busy: bool) -> None:
    job, tasks, owner = plain_work(**states)
    assert at_work(job, tasks, owner) is busy
    job.bound, job.stranded = job.stranded, {}
    assert at_work(job, tasks, owner) is busy
    if states:
        # some are forgotten and still noted
        job.stranded["gone"] = None
        assert at_work(job, tasks, owner) is busy


def test_what_an_ended_job_has_left_is_told_apart_as_well() -> None:
    job, tasks, owner = plain_work(free0="no-worker")
    lane = owner["free0"] = Lane(job, "free", None)
    assert at_work(job, tasks, owner), "it is another job's"
    job.inherited.add(lane)
    assert not at_work(job, tasks, owner)


def test_many_that_wait_are_looked_at_when_others_come_or_go_and_too_many_are_work() -> None:
    job, tasks, owner = plain_work(**{f"free{i}": "no-worker" for i in range(5000)})
    assert not at_work(job, tasks, owner)
    looks: list[Any] = []
    seen: Any = SimpleNamespace(get=lambda key: looks.append(key) or tasks.get(key))
    assert not at_work(job, seen, owner)
    assert looks == []
    tasks["rest0"], owner["rest0"] = SimpleNamespace(state="no-worker"), job.lanes["rest"]
    job.stranded["rest0"] = None
    job.held += 1
    assert at_work(job, seen, owner)
    assert len(looks) == 5000
    assert at_work(job, seen, owner)
    assert len(looks) == 5000
    del job.stranded["rest0"]
    job.held -= 1
    assert not at_work(job, seen, owner)
    job.stranded |= dict.fromkeys(range(100_000))
    assert at_work(job, tasks, owner)
