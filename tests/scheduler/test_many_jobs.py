"""A scheduler that lives long sees many jobs: of those that have ended no more is kept than is of use."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import dask
import pytest
from distributed import wait
from helpers import Gate, asleep, engine, live, started, through, until
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobFailed, UnknownJob
from dask_hpc.scheduler.core.controller import Controller
from dask_hpc.scheduler.tables import job_table
from dask_hpc.scheduler.tables.job_table import JobTable
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc_policies import registry
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.jobs.jobspec import JobSpec, resolve


@live(2)
async def test_of_jobs_that_have_ended_plain_work_keeps_what_tasks_are_in_and_nothing_else(c, s, *workers):
    rt = await dask_hpc.install(c)
    state = engine(s).state
    async with rt.job("keeper", nodes=1):
        kept = None
        for _ in range(3):
            async with rt.job("short", nodes=1) as job:
                futures = c.map(inc, range(3), pure=False)
            await job.wait(10)
            kept = kept or futures[0]
        del futures
        await until(lambda: set(state.owner) == {kept.key}, "what nobody wants is forgotten")
        # as a thousand further jobs would do
        state.jobs.ended.clear()

        def left():
            gc.collect()
            return list(state.plain[0].inherited)

        await until(lambda: left() == [state.owner[kept.key]], "the lanes of the others are gone")
        assert state.owner[kept.key].job is state.plain[0]


@live(1)
async def test_what_was_said_of_a_job_is_forgotten_with_it(c, s, *workers):
    rt = await dask_hpc.install(c, tick_s=0.03)
    controller, gate = engine(s).controller, Gate()
    async with rt.job("whole", nodes=1) as job:
        await started(s, job, 1)
        own = c.submit(through, 1, gate=gate, pure=False)
        with dask.annotate(hpc_job=None):
            plain = c.map(inc, range(3), pure=False)
        await until(lambda: any(row["job"].startswith("default") for row in controller.decisions), "it waits")
        gate.open()
    await job.wait(10)
    assert await c.gather([own, *plain]) == [1, 1, 2, 3]
    await asleep(s)
    for _ in range(2):  # that is said each time it is asked for
        assert (await job.resize(1))["result"] == "refused"
    assert [row["result"] for row in controller.decisions][-2:] == ["refused", "refused"]
    assert [said for said in controller._said if said[0]] == []
    # nor is a worker kept that goes while nobody listens
    assert engine(s).admission._only == {}


@live(1)
async def test_a_job_that_ended_long_ago_is_waited_for_as_any_other(c, s, *workers, monkeypatch):
    monkeypatch.setattr(job_table, "_ENDED_KEPT", 1)
    rt = await dask_hpc.install(c)
    jobs = []
    for number in range(4):
        async with rt.job("short", nodes=1) as job:
            future = c.submit(inc, number if number else "no number", pure=False)
        await wait(future)
        await until(lambda job=job: engine(s).state.jobs.find(job.id).ended.is_set(), "it has ended")
        jobs.append((job, await job.status()))
    assert [row["id"] for row in await rt.jobs()] == [job.id for job, _ in jobs[-1:]]
    with pytest.raises(JobFailed, match="failed"):
        await jobs[0][0].wait(5)
    row = await jobs[1][0].wait(5)
    assert row["turnaround_s"] == jobs[1][1]["turnaround_s"]
    assert row.keys() == jobs[1][1].keys()
    with pytest.raises(UnknownJob, match="has ended \\(completed: all its tasks are done\\)"):
        await jobs[1][0].resize(1)


def test_who_asks_for_a_job_that_is_not_known_is_told_of_some():
    table, spec = JobTable(), JobSpec(name="j")
    for _ in range(50):
        table.end(table.add(spec, resolve(spec, 1), submit_s=0.0, client="c"))
    with pytest.raises(UnknownJob) as caught:
        table.find("k")
    said = str(caught.value)
    assert len(said) < 300
    assert said.endswith("j-49, j-50, and 30 before them")


def test_the_feed_says_again_what_holds_on_once_something_else_has_happened_to_that_job():
    settings = SimpleNamespace(decisions_keep=100)
    state = SimpleNamespace(settings=settings, jobs=SimpleNamespace(active={"heat-1": None, "late-2": None}))
    controller = Controller(state, Parts(), None, registry.create("fcfs"))

    def told(job, text, result="held"):
        before = len(controller.decisions)
        controller._say(1.0, "tick", "hold", job, None, ReasonCode.BEHIND_HEAD, text, result)
        return len(controller.decisions) > before

    assert told("heat-1", "2 nodes are idle")
    assert not told("heat-1", "2 nodes are idle")
    assert told("late-2", "2 nodes are idle"), "another one"
    assert told("heat-1", "2 nodes are idle", "refused"), "in another respect"
    assert told("heat-1", "1 node is idle")
    assert not told("heat-1", "1 node is idle")
    assert all(told("heat-1", "it has started", "done") for _ in range(2))
    assert told("heat-1", "1 node is idle")
    assert not told("late-2", "2 nodes are idle")
    assert all(told("ended-3", "it has ended", "refused") for _ in range(2))
    assert [told("", "the policy failed", "failed") for _ in range(2)] == [True, False]
