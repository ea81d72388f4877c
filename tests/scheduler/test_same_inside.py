"""What Dask can do gives the same inside a job as outside: in every shape, also while it is resized or waits.

A *case* is a piece of work with an answer that is known. A *shape* is where it runs. Each case runs
outside of jobs too, so that a case that stock Dask would fail shows itself.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import (
    Client,
    Event,
    Lock,
    Nanny,
    Queue,
    Reschedule,
    Semaphore,
    Variable,
    as_completed,
    fire_and_forget,
    get_client,
    get_worker,
    span,
    wait,
    worker_client,
)
from distributed.diagnostics.task_stream import TaskStreamPlugin
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
    within,
)
from tasks import Counter, add_to, fan_out, fan_out_seceding, inc, slow_inc

import dask_hpc
from dask_hpc.scheduler.internals.reads import BARRIER

#: What the job asks for, by shape. ``waiting`` is submitted while another job holds every node.
SHAPES = {
    "outside": None,
    "rigid on all nodes": {"nodes": 4},
    "rigid on two of four": {"nodes": 2},
    "resized": {"nodes": 4, "min_nodes": 1, "max_nodes": 4},
    "waiting": {"nodes": 3},
}
P2P = {
    "array.rechunk.method": "p2p",
    "dataframe.shuffle.method": "p2p",
    "optimization.fuse.active": False,
}


@asynccontextmanager
async def shaped(c, s, shape):
    """The context of a job of that shape (None: outside), which must complete when it is left."""
    rt = await dask_hpc.install(c)
    fields = SHAPES[shape]
    if fields is None:
        yield None
        return
    async with _busy(rt, c, s, shape == "waiting") as let_go, rt.job("same", **fields) as job:
        if let_go is None:
            await started(s, job)
        helper = asyncio.ensure_future(
            _resize(job) if shape == "resized" else let_go(job) if let_go is not None else asyncio.sleep(0)
        )
        try:
            yield job
        finally:
            helper.cancel()
            with suppress(asyncio.CancelledError):
                await helper
    assert (await job.wait(10))["state"] == "completed"
    if shape == "resized":
        resizes = [
            d for d in await job.why() if d["action"] in ("shrink", "expand") and d["result"] == "done"
        ]
        assert len(resizes) >= 2
    await asleep(s)


async def _resize(job):
    """Shrink and expand a job without end."""
    for nodes in itertools.cycle((2, 4, 1, 3)):
        await job.resize(nodes)
        await asyncio.sleep(0)


@asynccontextmanager
async def _busy(rt, c, s, wanted):
    """While `wanted`: a job holds every node until the job it is given has something to do."""
    if not wanted:
        yield None
        return
    gate = Gate()
    async with rt.job("first", nodes=4) as first:
        await started(s, first, 4)
        held = c.map(through, range(4), gate=gate, pure=False)
        await until(lambda: gate.arrived == 4, "every node is busy")
    try:

        async def let_go(job):
            with suppress(AssertionError):  # some cases submit nothing at first
                await until(lambda: record(s, job).unfinished, "submitted", 1)
            gate.open()

        yield let_go
    finally:
        gate.open()
        await c.gather(held)


# -------------------------------------------------------------------- cases


async def rechunk(c, s):
    """P2P rechunk."""
    with dask.config.set(P2P):
        x = da.arange(10_000, chunks=625).reshape(100, 100).rechunk((10, 100)).rechunk((100, 10))
        assert any(str(key).startswith(BARRIER) for key in x.__dask_graph__())
        answer = await c.compute(x)
    return bool((answer == np.arange(10_000).reshape(100, 100)).all())


def _frames():
    rng = np.random.default_rng(1)
    left = pd.DataFrame({"key": rng.integers(0, 30, 300), "left": np.arange(300.0)})
    right = pd.DataFrame({"key": np.arange(30), "right": [f"name {i}" for i in range(30)]})
    return left, right


async def shuffle(c, s):
    """P2P shuffle of a dataframe: each key is in one partition and every row is there."""
    left, _ = _frames()
    with dask.config.set(P2P):
        frame = dd.from_pandas(left, npartitions=5).shuffle("key")
        assert any(str(key).startswith(BARRIER) for key in frame.optimize().__dask_graph__())
        parts = await c.gather(c.compute(frame.to_delayed()))
    keys = [set(part.key) for part in parts]
    found = pd.concat(parts).sort_values("left").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, left)
    return sum(map(len, keys)) == len(set.union(*keys))


async def merge(c, s):
    """Merge of two dataframes by P2P."""
    left, right = _frames()
    with dask.config.set(P2P):
        frames = dd.from_pandas(left, npartitions=4), dd.from_pandas(right, npartitions=3)
        found = await c.compute(dd.merge(*frames, on="key", shuffle_method="p2p", broadcast=False))
    expected = left.merge(right, on="key").sort_values("left").reset_index(drop=True)
    found = found.sort_values("left").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    return True


async def actors(c, s):
    """Actors are made, called, called from tasks, and read."""
    counters = await c.gather([c.submit(Counter, i, actor=True) for i in range(3)])
    assert [await counter.add(1) for counter in counters] == [1, 2, 3]
    await c.gather([c.submit(add_to, counter, 10, pure=False) for counter in counters for _ in range(4)])
    return [await counter.n for counter in counters]


def computing(n):
    """A task that computes collections."""
    parts = [dask.delayed(inc, pure=False)(i) for i in range(n)]
    total, array = dask.compute(dask.delayed(sum)(parts), da.ones(n, chunks=1).sum())
    return int(total + array - n)


def deep(n):
    """A task that waits for tasks that wait for tasks."""
    with worker_client() as client:
        return sum(client.gather([client.submit(f, n, pure=False) for f in NESTED]))


NESTED = (fan_out, fan_out_seceding, computing)


async def nested(c, s):
    """More tasks that wait for tasks than there are threads."""
    return await c.gather([c.submit(f, 5, pure=False) for f in (*NESTED, deep) for _ in range(2)])


async def late_secession(c, s):
    """The scheduler hears late that a task waits."""
    handler, loop = s.stream_handlers["long-running"], asyncio.get_running_loop()

    def late(**message):
        loop.call_later(0.15, lambda: handler(**message))

    s.stream_handlers["long-running"] = late
    try:
        return await c.gather([c.submit(f, 3, pure=False) for f in NESTED for _ in range(3)])
    finally:
        s.stream_handlers["long-running"] = handler


async def restricted(c, s):
    """The user says where, for a part of a chain."""
    places = sorted(s.workers)
    first = [c.submit(inc, i, workers=[places[i]], pure=False) for i in range(4)]
    loose = c.map(inc, first, workers=["127.0.0.1:1"], allow_other_workers=True, pure=False)
    free = c.map(slow_inc, loose, pure=False)
    last = c.submit(sum, free, workers=places[1:3])
    answer = await last
    # tasks of a client that has seen them end may have moved their data, not their place of birth
    return answer, [
        next(iter(s.tasks[f.key].who_has)).address == p for f, p in zip(first, places, strict=True)
    ]


async def resources(c, s):
    """Tasks that need a resource of a worker, and tasks that do not, in one chain."""
    with dask.annotate(resources={"gpu": 1}):
        first = [dask.delayed(inc, pure=False)(i) for i in range(8)]
    future = c.compute(dask.delayed(sum)([dask.delayed(inc)(x) for x in first]), optimize_graph=False)
    more = c.map(slow_inc, range(6), resources={"gpu": 1}, pure=False)
    return await future, await c.gather(more)


async def copies(c, s):
    """Copies made, spread, and used."""
    futures = c.map(inc, range(8), pure=False)
    data = await c.scatter({"a": 1, "b": 2}, broadcast=True)
    await c.replicate(futures, n=4)
    everywhere = all(len(s.tasks[f.key].who_has) == 4 for f in (*futures, *data.values()))
    await c.rebalance(futures)
    return everywhere, await c.gather(c.map(inc, futures)), await c.submit(sum, list(data.values()))


async def callbacks(c, s):
    """Futures call back, and come as they are completed, also those added on the way."""
    called = []
    futures = c.map(slow_inc, range(6), pure=False)
    for future in futures:
        future.add_done_callback(lambda f: called.append(f.status))
    found = []
    sequence = as_completed(futures, with_results=True)
    async for _, value in sequence:
        found.append(value)
        if len(found) <= 3:
            sequence.add(c.submit(inc, 100, pure=False))
    await until(lambda: len(called) == 6, "all have called")
    return sorted(found), called


def put(queue, variable, lock, semaphore, event, i):
    """A task that uses everything tasks coordinate themselves with."""
    event.wait(10)
    with lock, semaphore:
        seen = variable.get(timeout=10)
        variable.set(seen + i)
    queue.put(i)


def begin(event, i):
    """A task that lets others go on."""
    event.set()
    return i


async def coordination(c, s):
    """Queue, variable, lock, semaphore and event, shared by tasks; a queue of futures."""
    queue, variable, lock = await Queue(client=c), Variable(client=c), Lock()
    semaphore, event = await Semaphore(max_leases=2, name="two"), Event(client=c)
    await variable.set(0)
    futures = [c.submit(begin, event, 0, pure=False)]
    futures += [c.submit(put, queue, variable, lock, semaphore, event, i, pure=False) for i in range(8)]
    await c.gather(futures)
    values = sorted([await queue.get(timeout=5) for _ in range(8)])
    through_queue = c.submit(inc, 41, pure=False)
    await queue.put(through_queue)
    del through_queue
    total, leases = await variable.get(), await semaphore.get_value()
    return total, values, leases, await (await queue.get(timeout=5))


async def diagnostics(c, s):
    """The task stream has every task once, spans have their tasks, the state can be dumped."""
    s.add_plugin(TaskStreamPlugin(s), name="our-stream")
    with span("outer") as outer, dask.annotate(mine=1), span("inner"):
        futures = c.map(slow_inc, range(12), pure=False)
        await wait(futures)
    stream = s.plugins["our-stream"].collect()
    rows = sorted(str(row["key"]) for row in stream if row["key"].startswith("slow_inc"))
    with tempfile.TemporaryDirectory() as folder:
        await c.dump_cluster_state(f"{folder}/state", format="yaml")
        dumped = all(f.key in Path(f"{folder}/state.yaml").read_text() for f in futures)
    spans = s.extensions["spans"].spans
    annotated = all(s.tasks[f.key].annotations["mine"] == 1 for f in futures)
    return (
        rows == sorted(f.key for f in futures),
        sum(len(group) for group in spans[outer].traverse_groups()),
        dumped,
        annotated,
    )


def second_time(gate, i):
    """A task that fails once for each `i`."""
    with gate._lock:
        gate.arrived += 1
        if gate.arrived <= 3:
            raise ValueError("not yet")
    return i


def moves_on(gate):
    """A task that asks to be placed anew, twice."""
    with gate._lock:
        gate.arrived += 1
        if gate.arrived <= 2:
            raise Reschedule
    return gate.arrived


async def again(c, s):
    """Retries, `Client.retry`, and tasks that ask for another place."""
    retried = c.map(second_time, [Gate()] * 4, range(4), retries=3, pure=False)
    gate = Gate()
    failed = c.submit(second_time, gate, 7, pure=False)
    for _ in range(3):
        assert isinstance(await failed.exception(), ValueError)
        await c.retry([failed])
    moved = c.submit(moves_on, Gate(), pure=False)
    return await c.gather(retried), await failed, await moved


async def ways_to_submit(c, s):
    """Priorities, timeouts, impure tasks, tasks nobody waits for, published data."""
    event = Event(client=c)
    fire_and_forget(c.submit(begin, event, 1, pure=False))
    await event.wait(10)
    same = [c.submit(inc, 1) for _ in range(3)]
    other = [c.submit(inc, 1, pure=False) for _ in range(3)]
    mixed = [c.submit(slow_inc, i, priority=i % 3, fifo_timeout="1 ms", pure=False) for i in range(9)]
    x = c.persist(da.arange(40, chunks=4) + 1)
    await c.publish_dataset(x, name="published")
    del x
    published = await c.compute((await c.get_dataset("published")).sum())
    await c.unpublish_dataset("published")
    keys = len({f.key for f in same}), len({f.key for f in other})
    return keys, await c.gather(mixed), int(published)


#: Cases with their answers. `diagnostics` counts tasks of the span.
CASES = {
    rechunk: True,
    shuffle: True,
    merge: True,
    actors: [41, 42, 43],
    nested: [15] * 6 + [45] * 2,
    late_secession: [6] * 9,
    restricted: (4 * 5 // 2 + 8, [True] * 4),
    resources: (8 * 9 // 2 + 8, [1, 2, 3, 4, 5, 6]),
    copies: (True, list(range(2, 10)), 3),
    callbacks: ([1, 2, 3, 4, 5, 6, 101, 101, 101], ["finished"] * 6),
    coordination: (28, list(range(8)), 0, 42),
    diagnostics: (True, 12, True, True),
    again: ([0, 1, 2, 3], 7, 3),
    ways_to_submit: ((1, 3), list(range(1, 10)), 820),
}
#: The user says where (some of) their tasks run.
PLACED_BY_THE_USER = {restricted, resources}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@live(worker_kwargs={"resources": {"gpu": 1}}, clean_kwargs={"threads": False})  # callbacks have one for ever
async def test_the_result_is_the_same(c, s, *workers, case, shape):
    starts = Starts()
    async with shaped(c, s, shape) as job:
        await starts.watch(workers)
        assert await within(case(c, s), 20) == CASES[case]
        if shape.startswith("rigid") and case not in PLACED_BY_THE_USER:
            assert starts.places(starts.count) <= addresses_of(s, job)
            assert starts.count


# ------------------------------------------------------ what a shrink leaves


@live()
async def test_actors_on_nodes_that_a_shrink_leaves_go_on_and_serve_their_job(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("actors", nodes=4, min_nodes=1, max_nodes=4) as job:
        await started(s, job, 4)
        counters = await c.gather([c.submit(Counter, i, actor=True) for i in range(4)])
        assert all(ws.actors for ws in s.workers.values())
        assert (await job.resize(1))["result"] == "done"
        (home,) = addresses_of(s, job)
        calls = [c.submit(add_to, counter, 10, pure=False) for counter in counters]
        assert await c.gather(calls) == [10, 11, 12, 13]
        assert {next(iter(s.tasks[f.key].who_has)).address for f in calls} == {home}
        assert [await counter.add(1) for counter in counters] == [11, 12, 13, 14]
        # and when another job has taken those nodes
        async with rt.job("other", nodes=3) as other:
            await started(s, other, 3)
            assert [await counter.add(1) for counter in counters] == [12, 13, 14, 15]
            assert await c.gather([c.submit(add_to, a, 1, pure=False) for a in counters]) == [13, 14, 15, 16]
    await job.wait(10)
    await other.wait(10)
    await asleep(s)
    assert [await counter.add(1) for counter in counters] == [14, 15, 16, 17]


@pytest.mark.parametrize("cancel", ["job", "future"])
@live()
async def test_a_shuffle_that_is_cancelled_while_it_runs_can_be_begun_again(c, s, *workers, cancel):
    rt = await dask_hpc.install(c)
    gate = Gate()
    with dask.config.set(P2P):
        x = da.arange(1600, chunks=100).reshape(40, 40).rechunk((5, 40), method="tasks").rechunk((40, 5))
        held = x.map_blocks(through, gate, meta=np.empty((0, 0), int))
    async with rt.job("first", nodes=2) as job:
        await started(s, job, 2)
        future = c.compute(held)
        await until(lambda: gate.arrived >= 2, "outputs are being made")
        await (job.cancel() if cancel == "job" else c.cancel([future]))
        async with rt.job("second", nodes=2) as second:
            await started(s, second, 2)
            again = c.compute(held + 1)
            gate.open()
            np.testing.assert_array_equal(await within(again, 20), np.arange(1600).reshape(40, 40) + 1)
    assert future.cancelled()
    await second.wait(10)
    await asleep(s)


# ------------------------------------------------------------------ restart


@live(workers=2, Worker=Nanny, timeout=60)
async def test_after_a_restart_amid_a_shrink_an_open_job_computes_again_and_can_be_resized(c, s, *nannies):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("open", nodes=2, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 2)
        lost = c.map(slow_inc, range(20), delay_s=2, pure=False)
        await until(lambda: record(s, job).processing, "some run")
        resize = asyncio.ensure_future(job.resize(1))
        await until(lambda: state_of(s, job) == "adapting", "adapts")
        async with rt.job("late", nodes=1) as late:
            waiting = c.submit(inc, 1, pure=False)
            await c.restart()
            assert {f.status for f in (*lost, waiting)} == {"cancelled"}
            outcome = await within(resize, 20)
            assert outcome["result"] in ("done", "aborted"), outcome
            assert await within(c.submit(inc, 1, pure=False), 20) == 2
        with dask.annotate(hpc_job=job.id):
            assert await c.submit(fan_out, 5, pure=False) == 15
        await late.wait(20)
        assert record(s, job).unfinished == 0
        await job.resize(2)
        await started(s, job, 2)
        assert await c.gather(c.map(inc, range(10), pure=False)) == list(range(1, 11))
    assert (await job.wait(10))["state"] == "completed"
    await asleep(s)


# -------------------------------------------- what coroutines and actors submit


def where(_):
    """A task: the address of the worker it runs on."""
    return get_worker().address


async def fan_out_async(n):
    """A coroutine task that submits tasks."""
    client = get_client()
    return await client.gather(client.map(where, range(n), pure=False))


class Caller:
    """An actor whose methods submit tasks."""

    def fan_out(self, n):
        """In the actor's thread."""
        client = get_client()
        return client.gather(client.map(where, range(n), pure=False))

    async def fan_out_async(self, n):
        """On the worker's event loop."""
        return await fan_out_async(n)


SUBMITTERS = ("coroutine", "actor", "coroutine of an actor")


async def _fan_out(c, by, n):
    """The answer that `n` tasks give which a coroutine or an actor submits."""
    if by == "coroutine":
        return await within(c.submit(fan_out_async, n, pure=False), 20)
    actor = await c.submit(Caller, actor=True, pure=False)
    return await within(actor.fan_out(n) if by == "actor" else actor.fan_out_async(n), 20)


@live(workers=2, Worker=Nanny, timeout=60)
async def test_tasks_that_coroutines_and_actors_submit_do_not_block_a_job_that_holds_every_node(
    c, s, *nannies
):
    rt = await dask_hpc.install(c)
    for by in SUBMITTERS:
        async with rt.job(by, nodes=2) as job:
            await started(s, job, 2)
            assert len(await _fan_out(c, by, 5)) == 5, by
        assert (await job.wait(10))["state"] == "completed"


@live(workers=2, threads=2, Worker=Nanny, timeout=60)  # a coroutine takes one of the threads
async def test_tasks_of_coroutines_and_actors_run_on_the_nodes_of_their_job(c, s, *nannies):
    # workers make their clients before there is a job, and before anybody listens
    with dask.annotate(workers=list(s.workers)):
        await within(c.gather(c.map(fan_out_async, [1, 1], pure=False)), 20)
    assert any(client.startswith("Client-worker-") for client in s.clients)
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=1) as first, rt.job("second", nodes=1) as second:
        for job in (first, second):
            await started(s, job, 1)
            for by in SUBMITTERS:
                with dask.annotate(hpc_job=job.id):
                    assert set(await _fan_out(c, by, 8)) == set(addresses_of(s, job)), by


@pytest.mark.parametrize("now", ["released", "held"])
@live(workers=2)
async def test_a_job_computes_a_key_that_plain_work_left_and_does_not_compute(c, s, *workers, now):
    rt = await dask_hpc.install(c)
    if now == "released":
        first = c.submit(inc, 1, key="first")
        second = c.submit(inc, first, key="second")
        assert await second == 3
        first.release()
        await until(lambda: s.tasks["first"].state == "released", "nobody wants it")
    async with rt.job("all", nodes=2) as job:
        await started(s, job, 2)
        if now == "held":
            with dask.annotate(hpc_job="default"):
                plain = c.submit(inc, 1, key="first")
            await until(lambda: "first" in s.tasks, "submitted")
            assert plain.status == "pending"
        # a client that has the future already sends no graph
        async with Client(s.address, asynchronous=True) as other:
            again = other.submit(inc, 1, key="first")
            assert await within(again, 20) == 2
            assert owner_of(s, "first") == job.id
    await job.wait(10)


@asynccontextmanager
async def _actor_waits(c, s, rt, client=None):
    """A job of one of two nodes runs; another that needs both is to make an actor. Gives gate, job, actor."""
    client = client or c
    gate = Gate()
    async with rt.job("first", nodes=1) as first:
        await started(s, first, 1)
        held = c.submit(through, 1, gate=gate, pure=False)
        try:
            async with rt.job("second", nodes=2) as second:
                await until(lambda: second.id in engine(s).state.jobs.active, "queued")
                actor = client.submit(Counter, 7, actor=True, key="actor")
                await until(lambda: record(s, second).unfinished, "its graph has come", 5)
                yield gate, second, actor
        finally:
            gate.open()
        assert await held == 1


@live(workers=2)
async def test_an_actor_of_a_cancelled_job_is_not_made_and_is_not_counted(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        await second.cancel()
        await until(lambda: "actor" in s.tasks or actor.cancelled(), "it is known what becomes of it", 5)
        assert actor.cancelled()
    assert not engine(s).state.plain_busy()


@live(workers=2)
async def test_a_job_for_the_whole_pool_starts_after_one_with_a_waiting_actor_was_cancelled(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (gate, second, actor):
        await second.cancel()
        actor.release()
        async with rt.job("whole", nodes=2):
            future = c.submit(inc, 1, pure=False)
        gate.open()
    assert await within(future, 20) == 2


@live(workers=2)
async def test_an_actor_that_is_released_while_it_waits_is_not_kept(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        actor.release()
    await second.wait(10)
    await asleep(s)
    assert "actor" not in s.tasks


@live(workers=2)
async def test_work_outside_the_job_may_depend_on_an_actor_that_waits(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with _actor_waits(c, s, rt) as (_, second, actor):
        with dask.annotate(hpc_job="default"):
            used = c.submit(add_to, actor, 1, pure=False)
    assert await within(used, 20) == 8
    await second.wait(10)


@live(workers=2)
async def test_an_actor_whose_client_closes_while_it_waits_is_not_made(c, s, *workers):
    rt = await dask_hpc.install(c)
    clients = set(s.clients)
    other = await Client(s.address, asynchronous=True)
    async with _actor_waits(c, s, rt, other) as (_, second, _actor):
        await other.close()
        assert set(s.clients) == clients
        await second.cancel()
        await until(lambda: "actor" in s.tasks or not engine(s).state.plain_busy(), "settled", 5)
        assert "actor" not in s.tasks
        assert set(s.clients) == clients


@live(workers=2, Worker=Nanny, timeout=60)
async def test_an_actor_that_waits_when_the_cluster_is_restarted_is_not_made(c, s, *nannies):
    rt = await dask_hpc.install(c)
    async with rt.job("first", nodes=1) as first:
        await started(s, first, 1)
        async with rt.job("second", nodes=2) as second:
            actor = c.submit(Counter, actor=True, key="actor")
            await until(lambda: record(s, second).unfinished, "its graph has come")
            await c.restart()
            assert actor.cancelled()
            await first.cancel()
            await started(s, second, 2)
            # graphs of a job keep their order: this one follows the actor's
            assert await within(c.submit(inc, 1, pure=False), 20) == 2
            assert "actor" not in s.tasks
