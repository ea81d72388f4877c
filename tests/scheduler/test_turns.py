"""Under `fair` the order of jobs holds for dependent tasks, too, which are sent as soon as they can run."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import dask
import pytest
from distributed import Event
from distributed.scheduler import TaskPrefix
from helpers import engine, live, record, started, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import HOLD
from dask_hpc.scheduler.placing.turns import Turns, _usual_s
from dask_hpc.scheduler.tables.expected import Expected
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve

TASKS = 40


def a_while(i, *of):
    """A task of some milliseconds."""
    time.sleep(0.02)
    return i


async def many_sent(c, s, job):
    """Dependent tasks of a job, all of them on the only worker, some of them done."""
    with dask.annotate(hpc_job=job.id):
        # so many that stock does not take the others for root tasks, which it would hold back
        roots = c.map(inc, range(8), key="large-root")
        tasks = c.map(a_while, range(TASKS), *[[root] * TASKS for root in roots], key="large")
    await until(lambda: record(s, job).processing > 5 and record(s, job).expected.done_s > 0, "it computes")
    return tasks


@live(1, lend="5 s")
async def test_a_small_job_passes_dependent_tasks_that_were_sent(c, s, a):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("large") as large, rt.job("small") as small:
        await started(s, large)
        tasks = await many_sent(c, s, large)
        root = c.submit(inc, 0, key="small-root")
        few = [c.submit(a_while, i, root, key=f"small-{i}") for i in range(3)]
        assert await within(c.gather(few)) == [0, 1, 2]
        # stock does all of them first
        assert record(s, large).unfinished > TASKS / 2
        assert (record(s, small).unfinished, record(s, small).held) == (0, 0)
        assert await within(c.gather(tasks)) == list(range(TASKS))


@live(2, lend="5 s")
async def test_held_tasks_of_a_small_job_pass_those_that_a_large_one_has_sent_to_every_worker(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("large") as large, rt.job("small") as small:
        await started(s, large)
        await started(s, small)
        tasks = await many_sent(c, s, large)
        await until(lambda: min(len(ws.processing) for ws in s.workers.values()) > 4, "all are crowded")
        few = c.map(a_while, range(6), key="small")
        assert await within(c.gather(few)) == list(range(6))
        # who holds nothing takes turns, too
        assert record(s, large).unfinished > 4
        assert await within(c.gather(tasks)) == list(range(TASKS))


@pytest.mark.parametrize("how", ["workers", "resources"])
@live(1, lend="5 s", worker_kwargs={"resources": {"gpu": 1}})
async def test_plain_work_that_has_to_run_there_does_not_wait_for_what_jobs_have_sent(c, s, a, how):
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("large") as large:
        await started(s, large)
        tasks = await many_sent(c, s, large)
        with dask.annotate(hpc_job=None):
            # a share of what there is would be theirs late
            others = c.map(a_while, range(10 * TASKS), key="others", pure=False)
            only = {"workers": [a.address]} if how == "workers" else {"resources": {"gpu": 1}}
            here = c.submit(inc, 1, key="here", fifo_timeout="0 ms", **only)
        assert await within(here.result()) == 2
        assert record(s, large).unfinished > TASKS / 2
        del tasks, others
        await large.cancel()


@live(1, lend="5 s")
async def test_priorities_of_users_come_first_and_are_as_before_in_the_end(c, s, a):
    rt = await dask_hpc.install(c, policy="fair")
    job = rt.job("large")
    async with job:
        await started(s, job)
        tasks = await many_sent(c, s, job)
        with dask.annotate(priority=1, hpc_job=job.id):
            urgent = c.submit(a_while, -1, tasks[0], key="urgent")
        assert await within(urgent.result()) == -1
        assert record(s, job).unfinished > TASKS / 2
        own = [future.key for future in (*tasks, urgent)]
        assert {len(s.tasks[key].priority) for key in own} == {6}
        await rt.uninstall()
        await until(lambda: {len(s.tasks[key].priority) for key in own} == {3}, "all are as stock has them")
        assert s.tasks["urgent"].priority[0] == -1
        assert await within(c.gather(tasks)) == list(range(TASKS))


@live(2)
async def test_plain_work_keeps_what_it_has_done_when_one_job_of_it_takes_over_another(c, s, a, b):
    rt = await dask_hpc.install(c, policy="fcfs")

    def plain(count):
        with dask.annotate(hpc_job=None):
            return c.map(a_while, range(count), pure=False)

    async with rt.job("one", nodes=1) as one:
        await started(s, one)
        assert await within(c.gather(plain(5))) == [*range(5)]
        state = engine(s).state
        (first,) = state.plain
        async with rt.job("two", nodes=1) as two:
            await started(s, two)
            waits = plain(5)
            await until(lambda: state.intake is not first, "no node is left for it")
            second = state.intake
        assert await within(c.gather(waits)) == [*range(5)]
        await until(lambda: state.plain == [first] and state.intake is first, "the one has taken over")
        # tasks of 20 ms
        assert (first.expected.done_s >= 0.2, second.expected.done_s) == (True, 0)


@live(1, lend="5 s")
async def test_what_is_held_is_in_the_order_of_dask_and_gets_its_turn_when_it_is_sent(c, s, a):
    rt = await dask_hpc.install(c, policy="fair")
    event = Event()
    async with rt.job("one") as one, rt.job("two") as two:
        await started(s, one)
        sent = {}
        for job in (one, two):
            with dask.annotate(hpc_job=job.id):
                sent[job] = c.map(lambda i, event: event.wait() and i, range(8), event=event, pure=False)
        await until(lambda: all(record(s, job).held for job in sent), "both hold some")
        states = [s.tasks[future.key] for futures in sent.values() for future in futures]
        assert {len(ts.priority) for ts in states if ts.state == "no-worker"} == {3}
        assert {len(ts.priority) for ts in states if ts.state == "processing"} == {6}
        first = min(ts.priority[-2] for ts in states)
        turns = {ts.priority[1] for ts in states if ts.state == "processing"}
        assert turns == {first}, "what was there before any of them comes first"
        await event.set()
        for futures in sent.values():
            assert await within(c.gather(futures)) == list(range(8))


def test_what_comes_back_is_queued_where_it_was():
    job = JobRecord("one", job_spec("one"), resolve(job_spec("one"), 1), client=None)

    def held(key, *priority):
        return SimpleNamespace(key=key, state="no-worker", worker_restrictions=HOLD, priority=priority)

    # of a later graph, but it had been sent
    job.park(held("later", 0, 5, 0, 1.0, 7, 0))
    job.park(held("own", 0, 6, 1))
    job.park(held("of others", 0, 9, 0), first=True)
    assert [job.next_held().key for _ in range(3)] == ["of others", "own", "later"]


def test_what_takes_turns_begins_with_the_first_graph_of_which_something_is_held_or_sent():
    def job(*graphs, undeclared=True):
        first = SimpleNamespace(priority=(0, graphs[0], 3)) if graphs else None
        return SimpleNamespace(undeclared=undeclared, first=lambda: first)

    def first_graph(sent, *jobs):
        state = SimpleNamespace(now_s=float, jobs=SimpleNamespace(active=dict(enumerate(jobs))))
        return Turns(state, None)._first_graph(sent)

    assert first_graph(4, job(7)) == first_graph(9, job(7), job(4), job()) == 4
    assert first_graph(4, job(2, undeclared=False)) == 4
    assert first_graph(-2, job(7), job(-3)) == 7, "tasks have submitted those"
    assert first_graph(math.inf, job()) == 0


def seconds_of(kinds):
    return lambda kind: kinds.get(kind, 0.0)


@live(1, lend="5 s")
async def test_what_was_released_before_it_ran_is_not_to_be_served(c, s, a):
    rt = await dask_hpc.install(c, policy="fair")
    turns = engine(s).turns

    def owed(job):
        work = turns._virtual.works.get(job.id)
        return 0.0 if work is None else work.done_s + work.left_s - turns._virtual.served_s[job.id]

    async with rt.job("search") as job:
        futures = c.map(a_while, range(2000), key="search", pure=False)
        await until(lambda: owed(job) > 20, "forty seconds are expected")
        assert await futures[0] == 0
        del futures
    assert "released before they ran" in (await job.wait(10))["reason"]
    assert owed(job) < 1


def test_what_executes_for_long_says_nothing_of_the_tasks_of_others_that_have_its_name():
    scheduler = SimpleNamespace(UNKNOWN_TASK_DURATION=0.5)
    turns = Turns(SimpleNamespace(scheduler=scheduler, now_s=float), None)
    kind = TaskPrefix("main")
    kind.add_exec_time(7200.0)
    assert (_usual_s(kind), turns._guess_s(kind)) == (0.0, 0.5), "some are tried at once"
    kind.add_duration("compute", 0.0, 0.2)
    kind.add_duration("compute", 0.0, 0.4)
    kind.state_counts["memory"] += 2
    assert _usual_s(kind) == turns._guess_s(kind) == pytest.approx(0.3)
    kind.add_exec_time(7200.0)
    assert kind.duration_average < 0, "Dask has forgotten it"
    assert _usual_s(kind) == turns._guess_s(kind) == pytest.approx(0.3)


def test_each_kind_of_task_takes_what_it_took_here_else_elsewhere_else_nothing():
    expected = Expected()
    for kind, count in {"load": 10, "fit": 4, "new": 7}.items():
        for _ in range(count):
            expected.came(kind)
    elsewhere = seconds_of({"load": 100.0, "fit": 3.0})
    assert expected.left_s(elsewhere) == 10 * 100 + 4 * 3
    expected.ended("load", 1.0)
    expected.ended("load", 3.0)
    # eight loads of two seconds
    assert expected.left_s(elsewhere) == 8 * 2 + 4 * 3
    assert expected.done_s == 4.0


def test_what_is_not_wanted_any_more_or_computed_again_counts_as_far_as_it_is_unfinished():
    expected = Expected()
    for _ in range(4):
        expected.came("load")
    expected.ended("load", 2.0)
    nothing = seconds_of({})
    assert expected.left_s(nothing, unfinished=3) == pytest.approx(6.0)
    assert expected.left_s(nothing, unfinished=1) == pytest.approx(2.0)
    for _ in range(3):
        expected.ended("load", 2.0)
    assert expected.left_s(nothing, unfinished=2) == pytest.approx(4.0)
    assert Expected().left_s(nothing, unfinished=5) == 0.0
