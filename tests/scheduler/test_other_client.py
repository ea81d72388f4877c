"""A program waits through its own client, whichever client is the default."""

from __future__ import annotations

import pytest
from distributed import Client
from programs import HEAT, heat

import dask_hpc


@pytest.mark.timeout(60)
def test_a_program_runs_while_another_client_is_the_default(loop):
    with (
        dask_hpc.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", loop=loop
        ) as cluster,
        cluster.get_client() as client,
        Client(cluster.scheduler_address) as other,
    ):
        rt = dask_hpc.install(client, policy="fcfs")
        assert Client.current() is other
        with rt.job("heat", nodes=2) as job:
            program = heat(job, 5).run(timeout=20)
            assert HEAT.undisturbed(5).identical(program.field())
