"""Flows of steps from processes outside Dask: every value is right, and nothing is left."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import live
from sources import nothing_left, producers, told, whole

import dask_hpc

FIELDS = {"T": (("y", "x"), (8, 6), "float64")}


def peak(ds):
    return float(ds["T"].mean("step").max())


@live(workers=2, timeout=30)
async def test_values_come_in_order_and_are_those_of_the_whole_field(c, s, a, b):
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    seen = []
    await flow.analyse(peak, name="peak", window=3, every=2)

    async def look(step, ds):
        seen.append((step, ds["T"].chunks, float(await c.compute(ds["T"].sum()))))

    await flow.on_step(look)
    values = flow.results("peak", timeout=30)
    # unequal blocks
    async with producers(s, (0, 5), (5, 8)) as made:
        assert [await told(one) for one in made] == ["open", "open"]
        for one in made:
            one.tell("many", first=0, last=12)
            one.tell("close")
        # nobody waits for the producers: they wait for those who read
        got = [each async for each in values]
        ways = [await told(one) for one in made]
        assert [await told(one) for one in made] == ["closed", "closed"]
    last = {step: whole(step) for step in range(12)}
    assert got == [
        (step, pytest.approx(np.mean([last[step - 2], last[step - 1], last[step]], axis=0).max()))
        for step in (2, 4, 6, 8, 10)
    ]
    assert [(step, pytest.approx(float(last[step].sum()))) for step in range(12)] == [
        (step, total) for step, _, total in seen
    ]
    assert all(ring > 0 for ring, _ in ways), ways
    status = await flow.status()
    assert (status["in_flight"], status["steps"], status["bytes"] > 12 * 384) == (0, 12, True)
    assert status["analyses"]["peak"] == {"window": 3, "every": 2, "where": "auto"}
    await flow.close()
    await nothing_left(s, a, b)
