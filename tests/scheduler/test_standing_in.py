"""What is read back in place of how it was made, once what it was made from is gone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from distributed import wait
from helpers import live, until
from losses import kill

import dask_hpc


def raw():
    return np.full(10, 1.0)


def clean(values):
    return values + 1


def total(values):
    return float(values.sum())


async def one_that_hangs_on_a_version(c, s, rt, a, b, store=None):
    """A sum of what nobody holds any more, and that was made from what is forgotten; and all that is held."""
    first = c.submit(raw, key="raw")
    middle = c.submit(clean, first, key="clean")
    await wait(middle)
    await rt.checkpoint(middle, "clean", store=store, levels=None if store else "L1")
    last = c.submit(total, middle, key="total", workers=[a.address], allow_other_workers=True)
    assert await last == 20
    del middle
    await until(lambda: s.tasks["clean"].state == "released", "only the sum is wanted")
    del first
    await until(lambda: "raw" not in s.tasks, "what is read back needs it no more")
    return last


@pytest.mark.parametrize("in_store", [False, True])
@live(workers=2)
async def test_newer_versions_leave_what_could_not_be_made_again(c, s, a, b, tmp_path, in_store):
    rt = await dask_hpc.install(c)
    store = tmp_path if in_store else None
    last = await one_that_hangs_on_a_version(c, s, rt, a, b, store)
    newer = [c.submit(clean, np.full(10, n), key=f"clean-{n}") for n in range(3)]
    for each in newer:
        await rt.checkpoint(each, "clean", store=store, levels=None if store else "L1")
    await kill(s, [a])
    assert await asyncio.wait_for(last, 30) == 20
    s.validate_state()


@live(workers=2)
async def test_what_could_not_be_made_again_is_read_also_without_the_runtime(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c)
    last = await one_that_hangs_on_a_version(c, s, rt, a, b, tmp_path)
    await rt.uninstall()
    await kill(s, [a])
    assert await asyncio.wait_for(last, 30) == 20
    s.validate_state()
