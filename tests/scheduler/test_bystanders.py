"""What one user's job does never takes away what others want, nor the way to it.

Each claim is checked on stock Dask, too, where the client cancels its own futures in place of the job.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import dask
import pytest
from distributed import Client, Variable, fire_and_forget
from helpers import Gate, asleep, live, state_of, through, until, within

import dask_hpc

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
        assert await within(other.gather(kept), 20) == [THEIRS, DEPENDED.upper()]
        future = await Variable(VARIABLE, client=other).get()
        assert await within(future, 20) == VARIABLE
        assert await within(await other.get_dataset(DATASET), 20) == DATASET
        await until(lambda: FORGOTTEN not in s.tasks, "it was computed, and forgotten")
        if ours:
            await asleep(s)
