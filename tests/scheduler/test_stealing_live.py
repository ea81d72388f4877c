"""A job that lost a node it cannot do without gets one of another job: the policy SFSJ on a live cluster."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from helpers import addresses_of, asleep, engine, live, record, started, state_of, until
from losses import kill
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.sim.engine.engine import Engine, Options
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Failures, Machine, NodeFailure
from dask_hpc.sim.model.workload import Workload
from dask_hpc.trace.records import Pass
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Reason, ReasonCode, Shrink, Steal


def stolen(actions: Any) -> list[tuple[str, int]]:
    """Names of jobs that gave nodes to one that failed, and the sizes they were left with."""
    found = [a for a in actions if isinstance(a, Shrink) and a.reason.code is ReasonCode.NODE_STOLEN]
    return [(action.job.rpartition("-")[0] or action.job, action.nodes) for action in found]


def simulated() -> list[tuple[str, int]]:
    """What the simulator steals when a node of the same job fails beside the same other job."""
    malleable: Any = {"start_nodes": 3, "max_nodes": 3, "kind": "malleable", "runtime_s": 100.0}
    jobs = (
        Job(id="small", submit_s=0.0, min_nodes=1, **malleable),
        Job(id="main", submit_s=1.0, min_nodes=3, **malleable),
    )
    failure = NodeFailure(t_s=10.0, node=5, downtime_s=1000.0)
    machine = Machine(nodes=6, failures=Failures(listed=(failure,)))
    options = Options(snapshots=True, node_ids=True)
    run = Engine(Workload(name="two", jobs=jobs), registry.create("sfsj"), machine, options)
    decisions = [one.decision for one in recorded(run) if isinstance(one, Pass) and one.decision]
    assert [row.state for row in run.world.table.rows] == ["completed", "completed"]
    return stolen(action for decision in decisions for action in decision.actions)


@live(workers=6)
async def test_the_victim_of_the_policy_gives_a_node_and_both_jobs_finish(c, s, *workers):
    rt = await dask_hpc.install(c, "sfsj", tick="50 ms")
    async with rt.job("small", nodes=3, min_nodes=1, max_nodes=3) as small:
        await started(s, small, 3)
        others = c.map(inc, range(50), pure=False)
        async with rt.job("main", nodes=3, min_nodes=3, max_nodes=3) as main:
            await started(s, main, 3)
            futures = c.map(inc, range(100, 150), pure=False)
            assert await c.gather(futures) == list(range(101, 151))
            # it does not come back
            await kill(s, [next(worker for worker in workers if worker.address in addresses_of(s, main))])
            await until(lambda: record(s, small).shrinks == 1, "a node is taken from the other job")
            await started(s, main, 3)
            assert engine(s).state.nodes_up(record(s, small)) == 2
            # what was lost with the worker is computed again, on what the job has now
            assert await c.gather(futures) == list(range(101, 151))
            assert await c.gather(others) == list(range(1, 51))
            decided = [r.decision for r in engine(s).state.records if hasattr(r, "decision")]
            assert stolen(a for d in decided if d for a in d.actions) == simulated() == [("small", 2)]
        await main.wait(20)
    await small.wait(20)
    await asleep(s)


async def beside(s, rt, others, test):
    """Jobs (name: fields of `Runtime.job`), all running, and a job of three nodes that then loses one."""
    async with contextlib.AsyncExitStack() as stack:
        jobs = {}
        for name, fields in others.items():
            jobs[name] = await stack.enter_async_context(rt.job(name, **fields))
            await started(s, jobs[name], fields["nodes"])
        main = await stack.enter_async_context(rt.job("main", nodes=3, min_nodes=3, max_nodes=3))
        await started(s, main, 3)
        await test(jobs, main)


MALLEABLE = {"min_nodes": 1}
RIGID = {"large": {"nodes": 2}, "first": {"nodes": 1}, "second": {"nodes": 1}, "third": {"nodes": 1}}


@pytest.mark.parametrize(
    ("others", "victim"),
    [
        # the one that the loss delays least: of two that take for ever, that which gives the smaller share
        ({"two": {"nodes": 2, **MALLEABLE}, "three": {"nodes": 3, **MALLEABLE}}, "three"),
        # by 60 s rather than by half of ten hours
        (
            {
                "long": {"nodes": 3, "walltime": "10 h", **MALLEABLE},
                "short": {"nodes": 2, "walltime": "60 s", **MALLEABLE},
            },
            "short",
        ),
        # one that goes on, although it is larger, before one that has to be interrupted
        ({"rigid": {"nodes": 1}, "fit": {"nodes": 4, **MALLEABLE}}, "fit"),
        # of those that have to be interrupted the smallest, and of these the one submitted last
        (RIGID, "third"),
        ({name: RIGID[name] for name in ("third", "second", "first", "large")}, "first"),
    ],
)
@live(workers=8, timeout=60)
async def test_the_victim_is_the_one_that_the_source_names(c, s, *workers, others, victim):
    rt = await dask_hpc.install(c, "sfsj", tick="50 ms")

    async def robbed(jobs, main):
        await next(w for w in workers if w.address in addresses_of(s, main)).close()
        await started(s, main, 3)
        held = {name: len(addresses_of(s, job)) for name, job in jobs.items()}
        lost = {name for name, fields in others.items() if held[name] < fields["nodes"]}
        assert lost == {victim}
        assert held[victim] == (others[victim]["nodes"] - 1 if "min_nodes" in others[victim] else 0)

    assert sum(fields["nodes"] for fields in others.values()) == 5, "an idle node would be taken first"
    await beside(s, rt, others, robbed)
    await asleep(s)


@live(workers=5)
async def test_an_interrupted_job_waits_keeps_what_it_has_done_and_goes_on(c, s, *workers):
    rt = await dask_hpc.install(c, "sfsj", tick="50 ms")
    async with rt.job("small", nodes=2) as small:
        await started(s, small, 2)
        done = c.map(inc, range(20), pure=False)
        assert await c.gather(done) == list(range(1, 21))
        slow = c.map(slow_inc, range(60), delay_s=0.05, pure=False)
        async with rt.job("main", nodes=3, min_nodes=3, max_nodes=3) as main:
            await started(s, main, 3)
            held = c.map(inc, range(3), pure=False)
            assert await c.gather(held) == [1, 2, 3]
            await next(w for w in workers if w.address in addresses_of(s, main)).close()
            await until(lambda: state_of(s, small) == "pending", "the smaller job is interrupted")
            await started(s, main, 3)
            assert addresses_of(s, small) == set()
            [stolen_from] = [d for d in await small.why() if d["action"] == "steal"]
            assert stolen_from["result"] == "done"
            assert stolen_from["reason_code"] == "node-stolen"
            # what it has done is still there
            assert await c.gather(done) == list(range(1, 21))
            assert not all(future.done() for future in slow)
            assert await c.gather(held) == [1, 2, 3]
        await main.wait(20)
        await started(s, small, 2)
        assert await c.gather(slow) == list(range(1, 61))
    await small.wait(20)
    row = await small.status()
    assert row["state"] == "completed"
    await asleep(s)


@live(workers=3)
async def test_a_job_that_keeps_state_on_its_nodes_is_not_interrupted(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("state", nodes=2, min_nodes=1, max_nodes=2) as job:
        producer = job.producer()
        await producer.start(20)
        reason = Reason(ReasonCode.NODE_STOLEN, "for the test")
        action = Steal(job=job.id, thief="other", stolen_nodes=1, reason=reason)
        accepted, [outcome] = engine(s).rounds.begin([action], "request", lambda action: None)
        assert accepted == []
        assert outcome.result == "refused"
        assert "keeps state on its nodes" in outcome.reason.text
        await producer.stop()
    await job.wait(10)
    await asleep(s)


@live(workers=3)
async def test_nobody_is_interrupted_for_a_job_that_lacks_nothing(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("victim", nodes=1) as victim, rt.job("thief", nodes=2) as thief:
        await started(s, thief, 2)
        reason = Reason(ReasonCode.NODE_STOLEN, "for the test")
        for name in (thief.id, "nobody"):
            action = Steal(job=victim.id, thief=name, stolen_nodes=1, reason=reason)
            accepted, [outcome] = engine(s).rounds.begin([action], "request", lambda action: None)
            assert accepted == []
            assert outcome.reason.code is ReasonCode.STALE
    await asleep(s)
