"""`adapt` on a real Slurm: by whole jobs, by the pool policy, with successors in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import pytest
from outside import PATIENCE_S, until, workers
from slurm_dask import Work, dask_on

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("processes", [1, 2])
def test_it_follows_the_load_by_whole_jobs_and_loses_nothing(
    cluster: Any, tmp_path: Path, processes: int
) -> None:
    with (
        dask.config.set({"hpc.pool.hold": "1 s"}),
        dask_on(cluster, tmp_path, processes=processes) as (made, client),
    ):
        adaptive = made.adapt(minimum_jobs=1, maximum_jobs=2, interval="100 ms")
        client.wait_for_workers(processes, timeout=PATIENCE_S)
        work = Work(client, tmp_path)
        more = work.marks.submit("more", 60, 0.5)
        until(lambda: len(set(workers(client))) == 2 * processes, "two jobs")
        assert len(client.gather(more)) == 60
        until(lambda: len(set(workers(client))) == processes and len(made.workers) == 1, "one job is left")
        work.check()
        assert set(workers(client)) == {str(name) for name in adaptive.plan}


def test_a_job_whose_walltime_ends_is_replaced_at_constant_size(
    cluster: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    # Slurm knows walltimes of whole minutes: the worker leaves 48 s before its end
    monkeypatch.setenv("DASK_HPC__WALLTIME__NOTICE", "40 s")
    monkeypatch.setenv("DASK_HPC__WALLTIME__MARGIN", "8 s")
    notice = {"hpc.walltime.notice": "40 s", "hpc.walltime.margin": "8 s"}
    with (
        dask.config.set(notice),
        dask_on(cluster, tmp_path, walltime="00:01:00") as (made, client),
    ):
        made.adapt(minimum_jobs=1, maximum_jobs=1, interval="100 ms", wait_count=1)
        client.wait_for_workers(1, timeout=PATIENCE_S)
        work = Work(client, tmp_path)
        [victim] = workers(client)
        until(lambda: victim not in workers(client), "it has left")
        # the successor was there before, and adapt has not taken it away for being one too many
        assert len(workers(client)) == 1
        work.check()
