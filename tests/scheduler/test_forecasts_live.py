"""Ends of running jobs are forecast, and held against what came; work that did not run teaches nothing."""

from __future__ import annotations

import pytest
from helpers import engine, live, record, started, until
from tasks import slow_inc

import dask_hpc
from dask_hpc.scheduler.tables.forecasts import Forecasts
from dask_hpc_policies.jobs.forecasts import Interval


def part(s):
    parts = [call.__self__ for call in engine(s).parts._of["status"]]
    return next(one for one in parts if isinstance(one, Forecasts))


@live(workers=2)
async def test_the_end_of_a_job_is_forecast_and_held_against_what_came(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick="20 ms")
    assert "forecasts" not in await rt.status()
    async with rt.job("heat", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(slow_inc, range(80), delay_s=0.02, pure=False)
    seen = []

    async def forecast() -> dict | None:
        row = await job.status()
        if row["state"] == "running" and row["forecast"]:
            seen.append(row["forecast"])
        return row["state"] == "completed"

    while not await forecast():
        pass
    assert len(await c.gather(futures)) == 80
    assert seen
    assert all(one["low_s"] <= one["predicted_s"] <= one["high_s"] for one in seen)
    assert seen[-1]["errors"] == 0
    assert seen[-1]["text"].endswith(" assumed, as too few ends are known yet"), "no share that nothing shows"
    assert seen[-1]["took_s"] is None
    said = [record(s, job).start_s + seen[-1][name] for name in ("low_s", "predicted_s", "high_s")]
    assert seen[-1]["ends_s"] == pytest.approx(said), "on the clock of the cluster"
    found, row = (await rt.status())["forecasts"], await job.status()
    took_s = record(s, job).end_s - record(s, job).start_s
    last = found["last"][-1]
    assert last["job"] == job.id
    assert last["took_s"] == pytest.approx(took_s)
    assert 0.25 <= last["part"] < 1, "what was said once a quarter had run"
    assert last["text"].startswith("predicted ")
    assert ", took " in last["text"]
    # 80 tasks of 20 ms on two threads: not several times as long, on a busy machine either
    assert took_s / 3 < last["predicted_s"] < took_s * 3
    assert row["forecast"] == {name: value for name, value in last.items() if name not in ("job", "name")}
    # no share was stated, so none is told to have held
    assert 2 <= found["assumed"] <= 4
    assert (found["ends"], found["inside"]) == (0, None)
    assert sum(one["assumed"] for one in found["by"].values()) == found["assumed"]
    unstated = f"the intervals of {found['assumed']} earlier forecasts were assumed and state nothing"
    assert found["text"] == unstated
    stated = Interval(expected_s=1.0, low_s=0.5, high_s=2.0, errors=19)
    forecasts = part(s)
    for took_s in (1.0, 1.5, 9.0):
        forecasts.calibration = forecasts.calibration.with_end("a", stated, took_s)
    text = (await rt.status())["forecasts"]["text"]
    assert text == f"67% of 3 forecasts held the end; their intervals state 90%; {unstated}"


@live(workers=2)
async def test_a_job_whose_tasks_were_released_before_they_ran_says_so_and_teaches_nothing(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick="20 ms")
    async with rt.job("heat", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(slow_inc, range(40), delay_s=0.05, pure=False)
        await until(lambda: record(s, job).expected.ended_tasks >= 4, "some of it has run")
    await until(lambda: record(s, job).forecast is not None, "its end has been forecast")
    forecasts, now_s = part(s), engine(s).state.now_s()
    assert forecasts._share(record(s, job), now_s, 2.0, 2).slots == 4.0
    forecasts._target = lambda job: 1
    assert forecasts._share(record(s, job), now_s, 2.0, 2).slots == 2.0, "what a resize leaves it counts"
    watch, left_s = forecasts._watched[record(s, job)], []
    for held_s in (0.0, 100.0):
        watch.done_s, watch.node_s = 0.0, record(s, job).attained_node_s(now_s) - held_s
        left_s.append(forecasts._share(record(s, job), now_s, 2.0, 2).work_s)
    assert 2 * left_s[0] < left_s[1], "what has used little of its nodes is not taken to use all"
    del futures
    await until(lambda: record(s, job).state == "completed", "nothing is left")
    assert "tasks were released before they ran" in record(s, job).reason
    assert engine(s).state.jobs.recorded.totals == {}
    assert "forecasts" not in await rt.status()
    assert (await job.status())["forecast"] is None


@live(workers=2)
async def test_what_was_said_under_another_policy_is_said_anew(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick="20 ms")
    async with rt.job("heat", nodes=2) as job:
        await started(s, job, 2)
        futures = c.map(slow_inc, range(60), delay_s=0.05, pure=False)
    await until(lambda: record(s, job).expected.ended_tasks >= 32, "half of it has run")
    assert record(s, job).forecast is not None
    await rt.update(policy="easy")
    assert len(await c.gather(futures)) == 60
    await until(lambda: record(s, job).state == "completed", "it has ended")
    by = (await rt.status())["forecasts"]["by"]
    assert by
    assert set(by) <= {"rigid, 50% ran", "rigid, 75% ran"}


@live(workers=2, lend="5 s")
async def test_jobs_that_take_turns_are_forecast_in_their_turn(c, s, *workers):
    rt = await dask_hpc.install(c, "fair", tick="20 ms")
    async with rt.job("long") as long:
        await started(s, long, 2)
        futures = c.map(slow_inc, range(80), delay_s=0.05, pure=False)
    async with rt.job("short") as short:
        futures += c.map(slow_inc, range(20), delay_s=0.05, pure=False)
    said = {}

    def both() -> bool:
        said.update((job.id, record(s, job).forecast) for job in (long, short) if record(s, job).forecast)
        return record(s, short).state == "completed"

    await until(both, "the short one has ended")
    assert record(s, long).state == "running", "served first, on all that there is"
    assert len(await c.gather(futures)) == 100
    await until(lambda: record(s, long).state == "completed", "both have ended")
    # it was said that the long one waits for the other, 2 s of work of 5 s, and no longer
    took_s = record(s, long).end_s - record(s, long).start_s
    assert took_s / 2 < said[long.id]["predicted_s"] < took_s * 2
    assert all(name.startswith("in turn, ") for name in (await rt.status())["forecasts"]["by"])
