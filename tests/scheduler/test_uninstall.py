"""Switching the runtime off, and sleeping, leave nothing of it behind, and lose nothing."""

from __future__ import annotations

import asyncio

import pytest
from distributed import Client
from helpers import (
    ENTRIES,
    Gate,
    InFlight,
    Starts,
    asleep,
    engine,
    installed,
    live,
    record,
    started,
    state_of,
    through,
    traces_of_ours,
    until,
    within,
    without_validation,
)
from tasks import inc

import dask_hpc
from dask_hpc.errors import CheckpointError, ConfigError, InstallError, JobCancelled
from dask_hpc.scheduler import bootstrap
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.rpc import service
from dask_hpc.scheduler.rpc.service import of

#: Stock queues them, the runtime takes them over a chunk at a time.
BACKLOG = 700
#: Far more than workers are given at once.
HELD = 1000


@live(timeout=60)
async def test_uninstall_hands_a_thousand_held_tasks_back_to_stock_queuing(c, s, *workers):
    handlers = dict(s.stream_handlers)
    plugins = dict(s.plugins)
    callbacks = dict(s.periodic_callbacks)
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    starts = Starts()
    await starts.watch(workers)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(inc, range(HELD), pure=False)
        await until(lambda: record(s, job).held > HELD - 500, "held")
        peak = InFlight(s)
        await rt.uninstall()
        s.remove_plugin("in-flight")
        assert traces_of_ours(s) == []
        assert not installed(s)
        assert {k: v for k, v in s.stream_handlers.items() if k not in ENTRIES} == handlers
        assert s.plugins == plugins
        assert dict(s.periodic_callbacks) == callbacks
        s.add_plugin(peak)
        assert await c.gather(futures) == list(range(1, HELD + 1))
    assert peak.peak <= 2
    assert max(starts.count.values()) == 1
    assert starts.places(starts.count) == {w.address for w in workers}
    with pytest.raises(InstallError):
        await rt.jobs()
    rt = await dask_hpc.install(c)
    async with rt.job("again", nodes=1) as job:
        assert await c.submit(inc, 1, pure=False) == 2
    await job.wait(10)


@live(timeout=60)
async def test_a_job_that_comes_and_goes_beside_a_backlog_leaves_nothing(c, s, *workers):
    """The backlog is still being taken over when it is already handed back."""
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    starts = Starts()
    await starts.watch(workers)
    backlog = c.map(inc, range(BACKLOG), pure=False)
    await until(lambda: len(s.queued) > BACKLOG - 100, "queued")
    for _ in range(3):
        async with rt.job("short") as job:
            pass
        await job.wait(10)
    await asleep(s)
    for _ in range(20):
        await asyncio.sleep(0)
    assert traces_of_ours(s) == []
    assert engine(s).state.owner == {}
    assert await c.gather(backlog) == list(range(1, BACKLOG + 1))
    assert max(starts.count.values()) == 1


@live(timeout=60)
async def test_uninstall_while_a_backlog_is_being_taken_over(c, s, *workers):
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    backlog = c.map(inc, range(BACKLOG), pure=False)
    await until(lambda: len(s.queued) > BACKLOG - 100, "queued")
    async with rt.job("short"):
        await rt.uninstall()
        for _ in range(20):
            await asyncio.sleep(0)
        assert traces_of_ours(s) == []
        assert await c.gather(backlog) == list(range(1, BACKLOG + 1))


@live()
async def test_uninstall_while_a_job_adapts(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("main", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        futures = c.map(through, range(20), gate=gate, pure=False)
        await until(lambda: gate.arrived == 4, "busy")
        waiting = asyncio.ensure_future(job.wait())
        resize = asyncio.ensure_future(job.resize(2))
        await until(lambda: state_of(s, job) == "adapting", "adapts")
        await rt.uninstall()
        assert traces_of_ours(s) == []
        gate.open()
        assert await c.gather(futures) == list(range(20))
        out = await asyncio.wait_for(asyncio.gather(resize, waiting, return_exceptions=True), 10)
        print(out)
        assert isinstance(out[1], JobCancelled), out
        assert isinstance(out[0], dict), out


@live()
async def test_jobs_reopened_while_the_runtime_goes_to_sleep(c, s, *workers):
    rt = await dask_hpc.install(c)
    for i in range(15):
        async with rt.job(f"short{i}", nodes=4) as job:
            f = c.map(inc, range(50), pure=False)
        await c.gather(f)
    await job.wait(10)
    await asleep(s)
    assert traces_of_ours(s) == []
    assert not engine(s).state.jobs.active, "nor does plain work go on in it"
    assert [r["state"] for r in await rt.jobs()] == ["completed"] * 15


@live(workers=2)
async def test_a_job_that_comes_as_the_runtime_goes_to_sleep_waits_for_no_silent_worker(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate, answers = Gate(), []
    async with rt.job("first", nodes=2, min_nodes=1, max_nodes=2) as first:
        await started(s, first, 2)
        # as of a worker whose interpreter is busy
        handler = s.stream_handlers["steal-response"]
        s.stream_handlers["steal-response"] = lambda **answer: answers.append(answer)
        futures = c.map(through, range(4), gate=gate, pure=False)
        await until(lambda: gate.arrived == 2, "each thread is busy, and a task waits behind")
        resize = asyncio.ensure_future(first.resize(1))
        await until(lambda: answers, "it was asked back")
        await first.cancel()
    gate.open()
    await resize
    async with rt.job("second", nodes=1) as second:
        assert await within(c.submit(inc, 1, pure=False), 5) == 2
        assert engine(s).rounds.drain.waiting
    await second.wait(10)
    s.stream_handlers["steal-response"] = handler
    for late in answers:
        handler(**late)
    await asleep(s)
    assert traces_of_ours(s) == []
    assert {future.status for future in futures} == {"cancelled"}


@live(workers=2)
async def test_uninstall_waits_for_no_answer_of_a_worker_that_has_gone(c, s, a, b):
    rt = await dask_hpc.install(c)
    job = await rt.job("main", nodes=1).activate()
    await started(s, job, 1)
    overflow = engine(s).overflow
    # it was asked for a task that waits there, and goes before it has answered
    overflow._requests[0] = ("task", b.address, 1)
    assert overflow.waiting
    await b.close()
    await until(lambda: b.address not in s.workers, "it has gone")
    await within(rt.uninstall())
    assert not overflow.waiting


@live(workers=1)
async def test_nobody_begins_anything_while_somebody_else_uninstalls(c, s, worker, monkeypatch):
    rt = await dask_hpc.install(c)
    going, goes = asyncio.Event(), asyncio.Event()

    async def slowly(scheduler):
        going.set()
        await goes.wait()
        await stripped(scheduler)

    stripped = remote.strip
    monkeypatch.setattr(remote, "strip", slowly)  # as of a worker whose interpreter is busy
    uninstalled = asyncio.ensure_future(rt.uninstall())
    await within(going.wait())
    for call in (
        lambda: rt.couple("heat", {"T": (("x",), (4,), "float64")}),
        lambda: rt.expect(["later"]),
        lambda: rt.job("late").activate(),
        lambda: dask_hpc.install(c),
    ):
        with pytest.raises(InstallError, match="is being uninstalled; install it again in a moment"):
            await call()
    goes.set()
    await uninstalled
    assert traces_of_ours(s) == []
    await dask_hpc.install(c)


@live(1)
async def test_a_client_whose_settings_are_refused_takes_the_runtime_from_nobody_else(c, s, a, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(service, "problem", lambda folder: gate.wait("it is read-only"))
    async with Client(s.address, asynchronous=True) as other:
        refused = asyncio.ensure_future(dask_hpc.install(c, checkpoint_store="/read-only"))
        await until(lambda: gate.arrived, "its folder is looked at")
        second = asyncio.ensure_future(dask_hpc.install(other))
        await until(lambda: second.done() or bootstrap._installing[s]._waiters, "it has come to that")
        gate.open()
        with pytest.raises(ConfigError, match="it is read-only"):
            await refused
        assert not (await (await second).status())["awake"]


@live(1)
async def test_a_client_whose_settings_are_refused_ends_no_job_of_somebody_else(c, s, a, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(service, "problem", lambda folder: gate.wait("it is read-only"))
    async with Client(s.address, asynchronous=True) as other:
        refused = asyncio.ensure_future(dask_hpc.install(c, checkpoint_store="/read-only"))
        await until(lambda: gate.arrived, "its folder is looked at")
        async with (await dask_hpc.runtime(other)).job("theirs", nodes=1) as job:
            await started(s, job, 1)
            gate.open()
            with pytest.raises(ConfigError, match="it is read-only"):
                await refused
            assert await other.submit(inc, 1) == 2
        assert (await within(job.wait(10)))["state"] == "completed"


@live()
async def test_leaving_the_context_of_a_job_after_uninstall_does_no_harm(c, s, *workers):
    """Nothing of ours is left to hear the closing messages; the connection of the client must not mind."""
    rt = await dask_hpc.install(c)
    async with rt.job("a", nodes=1) as cancelled, rt.job("b", nodes=1) as running:
        await started(s, running)
        await cancelled.cancel()
        await rt.uninstall()
        future = c.submit(inc, 1, pure=False)
        assert await future == 2
    assert await c.submit(inc, 2, pure=False) == 3
    assert c.id in s.clients
    assert s.clients[c.id].wants_what
    await until(lambda: not set(ENTRIES) & set(s.stream_handlers), "the last handler has gone")


@pytest.mark.errors("dask_hpc was uninstalled")
@pytest.mark.usefixtures("memory")
@live(workers=1)
async def test_uninstall_while_a_version_for_memory_waits(c, s, a):
    rt = await dask_hpc.install(c)
    there = await c.scatter(inc)
    never = c.submit(inc, 1, resources={"none": 1})
    commit = await rt.checkpoint([there, never], "values", levels=("L1",), wait=False)
    await until(lambda: there.key in of(s).commits.protected, "what is there is written")
    await rt.uninstall()
    await until(lambda: commit._row["state"] == "failed", "it is given up")
    assert traces_of_ours(s) == []


@pytest.mark.usefixtures("memory")
@live(workers=1)
async def test_uninstall_after_a_version_was_given_to_somebody_who_does_not_read_it(c, s, a):
    rt = await dask_hpc.install(c)
    await rt.checkpoint(await c.scatter([{"a": 1}]), "values", levels=("L1",))
    with pytest.raises(CheckpointError, match="allow_pickle"):
        await dask_hpc.restore("values", c)
    commits = of(s).commits
    (record,) = commits._memory.records.values()
    await rt.uninstall()
    assert traces_of_ours(s) == []
    # nor does an answer that is on its way begin anything anew
    commits.left.given.give(record, trusted=False)
    assert traces_of_ours(s) == []
