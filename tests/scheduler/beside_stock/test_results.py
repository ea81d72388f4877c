"""Results, errors, data and reports are for users beside a job and inside one what they are in stock.

Values, exceptions and what is left on the scheduler: see `three_ways`.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import dask
import dask.array as da
import pytest
from distributed import (
    Worker,
    as_completed,
    get_client,
    get_task_stream,
    performance_report,
    rejoin,
    secede,
    span,
    wait,
    worker_client,
)
from distributed.utils_test import gen_test
from helpers import Gate, through, until
from peer_to_peer import P2P
from tasks import Counter, inc, slow_inc
from three_ways import Way, outcome, same


def fail(value):
    """A task that fails."""
    raise ZeroDivisionError(f"no {value}")


def fail_below(value):
    """A task that fails one call further down."""
    return fail(value) + 1


class Unpicklable:
    """What no worker can send."""

    def __reduce__(self):
        raise TypeError("stays where it is")


class Stubborn(Exception):
    """An exception that no worker can send."""

    def __reduce__(self):
        raise TypeError("stays where it is")


def make_unpicklable():
    """A task with a result that cannot be sent."""
    return Unpicklable()


def use(value):
    """A task that uses such a result where it is."""
    return type(value).__name__


def fail_stubbornly():
    """A task that fails with an exception that cannot be sent."""
    raise Stubborn("never")


async def errors(w: Way):
    """Types, words, tracebacks; in what depends on them; gathered with and without them."""
    failed = w.c.submit(fail_below, 1, key="failed")
    after = w.c.submit(inc, failed, key="after-failed")
    good = w.c.submit(inc, 1, key="good")
    traceback, names = await failed.traceback(), []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    kept = await w.c.gather([failed, good], errors="skip")
    told = await outcome(failed), await outcome(after), await outcome(w.c.gather([failed, good]))
    exceptions = [type(await future.exception()).__name__ for future in (failed, after)]
    return names, kept, told, exceptions, failed.status, after.status, await good.exception(), w.tasks()


async def unpicklable(w: Way):
    """Results, arguments and exceptions that cannot be sent; used where they are all the same."""
    result = w.c.submit(make_unpicklable, key="unpicklable")
    used = await w.c.submit(use, result, key="used-in-place")
    fetched = (await outcome(result))[0]
    argument = (await outcome(_submit_lock(w)))[0]
    stubborn = await outcome(w.c.submit(fail_stubbornly, key="stubborn"))
    return used, fetched, argument, stubborn[0]


async def _submit_lock(w: Way):
    return await w.c.submit(use, threading.Lock(), key="argument")


async def waited(w: Way):
    """With limits, for the first, in batches, with errors in between."""
    gate = Gate()
    slow = w.c.submit(through, 1, gate, key="slow")
    quick, bad = w.c.submit(inc, 1, key="quick"), w.c.submit(fail, 1, key="bad")
    late = await outcome(wait([slow, quick], timeout=0.1))
    first = await wait([slow, quick], return_when="FIRST_COMPLETED")
    limited = await outcome(slow.result(timeout=0.05)), await outcome(slow.exception(timeout=0.05))
    seen = []
    async for future, value in as_completed([quick, bad], with_results=True, raise_errors=False):
        seen.append((future.key, value if future.key == "quick" else type(value[1]).__name__))
    in_time = await outcome(_first(as_completed([slow], timeout=0.1)))
    gate.open()
    return late, [f.key for f in first.done], limited, sorted(seen), in_time, await slow


async def _first(sequence):
    async for future in sequence:
        return future.key
    return None


async def seceded(w: Way):
    """More than there are threads, which come back to their threads."""
    return await w.c.gather(w.c.map(leaves_and_returns, range(8), gate=Gate(), pure=False))


def leaves_and_returns(i, gate):
    """A task that leaves its thread until all eight have, and takes one again."""
    secede()
    with gate._lock:
        gate.arrived += 1
        if gate.arrived == 8:
            gate.open()
    gate._open.wait(10)
    rejoin()
    with worker_client() as client:
        same = get_client().id == client.id
        return client.submit(inc, i, pure=False).result(), same


async def nested(w: Way):
    """Tasks whose tasks have tasks, more at once than there are threads."""
    return await w.c.gather(w.c.map(fibonacci, range(6), pure=False))


def fibonacci(n):
    """A task that waits for two like itself."""
    if n < 2:
        return n
    with worker_client() as client:
        return sum(client.gather(client.map(fibonacci, [n - 1, n - 2], pure=False)))


async def actors_that_fail(w: Way):
    """In a method, in what they are asked for, in being made; with their future gone."""
    counter = await w.c.submit(Counter, 1, actor=True, key="actor")
    ways = [await outcome(counter.add(2)), await outcome(counter.add("x")), await counter.n]
    wrong = await outcome(_attribute(counter))
    broken = await outcome(w.c.submit(Broken, actor=True, key="broken"))
    again = await w.c.submit(Counter, 5, actor=True, key="actor-again")
    return ways, wrong, broken, await again.n


async def _attribute(actor):
    return await actor.nothing


class Broken:
    """An actor that cannot be made."""

    def __init__(self):
        raise ZeroDivisionError("never made")


async def scattered(w: Way):
    """By value, by name, broadcast, to one worker; the same twice."""
    place = w.workers[0].address
    one = await w.c.scatter([1, 2, 3], hash=False)
    twice = await w.c.scatter(5), await w.c.scatter(5)
    placed = await w.c.scatter("here", workers=[place])
    everywhere = await w.c.scatter({"k": 7}, broadcast=True)
    total_ = await w.c.submit(sum, one, key="of-scattered")
    copies = [len(w.s.tasks[future.key].who_has) for future in everywhere.values()]
    there = [ws.address for ws in w.s.tasks[placed.key].who_has] == [place]
    return total_, copies, there, twice[0].key == twice[1].key, await w.c.gather(everywhere)


async def copied_and_moved(w: Way):
    """Replicated, balanced, and moved off a worker that is retired."""
    futures = w.c.map(inc, range(4), key="moved")
    await wait(futures)
    await w.c.replicate(futures)
    copies = [len(w.s.tasks[future.key].who_has) for future in futures]
    too_many = await outcome(w.c.replicate(futures, n=20))
    await w.c.rebalance()
    async with Worker(w.s.address, name="extra", nthreads=1) as extra:
        there = w.c.submit(inc, 10, workers=["extra"], key="on-extra")
        await wait(there)
        retired = await w.c.retire_workers([extra.address], close_workers=False, remove=False)
        value = await there
        gone = extra.address not in [ws.address for ws in w.s.tasks["on-extra"].who_has]
    again = await there
    unknown = await w.c.retire_workers(["tcp://127.0.0.1:1"])
    return copies, too_many, next(iter(retired.values()))["name"], value, gone, again, unknown


async def rechunked(w: Way):
    """From worker to worker; with an input that fails; nothing of a shuffle is left."""
    with dask.config.set(P2P):
        x = da.arange(400, chunks=25).reshape(20, 20).rechunk((2, 20)).rechunk((20, 2))
        good = int((await w.c.compute(x)).sum())
        bad = await outcome(
            w.c.compute(
                da.ones((20, 20), chunks=5).map_blocks(fail, dtype=float, meta=x._meta).rechunk((2, 20))
            )
        )
    await until(lambda: not w.s.plugins["shuffle"].active_shuffles, "shuffles have ended")
    return good, bad[0]


async def spilled(w: Way):
    """More results than fit into memory, made, used and fetched."""
    made = w.c.map(bytes, [5_000_000] * 8, key="large", pure=False)
    await wait(made)
    on_disk = sum(len(worker.data.slow) for worker in w.workers)
    sizes = await w.c.gather(w.c.map(len, made, key="size"))
    fetched = {len(value) for value in await w.c.gather(made)}
    return on_disk > 0, sizes, fetched, {ts.state for ts in w.s.tasks.values()}


async def rebalanced(w: Way):
    """All data is on one worker; nothing of it is lost, and both have some then."""
    data = await w.c.scatter([bytes(1_200_000)] * 8, workers=[w.workers[0].address], hash=False)
    before = [len(ws.has_what) for ws in w.s.workers.values()]
    # a worker that has not said yet how much memory it uses counts as one without data
    await until(lambda: all(ws.memory.process for ws in w.s.workers.values()), "heartbeats")
    after = before
    # nothing is moved by what a heartbeat has said before the data came
    for _ in range(50):
        await w.c.rebalance(data)
        after = [len(ws.has_what) for ws in w.s.workers.values()]
        if min(after):
            break
        await asyncio.sleep(0.1)
    assert min(before) == 0 < min(after)
    return sum(after), {len(value) for value in await w.c.gather(data)}


#: Data goes to disk and from worker to worker by what results measure; the memory of this process, which is
#: shared, does not count.
TIGHT = {
    "distributed.worker.memory.rebalance.measure": "managed",
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}


async def reports(w: Way):
    """A report as a page, the task stream of a block, the log of events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        async with performance_report(filename=str(path)):
            await w.c.gather(w.c.map(slow_inc, range(4), key="reported"))
        page = "reported" in path.read_text() and path.stat().st_size > 10_000
    async with get_task_stream(client=w.c) as stream:
        await w.c.gather(w.c.map(inc, range(5), key="streamed"))
    rows = sorted((str(row["key"])[:8], row["status"], len(row["startstops"]) > 0) for row in stream.data)
    heard = []
    w.c.subscribe_topic("mine", lambda event: heard.append(event[1]))
    await until(lambda: w.s._broker._topics["mine"].subscribers, "subscribed")
    await w.c.log_event("mine", {"x": 1})
    await until(lambda: heard, "heard")
    logged = [message for _, message in await w.c.get_events("mine")][-1:]
    w.c.unsubscribe_topic("mine")
    return page, rows, heard, logged


async def spans(w: Way):
    """The span of a block has its tasks, with the annotations of the user."""
    with span("mine") as id, dask.annotate(said=1):
        futures = w.c.map(inc, range(5), key="spanned")
        await wait(futures)
    of = w.s.extensions["spans"].spans[id]
    keys = [future.key for future in futures]
    annotations = [sorted(w.s.tasks[key].annotations) for key in keys]
    return of.name, sum(map(len, of.traverse_groups())), annotations


async def dumped(w: Way):
    """The state of the cluster as a file."""
    future = w.c.submit(inc, 1, key="dumped")
    await future
    with tempfile.TemporaryDirectory() as folder:
        await w.c.dump_cluster_state(f"{folder}/state", format="msgpack", exclude=("events", "logs"))
        size = Path(f"{folder}/state.msgpack.gz").stat().st_size
    return size > 1000


GROUPS = {
    "results": (
        errors,
        unpicklable,
        waited,
        seceded,
        nested,
        actors_that_fail,
    ),
    "data and diagnostics": (
        scattered,
        copied_and_moved,
        rechunked,
        reports,
        spans,
        dumped,
    ),
}


@pytest.mark.parametrize("group", GROUPS)
@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_users_see_the_same(group):
    await same(GROUPS[group])


@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_data_that_does_not_fit_into_memory_is_the_same():
    with dask.config.set(TIGHT):
        await same([spilled, rebalanced], memory_limit="20 MB")
