"""Policies that look at communication give nodes to the job that computes, and their passes replay."""

from __future__ import annotations

from helpers import addresses_of, engine, live, record, started, until
from measured_jobs import BY_HAND, HIGH, MB, close_sample, compute, nbytes, zeros

import dask_hpc
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.replay import replay
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.model import JobView


async def fetch(c, s, job, count=12):
    """Tasks of a job that do nothing but fetch 20 MB each, also on a busy machine."""
    here, there = sorted(addresses_of(s, job))[:2]
    arrays = await c.scatter([zeros(i) for i in range(count)], workers=[here], hash=False)
    assert set(await c.gather(c.map(nbytes, arrays, workers=[there], pure=False))) == {20 * MB}


async def _two_jobs(rt, c, s):
    """A job bound by communication and a younger one that scales, both measured."""
    moves = rt.job("moves", nodes=2, min_nodes=2, max_nodes=4)
    computes = rt.job("computes", nodes=2, min_nodes=2, max_nodes=4)
    async with moves:
        await started(s, moves, 2)
        await fetch(c, s, moves)
        async with computes:
            await started(s, computes, 2)
            await compute(c)
            assert close_sample(s, moves)
            assert close_sample(s, computes)
            yield moves, computes


@live(workers=7)
async def test_behind_the_mtct_guard_only_the_job_that_computes_is_expanded(c, s, *workers):
    policy = {"policy": "pwma-fpsma", "compose": ["mtct"]}
    rt = await dask_hpc.install(c, policy, **BY_HAND)
    async for moves, computes in _two_jobs(rt, c, s):
        await started(s, computes, 4)

        def refused(moves=moves):
            said = [row for row in engine(s).controller.decisions if row["job"] == moves.id]
            return [row for row in said if row["result"] == "suppressed" and "MTCT is" in row["reason"]]

        await until(refused, "the other was considered, with its figures")
        assert engine(s).state.nodes_up(record(s, moves)) == 2
        assert engine(s).state.idle_nodes() == 1, "it was not for want of nodes"
        assert record(s, moves).expansions == 0


@live(workers=6)
async def test_performance_aware_gives_idle_nodes_to_the_job_that_computes_and_replays(c, s, *workers):
    rt = await dask_hpc.install(c, "performance-aware", **BY_HAND)
    async for moves, computes in _two_jobs(rt, c, s):
        await started(s, computes, 4)
        assert engine(s).state.nodes_up(record(s, moves)) == 2
        reasons = [row["reason_code"] for row in await computes.why() if row["action"] == "expand"]
        assert "scales-well" in reasons
        trace = parse_trace(await rt.trace())
    seen = {view.id: view for p in trace.passes for view in p.snapshot.jobs if view.mtct is not None}
    assert seen[moves.id].mtct > HIGH > seen[computes.id].mtct == 0
    report = replay(trace)
    assert report.ok, report.first
    assert report.recorded_actions["expand"] == 1


def test_a_recorded_job_without_these_fields_loads():
    data = encode(JobView(id="old", mtct=0.5, mtct_previous=0.25))
    del data["mtct"], data["mtct_previous"]
    view = decode(JobView, data)
    assert (view.mtct, view.mtct_previous) == (None, None)
