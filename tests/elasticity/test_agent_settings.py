"""Agents count on no more time than there is."""

from __future__ import annotations

import psutil
import pytest

from dask_hpc.config import Settings
from dask_hpc.worker.agent import Agent
from dask_hpc.worker.node import walltime_end_s


@pytest.mark.parametrize(
    ("kill_wait_s", "counted_on_s"),
    [(None, 25.0), (30.0, 25.0), (27.0, 25.0), (26.0, 24.0), (5.0, 3.0), (2.0, 1.0)],
)
def test_a_worker_is_through_before_slurm_kills_it(kill_wait_s: float | None, counted_on_s: float) -> None:
    agent = Agent(None, Settings(kill_delay_s=25.0))
    agent.kills_after(kill_wait_s)
    assert agent.settings.kill_delay_s == counted_on_s


@pytest.mark.parametrize(
    ("limit_s", "job_end_s", "end_s"),
    [(None, None, None), (None, 50.0, 50.0), (10.0, None, 110.0), (10.0, 105.0, 105.0), (10.0, 200.0, 110.0)],
)
def test_the_walltime_ends_with_the_setting_or_the_job_whichever_is_first(
    limit_s: float | None, job_end_s: float | None, end_s: float | None
) -> None:
    began_s = psutil.Process().create_time() - 100.0
    shifted_s = None if job_end_s is None else job_end_s + began_s
    assert walltime_end_s(limit_s, shifted_s) == (None if end_s is None else end_s + began_s)
