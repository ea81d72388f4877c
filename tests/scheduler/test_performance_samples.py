"""Samples of a job's communication are closed by time, number and phase; policies see the latest two."""

from __future__ import annotations

from functools import partial

import pytest
from helpers import live, record, started, until
from measured_jobs import BY_HAND, HIGH, HOUR_S, begin, close_sample, compute, move, phases, view_of
from tasks import inc

import dask_hpc
from dask_hpc.config import Settings
from dask_hpc.scheduler.tables.meter import LEAST_TASKS

# --------------------------------------------------------------------------------------- samples


@live()
async def test_a_policy_sees_the_latest_sample_and_the_one_before(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        assert (view_of(s, job).mtct, view_of(s, job).mtct_previous) == (None, None)
        await compute(c)
        assert view_of(s, job).mtct is None, "an open sample is nobody's"
        assert close_sample(s, job)
        first = view_of(s, job)
        assert first.mtct < 0.02
        assert first.mtct_previous is None
        await move(c, s, job)
        assert close_sample(s, job)
        second = view_of(s, job)
        assert second.mtct > HIGH
        assert second.mtct_previous == first.mtct
        [row] = (await job.status())["phases"]
        assert (row["samples"], row["mtct_sample"], row["mtct_sample_previous"]) == (
            2, second.mtct, first.mtct,
        )  # fmt: skip
        assert first.mtct < row["mtct"] < second.mtct, "the phase as a whole lies between its samples"


@live(workers=2)
async def test_a_sample_is_closed_when_it_is_long_enough_and_holds_enough(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick_s=HOUR_S, performance_interval_s=5)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        sample = partial(record(s, job).meter.sample, interval_s=5)
        await compute(c, LEAST_TASKS - 1)
        assert not sample(100.0)
        assert not sample(900.0), "too few tasks, however long it takes"
        await compute(c, 1)
        assert sample(905.0)
        await compute(c, LEAST_TASKS)
        assert not sample(909.0), "too soon after the last one"
        assert sample(910.0)
        assert not sample(990.0), "empty"
        await compute(c, LEAST_TASKS)
        assert not sample(991.0), "time in which nothing ended does not count"
        assert sample(995.0)


@live(workers=2)
async def test_ticks_close_samples_and_the_interval_can_be_changed_live(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        await compute(c)
        await until(lambda: record(s, job).meter.since_s is not None, "a tick has looked")
        assert view_of(s, job).mtct is None
        await rt.update(performance_interval_s=0)
        await until(lambda: view_of(s, job).mtct is not None, "a tick has closed the sample")
        assert view_of(s, job).mtct < 0.02


def test_the_interval_is_checked():
    assert Settings().performance_interval_s == 5.0
    with pytest.raises(dask_hpc.errors.ConfigError, match=r"hpc\.performance-interval is '2 h'"):
        Settings(performance_interval_s="2 h")


# ---------------------------------------------------------------------------------------- phases


@live()
async def test_a_new_phase_closes_the_sample_at_once_for_the_phase_before(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        begin(s, job, "solve")
        assert view_of(s, job).mtct is None, "nothing was measured before"
        await compute(c, 1)
        begin(s, job, "exchange")
        solved = view_of(s, job).mtct
        assert solved < 0.05, "one task is enough when the job itself says so"
        await move(c, s, job)
        begin(s, job, "solve")
        assert view_of(s, job).mtct > HIGH
        assert view_of(s, job).mtct_previous == solved
        await compute(c, 2)
        found = phases(s, job)
    assert [(name, row["tasks"], row["current"]) for name, row in found.items()] == [
        ("solve", 3, True),
        ("exchange", 9, False),
    ]
    assert found["solve"]["mtct"] < 0.05 < HIGH < found["exchange"]["mtct"]


@live()
async def test_samples_of_a_rigid_phase_are_kept_but_are_not_for_resizing(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        await compute(c)
        begin(s, job, "output", elastic=False)
        before = view_of(s, job)
        assert before.mtct is not None
        await move(c, s, job)
        assert close_sample(s, job)
        await move(c, s, job)
        begin(s, job, "solve")
        after = view_of(s, job)
        assert (after.mtct, after.mtct_previous) == (before.mtct, before.mtct_previous)
        found = phases(s, job)
    assert found["output"]["mtct"] > HIGH
    assert (found["output"]["samples"], found["output"]["elastic"]) == (2, False)
    assert found["solve"]["elastic"]


@live(workers=2)
async def test_phases_that_cannot_begin_are_refused_and_old_ones_are_forgotten(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        for name in (3, None, "x" * 201):
            with pytest.raises(ValueError, match="allowed: a text of at most 200 characters"):
                begin(s, job, name)
        for step in range(110):
            begin(s, job, f"step {step}")
            await c.submit(inc, step, pure=False)
        names = list(phases(s, job))
        assert len(names) == 100
        assert names[-1] == "step 109"
