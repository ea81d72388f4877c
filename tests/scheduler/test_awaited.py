"""Tasks that wait for data: nobody runs or counts them; what depends on them runs once it is there."""

from __future__ import annotations

from typing import Any

import dask
import pytest
from distributed import Client, wait
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.stealing import WorkStealing
from distributed.utils_test import inc
from helpers import Gate, asleep, engine, live, through, traces_of_ours, until

import dask_hpc
from dask_hpc.errors import NotProvided
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.awaited import source


def give(data):
    """A task that provides data on the worker it runs on, and tells what went wrong."""
    try:
        dask_hpc.provide(data)
    except ValueError as error:
        return str(error)


def awaited(s):
    sections = of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))
    return sections.get("awaited", {}).get("tasks")


class Failing(SchedulerPlugin):
    """Notes what it sees, and fails."""

    def __init__(self, seen: list[tuple[Any, ...]]) -> None:
        self.seen = seen

    def transition(self, key, start, finish, *args, **kwargs):
        self.seen.append((key, start, finish, kwargs.get("worker")))
        raise RuntimeError("it fails")


@pytest.fixture
def looked_at(monkeypatch):
    """Keys whose steps stock's work stealing was given."""
    keys, stock = set(), WorkStealing.transition

    def transition(plugin, key, *args, **kwargs):
        keys.add(key)
        return stock(plugin, key, *args, **kwargs)

    monkeypatch.setattr(WorkStealing, "transition", transition)
    return keys


@live(workers=2, config={"distributed.scheduler.no-workers-timeout": "200ms"})
async def test_what_waits_for_data_asks_for_nothing_and_runs_when_it_is_there(c, s, a, b, looked_at):
    rt = await dask_hpc.install(c, pool_hold_s=0)
    sources = await rt.expect(["step-0", "step-1"])
    results = c.map(inc, sources)
    await until(lambda: awaited(s) == 2, "two are held")
    assert of(s).pool_target.target() == 0
    assert (await rt.snapshot()).demand.ready_tasks == 0
    # a task that no worker may run has failed by then: that is what the time limit does to others
    with pytest.raises(Exception, match="timed out"):
        await c.submit(inc, 1, workers="tcp://127.0.0.1:1", pure=False)
    assert awaited(s) == 2
    seen: list[tuple[Any, ...]] = []
    s.add_plugin(Failing(seen), name="first")
    s.add_plugin(Failing(seen), name="second")
    assert await c.submit(give, {"step-0": 10}, workers=a.address, pure=False) is None
    assert await results[0] == 11
    assert a.data["step-0"] == 10
    assert await c.submit(give, {"step-1": 20}, workers=b.address, pure=False) is None
    assert await c.gather(results) == [11, 21]
    # who watches has seen an end like others, though it fails
    assert seen.count(("step-0", "processing", "memory", a.address)) == 2
    assert ("step-0", "processing", "memory") in {
        (one.key, one.start, one.finish) for one in s.transition_log
    }
    # no slot was taken, and nothing may be stolen
    assert results[0].key in looked_at
    assert not looked_at & {"step-0", "step-1"}
    # workers are as busy as they were
    assert set(s.idle) == {a.address, b.address}
    assert (awaited(s), s.tasks["step-1"].nbytes > 0) == (0, True)
    del sources, results
    await asleep(s)
    assert "dask-hpc-watched" not in s.plugins


@live(workers=2)
async def test_a_job_that_has_every_node_gets_its_data_and_nobody_waits_for_what_is_awaited(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("analysis", nodes=2) as job:
        (field,) = await rt.expect(["field"])
        peak = c.submit(max, field)
        # an actor or task of the job provides it: here one on a worker that the scheduler chooses
        assert await c.submit(give, {"field": [1, 7, 3]}, pure=False) is None
        assert await peak == 7
    await job.wait(20)
    assert (await rt.jobs())[0]["state"] == "completed"


@live(workers=2)
async def test_lost_data_is_awaited_again_and_what_was_computed_from_it_computed_again(c, s, a, b):
    rt = await dask_hpc.install(c)
    (field,) = await rt.expect(["field"])
    result = c.submit(inc, field)
    await c.submit(give, {"field": 1}, workers=a.address, pure=False)
    assert await result == 2
    where = {ts.address for ts in s.tasks[result.key].who_has}
    assert where == {a.address}
    await a.close()
    await until(lambda: awaited(s) == 1, "it is awaited again")
    assert (await rt.snapshot()).demand.ready_tasks == 0
    await c.submit(give, {"field": 5}, workers=b.address, pure=False)
    assert await result == 6


@live(workers=2)
async def test_data_is_provided_once_and_names_are_taken_once(c, s, a, b):
    rt = await dask_hpc.install(c)
    (field,) = await rt.expect(["field"])
    with pytest.raises(ValueError, match="'field', which is taken"):
        await rt.expect(["other", "field"])
    assert engine(s).state.awaited == {"field"}
    with pytest.raises(ValueError, match="'twice', which is taken"):
        await rt.expect(["twice", "twice"])
    for wrong in ("field", [1]):
        with pytest.raises(TypeError, match="needed: a list of texts"):
            await rt.expect(wrong)
    await c.submit(give, {"field": 1}, workers=a.address, pure=False)
    for worker in (a, b):
        text = await c.submit(give, {"field": 2, "unknown": 3}, workers=worker.address, pure=False)
        assert "nobody awaits" in text
        assert "'field'" in text
        assert "'unknown'" in text
    assert await field == 1
    assert ("unknown" in a.data, "unknown" in b.data, "field" in b.data) == (False, False, False)


@live(workers=1)
async def test_what_is_announced_and_never_submitted_goes_with_its_client(c, s, a):
    await dask_hpc.install(c, tick_s=0.05)
    async with Client(s.address, asynchronous=True) as other:
        rt = await dask_hpc.runtime(other)
        await rt.channel.ask("expect", keys=["never"], client=other.id)
        assert engine(s).awake
    await asleep(s)
    assert not engine(s).state.awaited


@live(workers=1)
async def test_data_that_comes_before_its_task_waits_for_it(c, s, a):
    rt = await dask_hpc.install(c)
    await rt.channel.ask("expect", keys=["early"], client=c.id)
    given = c.submit(give, {"early": 4}, pure=False)
    await until(lambda: "early" in a.data, "it is provided")
    early = c.submit(source, "early", key="early", pure=False)
    assert await c.submit(inc, early) == 5
    assert await given is None


@live(workers=1)
async def test_what_could_not_be_submitted_is_forgotten_though_its_client_stays(c, s, a):
    rt = await dask_hpc.install(c)
    await rt.channel.ask("expect", keys=["first", "second"], client=c.id)
    await rt.channel.ask("unexpect", keys=["first", "unknown"])
    assert engine(s).state.awaited == {"second"}
    await rt.channel.ask("unexpect", keys=["second"])
    await asleep(s)


@live(workers=1)
async def test_a_paused_worker_takes_no_data_until_it_goes_on(c, s, a):
    rt = await dask_hpc.install(c)
    (field,) = await rt.expect(["field"])
    await until(lambda: awaited(s) == 1, "it is held")
    s.handle_worker_status_change("paused", a.address, "test")
    told = {"worker": a.address, "data": {"field": (8, "int")}}
    assert await rt.channel.ask("provide", **told) == {"refused": [], "later": ["field"]}
    assert awaited(s) == 1
    s.handle_worker_status_change("running", a.address, "test")
    assert await c.submit(give, {"field": 1}, pure=False) is None
    assert await field == 1


@live(workers=1, threads=2)
async def test_what_a_worker_computes_is_not_replaced_by_what_somebody_provides(c, s, a):
    await dask_hpc.install(c)
    gate = Gate()
    own = c.submit(through, 1, gate=gate, key="own")
    await until(lambda: "own" in a.state.tasks and a.state.tasks["own"].state == "executing", "it runs")
    assert "nobody awaits 'own'" in await c.submit(give, {"own": 2}, pure=False)
    gate.open()
    assert await own == 1


@live(workers=1)
async def test_uninstalled_what_is_awaited_fails_and_says_why(c, s, a):
    rt = await dask_hpc.install(c)
    (field,) = await rt.expect(["field"])
    result = c.submit(inc, field)
    await until(lambda: awaited(s) == 1, "it is held")
    await rt.uninstall()
    await wait(result)
    with pytest.raises(NotProvided, match="uninstalled"):
        await result
    assert traces_of_ours(s) == []


@live(workers=2)
async def test_many_are_provided_at_once_and_plain_work_goes_on(c, s, a, b):
    rt = await dask_hpc.install(c)
    names = [f"block-{i}" for i in range(200)]
    sources = await rt.expect(names)
    with dask.annotate(priority=1):
        total = c.submit(sum, sources)
    assert await c.gather(c.map(inc, range(50), pure=False)) == list(range(1, 51))
    halves = (names[:100], a), (names[100:], b)
    for some, worker in halves:
        data = {name: int(name.rpartition("-")[2]) for name in some}
        await c.submit(give, data, workers=worker.address, pure=False)
    assert await total == sum(range(200))
