"""What one user's job does never takes away what others want, nor the way to it.

Each claim is checked on stock Dask, too, where the client cancels its own futures in place of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Variable, Worker, fire_and_forget, wait
from helpers import (
    Gate,
    addresses_of,
    asleep,
    engine,
    live,
    record,
    started,
    state_of,
    through,
    until,
    within,
)
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc_policies import registry

#: What others want, by key; the last one only its own client does.
THEIRS, VARIABLE, DATASET, FORGOTTEN, DEPENDED, OWN = KEYS = (
    "theirs",
    "variable",
    "dataset",
    "fire-and-forget",
    "depended",
    "own",
)


class Failure(Exception):
    pass


async def end(how: str, mine: Client, job: Any, futures: list[Any]) -> None:
    """End a job, or what a user of stock Dask has submitted."""
    if how == "stock cancels":
        await mine.cancel(futures)
    elif how == "cancelled":
        await job.cancel()
    elif how in ("stock closes", "its client closes"):
        await mine.close()
    elif how == "its client dies":
        mine.status = "closing"  # or it would come back
        mine.scheduler_comm.abort()


@pytest.mark.parametrize(
    "how", ["stock cancels", "stock closes", "cancelled", "exception", "its client closes", "its client dies"]
)
@live(2)
async def test_what_others_want_of_a_job_that_ends_is_computed(c, s, a, b, how):
    gate = Gate()
    ours = not how.startswith("stock")
    if ours:
        await dask_hpc.install(c, client_timeout_s=0.2, tick_s=0.05)
    async with Client(s.address, asynchronous=True) as other, Client(s.address, asynchronous=True) as mine:
        job = (await dask_hpc.install(mine)).job("mine", nodes=1) if ours else None
        kept: list[Any] = []

        async def work() -> None:
            futures = [mine.submit(through, key, gate, key=key) for key in KEYS]
            await until(lambda: gate.arrived and all(key in s.tasks for key in KEYS), "one executes")
            with dask.annotate(hpc_job=None):
                kept.append(other.submit(through, THEIRS, gate, key=THEIRS))
                depended = other.submit(through, DEPENDED, gate, key=DEPENDED)
                kept.append(other.submit(str.upper, depended, key="after"))
            await Variable(VARIABLE, client=mine).set(futures[KEYS.index(VARIABLE)])
            await mine.publish_dataset(futures[KEYS.index(DATASET)], name=DATASET)
            fire_and_forget(futures[KEYS.index(FORGOTTEN)])
            await until(
                lambda: "after" in s.tasks and all(len(s.tasks[key].who_wants) > 1 for key in KEYS[:4]),
                "others want them",
            )
            await end(how, mine, job, futures)
            if how == "exception":
                raise Failure

        if ours:
            with suppress(Failure):
                async with job:
                    await work()
            await until(lambda: state_of(s, job) == "cancelled", "the job has ended")
        else:
            await work()
        await until(lambda: OWN not in s.tasks, "nobody wants it")
        assert all(key in s.tasks for key in KEYS[:4])
        gate.open()
        assert await within(other.gather(kept)) == [THEIRS, DEPENDED.upper()]
        future = await Variable(VARIABLE, client=other).get()
        assert await within(future) == VARIABLE
        assert await within(await other.get_dataset(DATASET)) == DATASET
        await until(lambda: FORGOTTEN not in s.tasks, "it was computed, and forgotten")
        if ours:
            await asleep(s)


# ------------------------------------------------------------- lost results

POLICIES = ["stock", *sorted(registry.names())]


@live(3, timeout=120)
async def test_lost_results_of_plain_work_are_computed_at_once_beside_jobs_that_hold_every_node(
    c, s, *workers
):
    """Under every policy, and as stock does; what a job has queued does not come first."""
    rt = None
    for number, policy in enumerate(POLICIES):
        if policy != "stock":
            rt = rt or await dask_hpc.install(c)
            await rt.update(policy=policy)
        async with Worker(s.address, name=f"lost-{number}", nthreads=1) as extra:
            first = c.map(inc, range(8), pure=False)
            second = c.map(inc, first, pure=False)
            await wait(second)
            ours = {future.key for future in second}
            assert ours & {ts.key for ts in s.workers[extra.address].has_what}, "it has some of them"
            del first
            job = None if rt is None else rt.job("all", nodes=4)
            async with job or nullcontext():
                if job is not None:
                    await started(s, job, 4)
                more = c.map(slow_inc, range(100), delay_s=0.05, pure=False)
                last = more[-1].key
                await until(partial(s.tasks.get, last), "submitted")
                await extra.close()
                assert await within(c.gather(second)) == [i + 2 for i in range(8)]
                unfinished = sum(s.tasks[future.key].state != "memory" for future in more)
                assert policy == "stock" or unfinished > 50, policy
                del more
                if job is not None:
                    await job.cancel()
                    await asleep(s)


def repeated(value: int, before: Gate, again: Gate, fails: bool) -> int:
    """Return `value` the first time; wait at `again`, and fail if told so, when it is computed again."""
    if before.arrived:
        again.wait()
        if fails:
            raise Failure
    return before.wait(value)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fails", [False, True])
@live(3)
async def test_a_job_neither_waits_for_results_of_others_on_its_nodes_nor_fails_with_them(
    c, s, a, b, d, fails
):
    rt = await dask_hpc.install(c)
    before, again = Gate(), Gate()
    before.open()
    plain = c.submit(repeated, 1, before, again, fails, pure=False)
    await wait(plain)
    (holder,) = s.tasks[plain.key].who_has
    async with rt.job("all", nodes=3) as job:
        await started(s, job, 3)
        await next(w for w in (a, b, d) if w.address == holder.address).close(executor_wait=False)
        await until(lambda: again.arrived, "it is computed again")
        assert await c.submit(inc, 1, pure=False) == 2
        if fails:
            again.open()
            with pytest.raises(Failure):
                await within(plain)
    row = await job.wait(10)
    assert row["state"] == "completed"
    if not fails:
        assert not plain.done()
        again.open()
        assert await within(plain) == 1
    await asleep(s)


async def go_on_elsewhere(c: Client, s: Scheduler, workers: Sequence[Worker]) -> None:
    rt = await dask_hpc.install(c, "fcfs")
    before, again, gate = Gate(), Gate(), Gate()
    before.open()
    plain = c.submit(repeated, 1, before, again, False, pure=False)
    await wait(plain)
    (holder,) = s.tasks[plain.key].who_has
    async with rt.job("idle", nodes=1) as idle:
        await started(s, idle, 1)
        async with rt.job("busy", nodes=3) as busy:
            await started(s, busy, 3)
            assert holder.address in addresses_of(s, busy)
            tasks = c.map(through, range(20), gate=gate, pure=False)
            await until(lambda: gate.arrived == 3, "it is busy")
            await next(w for w in workers if w.address == holder.address).close(executor_wait=False)
            await until(lambda: again.arrived, "an idle job computes it again")
            (host,) = addresses_of(s, idle)
            assert s.tasks[plain.key].processing_on.address == host
            # it has a place, and is not looked after any more
            await until(lambda: not engine(s).guests._lost, "a sweep")
            await next(w for w in workers if w.address == host).close(executor_wait=False)
            again.open()
            gate.open()
            assert await within(plain) == 1
            assert await within(c.gather(tasks)) == list(range(20))
        await busy.wait(10)


@live(4)
async def test_lost_results_go_on_elsewhere_when_the_job_that_computes_them_loses_its_nodes(c, s, *workers):
    await go_on_elsewhere(c, s, workers)


@live(4, config={"distributed.scheduler.worker-saturation": float("inf")})
async def test_they_do_so_without_queuing(c, s, *workers):
    await go_on_elsewhere(c, s, workers)


@pytest.mark.parametrize("who", ["plain work", "a job"])
@pytest.mark.parametrize("policy", ["fair", "pwma-fpsma"])
@live(workers=2, threads=2, lend="5 s")
async def test_who_asks_has_the_idle_thread_of_a_node_that_long_tasks_have_to_leave(c, s, a, b, policy, who):
    rt = await dask_hpc.install(c, policy)
    gate = Gate()
    async with rt.job("long"), Client(s.address, asynchronous=True) as other:
        long = c.map(gate.wait, range(3), pure=False)
        await until(lambda: gate.arrived == 3, "one thread is idle")
        asks = await dask_hpc.install(other)
        with dask.annotate(hpc_job=None):
            for number in range(3):
                # as with stock: no node becomes free meanwhile
                async with asks.job("question") if who == "a job" else nullcontext():
                    assert await within(other.submit(inc, number, pure=False), 10) == number + 1
        gate.open()
        assert await c.gather(long) == [0, 1, 2]


@live(workers=2, threads=2, lend="5 s")
async def test_a_node_changes_hands_although_who_gets_it_has_a_task_there_already(c, s, a, b):
    rt = await dask_hpc.install(c, "pwma-fpsma")
    gate, later = Gate(), Gate()
    async with rt.job("long") as job, Client(s.address, asynchronous=True) as other:
        long = c.map(gate.wait, range(3), pure=False)
        await until(lambda: gate.arrived == 3, "one thread is idle")
        asks = await dask_hpc.install(other)
        with dask.annotate(hpc_job=None):
            async with asks.job("asks") as asking:
                answer = other.submit(later.wait, 4)
                await until(lambda: later.arrived, "it runs while the node is drained")
                assert record(s, job).reconfig_id
                gate.open()
                await started(s, asking, 1)
                assert answer.status == "pending"
                later.open()
                assert await answer == 4
        assert await c.gather(long) == [0, 1, 2]
