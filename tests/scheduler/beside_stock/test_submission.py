"""What users say of tasks they submit means beside a job and inside one what it means in stock.

Values, exceptions and what is left on the scheduler: see `three_ways`.
"""

from __future__ import annotations

import asyncio
import operator

import dask
import dask.array as da
from distributed import (
    fire_and_forget,
    get_worker,
    wait,
)
from distributed.utils_test import gen_test
from helpers import Gate, through, until
from tasks import inc
from three_ways import Way, outcome, same


async def retries(w: Way):
    """Exhausted and not, told by `map` and by annotation."""
    few = w.c.submit(fails_times, Gate(), 3, retries=2, pure=False)
    enough = w.c.map(fails_times, [Gate(), Gate()], [1, 2], retries=2, pure=False)
    with dask.annotate(retries=2):
        annotated = dask.delayed(fails_times)(Gate(), 2)
    told = w.c.compute(annotated, optimize_graph=False)
    by_call = w.c.compute(dask.delayed(fails_times)(Gate(), 1), retries=1)
    return [await outcome(future) for future in (few, *enough, told, by_call)]


def fails_times(gate, times):
    """A task that fails so often, then returns how often it was called."""
    with gate._lock:
        gate.arrived += 1
        if gate.arrived <= times:
            raise ZeroDivisionError(f"not yet {gate.arrived}")
        return gate.arrived


async def restricted(w: Way):
    """Workers and resources that there are, are not, or need not be."""
    place = w.workers[1].address
    there = w.c.submit(inc, 1, workers=[place], key="there")
    by_name = w.c.submit(inc, 2, workers=["127.0.0.1"], key="by-host")
    loose = w.c.submit(inc, 3, workers=["tcp://127.0.0.1:1"], allow_other_workers=True, key="loose")
    values = await w.c.gather([there, by_name, loose])
    nowhere = w.c.submit(inc, 4, workers=["tcp://127.0.0.1:1"], key="nowhere")
    too_much = w.c.submit(inc, 5, resources={"gpu": 3}, key="too-much")
    after = w.c.submit(inc, nowhere, key="after-nowhere")
    await w.known("nowhere", "too-much", "after-nowhere")
    state = w.tasks()
    refused = await outcome(asyncio.wait_for(wait([nowhere, too_much], timeout=0.1), 5))
    await w.c.cancel([nowhere, too_much, after])
    wrong = await outcome(_submit_wrong(w))
    return values, state, refused, wrong, next(iter(w.s.tasks["there"].who_has)).address == place


async def _submit_wrong(w: Way):
    return w.c.submit(inc, 1, allow_other_workers=True)


async def resources_in_turn(w: Way):
    """Of a resource of one, no worker has two at once."""
    counter = Gate()
    futures = w.c.map(alone, range(6), gate=counter, resources={"gpu": 1}, pure=False)
    return await w.c.gather(futures)


def alone(i, gate):
    """A task that fails when three execute at once."""
    with gate._lock:
        gate.arrived += 1
        assert gate.arrived <= 2
    get_worker()
    with gate._lock:
        gate.arrived -= 1
    return i


async def priorities(w: Way):
    """All threads are busy; what comes later with a higher priority goes first."""
    order, gate = Order(), Gate()
    busy = [w.c.submit(through, i, gate, key=f"busy{i}") for i in range(4)]
    await until(lambda: gate.arrived == 4, "all threads are busy")
    low = [w.c.submit(order.note, "low", key=f"low-{i}", priority=-1) for i in range(12)]
    high = [w.c.submit(order.note, "high", key=f"high-{i}", priority=1) for i in range(12)]
    await w.known(low[-1].key, high[-1].key)
    await w.sent()
    gate.open()
    await w.c.gather([*busy, *low, *high])
    return order.seen[:8].count("low") <= 4, sorted(order.seen)


class Order:
    """Notes in which order tasks of this process begin."""

    known: dict[int, Order] = {}  # noqa: RUF012

    def __init__(self):
        self.seen = []
        self.known[id(self)] = self

    def __reduce__(self):
        return _order, (id(self),)

    def note(self, what):
        """A task."""
        self.seen.append(what)
        return what


def _order(number):
    return Order.known[number]


async def traversed(w: Way):
    """Collections in containers, found or not; futures in containers; keywords."""
    lazy = dask.delayed(inc)(1)
    found = await w.c.compute({"a": [lazy, 5]}, traverse=True)
    left = w.c.compute({"a": [lazy, 5]}, traverse=False)
    future = w.c.submit(inc, 1, key="in-containers")
    nested = await w.c.submit(total, {"x": [future, (future,)]}, more=future, key="nested")
    mapped = await w.c.gather(w.c.map(operator.add, [1, 2], [10, 20], pure=False))
    batched = await w.c.gather(w.c.map(inc, range(7), batch_size=3, pure=False))
    kept = w.c.persist([da.ones(6, chunks=2), lazy])
    sums = float(await w.c.compute(kept[0].sum())), await w.c.compute(kept[1])
    return found, type(left["a"][0]).__name__, nested, mapped, batched, sums


def total(value, more=0):
    """A task with futures in containers."""
    return sum([value["x"][0], value["x"][1][0], more])


async def forgotten(w: Way):
    """Nobody keeps the future; the task that fails is told to nobody."""
    start, counter = Gate(), Gate()
    first = w.c.submit(through, 0, gate=start, key="first")
    fire_and_forget(w.c.submit(count, counter, first, key="fired"))
    fire_and_forget([w.c.submit(count, counter, first, key=f"fired-{i}") for i in range(3)])
    # stock keeps a result for ever that was there before it heard that nobody keeps the future
    heard = w.s.clients["fire-and-forget"].wants_what
    await until(lambda: len(heard) == 4, "the scheduler has heard")
    start.open()
    await until(lambda: counter.arrived == 4, "all were executed")
    await w.forgotten("fired", "fired-0", "fired-2")
    w.c.submit(count, counter, key="dropped")
    return counter.arrived


def count(gate, _=None):
    """A task that counts its calls."""
    with gate._lock:
        gate.arrived += 1


SCENARIOS = (
    retries,
    restricted,
    resources_in_turn,
    priorities,
    traversed,
    forgotten,
)


@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_users_see_the_same():
    await same(SCENARIOS)
