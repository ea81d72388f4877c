"""More jobs than nodes: who asked for no nodes takes turns, whoever came first."""

from __future__ import annotations

import time
from collections import Counter

import dask
import pytest
from helpers import Gate, engine, live, record, started, state_of, through, until, within

import dask_hpc

POLICIES = ("pwma-fpsma", "fair")


def a_while(i):
    """A task of some milliseconds."""
    time.sleep(0.01)
    return i


@pytest.mark.parametrize("policy", POLICIES)
@live(1, lend="5 s")
async def test_a_question_is_answered_beside_a_job_that_has_the_only_node(c, s, a, policy):
    rt = await dask_hpc.install(c, policy=policy)
    async with rt.job("large") as large:
        await started(s, large)
        backlog = c.map(a_while, range(150), key="large", pure=False)
        await until(lambda: record(s, large).queue, "it is under way")
        async with rt.job("question") as question:
            inputs = c.map(a_while, range(6), key="question", pure=False)
            total = c.submit(sum, inputs, key="total")
            assert await within(total.result(), 20) == 15
            assert (state_of(s, question), record(s, large).unfinished > 30) == ("pending", True)
        row = await question.wait(20)
        assert (row["state"], row["borrowed_tasks"]) == ("completed", 7)
        assert record(s, large).lent_tasks == 7
        # and nobody starves
        assert await within(c.gather(backlog[:100]), 20) == list(range(100))
        await large.cancel()


@live(1, lend="5 s")
async def test_plain_work_takes_turns_when_jobs_have_all_nodes(c, s, a):
    rt = await dask_hpc.install(c, policy="pwma-fpsma")
    async with rt.job("large") as large:
        await started(s, large)
        backlog = c.map(a_while, range(150), key="large", pure=False)
        await until(lambda: record(s, large).queue, "it is under way")
        with dask.annotate(hpc_job=None):
            assert await within(c.gather(c.map(a_while, range(6), key="plain", pure=False)), 20) == [
                *range(6)
            ]
        assert record(s, large).unfinished > 30
        del backlog
        await large.cancel()


@pytest.mark.parametrize("how", ["nodes", "exclusive", "producer", "setting", "asks"])
@live(1, lend="5 s")
async def test_who_asked_for_nodes_keeps_them(c, s, a, how):
    first, others = Gate(), Gate()
    with dask.config.set({"hpc.lend": "0 s"} if how == "setting" else {}):
        rt = await dask_hpc.install(c, policy="fcfs")
    options = {"nodes": {"nodes": 1}, "exclusive": {"exclusive": True}}.get(how, {})
    async with rt.job("large", **options) as large:
        await started(s, large)
        if how == "producer":
            await large.producer().start()
        futures = [c.submit(through, 0, first, key="large-first")]
        await until(lambda: first.arrived, "its node is busy")
        futures += c.map(through, range(1, 5), gate=others, key="large", pure=False)
        async with rt.job("waits", **({"nodes": 1} if how == "asks" else {})) as waits:
            later = c.submit(a_while, 1, key="later")
            await until(lambda: record(s, waits).held, "it is held")
            first.open()
            await until(lambda: others.arrived, "a slot has become free")
            passes = engine(s).admission._counter
            await until(lambda: engine(s).admission._counter > passes + 2, "admission has looked again")
            assert s.tasks[later.key].state == "no-worker"
            others.open()
            assert await c.gather(futures) == list(range(5))
            await large.__aexit__(None, None, None)
            assert await within(later.result(), 20) == 1


@live(1, lend="5 s")
async def test_turns_follow_weights_users_and_what_was_had(c, s, a):
    gate, futures = Gate(), []
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("holder") as holder:
        await started(s, holder)
        futures += c.map(through, range(3), gate=gate, key="stop", pure=False)
        await until(lambda: gate.arrived, "the node is busy")
        kinds = {
            "heavy": {"user": "ada", "weight": 2.0},
            "bob-1": {"user": "bob"},
            "bob-2": {"user": "bob"},
            "eve": {"user": "eve"},
            "old": {"user": "dan"},
        }
        for name, options in kinds.items():
            async with rt.job(name, **options):
                futures += c.map(through, range(3), gate=gate, key=name, pure=False)
        sharing = engine(s).admission.sharing
        await until(lambda: len(sharing.waiting) == 5, "they take turns")
        jobs = [engine(s).state.jobs.find(name) for name in kinds]
        jobs[-1].borrowed_s = 10.0  # one level up: half the weight
        sharing.look(engine(s).admission.lending.wants)
        count = Counter()
        while sum(count[job] + job.processing for job in jobs) < 18:
            count[sharing.turn(jobs, count)] += 1
        # in proportion to 2, 1/2 and 1/2 (two jobs of one user), 1, and 1/2
        assert [count[job] + job.processing for job in jobs] == [8, 2, 2, 4, 2]
        gate.open()
        await within(c.gather(futures), 20)
