"""Agents count on no more time than there is."""

from __future__ import annotations

import pytest

from dask_hpc.agent import Agent
from dask_hpc.config import Settings


@pytest.mark.parametrize(
    ("kill_wait_s", "counted_on_s"),
    [(None, 25.0), (30.0, 25.0), (27.0, 25.0), (26.0, 24.0), (5.0, 3.0), (2.0, 1.0)],
)
def test_a_worker_is_through_before_slurm_kills_it(kill_wait_s: float | None, counted_on_s: float) -> None:
    agent = Agent(None, Settings(kill_delay_s=25.0))
    agent.kills_after(kill_wait_s)
    assert agent.settings.kill_delay_s == counted_on_s
