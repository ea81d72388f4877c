"""The corridor's solver in a process of its own: what becomes of questions that it cannot answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest
from helpers import live, record, started, until

import dask_hpc
from dask_hpc.processes import Process, ProcessError
from dask_hpc.scheduler.power import planner as planners
from dask_hpc.scheduler.power import solving
from dask_hpc.scheduler.power.planner import Planner
from dask_hpc_policies.codec import encode
from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.problem import PowerJob, Problem

JOB = PowerJob(id="a", nodes=1, min_nodes=1, max_nodes=4, min_w=200.0, max_w=200.0)


def problem(upper_w: float) -> Problem:
    return Problem(nodes=4, lower_w=0.0, upper_w=upper_w, idle_w=70.0, jobs=(JOB,))


@pytest.mark.errors("has no answer, and is tried again")
def test_a_question_that_failed_is_asked_again_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_FIRST_WAIT_S", 0.05)
    answered: list[str] = []

    async def go() -> None:
        planner = Planner(lambda: answered.append(planner.failure))
        right, planners.solving.SOLVED = solving.SOLVED, "dask_hpc.scheduler.power.solving:nothing"
        try:
            assert planner.solve(problem(700.0)) is None
            await until(lambda: planner.asked >= 2, "it is tried again")
            assert "nothing" in planner.failure
            assert planner.solve(problem(700.0)) is None
            solving.SOLVED = right
            await until(lambda: planner.failure == "", "it is answered")
            found = planner.solve(problem(700.0))
            assert found is not None
            assert found.nodes
        finally:
            solving.SOLVED = right
            planner.close()

    asyncio.run(go())
    # whoever asked hears of both
    assert answered[0]
    assert not answered[-1]


@pytest.mark.errors("Which nodes would better be off is not known")
def test_a_failed_question_about_nodes_to_be_off_is_none_about_the_corridor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planners, "_MOST_WAIT_S", 0.05)
    heard: list[str] = []

    async def go() -> None:
        planner = Planner(lambda: heard.append(planner.off_failure))
        right, planners.solving.SOLVED = solving.SOLVED, "dask_hpc.scheduler.power.solving:nothing"
        try:
            assert planner.solve(replace(problem(700.0), max_off_nodes=2)) is None
            await until(lambda: len(heard) == 2, "it may be asked again")
            assert "nothing" in heard[0]
            assert (heard[1], planner.failure, planner.asked) == ("", "", 1)
            solving.SOLVED = right
            planner.solve(problem(700.0))
            await until(lambda: planner.solve(problem(700.0)) is not None, "the other one is answered")
        finally:
            solving.SOLVED = right
            planner.close()

    asyncio.run(go())


@pytest.mark.errors("has no answer, and is tried again")
def test_a_process_that_hangs_is_ended_and_another_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(planners, "_WALL_S", 0.2)

    async def go() -> None:
        planner = Planner(lambda: None)
        try:
            # it waits for something that uses no processor
            os.kill(planner._process._started().pid, signal.SIGSTOP)
            assert planner.solve(problem(700.0)) is None
            said = "it did not answer within 0.2 s and was ended"
            await until(lambda: planner.failure == said, "it is told")
            monkeypatch.setattr(planners, "_WALL_S", 60.0)
            await until(lambda: planner.solve(problem(700.0)) is not None, "it is answered")
            assert planner.failure == ""
        finally:
            planner.close()

    asyncio.run(go())


def test_questions_about_nodes_to_be_off_have_little_time() -> None:
    assert solving.limit_s(problem(700.0)) == 5.0
    assert solving.limit_s(replace(problem(700.0), max_off_nodes=2)) == 0.5


def test_an_answer_that_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "LIMIT_S", 0.0)
    monkeypatch.setattr(solving, "OFF_LIMIT_S", 0.0)
    with pytest.raises(ProgramError, match="the time was up before any allocation was found"):
        solving.solved({"problem": encode(problem(700.0))}, print)
    found = solving.solved({"problem": encode(replace(problem(700.0), max_off_nodes=2))}, print)
    assert found is not None
    assert found["off_nodes"] == 0


def test_a_process_that_cannot_be_started_is_a_failure_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with Process() as process, pytest.raises(ProcessError, match="no process can be started: No such file"):
        process.call("math:sqrt", {})


def test_closing_does_not_wait_for_a_process_that_is_starting() -> None:
    async def go() -> float:
        planner = Planner(lambda: None)
        planner.start()
        await asyncio.sleep(0)
        began_s = time.perf_counter()
        planner.close()
        return time.perf_counter() - began_s

    # the solver takes longer to load
    assert asyncio.run(go()) < 1.0


@pytest.mark.errors("has no answer, and is tried again")
@live(workers=2)
async def test_bounds_hold_and_nobody_is_kept_waiting_for_a_solver_that_fails(c, s, a, b, monkeypatch):
    monkeypatch.setattr(solving, "SOLVED", "dask_hpc.scheduler.power.solving:nothing")
    rt = await dask_hpc.install(c, "fcfs", power_model_idle_w=70, power_model_busy_w=200, tick_s=0.05)
    # 140 W idle, 270 W with a job: it leads nearer; 400 W with another one
    await rt.corridor(lower_w=300, upper_w=350)
    async with rt.job("a", nodes=1) as first:
        await started(s, first, 1)
        async with rt.job("b", nodes=1) as second:
            await until(lambda: "corridor, upper bound" in record(s, second).reason, "it is refused")
            assert record(s, second).state == "pending"
            assert "nothing" in (await rt.power())["problem"]
    await rt.corridor(clear=True)
