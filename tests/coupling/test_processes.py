"""A flow between processes: a client that blocks, workers of their own, one of which is killed."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import suppress

import pytest
from sources import Producer

import dask_hpc
from dask_hpc.errors import CouplingError, NotProvided


def test_a_worker_that_is_killed_costs_its_steps_alone():
    with (
        dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client)
        flow = rt.couple("heat", {"T": (("y", "x"), (8, 6), "float64")})
        flow.analyse(lambda ds: float(ds["T"][-1, 0, 0]), name="first")
        sums = []

        def look(step, ds):
            # what is lost while it is looked at does not keep it waiting
            with suppress(NotProvided):
                sums.append((step, float(ds["T"].mean())))

        flow.on_step(look)
        values = flow.results("first", timeout=60)
        made = [
            Producer(cluster.scheduler_address, rank, 2, rows) for rank, rows in enumerate([(0, 4), (4, 8)])
        ]
        try:
            for one in made:
                one.tell("open")
            assert [one.answer() for one in made] == ["open", "open"]
            for one in made:
                one.tell("send", step=0)
            assert next(values) == (0, 0.0)
            assert [one.answer() for one in made] == [True, True]
            # one of the two has half of step 1 when it is killed
            lost = flow.status()["workers"][0]
            assert made[0].ask("send", step=1) is True
            os.kill(client.run(os.getpid, workers=[lost])[lost], signal.SIGKILL)
            made[1].tell("send", step=1)
            with pytest.raises(CouplingError, match=r"no 'first' of step 1: 1 failed, worker .* was lost"):
                next(values)
            made[1].answer()
            for one in made:
                one.tell("send", step=2)
            assert next(values) == (2, 2.0)
            assert [one.answer() for one in made] == [True, True]
            for one in made:
                one.tell("close")
            assert list(values) == []
        finally:
            for one in made:
                one.end()
        # it may have seen step 1 before that was lost
        assert [step for step, _ in sums if step != 1] == [0, 2]
        assert {round(mean - step, 4) for step, mean in sums} == {0.0235}
        flow.close()
        deadline_s = time.monotonic() + 20
        while left := client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)):
            # errors refer to what they come from until they are collected
            gc.collect()
            assert time.monotonic() < deadline_s, left
