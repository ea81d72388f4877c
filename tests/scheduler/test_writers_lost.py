"""Workers that are lost while a version is written, and what they were to write next."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
from distributed import wait
from helpers import live
from losses import kill

import dask_hpc
from dask_hpc.scheduler.checkpoint import writing
from dask_hpc.scheduler.internals import remote

#: What was computed, and that it may be once more.
ONCE: set[int] = set()
AGAIN = threading.Event()


def made(number):
    """Nothing is computed a second time before it may."""
    if number in ONCE:
        assert AGAIN.wait(20)
    ONCE.add(number)
    return np.full(3, number)


@live(workers=2)
async def test_nothing_is_asked_of_a_worker_that_has_gone(c, s, a, b, tmp_path, monkeypatch):
    """Whoever connects to one that is not there tries for as long as Dask's timeout, 30 s."""
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    monkeypatch.setattr(writing, "_CALLS", 1)
    monkeypatch.setattr(writing, "_BATCH_BLOCKS", 1)
    monkeypatch.setattr(writing, "_AGAIN_S", 0)
    first, gone, in_vain, run = asyncio.Event(), asyncio.Event(), [], remote.run

    async def asked(scheduler, address, *more):
        if address != a.address:
            return await run(scheduler, address, *more)
        if address not in scheduler.workers:
            in_vain.append(address)
        first.set()
        await gone.wait()
        raise OSError("the connection is closed")

    monkeypatch.setattr(remote, "run", asked)
    values = c.map(made, range(4), workers=[a.address], allow_other_workers=True)
    await wait(values)
    commit = await rt.checkpoint(values, "values", wait=False)
    await first.wait()
    await kill(s, [a])
    gone.set()
    for _ in range(100):  # rounds of the loop, in which it is asked next
        await asyncio.sleep(0)
    AGAIN.set()
    await commit.wait()
    assert not in_vain
    for number, value in enumerate(await c.gather(await dask_hpc.restore("values", c))):
        np.testing.assert_array_equal(value, np.full(3, number))
