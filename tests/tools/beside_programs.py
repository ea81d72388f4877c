"""A program on the cluster whose flow has analyses in situ, and a node for staging."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import numpy as np
import pytest
import xarray as xr
from distributed import Worker, get_worker
from programs import going, start

import dask_hpc
from dask_hpc.errors import CouplingError
from dask_hpc.wire import ROLE_RESOURCE

FIELDS = {"T": (("y", "x"), (8, 6), "float64")}
#: Seconds of a step of the program.
STEP_S = 0.05


def sleeps(seconds):
    """An analysis of so many seconds, whose value is the address of its worker."""

    def analysis(ds):
        time.sleep(seconds)
        return get_worker().address

    return analysis


def begin(part, status):
    return xr.DataArray(np.zeros((part.size, 6)), dims=("y", "x"))


def advance(block):
    time.sleep(STEP_S)
    return block + 1


@asynccontextmanager
async def on_the_cluster(c, s, policy, analyses, where="auto", nthreads=2):
    """A program with a flow, and one node for staging."""
    rt = await dask_hpc.install(c, policy)
    async with Worker(
        s.address, name="staging", nthreads=nthreads, resources={f"{ROLE_RESOURCE}staging": 1}
    ) as staging:
        flow = await rt.couple("heat", FIELDS, queue=2)
        for name, function in analyses.items():
            await flow.analyse(function, name=name, where=where)
        async with rt.job("heat", nodes=1) as job:
            program = job.program(8, "y").init(begin).elastic(advance, going, couple=(flow, "T"))
            run = start(program)
            try:
                yield rt, flow, [flow.results(name, timeout=30) for name in analyses], staging
            finally:
                await flow.close()
                with pytest.raises(CouplingError, match="is closed"):
                    await run
                await job.cancel()
