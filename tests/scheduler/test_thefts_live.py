"""A theft waits for a version of its victim as its timing says, and never for ever."""

from __future__ import annotations

import asyncio
import contextlib

import dask
import pytest
from distributed import wait
from helpers import addresses_of, asleep, engine, live, record, started, state_of, traces_of_ours, until
from tasks import inc

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.trace.records import Result
from dask_hpc_policies.decision import Reason, ReasonCode, Steal

WHY = Reason(ReasonCode.NODE_STOLEN, "for the test")
LATE = ("next-checkpoint", "proactive-checkpoint")


def written(tmp_path):
    """Results in the newest whole version of the victim; 0 when there is none."""
    whole = [one for one in Store(str(tmp_path)).versions("victim") if one.complete]
    return len(whole[-1].manifest().plan.extra["keys"]) if whole else 0


def outcomes(s):
    """What became of thefts so far."""
    records = engine(s).state.records
    return [r.outcome for r in records if isinstance(r, Result) and isinstance(r.outcome.action, Steal)]


def steal(s, victim, thief, timing):
    action = Steal(job=victim.id, thief=thief.id, stolen_nodes=2, timing=timing, reason=WHY)
    engine(s).controller.act([action], "request")


@contextlib.asynccontextmanager
async def both(c, s, tmp_path, every="1 h", protect=True):
    """A job on two of three nodes with five results, and one that waits for three nodes."""
    settings = {
        "hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": every, "hpc.tick": "20 ms",
    }  # fmt: skip
    with dask.config.set(settings):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("victim", nodes=2, protect=protect) as victim:
            await started(s, victim, 2)
            done = c.map(inc, range(5), pure=False)
            await wait(done)
            async with rt.job("thief", nodes=3) as thief:
                await until(lambda: thief.id in engine(s).state.jobs.active, "it waits")
                yield rt, victim, thief, done
    assert await c.gather(done) == list(range(1, 6))


@pytest.mark.parametrize("timing", ["now", *LATE])
@live(workers=3)
async def test_a_theft_comes_when_its_timing_says(c, s, *workers, timing, tmp_path):
    async with both(c, s, tmp_path) as (rt, victim, thief, _):
        steal(s, victim, thief, timing)
        if timing == "next-checkpoint":
            # ticks and other news do not bring it on
            for _ in range(5):
                engine(s).rounds.thefts.look()
                await asyncio.sleep(0.02)
            assert outcomes(s) == []
            assert (state_of(s, victim), written(tmp_path)) == ("running", 0)
            assert len(addresses_of(s, victim)) == 2
            await rt.update(checkpoint_every_s=0.05)
        await until(lambda: outcomes(s), "it is carried out")
        assert written(tmp_path) == (0 if timing == "now" else 5)
        [outcome] = outcomes(s)
        assert outcome.result == "done"
        assert ("had been waited for" in outcome.reason.text) == (timing in LATE)
        assert 0 in [nodes for _, nodes in record(s, victim).sizes]
        assert 0 in [nodes for _, nodes in record(s, victim).sizes]
        [told] = [d for d in await rt.decisions() if d["action"] == "steal"]
        assert told["result"] == "done"
        await thief.cancel()
        await started(s, victim, 2)


@pytest.mark.parametrize("timing", LATE)
@live(workers=3)
async def test_one_that_writes_no_versions_is_interrupted_at_once(c, s, *workers, timing, tmp_path):
    async with both(c, s, tmp_path, protect=False) as (_, victim, thief, _):
        steal(s, victim, thief, timing)
        await until(lambda: outcomes(s), "it is carried out")
        [outcome] = outcomes(s)
        assert outcome.result == "done"
        assert "makes no commit" in outcome.reason.text
        assert outcome.latency_s < 1.0
        await thief.cancel()


@live(workers=3)
async def test_a_version_is_begun_where_none_comes_by_itself(c, s, *workers, tmp_path):
    async with both(c, s, tmp_path, every=None) as (_, victim, thief, _):
        steal(s, victim, thief, "next-checkpoint")
        await until(lambda: outcomes(s), "it is carried out")
        assert outcomes(s)[0].result == "done"
        assert written(tmp_path) == 5
        await started(s, victim, 2)
        # it has nothing new now
        steal(s, victim, thief, "proactive-checkpoint")
        await until(lambda: len(outcomes(s)) == 2, "it is carried out")
        assert "nothing new to write" in outcomes(s)[1].reason.text
        await thief.cancel()


@pytest.mark.parametrize("who", ["victim", "thief"])
@live(workers=3)
async def test_a_theft_is_dropped_when_one_of_the_two_ends_while_it_waits(c, s, *workers, who, tmp_path):
    async with both(c, s, tmp_path) as (_, victim, thief, _):
        steal(s, victim, thief, "next-checkpoint")
        steal(s, victim, thief, "now")
        [second] = outcomes(s)
        assert (second.result, second.reason.code) == ("refused", ReasonCode.STALE)
        assert "already" in second.reason.text
        await (victim if who == "victim" else thief).cancel()
        await until(lambda: len(outcomes(s)) == 2, "it is dropped")
        first = outcomes(s)[1]
        code = ReasonCode.UNKNOWN_JOB if who == "victim" else ReasonCode.STALE
        assert (first.result, first.reason.code) == ("refused", code)
        assert record(s, victim).interruption == "none"
        if who == "victim":
            await started(s, thief, 3)
            await thief.cancel()
    await asleep(s)


@live(workers=3)
async def test_a_theft_that_waits_ends_with_the_runtime(c, s, *workers, tmp_path):
    async with both(c, s, tmp_path) as (rt, victim, thief, _):
        steal(s, victim, thief, "next-checkpoint")
        await rt.uninstall()
        assert traces_of_ours(s) == []


@pytest.mark.parametrize("timing", LATE)
@live(workers=5)
async def test_a_policy_has_a_protected_job_written_before_it_is_interrupted(
    c, s, *workers, timing, tmp_path
):
    settings = {
        "hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "1 h", "hpc.tick": "20 ms",
    }  # fmt: skip
    with dask.config.set(settings):
        rt = await dask_hpc.install(c, "sfsj")
        await rt.update(policy="sfsj", timing=timing)
        async with rt.job("victim", nodes=2, protect=True) as victim:
            await started(s, victim, 2)
            done = c.map(inc, range(5), pure=False)
            await wait(done)
            async with rt.job("main", nodes=3, min_nodes=3, max_nodes=3) as main:
                await started(s, main, 3)
                await next(w for w in workers if w.address in addresses_of(s, main)).close()
                if timing == "next-checkpoint":
                    await until(
                        lambda: any(r["action"] == "steal" for r in engine(s).controller.decisions),
                        "it is decided",
                    )
                    assert state_of(s, victim) == "running"
                    await rt.update(checkpoint_every_s=0.05)
                await until(lambda: outcomes(s), "the victim is interrupted")
                assert written(tmp_path) == 5
                await started(s, main, 3)
                assert state_of(s, victim) == "pending"
            await main.wait(20)
            await started(s, victim, 2)
            assert await c.gather(done) == list(range(1, 6))
        await victim.wait(20)
    await asleep(s)
