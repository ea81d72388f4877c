"""Rounds of a decision: reductions end before anything starts or grows; answers that are late do no harm."""

from __future__ import annotations

import asyncio

import dask
import pytest
from helpers import Gate, Starts, addresses_of, engine, live, record, started, state_of, through, until
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.scheduler.resizing.drain import RECALL
from dask_hpc.trace.records import NodeEvent, Result
from dask_hpc_policies.decision import Shrink, Start


@pytest.mark.parametrize("lock", ["job", "system"])
@live(workers=6)
async def test_reductions_of_a_round_end_before_its_starts_begin(c, s, *workers, lock):
    rt = await dask_hpc.install(c, "pwma-fpsma", lock=lock)
    gates = [Gate(), Gate()]
    a = rt.job("a", nodes=3, min_nodes=1, max_nodes=3)
    b = rt.job("b", nodes=3, min_nodes=1, max_nodes=3)
    async with a:
        first = c.map(through, range(9), gate=gates[0], pure=False)
        await started(s, a, 3)
        async with b:
            second = c.map(through, range(9), gate=gates[1], pure=False)
            await started(s, b, 3)
            await until(lambda: gates[0].arrived == gates[1].arrived == 3, "busy")
            wide = rt.job("wide", nodes=4)
            async with wide:
                future = c.submit(inc, 1, pure=False)
            await until(lambda: {state_of(s, a), state_of(s, b)} == {"adapting"}, "both shrink")
            # one of two is quiet: nothing starts
            gates[0].open()
            await until(lambda: state_of(s, a) == "running", "one has shrunk")
            assert state_of(s, wide) == "pending"
            assert engine(s).state.nodes_up(record(s, wide)) == 0
            targets = {row["id"]: row["target_nodes"] for row in await rt.jobs()}
            assert targets == {a.id: None, b.id: 1, wide.id: 4}
            gates[1].open()
            await wide.wait(20)
    assert await future == 2
    assert sorted(await c.gather([*first, *second])) == sorted([*range(9)] * 2)
    await a.wait(10)
    await b.wait(10)
    records = list(engine(s).state.records)
    outcomes = [r.outcome for r in records if isinstance(r, Result)]
    shrinks = [
        o
        for o in outcomes
        if isinstance(o.action, Shrink) and o.action.job in (a.id, b.id) and o.result == "done"
    ]
    start = next(
        o for o in outcomes if isinstance(o.action, Start) and o.action.job == wide.id and o.result == "done"
    )
    assert len(shrinks) >= 2
    ended = [outcomes.index(o) for o in shrinks[:2]]
    assert max(ended) < outcomes.index(start)
    # no node goes to the wide job before both reductions are recorded
    places = {id(r): i for i, r in enumerate(records)}
    given = [places[id(r)] for r in records if isinstance(r, NodeEvent) and r.job == wide.id]
    done = [places[id(r)] for r in records if isinstance(r, Result) and r.outcome in shrinks[:2]]
    assert min(given) > max(done)


@live(workers=4)
async def test_with_the_lock_on_the_system_no_other_job_is_resized_meanwhile(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", lock="system")
    gate = Gate()
    async with (
        rt.job("a", nodes=2, min_nodes=1, max_nodes=2) as a,
        rt.job("b", nodes=2, min_nodes=1, max_nodes=2) as b,
    ):
        await started(s, a, 2)
        await started(s, b, 2)
        with dask.annotate(hpc_job=a.id):
            futures = c.map(through, range(4), gate=gate, pure=False)
        await until(lambda: gate.arrived == 2, "busy")
        first = asyncio.ensure_future(a.resize(1))
        await until(lambda: state_of(s, a) == "adapting", "adapts")
        out = await b.resize(1)
        assert (out["result"], out["reason_code"]) == ("refused", "locked")
        await rt.update(lock="job")
        assert (await b.resize(1))["result"] == "done"
        gate.open()
        assert (await first)["result"] == "done"
        assert await c.gather(futures) == [0, 1, 2, 3]
    await a.wait(10)
    await b.wait(10)


@live(workers=2)
async def test_a_late_answer_does_not_move_a_task_that_was_sent_again(c, s, a, b):
    """A task is asked back, released, and sent to the same worker again; then comes the first answer."""
    starts = Starts()
    await starts.watch([a, b])
    rt = await dask_hpc.install(c, "fcfs", shrink_deadline_s=0.1)
    gate = Gate()
    answers = []
    async with rt.job("main", nodes=2, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 2)
        handler = s.stream_handlers["steal-response"]
        s.stream_handlers["steal-response"] = lambda **answer: answers.append(answer)
        blocked = c.map(through, range(2), gate=gate, pure=False)
        await until(lambda: gate.arrived == 2, "every thread is busy")
        keys = ["x", "y"]
        futures = c.map(inc, range(2), key=keys)
        await until(lambda: _sent(s, keys), "one more is sent to each worker")
        # the answers are kept back, so the shrink is taken back at its deadline
        assert (await asyncio.wait_for(job.resize(1), 10))["result"] == "aborted"
        await until(lambda: [answer for answer in answers if answer["key"] in keys], "answered")
        (answer,) = [answer for answer in answers if answer["key"] in keys]
        assert answer["stimulus_id"].startswith(RECALL)
        key, asked = answer["key"], s.tasks[answer["key"]].processing_on.address
        while True:
            for future in futures:
                future.release()
            await until(lambda: not set(keys) & set(s.tasks), "forgotten")
            futures = c.map(inc, [10, 11], key=keys)
            await until(lambda: _sent(s, keys), "sent again")
            if s.tasks[key].processing_on.address == asked:
                break
        s.stream_handlers["steal-response"] = handler
        for late in [*answers, *answers]:
            handler(**late)
        assert s.tasks[key].processing_on.address == asked
        gate.open()
        assert await asyncio.wait_for(c.gather(futures), 15) == [11, 12]
        await c.gather(blocked)
        assert starts.twice(starts.count) == []
        s.validate_state()
    await job.wait(10)


def _sent(s, keys):
    return all(key in s.tasks and s.tasks[key].state == "processing" for key in keys)


@live(workers=4)
async def test_stock_work_stealing_inside_a_job_stays_inside(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        home = addresses_of(s, job)
        source = c.submit(inc, 0, pure=False)
        await source
        # dependents of one piece of data go to its worker first, and are stolen from there
        futures = c.map(slow_dependent, range(30), other=source, pure=False)
        assert await c.gather(futures) == [i + 1 for i in range(30)]
        assert starts.places(starts.count) <= home
    assert starts.twice(starts.count) == []
    await job.wait(10)


def slow_dependent(value, other):
    return slow_inc(value)
