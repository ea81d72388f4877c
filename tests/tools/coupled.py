"""What the tests of flows share: a flow with one analysis, and producers of halves of its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sources import told

import dask_hpc

FIELDS = {"T": (("y", "x"), (8, 6), "float64")}
HALVES = (0, 4), (4, 8)


def flow_row(**fields):
    """What `Runtime.flows` tells of a flow."""
    return {
        "name": "heat", "state": "running", "reason": "", "sources": 3, "size": 4, "steps": 12, "queue": 2,
        "in_flight": 1, "when_full": "wait", "bytes": 3 * 2**20, "analyses": {},
    } | fields  # fmt: skip


def first(ds):
    return float(ds["T"][-1, 0, 0])


class Refers:
    """An analysis that refers to what `to` is when it is sent."""

    to: Any = None

    def __call__(self, ds):
        return None

    def __reduce__(self):
        return _refers, (self.to,)


def _refers(to):
    return Refers()


async def started(c, **more):
    """A flow with one analysis and its reader."""
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS, **more)
    await flow.analyse(first, name="first")
    return flow, flow.results("first", timeout=30)


async def opened(made):
    assert [await told(one) for one in made] == ["open"] * len(made)


async def sent(made, step):
    """Have all producers send a step, which goes on."""
    for one in made:
        one.tell("send", step=step)
    assert [await told(one) for one in made] == [True] * len(made)


async def under_way(made, values):
    """Have producers of both halves send the first step, and see that its value is there."""
    await opened(made)
    await sent(made, 0)
    assert await anext(values) == (0, 0.0)


def rings():
    """Files of the host's memory without a name that this process, which the workers are in, has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/#" in line]
