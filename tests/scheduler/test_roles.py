"""Jobs and plain work get compute nodes alone, whatever makes a node something else."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
import pytest
from distributed import Worker, wait
from distributed.utils_test import inc, slowinc
from helpers import Gate, asleep, engine, live, record, started, through, traces_of_ours, until, within

import dask_hpc
from dask_hpc.wire import ROLE_RESOURCE, RPC
from dask_hpc_policies.decision import Reason, ReasonCode, SetRole
from dask_hpc_policies.jobs.jobspec import InvalidJob

STAGING = {ROLE_RESOURCE + "staging": 1}
WHY = Reason(ReasonCode.DEMAND, "analyses in transit")


class Places:
    """On which workers which tasks were executed."""

    def __init__(self, workers):
        self._workers = workers

    def of(self, *prefixes):
        logs = {worker.name: worker.state.log for worker in self._workers}
        return {
            name
            for name, log in logs.items()
            for entry in log
            if len(entry) > 1 and entry[1] == "executing" and str(entry[0]).startswith(prefixes)
        }


async def everything(c, s, rt, places, allowed):
    """Tasks of many kinds, plain and in a job; they run on the workers that are allowed."""
    total = da.ones((20, 20), chunks=2).sum()
    for job in (None, {"nodes": 1}, {}):
        if job is None:
            assert await c.gather(c.map(inc, range(30), pure=False)) == list(range(1, 31))
            assert await c.compute(total) == 400
        else:
            async with rt.job("some", **job) as handle:
                assert await c.gather(c.map(inc, range(30), pure=False)) == list(range(1, 31))
                assert await c.compute(total) == 400
            await handle.wait(20)
    assert places.of("inc", "('") <= allowed


@live(workers=2, timeout=90)
async def test_workers_that_say_another_role_get_no_tasks_but_those_that_name_them(c, s, a, b):
    rt = await dask_hpc.install(c)
    staging = await Worker(s.address, nthreads=4, name="staging", resources=STAGING)
    await until(lambda: engine(s).awake, "it knows that stock does not know of roles")
    places = Places((a, b, staging))
    await everything(c, s, rt, places, {a.name, b.name})
    nodes = {node["id"]: node for node in (await rt.status())["nodes"]}
    assert {id: node.get("role", "compute") for id, node in nodes.items()} == {
        str(a.name): "compute",
        str(b.name): "compute",
        "staging": "staging",
    }
    snapshot = await rt.snapshot()
    assert (snapshot.of_role(), snapshot.of_role("staging"), snapshot.pool_nodes) == (2, 1, 2)
    named = [c.submit(inc, i, pure=False, workers=["staging"], key=f"named-{i}") for i in range(3)]
    named += [c.submit(inc, i, pure=False, resources=STAGING, key=f"named-{i + 3}") for i in range(3)]
    assert await c.gather(named) == [1, 2, 3, 1, 2, 3]
    assert places.of("named") == {"staging"}
    # results that are lost for good, and wanted, would be watched for
    del named
    with pytest.raises(InvalidJob, match="from 1 to 2"):
        async with rt.job("too large", nodes=3):
            pass
    await staging.close()
    await until(lambda: len(s.workers) == 2, "it has gone")
    async with rt.job("last", nodes=1):
        pass
    await asleep(s)
    assert traces_of_ours(s) == []


@live(workers=3, timeout=90)
async def test_a_role_is_changed_in_no_time_where_nothing_runs_and_after_draining_elsewhere(c, s, a, b, d):
    rt = await dask_hpc.install(c)
    places = Places((a, b, d))
    name = str(d.name)
    assert (await rt.set_role(name, "reserve"))["result"] == "done"
    await everything(c, s, rt, places, {a.name, b.name})
    assert (await rt.set_role(name, "compute"))["result"] == "done"
    await asleep(s)
    gate = Gate()
    running = [c.submit(through, i, gate, pure=False, workers=[w.address]) for i, w in enumerate((a, b, d))]
    await until(lambda: all(len(w.state.executing) == 1 for w in (a, b, d)), "all execute")
    queued = c.map(inc, range(40), pure=False)
    change = asyncio.ensure_future(rt.set_role(name, "staging"))
    await until(lambda: engine(s).awake and engine(s).rounds.active, "it is drained")
    assert not change.done()
    gate.open()
    assert (await change)["result"] == "done"
    await wait(running)
    before = places.of("inc")
    assert await c.gather(queued) == list(range(1, 41))
    assert places.of("inc") - before <= {a.name, b.name}
    assert (await rt.set_role(name, "compute"))["result"] == "done"


@live(workers=2, timeout=90)
async def test_of_two_nodes_that_are_drained_for_another_role_one_goes_on_computing(c, s, a, b):
    rt = await dask_hpc.install(c)
    gate = Gate()
    running = [c.submit(through, i, gate, pure=False, workers=[w.address]) for i, w in enumerate((a, b))]
    await until(lambda: all(len(w.state.executing) == 1 for w in (a, b)), "both execute")
    changes = [asyncio.ensure_future(rt.set_role(str(w.name), "staging")) for w in (a, b)]

    def drained():
        return engine(s).awake and all(node.reserved for node in engine(s).state.nodes.nodes.values())

    await until(drained, "both are drained")
    queued = c.map(inc, range(20), pure=False)
    gate.open()
    ended = await asyncio.gather(*changes)
    assert sorted(one["result"] for one in ended) == ["aborted", "done"]
    assert any("the last one for computing" in one["reason"] for one in ended)
    assert await c.gather(queued) == list(range(1, 21))
    await wait(running)
    for worker in (a, b):
        await rt.set_role(str(worker.name), "compute")
    await asleep(s)


@live(workers=3, timeout=90)
async def test_roles_that_were_given_outlive_workers_and_jobs(c, s, a, b, d):
    rt = await dask_hpc.install(c)
    name = str(d.name)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        held = next(iter(engine(s).state.jobs.find(job.id).nodes))
        refused = await rt.set_role(held, "staging")
        assert refused["result"] == "refused"
        assert job.id in refused["reason"]
    await job.wait(10)
    assert (await rt.set_role(name, "staging"))["result"] == "done"
    await d.close()
    again = await Worker(s.address, nthreads=1, name=d.name)
    places = Places((a, b, again))
    await everything(c, s, rt, places, {a.name, b.name})
    for node, role, said in ((name, "cooking", "compute, staging, reserve"), ("none", "staging", name)):
        with pytest.raises(ValueError, match=said):
            await rt.set_role(node, role)
    await rt.uninstall()
    assert traces_of_ours(s) == []
    futures = c.map(inc, range(60), pure=False)
    await wait(futures)
    await again.close()


@live(workers=2, lend="5 s", timeout=90)
async def test_jobs_that_take_turns_take_them_on_compute_nodes_alone(c, s, a, b):
    rt = await dask_hpc.install(c, policy="pwma-fpsma")
    places = Places((a, b))
    assert (await rt.set_role(str(b.name), "reserve"))["result"] == "done"
    async with rt.job("holds") as holder:
        await started(s, holder)
        backlog = c.map(slowinc, range(100), delay=0.01, key="holds", pure=False)
        await until(lambda: record(s, holder).queue, "it is under way")
        async with rt.job("one") as one, rt.job("two") as two:
            answers = []
            for name, job in (("one", one), ("two", two)):
                with dask.annotate(hpc_job=job.id):
                    answers += c.map(slowinc, range(20), delay=0.01, key=name, pure=False)
            assert len(await within(c.gather(answers), 30)) == 40
        await c.gather(backlog)
    assert places.of("holds", "one", "two") == {a.name}


@live(workers=3)
async def test_a_pool_that_follows_jobs_has_nodes_for_them_besides_those_of_other_roles(c, s, a, b, d):
    with dask.config.set({"hpc.pool.hold": "0 s"}):
        rt = await dask_hpc.install(c)
    wanted = s.handlers["adaptive_target"]
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        assert wanted() == 2
        assert (await rt.set_role(first_free(s), "reserve"))["result"] == "done"
        assert wanted() == 3
        # workers of another pool are not counted; those that stage do no part of the work
        staging = await Worker(s.address, name="staging-0", resources=STAGING)
        assert wanted() == 4
        assert await pool_size(s, elsewhere=["staging-0"]) == 3
        await staging.close()
    await job.wait(10)
    await until(lambda: wanted() == 1, "nothing but what is kept")


def first_free(s):
    return engine(s).state.nodes.free()[0].id


async def pool_size(s, **view):
    there = [str(ws.name) for ws in s.workers.values()]
    answer = await s.handlers[RPC]("pool", {"there": there, **view})
    return answer["result"]["nodes"]


@live(workers=3)
async def test_a_policy_gives_roles_and_hears_why_not(c, s, a, b, d):
    rt = await dask_hpc.install(c)
    controller, state = engine(s).controller, engine(s).state
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        free = [node.id for node in state.nodes.free()]
        acts = [SetRole(node=id, role="staging", reason=WHY) for id in (free[0], *job_nodes(s, job), "none")]
        _, outcomes = controller.act(acts, "tick")
        assert [outcome.result for outcome in outcomes] == ["done", "refused", "refused"]
        assert [node.id for node in state.nodes.free()] == free[1:]
        assert state.nodes.nodes[free[0]].view().role == "staging"
    await job.wait(10)
    # it stays awake for the node that stock would take for another one, and no longer
    assert engine(s).awake
    back = SetRole(node=free[0], role="compute", reason=WHY)
    assert [o.result for o in controller.act([back], "tick")[1]] == ["done"]
    await asleep(s)


def job_nodes(s, job):
    return list(engine(s).state.jobs.find(job.id).nodes)
