"""What the tests of flows share: a flow with one analysis, and producers of halves of its field."""

from __future__ import annotations

from sources import told

import dask_hpc

FIELDS = {"T": (("y", "x"), (8, 6), "float64")}
HALVES = (0, 4), (4, 8)


def first(ds):
    return float(ds["T"][-1, 0, 0])


async def started(c, **more):
    """A flow with one analysis and its reader."""
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, **more)
    await flow.analyse(first, name="first")
    return flow, flow.results("first", timeout=30)


async def opened(made):
    assert [await told(one) for one in made] == ["open"] * len(made)
