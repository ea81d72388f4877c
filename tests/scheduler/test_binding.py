"""An activated job gets everything its client submits, from any thread, in the order of submission."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Future, LocalCluster, SchedulerPlugin, get_client, secede, wait, worker_client
from helpers import (
    Gate,
    Starts,
    addresses_of,
    asleep,
    engine,
    live,
    owner_of,
    record,
    started,
    state_of,
    through,
    until,
    without_validation,
)
from tasks import inc

import dask_hpc
from dask_hpc.errors import InstallError, JobCancelled, UnknownJob
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import BIND, CLOSE, OPEN


def bound(s):
    """Which client is bound to which job."""
    return dict(engine(s).ownership._bound)


def plain(s, key):
    """Whether a task is plain work."""
    owner = owner_of(s, key)
    return owner is not None and owner.startswith("default")


class Graphs(SchedulerPlugin):
    """Number of tasks and owners of every graph that comes, in order."""

    def __init__(self, s):
        self.seen = []
        s.add_plugin(self, name="graphs")

    def update_graph(self, scheduler, tasks, **kwargs):
        owners = {"plain" if plain(scheduler, key) else owner_of(scheduler, key) for key in tasks}
        self.seen.append((len(tasks), owners))


async def here(submit):
    return submit()


async def thread(submit):
    out = []
    runner = threading.Thread(target=lambda: out.append(submit()))
    runner.start()
    await until(lambda: not runner.is_alive(), "the thread ends")
    return out[0]


async def pool(submit):
    with ThreadPoolExecutor(1) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, submit)


async def blank_context(submit):
    return contextvars.Context().run(submit)


async def task(submit):
    async def work():
        return submit()

    return await asyncio.get_running_loop().create_task(work(), context=contextvars.Context())


ELSEWHERE = [thread, pool, blank_context, task]


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("where", [here, *ELSEWHERE])
@live()
async def test_all_that_the_client_submits_is_the_jobs_until_it_is_deactivated(c, s, *workers, where, block):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)

    async def submitted():
        futures = await where(lambda: c.map(inc, range(8), pure=False))
        assert await c.gather(futures) == list(range(1, 9))
        return futures

    async def story(job):
        assert await job.activate() is job
        await started(s, job, 2)
        inside = await submitted()
        assert {owner_of(s, f.key) for f in inside} == {job.id}
        assert starts.places(f.key for f in inside) <= addresses_of(s, job)
        assert bound(s) == {c.id: job.id}
        await job.deactivate()
        outside = await submitted()
        # the thread that is inside the `with` block goes on submitting to the job
        stays = block and where is here
        assert all((owner_of(s, f.key) == job.id) if stays else plain(s, f.key) for f in outside)
        assert bound(s) == {}

    job = rt.job("main", nodes=2)
    if block:
        async with job:
            await story(job)
    else:
        await story(job)
        await job.close()
    assert (await job.wait(10))["state"] == "completed"


def frame():
    data = pd.DataFrame({"key": np.arange(60) % 7, "value": np.arange(60.0)})
    return dd.from_pandas(data, npartitions=4).shuffle("key", shuffle_method="p2p").value.sum()


COLLECTIONS = {
    "array": (lambda: da.ones((60, 60), chunks=20).sum(), 3600),
    "rechunk": (lambda: da.ones((60, 60), chunks=(60, 5)).rechunk((5, 60)).sum(), 3600),
    "frame": (frame, 1770),
    "bag": (lambda: db.from_sequence(range(20), npartitions=4).map(inc).sum(), 210),
    "delayed": (lambda: dask.delayed(sum)([dask.delayed(inc)(i) for i in range(20)]), 210),
}


@pytest.mark.parametrize("name", COLLECTIONS)
@live(workers=3)
async def test_every_task_of_a_collection_computed_in_another_thread_is_the_jobs(c, s, *workers, name):
    make, expected = COLLECTIONS[name]
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    collection = make()
    job = await rt.job("main", nodes=2).activate()
    await started(s, job, 2)
    graphs = Graphs(s)
    allowed = addresses_of(s, job)
    assert await (await pool(lambda: c.compute(collection))) == expected
    assert set().union(*(owners for _, owners in graphs.seen)) == {job.id}
    assert starts.places(starts.count) <= allowed
    await job.close()
    await job.wait(10)


def by_worker_client(n):
    with worker_client() as client:
        return client.gather(client.map(inc, range(n), pure=False))


def by_get_client(n):
    client = get_client()
    futures = client.map(inc, range(n), pure=False)
    secede()
    return client.gather(futures)


def by_compute(n):
    with worker_client():
        return list(dask.compute(*[dask.delayed(inc, pure=False)(i) for i in range(n)]))


def by_tasks_of_tasks(n):
    with worker_client() as client:
        return client.submit(by_worker_client, n, pure=False).result()


NESTED = [by_worker_client, by_get_client, by_compute, by_tasks_of_tasks]


@pytest.mark.parametrize("function", NESTED)
@live()
async def test_what_tasks_of_a_bound_client_submit_is_the_jobs_also_when_it_is_unbound(
    c, s, *workers, function
):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    async with rt.job("other", nodes=1) as other:
        await started(s, other)
    job = await rt.job("main", nodes=2).activate()
    await started(s, job, 2)
    gate = Gate()
    first = await pool(lambda: c.submit(through, 5, gate=gate, pure=False))
    nested = await pool(lambda: c.submit(function, first, pure=False))
    await until(lambda: gate.arrived, "it runs")
    await job.deactivate()
    await until(lambda: not bound(s), "unbound")
    gate.open()
    assert await nested == [1, 2, 3, 4, 5]
    assert len(starts.count) >= 7
    assert starts.places(starts.count) <= addresses_of(s, job)
    await job.close()
    assert (await job.wait(10))["state"] == "completed"


class Users:
    """A client of the user, who is in the process of the workers, and what tasks submit by it."""

    client: Client
    kept: list


def by_users_client(annotation=()):
    with dask.annotate(**dict(annotation)):
        future = Users.client.submit(inc, 1, pure=False)
    Users.kept.append(future)
    return future.key


@live(timeout=60)
async def test_annotation_then_task_then_client_then_default(c, s, *workers, monkeypatch):
    keep = []
    monkeypatch.setattr(Users, "client", c, raising=False)
    monkeypatch.setattr(Users, "kept", keep, raising=False)
    rt = await dask_hpc.install(c)
    async with rt.job("ended", nodes=1) as ended:
        pass
    await ended.wait(10)

    def submit(**annotations):
        with dask.annotate(**annotations):
            keep.append(c.submit(inc, 1, pure=False))
        return keep[-1].key

    async def from_task(job, inner=()):
        with dask.annotate(hpc_job=job):
            return await c.submit(by_users_client, inner, pure=False)

    async def owner(key):
        await until(lambda: key in s.tasks, f"{key} is there")
        return "plain" if plain(s, key) else owner_of(s, key)

    a, b = await rt.job("a", nodes=1).activate(), rt.job("b", nodes=1)
    async with b:
        in_context = submit()
    b2 = rt.job("b2", nodes=1)
    async with b2:
        await started(s, a)
        with dask.annotate(hpc_job=None):
            rest = [await owner(submit(hpc_job=x)) for x in (a.id, b2.id, None, ended.id, "nobody", 17)]
        assert rest == [a.id, b2.id, "plain", "plain", "plain", "plain"]
        # context over client, annotation over context
        assert await owner(submit()) == b2.id
        assert await owner(submit(hpc_job=a.id)) == a.id
        # task over client (of this thread: the client is bound to `a`)
        assert await owner(await from_task(b2.id)) == b2.id
        assert await owner(await from_task(a.id)) == a.id
        assert await owner(await from_task(None)) == "plain"
        # annotation over task
        assert await owner(await from_task(b2.id, {"hpc_job": a.id})) == a.id
        assert await owner(await from_task(a.id, {"hpc_job": b2.id})) == b2.id
        assert await owner(await from_task(a.id, {"hpc_job": None})) == "plain"
        # what the user annotates when building a graph over client
        with dask.annotate(hpc_job=b2.id):
            built = dask.delayed(inc, pure=False)(1)
        future = await pool(lambda: c.compute(built, optimize_graph=False))
        assert await owner(future.key) == b2.id
        # client over default
        assert await owner(await pool(submit)) == a.id
        await a.deactivate()
        assert await owner(await pool(submit)) == "plain"
    assert await owner(in_context) in (b.id, "plain")  # `b` may have ended
    await wait(keep)
    keep.clear()
    await a.close()
    for job in (a, b, b2):
        await job.wait(10)


@pytest.mark.parametrize("elsewhere", [False, True])
@live(timeout=60)
async def test_unbinding_directly_behind_a_large_graph_changes_nothing_of_it(c, s, *workers, elsewhere):
    """The scheduler unpacks the graph in a thread while the message behind it is there already."""
    without_validation(s, workers)
    rt = await dask_hpc.install(c)
    async with rt.job("anchor", nodes=1) as anchor:
        await started(s, anchor)
        graphs = Graphs(s)
        job = await rt.job("main", nodes=1).activate()
        large = da.ones((400, 400), chunks=(20, 20)).map_blocks(inc).sum()
        where = pool if elsewhere else blank_context

        def burst():
            future = c.compute(large)
            leaving = job.deactivate()
            return future, leaving, c.submit(inc, 2, pure=False)

        future, leaving, after = await where(burst)
        if not elsewhere:  # in a thread that runs no loop it blocks, as every method of the client does
            await leaving
        assert await future == 320_000
        assert await after == 3
        (n, large_owners), (_, small_owners) = graphs.seen
        assert n > 100
        assert (large_owners, small_owners) == ({job.id}, {"plain"})
        await job.close()
        await job.wait(10)


@live()
async def test_each_of_many_switches_takes_effect_between_the_graphs_around_it(c, s, *workers):
    rt = await dask_hpc.install(c)
    a, b = await rt.job("a", nodes=1).activate(), await rt.job("b", nodes=1).activate()
    futures, expected = [], []
    for i in range(30):
        if i % 3 < 2:
            job = (a, b)[i % 3]
            await job.activate()
            expected.append(job.id)
        else:
            await b.deactivate()
            expected.append("plain")
        futures.append(c.submit(inc, i, pure=False))
    await c.gather(futures)
    assert ["plain" if plain(s, f.key) else owner_of(s, f.key) for f in futures] == expected
    await a.close()
    await b.close()


@live()
async def test_what_was_submitted_before_an_activation_stays_plain(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    before = c.map(through, range(2), gate=gate, pure=False)
    job = await rt.job("main", nodes=1).activate()
    after = c.submit(inc, 1, pure=False)
    assert await after == 2
    assert owner_of(s, after.key) == job.id
    await until(lambda: all(plain(s, f.key) for f in before), "plain")
    gate.open()
    await c.gather(before)
    await job.close()
    await job.wait(10)


@live()
async def test_only_the_client_that_activates_is_bound(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with Client(s.address, asynchronous=True) as other:
        theirs = await dask_hpc.install(other)
        job = await rt.job("main", nodes=1).activate()
        mine, foreign = c.submit(inc, 1, pure=False), other.submit(inc, 2, pure=False)
        assert (await mine, await foreign) == (2, 3)
        assert owner_of(s, mine.key) == job.id
        assert plain(s, foreign.key)
        second = await theirs.job("second", nodes=1).activate()
        mine, foreign = c.submit(inc, 1, pure=False), other.submit(inc, 2, pure=False)
        assert (await mine, await foreign) == (2, 3)
        assert (owner_of(s, mine.key), owner_of(s, foreign.key)) == (job.id, second.id)
        assert bound(s) == {c.id: job.id, other.id: second.id}
        await second.close()
        await second.wait(10)
        assert bound(s) == {c.id: job.id}
    await job.close()
    await job.wait(10)


@live()
async def test_activating_another_job_ends_the_binding_of_the_first_for_good(c, s, *workers):
    rt = await dask_hpc.install(c)
    a, b = await rt.job("a", nodes=1).activate(), rt.job("b", nodes=1)

    async def owner():
        future = await pool(lambda: c.submit(inc, 1, pure=False))
        await future
        return "plain" if plain(s, future.key) else owner_of(s, future.key)

    assert await owner() == a.id
    await b.activate()
    assert await owner() == b.id
    await a.deactivate()  # it is not active: nothing changes
    assert await owner() == b.id
    await a.close()
    assert await owner() == b.id
    await b.deactivate()
    assert await owner() in ("plain", None)
    await b.close()
    await asyncio.gather(a.wait(10), b.wait(10))


async def another_client_cancels(rt, job):
    async with Client(rt.client.scheduler.address, asynchronous=True) as other:
        await (await dask_hpc.runtime(other)).cancel(job.id)


async def leaves(rt, job, error=None):
    with suppress(ZeroDivisionError):
        async with job:
            if error is not None:
                raise error


ENDS = {
    "completed": lambda rt, job: job.close(),
    "completed, block": leaves,
    "cancelled": lambda rt, job: job.cancel("enough"),
    "cancelled by the runtime": lambda rt, job: rt.cancel(job.id),
    "cancelled by another client": another_client_cancels,
    "cancelled by an error": lambda rt, job: leaves(rt, job, ZeroDivisionError()),
}


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize("end", ENDS)
@live()
async def test_after_the_end_of_a_bound_job_submissions_are_plain_and_nothing_is_left(
    c, s, *workers, end, other
):
    rt = await dask_hpc.install(c)
    anchor = rt.job("anchor", nodes=1)
    if other:
        async with rt.job("first", nodes=1):
            await anchor.activate()
            await anchor.deactivate()
    job = await rt.job("main", nodes=1).activate()
    future = c.submit(inc, 1, pure=False)
    assert await future == 2
    assert owner_of(s, future.key) == job.id
    await ENDS[end](rt, job)
    later = c.submit(inc, 2, pure=False)
    assert await later == 3
    assert bound(s) == {}
    if other:
        assert plain(s, later.key)
        await anchor.close()
    await until(lambda: record(s, job).ended.is_set(), "ended")
    assert state_of(s, job) == re.match("[a-z]+", end)[0]
    await job.deactivate()
    await job.close()
    await asleep(s)
    assert await c.submit(inc, 3, pure=False) == 4
    assert c.id in s.clients
    assert of(s)._due[CLOSE] == {}


@pytest.mark.parametrize("block", [True, False])
@live()
async def test_a_closed_job_that_still_works_gets_nothing_more_from_its_client(c, s, *workers, block):
    rt = await dask_hpc.install(c)
    gate = Gate()
    job = await rt.job("main", nodes=1).activate()
    held = c.submit(through, 1, gate=gate, pure=False)
    await until(lambda: gate.arrived, "busy")
    if block:
        async with job:
            pass
    else:
        await job.close()
    later = c.submit(inc, 2, pure=False)
    assert await later == 3
    assert plain(s, later.key)
    assert bound(s) == {}
    assert not record(s, job).ended.is_set()
    gate.open()
    assert await held == 1
    assert (await job.wait(10))["state"] == "completed"


@live()
async def test_closing_the_bound_client_ends_binding_and_job(c, s, *workers):
    await dask_hpc.install(c)
    other = await Client(s.address, asynchronous=True)
    rt = await dask_hpc.runtime(other)
    job = await rt.job("main", nodes=1).activate()
    await until(lambda: bound(s) == {other.id: job.id}, "bound")
    await other.close()
    await until(lambda: record(s, job).state == "cancelled", "cancelled")
    assert bound(s) == {}
    # nobody is there to be told
    await job.deactivate()
    await job.close()
    await asleep(s)


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("last", ["close", "deactivate"])
@live()
async def test_uninstall_while_bound_leaves_nothing_and_keeps_the_connection(c, s, *workers, block, last):
    streams = dict(s.stream_handlers)
    rt = await dask_hpc.install(c)
    job, gate = rt.job("main", nodes=2), Gate()

    async def story():
        await job.activate()
        await started(s, job, 2)
        mind = engine(s).ownership
        futures = await pool(lambda: c.map(through, range(6), gate=gate, pure=False))
        await until(lambda: gate.arrived == 2, "busy")
        await rt.uninstall()
        assert mind._bound == {}
        assert set(s.stream_handlers) - set(streams) == {BIND, CLOSE}
        gate.open()
        assert await c.gather(futures) == list(range(6))
        if last == "deactivate":
            await job.deactivate()
            assert await c.submit(inc, 1, pure=False) == 2
        with pytest.raises(InstallError):
            await job.activate()
        assert await c.submit(inc, 2, pure=False) == 3

    if block:
        async with job:
            await story()
    else:
        await story()
        await job.close()
    assert await c.submit(inc, 3, pure=False) == 4
    await until(lambda: dict(s.stream_handlers) == streams, "the last handlers have gone")
    await job.close()
    await job.deactivate()
    assert await c.submit(inc, 4, pure=False) == 5
    assert c.id in s.clients


@live(workers=2)
async def test_a_handle_from_before_a_new_installation_binds_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    old = await rt.job("main", nodes=1).activate()
    await rt.uninstall()
    rt = await dask_hpc.install(c)
    new = rt.job("main", nodes=1)
    async with new:
        assert new.id == old.id
        with pytest.raises(UnknownJob, match="not open"):
            await old.activate()
        await old.deactivate()
        await old.close()
        future = await pool(lambda: c.submit(inc, 1, pure=False))
        assert await future == 2
        assert plain(s, future.key)
        assert not record(s, new).closed
    await new.wait(10)


@live(workers=2)
async def test_messages_about_other_jobs_or_with_other_tokens_bind_and_unbind_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    handler = s.stream_handlers[BIND]
    idle = await rt.job("idle", nodes=1).activate()
    await idle.deactivate()
    job = await rt.job("main", nodes=1).activate()
    await until(lambda: bound(s) == {c.id: job.id}, "bound")
    to_idle = [(idle.id, "other", True), (idle.id, "", True), (idle.id, None, True)]
    to_none = [("nobody-7", job._token, True), ("nobody-7", None, True), (job.id, "other", False)]
    others = [(job.id, idle._token, False), (idle.id, idle._token, False)]
    for id, token, on in (*to_idle, *to_none, *others):
        handler(client=c.id, job=id, token=token, bound=on)
        assert bound(s) == {c.id: job.id}, (id, token, on)
    handler(client=c.id, job=job.id)
    assert bound(s) == {c.id: job.id}
    await job.close()
    await job.wait(10)
    handler(client=c.id, job=job.id, token=job._token, bound=True)
    assert bound(s) == {}
    await idle.close()


@live(workers=2)
async def test_what_cannot_be_activated_says_why(c, s, *workers):
    rt = await dask_hpc.install(c)
    with pytest.raises(ValueError, match="3"):
        await rt.job("large", nodes=3, rigid=True).activate()
    assert await rt.jobs() == []
    with pytest.raises(RuntimeError, match=r"not been submitted.*activate"):
        await rt.job("new").close()
    await rt.job("new").deactivate()
    job = await rt.job("main", nodes=1).activate()
    found = rt.find(job.id)
    for act in (found.activate, found.close):
        with pytest.raises(RuntimeError, match="not declared by this handle"):
            await act()
    await found.deactivate()
    await until(lambda: bound(s) == {c.id: job.id}, "bound")
    await job.close()
    await job.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await job.activate()
    with pytest.raises(RuntimeError, match="submitted already"):
        async with job:
            pass
    cancelled = await rt.job("cancelled", nodes=1).activate()
    await cancelled.cancel("no more")
    with pytest.raises(JobCancelled, match="no more"):
        await cancelled.activate()
    await cancelled.close()
    await until(lambda: not bound(s), "nobody is bound")


@live(workers=2)
async def test_activating_a_new_job_twice_at_once_opens_one(c, s, *workers):
    rt = await dask_hpc.install(c)
    job = rt.job("main", nodes=1)
    assert await asyncio.gather(job.activate(), job.activate()) == [job, job]
    assert [row["id"] for row in await rt.jobs()] == [job.id]
    async with job as same:  # an activated job can still be entered, once
        assert same is job
        assert await c.submit(inc, 1, pure=False) == 2
    assert (await job.wait(10))["state"] == "completed"
    assert OPEN in s.stream_handlers


def at(s, future):
    """Addresses of the workers that have the data of a future."""
    return {ws.address for ws in s.tasks[future.key].who_has}


LISTS = {"list": ([1, 2, 3, 4, 5, 6], list), "tuple": ((1.0, 2.0, 3.0), tuple), "range": (range(4), list)}
DATA = {**LISTS, "dict": ({"x": 1, "y": 2}, dict), "array": (np.arange(5.0), None)}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("kind", DATA)
@live()
async def test_scattered_data_is_on_the_jobs_nodes_and_has_the_form_it_came_in(c, s, *workers, kind, direct):
    data, type_ = DATA[kind]
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        scattered = await job.scatter(data, direct=direct)
        assert type(scattered) is (type_ or Future)
        futures = list(scattered.values()) if type_ is dict else scattered if type_ else [scattered]
        places = set().union(*(at(s, future) for future in futures))
        assert places <= addresses_of(s, job)
        assert len(places) == (2 if len(futures) > 1 else 1)
        np.testing.assert_equal(await c.gather(scattered), list(data) if kind == "range" else data)
    assert (await job.wait(10))["state"] == "completed"


@pytest.mark.parametrize("direct", [False, True])
@live(config={"distributed.scheduler.active-memory-manager.start": False})
async def test_broadcast_copies_to_the_jobs_nodes_only(c, s, *workers, direct):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=3) as job:
        await started(s, job, 3)
        futures = await job.scatter([1, 2], broadcast=True, direct=direct)
        assert all(at(s, future) == addresses_of(s, job) for future in futures)
        (one, two, _) = sorted(addresses_of(s, job))
        twice = await job.scatter(["a"], workers=[one, two], broadcast=True, direct=direct)
        assert at(s, twice[0]) == {one, two}


@live()
async def test_scatter_waits_for_a_pending_job_and_its_tasks_use_the_data_there(c, s, *workers):
    rt = await dask_hpc.install(c)
    starts = Starts()
    await starts.watch(workers)
    async with rt.job("all", nodes=4) as everything:
        await started(s, everything, 4)
        gate = Gate()
        held = c.submit(through, 1, gate=gate, pure=False)
        job = await rt.job("main", nodes=1).activate()
        with pytest.raises(TimeoutError, match=rf"{job.id} holds no node after 0.05 s; .+"):
            await job.scatter([1], timeout=0.05)
        waiting = asyncio.ensure_future(job.scatter({"late": 41}))
        await until(lambda: gate.arrived, "busy")
        assert not waiting.done()
        gate.open()
    assert await held == 1
    data = await asyncio.wait_for(waiting, 10)
    assert at(s, data["late"]) == addresses_of(s, job)
    result = await pool(lambda: c.submit(inc, data["late"], pure=False))
    assert await result == 42
    assert starts.where[result.key] == at(s, data["late"])
    await job.close()
    await job.wait(10)


@live()
async def test_data_is_placed_on_the_nodes_of_the_moment_and_stays_there(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("main", nodes=1, min_nodes=1, max_nodes=3) as job:
        await started(s, job, 1)
        await job.resize(3)
        wide = await job.scatter(list(range(6)))
        places = {future.key: at(s, future) for future in wide}
        assert set().union(*places.values()) == addresses_of(s, job)
        assert (await job.resize(1))["result"] == "done"
        assert {future.key: at(s, future) for future in wide} == places
        narrow = await job.scatter(list(range(10, 16)))
        assert {place for future in narrow for place in at(s, future)} == addresses_of(s, job)
        assert await c.gather(c.map(inc, wide, pure=False)) == [1, 2, 3, 4, 5, 6]
    await job.wait(10)


@live()
async def test_workers_of_the_job_can_be_chosen_and_others_are_refused(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        one, two = sorted(addresses_of(s, job))
        away = sorted(set(s.workers) - {one, two})[0]
        host, port = one.removeprefix("tcp://").split(":")
        for chosen in ([one], one, {one}, s.workers[one].name, [(host, int(port))], f"{host}:{port}"):
            futures = await job.scatter([1, 2, 3], workers=chosen, hash=False)
            assert {place for future in futures for place in at(s, future)} == {one}
        for wrong in (away, [one, away], s.workers[away].name, "nobody", [("127.0.0.1", 1)], 99, [1.5], []):
            before = set(s.tasks)
            with pytest.raises(ValueError, match=rf"not workers of job {job.id}, which holds {one}, {two}"):
                await job.scatter([7], workers=wrong)
            assert set(s.tasks) <= before
        with pytest.raises(ValueError, match=f"'{away}'"):
            await job.scatter([7], workers=[one, away])
    await job.wait(10)


@live(workers=2)
async def test_scatter_that_cannot_be_says_why(c, s, *workers):
    rt = await dask_hpc.install(c)
    with pytest.raises(RuntimeError, match="not been submitted"):
        await rt.job("new").scatter([1])
    job = await rt.job("main", nodes=2).activate()
    pending = await rt.job("next", nodes=2).activate()
    for value in (-1, "5 s", True):
        with pytest.raises(ValueError, match="seconds as a number"):
            await job.scatter([1], timeout=value)
    waiting = asyncio.ensure_future(pending.scatter([1]))
    await started(s, job)
    await pending.cancel("no more")
    with pytest.raises(JobCancelled, match="no more"):
        await asyncio.wait_for(waiting, 5)
    await job.close()
    await job.wait(10)
    with pytest.raises(JobCancelled, match="has ended"):
        await job.scatter([1])
    with pytest.raises(UnknownJob):
        await rt.find("nobody-7").scatter([1])
    await pending.close()


@pytest.mark.parametrize("processes", [False, True])
def test_the_same_with_an_ordinary_client_as_in_a_notebook(loop, processes):
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=processes, dashboard_address=":0", loop=loop
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        rt = dask_hpc.install(client)

        def owner(key, dask_scheduler=None):
            lane = of(dask_scheduler).engine.state.owner.get(key)
            return lane and lane.job.id

        def owners(futures):
            return {client.run_on_scheduler(owner, f.key) for f in futures}

        job = rt.job("heat", nodes=2).activate()
        with ThreadPoolExecutor(2) as executor:
            futures = list(executor.map(lambda i: client.submit(inc, i, pure=False), range(6)))
            assert client.gather(futures) == list(range(1, 7))
            assert owners(futures) == {job.id}
            nested = executor.submit(lambda: client.submit(by_tasks_of_tasks, 4, pure=False)).result()
            assert nested.result() == [1, 2, 3, 4]
            total = executor.submit(lambda: da.ones((40, 40), chunks=10).sum().compute()).result()
            assert total == 1600
            with pytest.raises(RuntimeError, match="or it is closed"):
                job.wait()
            with pytest.raises(TimeoutError):
                job.wait(0.01)
            assert job.deactivate() is None
            future = executor.submit(lambda: client.submit(inc, 1, pure=False)).result()
            assert future.result() == 2
            assert next(iter(owners([future]))).startswith("default")
            data = job.scatter({"x": 1, "y": 2}, broadcast=True)
            places = client.who_has(list(data.values()))
            assert all(len(set(there)) == 2 for there in places.values())
        assert job.close() is None
        assert job.wait(20)["state"] == "completed"
        with rt.job("block", nodes=1) as job:
            job.activate()
            with ThreadPoolExecutor(1) as executor:
                future = executor.submit(lambda: client.submit(inc, 1, pure=False)).result()
            assert future.result() == 2
            assert owners([future]) == {job.id}
        assert job.wait(20)["state"] == "completed"
        assert client.submit(inc, 5, pure=False).result() == 6
        bad = rt.job("left", nodes=1).activate()
    assert bad.close() is None
    assert bad.deactivate() is None
