"""Reductions of a round end before its expansions and starts begin, under both locks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import dask
import pytest
import stress_invariants as invariants
from stress_cluster import cluster
from stress_graphs import nap

import dask_hpc
from dask_hpc.scheduler.rpc import service
from dask_hpc.trace.records import Header, NodeEvent, Record, Result, encode_line


@pytest.mark.parametrize("lock", ["job", "system"])
def test_a_job_starts_only_when_every_job_that_makes_room_has_done_so(lock: str) -> None:
    with dask.config.set({"hpc.lend": "0 s"}):  # the third would be done before it has a node
        header, records, starts = asyncio.run(_two_make_room_for_a_third(lock))
    assert invariants.trace([encode_line(record) for record in (header, *records)]) == []
    assert starts == {"busy-0": 1, "busy-1": 1, "third-0": 1}
    assert any(map(invariants.mixed, records)), "no decision both shrank and started"
    shrunk = [
        place
        for place, record in enumerate(records)
        if isinstance(record, Result)
        and (record.outcome.action.TAG, record.outcome.result) == ("shrink", "done")
    ]
    given = [
        place
        for place, record in enumerate(records)
        if isinstance(record, NodeEvent) and (record.job or "").startswith("third")
    ]
    assert len(shrunk) == 2
    assert given
    assert max(shrunk) < min(given)


async def _two_make_room_for_a_third(lock: str) -> tuple[Header, list[Record], dict[str, int]]:
    """One of two jobs is busy for half a second when a third one needs a node of each.

    Gives the trace, and how often each task was started.
    """
    async with cluster(4, 1, stealing=True, saturation=1.1) as made:
        runtime = await dask_hpc.install(
            made.client, policy="pwma-egs", tick_s=0.05, sweep_s=0.02, lock=lock, min_remaining_s=0
        )
        state = service.of(made.scheduler).engine.state
        async with (
            runtime.job("quick", nodes=2, min_nodes=1, max_nodes=2),
            runtime.job("busy", nodes=2, min_nodes=1, max_nodes=2),
        ):
            futures = made.client.map(nap, range(2), seconds=0.5, key=["busy-0", "busy-1"])
            await _until(lambda: made.starts.by_key.total() == 2)
            async with runtime.job("third", nodes=2):
                result = made.client.submit(nap, 5, 0.0, key="third-0")
            await _until(lambda: any(job.name == "third" for job in state.jobs.ended))
            assert await made.client.gather([*futures, result]) == [1, 2, 6]
        header = service.of(made.scheduler).engine.tracing.header()
        return header, list(state.records), dict(made.starts.by_key)


async def _until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline_s, f"not within {seconds:g} s"
        await asyncio.sleep(0.01)
