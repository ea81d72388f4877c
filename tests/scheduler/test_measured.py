"""What is measured of a job takes the place of what its user declared, in the picture that policies get."""

from __future__ import annotations

import math

import pytest
from distributed import Worker
from helpers import live, record, started, until

import dask_hpc
from dask_hpc.scheduler.tables import parts
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.rules.io.intensity import job_intensity

FOUND = {"io_by_nodes": {4: 0.5, 1: 0.2}, "power_by_nodes": {1: 180, 2: 170.5}}
BAD = [
    ({"io_intensity": 1.5}, "io_intensity is 1.5; allowed: 0 to 1"),
    ({"io_by_nodes": {0: 0.5}}, r"io_by_nodes has sizes \[0\]; allowed: 1 node and more"),
    ({"power_by_nodes": {2: math.nan}}, "power_by_nodes is nan; allowed: 0 to inf"),
    ({"power_by_nodes": {2: math.inf}}, "finite"),
]


class Sensor:
    """A part of another capability: measures jobs now and then."""

    def __init__(self, engine):
        self.jobs = engine.state.jobs

    def tick(self, now_s):
        for job in self.jobs.named:
            job.measured(**FOUND)


@live(workers=2)
async def test_policies_go_by_what_was_measured(c, s, a, b):
    with parts.registered(Sensor):
        rt = await dask_hpc.install(c, tick_s=0.05)
        async with rt.job("heat", nodes=1, io_intensity=0.9) as job:
            await started(s, job, 1)
            held = record(s, job)
            await until(lambda: held.request.power_by_nodes, "it is measured")
            (view,) = [one for one in (await rt.snapshot()).jobs if one.name == "heat"]
            assert view.power_by_nodes == ((1, 180.0), (2, 170.5))
            assert view.io_intensity == 0.9  # nothing was measured of that
            assert job_intensity(view, 4) == 0.5
            snapshot = await rt.snapshot()
            assert decode(ClusterSnapshot, encode(snapshot)) == snapshot


@live(workers=1)
async def test_what_cannot_be_measured_is_refused_and_changes_nothing(c, s, a):
    rt = await dask_hpc.install(c)
    async with rt.job("heat") as job:
        await started(s, job, 1)
        held = record(s, job)
        before = held.request
        for facts, text in BAD:
            with pytest.raises(ValueError, match=text):
                held.measured(**facts)
        assert held.request is before
        # and what was measured stays when the job may have more nodes than before
        held.measured(**FOUND)
        async with Worker(s.address, nthreads=1):
            await until(lambda: held.request.max_nodes > before.max_nodes, "the pool has grown")
            assert held.request.power_by_nodes == ((1, 180), (2, 170.5))
