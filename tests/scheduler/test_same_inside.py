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
    Event,
    Lock,
    Queue,
    Reschedule,
    Semaphore,
    Variable,
    as_completed,
    fire_and_forget,
    span,
    wait,
    worker_client,
)
from distributed.diagnostics.task_stream import TaskStreamPlugin
from helpers import Gate, Starts, addresses_of, asleep, live, record, started, through, until, within
from peer_to_peer import P2P
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
        assert await within(case(c, s)) == CASES[case]
        if shape.startswith("rigid") and case not in PLACED_BY_THE_USER:
            assert starts.places(starts.count) <= addresses_of(s, job)
            assert starts.count
