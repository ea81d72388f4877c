"""What few users ask of a client is beside a job and inside one what it is in stock.

Values, exceptions and what is left on the scheduler: see `three_ways`.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import dask
import dask.array as da
import numpy as np
from distributed import Reschedule, Worker, WorkerPlugin, as_completed, get_task_metadata, get_worker, wait
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.utils_test import gen_test
from helpers import Gate, through, until
from tasks import inc
from three_ways import Way, outcome, same

from dask_hpc.scheduler.placing.overflow import OVERFLOW


def fail(value):
    """A task that fails."""
    raise ZeroDivisionError(f"no {value}")


def fails_once(gate):
    """A task that fails, and does not when it is called again."""
    with gate._lock:
        gate.arrived += 1
        if gate.arrived == 1:
            raise ZeroDivisionError("the first time")
        return gate.arrived


def placed_anew(gate):
    """A task that asks to be placed anew, twice."""
    with gate._lock:
        gate.arrived += 1
        if gate.arrived < 3:
            raise Reschedule
        return gate.arrived


async def waits_for(value, gate):
    """A task that is a coroutine."""
    while not gate._open.is_set():
        await asyncio.sleep(0.01)
    return value


async def tried_again(w: Way):
    """What has failed, and what has failed with it, is tried again by its user."""
    gate = Gate()
    failed = w.c.submit(fails_once, gate, key="failed")
    after = [w.c.submit(inc, failed, key=f"after-{i}") for i in range(2)]
    first = [await outcome(future) for future in (failed, *after)]
    await w.c.retry([failed, *after])
    return first, await w.c.gather([failed, *after]), gate.arrived


async def rescheduled(w: Way):
    """Tasks that ask to be placed anew, roots and others."""
    gates = [Gate() for _ in range(6)]
    roots = [w.c.submit(placed_anew, gate, key=f"root-{i}") for i, gate in enumerate(gates)]
    after = w.c.submit(sum, roots, key="sum")
    return await after, [gate.arrived for gate in gates]


async def coroutines(w: Way):
    """Tasks that are coroutines take turns in their worker's loop; keys that are tuples."""
    gate = Gate()
    futures = [w.c.submit(waits_for, i, gate, key=("waits", i)) for i in range(12)]
    await w.known(("waits", 11))
    gate.open()
    return await w.c.gather(futures), await w.c.gather(futures, direct=True)


async def called_back(w: Way):
    """Callbacks of futures; what is left of a sequence of them."""
    seen: list[str] = []
    futures = w.c.map(inc, range(8), key=[f"called-{i}" for i in range(8)])
    bad = w.c.submit(fail, 1, key="called-bad")
    for future in (*futures, bad):
        future.add_done_callback(lambda done: seen.append((done.key, done.status)))
    await wait([*futures, bad])
    await until(lambda: len(seen) == 9, "all were called")
    values = [value async for _, value in as_completed(futures, with_results=True)]
    rest = as_completed(futures[:3])
    counts = rest.count(), rest.is_empty()
    rest.clear()
    return sorted(seen), sorted(values), counts, rest.count()


async def noted(w: Way):
    """The metadata of the tasks of a block."""
    async with get_task_metadata() as tasks:
        await w.c.gather(w.c.map(inc, range(3), key=[f"noted-{i}" for i in range(3)]))
    return sorted(tasks.state.items()), sorted(tasks.metadata)


class Counts(WorkerPlugin):
    """Counts the tasks that a worker has executed."""

    name = "counts"

    def setup(self, worker):
        self.executed = 0

    def transition(self, key, start, finish, **kwargs):
        self.executed += start == "executing"


class Sees(SchedulerPlugin):
    """Notes the steps of tasks of one name, how often each is sent, the users and the ends of graphs."""

    name = "sees"

    def __init__(self):
        self.steps, self.sent, self.graphs = [], Counter(), []

    def transition(self, key, start, finish, *args, stimulus_id, **kwargs):
        if str(key).startswith("seen"):
            self.steps.append((finish, sorted(kwargs)))
            # what waits behind others is asked back for an idle thread next door before it begins, and sent
            # there; stock's work stealing sends it there without a step
            self.sent[key] += (finish == "processing") - stimulus_id.startswith(OVERFLOW) * (
                start == "processing"
            )

    def update_graph(self, scheduler, *, client, keys, tasks, annotations, priority, **kwargs):
        self.graphs.append((len(keys), len(tasks), sorted(annotations), len(priority)))


async def plugins(w: Way):
    """Plugins that users add to workers and to the scheduler see what they see in stock."""
    await w.c.register_plugin(Counts())
    seen = Sees()
    w.s.add_plugin(seen)
    with dask.annotate(priority=2, said=1):
        # beside an idle job the first three are sent to one worker, and the third is asked back
        shut, wide = Gate(), Gate()
        wide.open()
        gates = [shut, shut, *[wide] * 8]
        futures = w.c.map(through, range(10), gates, key=[f"seen-{i}" for i in range(10)])
    await wait(futures[2:])
    shut.open()
    await wait(futures)
    executed = sum(worker.plugins["counts"].executed for worker in w.workers)
    for future in futures:
        future.release()
    await w.forgotten(*(future.key for future in futures))
    w.s.remove_plugin("sees")
    await w.c.unregister_worker_plugin("counts")
    # through which states it gets to its worker is a matter of placing
    ends = sorted(step for step in seen.steps if step[0] in ("memory", "forgotten"))
    return executed, ends, sorted(seen.sent.items()), seen.graphs


async def annotated(w: Way):
    """Collections whose parts say where they run, how often, how soon."""
    place = w.workers[0].address
    with dask.annotate(workers=[place], allow_other_workers=False):
        x = da.ones(40, chunks=5)
    with dask.annotate(retries=1, priority=3, resources={"gpu": 1}):
        y = x.map_blocks(where, dtype=object)
    total = w.c.compute(x.sum(), optimize_graph=False)
    by_call = w.c.compute(y, optimize_graph=False, workers=[w.workers[1].address])
    there = {str(each) for each in await by_call}
    kept = w.c.persist(da.arange(20, chunks=5), resources={"gpu": 1}, priority=1, retries=2)
    await wait(kept)
    needs = {tuple(w.s.tasks[key].resource_restrictions or ()) for key in kept.__dask_keys__()}
    return float(await total), len(there), needs, int(await w.c.compute(kept.sum()))


def where(block):
    """The worker that has the task, as an array."""
    return np.full(block.shape, get_worker().address, dtype=object)


async def lost_with_workers(w: Way):
    """A task whose workers go while it executes is given up after some of them."""
    gate = Gate()
    usual, w.s.allowed_failures = w.s.allowed_failures, 1
    try:
        for number in (1, 2):
            extra = await Worker(w.s.address, name=f"extra-{number}", nthreads=1, resources={"extra": 1})
            if number == 1:
                future = w.c.submit(through, 1, gate, key="killer", resources={"extra": 1})
                after = w.c.submit(inc, future, key="after-killer")
            await until(lambda number=number: gate.arrived == number, "it executes")
            await w.s.remove_worker(extra.address, stimulus_id="test", close=False)
            if number == 2:
                gate.open()
            await extra.close(timeout=1, executor_wait=False)
        return [(await outcome(each))[0] for each in (future, after)]
    finally:
        w.s.allowed_failures = usual


async def asked_of_the_cluster(w: Way):
    """Versions, profile, logs, events of workers, waiting for more workers than there are."""
    futures = w.c.map(inc, range(4), key="profiled")
    await wait(futures)
    profile = await w.c.profile()
    logs = await w.c.get_worker_logs(n=1)
    fewer = await outcome(w.c.wait_for_workers(2, timeout=1))
    more = (await outcome(w.c.wait_for_workers(3, timeout=0.1)))[0]
    await w.c.run(lambda dask_worker: dask_worker.log_event("said", 7))
    await until(lambda: len(w.s.get_events("said")) == 2, "both have said it")
    said = [message for _, message in await w.c.get_events("said")]
    return profile["count"] >= 0, len(logs), fewer, more, said


SCENARIOS = (
    tried_again,
    rescheduled,
    coroutines,
    called_back,
    noted,
    plugins,
    annotated,
    lost_with_workers,
    asked_of_the_cluster,
)


@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_users_see_the_same():
    await same(SCENARIOS)
