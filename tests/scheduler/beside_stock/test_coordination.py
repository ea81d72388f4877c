"""Locks, semaphores, queues, variables and events are what they are in stock, beside a job and inside one.

Values, exceptions and what is left on the scheduler: see `three_ways`.
"""

from __future__ import annotations

from distributed import (
    Event,
    Lock,
    MultiLock,
    Queue,
    Semaphore,
    Variable,
)
from distributed.utils_test import gen_test
from helpers import Gate
from tasks import inc
from three_ways import Way, outcome, same


def fail(value):
    """A task that fails."""
    raise ZeroDivisionError(f"no {value}")


async def locks(w: Way):
    """Taken by another, waited for with a limit, given back; several at once."""
    async with w.another() as other:
        mine, theirs = Lock("one", scheduler_rpc=w.c.scheduler), Lock("one", scheduler_rpc=other.scheduler)
        taken = await mine.acquire()
        in_vain = await theirs.acquire(timeout="50 ms")
        await mine.release()
        at_last = await theirs.acquire(timeout="5 s")
        await theirs.release()
        both = MultiLock(["a", "b"], client=w.c)
        either = MultiLock(["b", "c"], client=other)
        multiple = await both.acquire(), await either.acquire(timeout=0.05)
        await both.release()
        return taken, in_vain, at_last, multiple, await outcome(mine.release)


def count_within(semaphore, counter):
    """A task that counts how many are inside at once."""
    with semaphore:
        counter.arrived += 1
        return counter.arrived <= 40


async def semaphores(w: Way):
    """Leases, waiting for one with a limit, too many given back, closed."""
    one = await Semaphore(max_leases=2, name="leases", scheduler_rpc=w.c.scheduler, loop=w.c.loop)
    taken = [await one.acquire(timeout=0.05) for _ in range(3)]
    value = await one.get_value()
    released = await one.release(), await one.release()
    tasks = await w.c.gather(w.c.map(count_within, [one] * 20, counter=Gate(), pure=False))
    too_many = await outcome(one.release)
    await one.close()
    return taken, value, released, all(tasks), too_many, await outcome(one.acquire(timeout=0.05))


async def queues(w: Way):
    """Full and empty ones, in batches, and futures that live in them only."""
    queue = await Queue("values", client=w.c, maxsize=2)
    await queue.put(1)
    await queue.put(2)
    full = await outcome(queue.put(3, timeout=0.05))
    sizes = await queue.qsize(), await queue.get(batch=True), await queue.qsize()
    empty = await outcome(queue.get(timeout=0.05))
    await queue.put(w.c.submit(inc, 1, key="in-a-queue"))
    await w.known("in-a-queue")
    async with w.another() as other:
        future = await Queue("values", client=other).get(timeout=5)
        value = await future
    queue.close()
    del future
    await w.forgotten("in-a-queue")
    return full, sizes, empty, value


async def variables(w: Way):
    """Not set, set to data, to a future that fails, deleted."""
    variable = Variable("value", client=w.c)
    missing = await outcome(variable.get(timeout=0.05))
    await variable.set({"a": [1, 2]})
    data = await variable.get()
    await variable.set(w.c.submit(fail, 1, key="fails-in-a-variable"))
    failed = await outcome(await variable.get())
    variable.delete()
    return missing, data, failed


async def events(w: Way):
    """Waited for with a limit, set, cleared; set by a task that another client has submitted."""
    event = await Event("begun", client=w.c)
    before = await event.wait(timeout=0.05), await event.is_set()
    async with w.another() as other:
        future = other.submit(set_event, "begun", pure=False)
        after = await event.wait(timeout=10), await future
    await event.clear()
    return before, after, await event.is_set()


def set_event(name):
    """A task that sets an event."""
    Event(name).set()
    return name


SCENARIOS = (
    locks,
    semaphores,
    queues,
    variables,
    events,
)


@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_users_see_the_same():
    await same(SCENARIOS)
