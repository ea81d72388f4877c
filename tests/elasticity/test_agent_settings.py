"""Agents count on no more time than there is."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from distributed import Nanny
from fake_queue import FakeQueue
from helpers import until

from dask_hpc.config import Settings
from dask_hpc.worker.agent import Agent, _agents, dask_teardown
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


class _Told(Agent):
    """An agent of nobody: notes what it was told of the end of its job, and that it would have left."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(None, settings)
        self.told_s: list[float] = []
        self.leaves = False

    async def _end_now(self, known_s: float, timeout_s: float) -> float:
        self.told_s.append(await super()._end_now(known_s, timeout_s))
        return self.told_s[-1]

    async def leave(self, within_s: float, why: str) -> None:
        self.leaves = True


def test_a_limit_that_is_extended_at_the_last_moment_keeps_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`squeue` is a program that says so; the real one is asked in tests/slurm."""
    queue = FakeQueue(tmp_path / "bin")
    monkeypatch.setenv("PATH", queue.path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    async def extended() -> None:
        agent = _Told(Settings(walltime_notice_s=20.0, walltime_margin_s=1.0))
        # it would be emptied in two seconds or so, and asks at once
        ends_s = int(time.time()) + 24
        queue.says({"7": ends_s})
        agent.start(ends_s)
        await until(lambda: agent.told_s, "it has asked")
        queue.says({"7": ends_s + 600})
        await until(lambda: len(agent.told_s) > 1 or agent.leaves, "it has asked again")
        agent.stop()
        assert not agent.leaves
        assert agent.told_s == [ends_s, ends_s + 600]

    asyncio.run(extended())


class _Emptied(Agent):
    """An agent whose worker is emptied when `left` is set: notes what the scheduler is asked for."""

    address = "tcp://a"

    def __init__(self) -> None:
        super().__init__(None, Settings())
        self.asked: list[str] = []
        self.left = asyncio.Event()

    async def _started(self, deadline_s: float) -> str | None:
        return self.address

    async def _ask(self, address: str, within_s: float, why: str) -> dict[str, Any]:
        self.asked.append(why)
        await self.left.wait()
        return {}


def test_a_worker_that_is_being_emptied_asks_at_once_where_its_end_is_sooner_and_only_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        agent = _Emptied()
        ends = [asyncio.ensure_future(agent.leave(600.0, "notice"))]
        await until(lambda: agent.asked, "it is being emptied")
        ends += [asyncio.ensure_future(agent.leave(*end)) for end in ((900.0, "later"), (5.0, "SIGTERM"))]
        await until(lambda: len(agent.asked) > 1, "it has asked again")
        assert agent.asked == ["notice", "SIGTERM"]
        agent.left.set()
        await asyncio.wait_for(asyncio.gather(*ends), 20)
        # one that has left is not emptied again
        assert agent.asked == ["notice", "SIGTERM"]
        assert len([one for one in caplog.messages if "nothing is lost" in one]) == 1

    asyncio.run(run())


class _Overtaken(_Emptied):
    """An agent whose scheduler has not answered the notice by the time that it is told of SIGTERM."""

    async def _is_gone(self) -> bool:
        return False

    async def _ask(self, address: str, within_s: float, why: str) -> dict[str, Any]:
        answer = await super()._ask(address, within_s, why)
        if why == "notice":
            raise TimeoutError
        return answer


def test_who_has_more_time_than_was_said_since_then_does_not_ask_again() -> None:
    async def run() -> None:
        agent = _Overtaken()
        ends = [asyncio.ensure_future(agent.leave(600.0, "notice"))]
        await until(lambda: agent.asked, "it is being emptied")
        ends.append(asyncio.ensure_future(agent.leave(5.0, "SIGTERM")))
        await until(lambda: len(agent.asked) > 1, "it has less time")
        agent.left.set()
        await asyncio.wait_for(asyncio.gather(*ends), 20)
        assert (agent.asked, agent._left) == (["notice", "SIGTERM"], "tcp://a")

    asyncio.run(run())


def test_after_sigterm_the_walltime_takes_no_time_from_a_worker_any_more() -> None:
    """The batch system kills so long after SIGTERM, whenever the walltime would have ended."""

    async def run() -> None:
        agent, nanny = _Emptied(), object.__new__(Nanny)
        _agents[nanny] = agent
        ends = asyncio.ensure_future(dask_teardown(nanny))
        await until(lambda: agent.asked, "it is being emptied")
        await asyncio.wait_for(agent._wait_for_end(time.time()), 20)
        agent.left.set()
        await asyncio.wait_for(ends, 20)
        assert agent.asked == ["it is being ended"]

    asyncio.run(run())


class _Busy(_Emptied):
    """An agent whose scheduler does not answer at first; whether it has gone says `gone`."""

    gone = False

    async def _ask(self, address: str, within_s: float, why: str) -> dict[str, Any]:
        if len(self.asked) < 1:
            self.asked.append(why)
            raise TimeoutError
        return await super()._ask(address, within_s, why)

    async def _is_gone(self) -> bool:
        return self.gone


@pytest.mark.parametrize(
    ("within_s", "gone", "times"), [(600.0, False, 2), (600.0, True, 1), (0.3, False, 1)]
)
def test_a_scheduler_that_is_busy_is_asked_again_while_there_is_time_and_it_is_there(
    within_s: float, gone: bool, times: int
) -> None:
    async def run() -> None:
        agent, nanny = _Busy(), object.__new__(Nanny)
        agent.settings, agent.gone = Settings(kill_delay_s=within_s), gone
        agent.left.set()
        _agents[nanny] = agent
        await asyncio.wait_for(dask_teardown(nanny), 20)
        assert agent.asked == ["it is being ended"] * times

    asyncio.run(run())


def test_a_scheduler_that_takes_connections_is_there_and_one_whose_port_is_closed_has_gone() -> None:
    async def run() -> None:
        hangs = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        agent = Agent(None, Settings())
        address = f"tcp://127.0.0.1:{hangs.sockets[0].getsockname()[1]}"
        agent.server = SimpleNamespace(scheduler=SimpleNamespace(addr=address))
        assert not await agent._is_gone()
        hangs.close()
        await hangs.wait_closed()
        assert await agent._is_gone()

    asyncio.run(run())


def test_a_worker_that_its_nanny_has_started_since_a_notice_is_emptied_as_well() -> None:
    async def run() -> None:
        agent = _Emptied()
        agent.left.set()
        await asyncio.wait_for(agent.leave(600.0, "notice"), 20)
        agent.address = "tcp://b"
        for _ in range(2):
            await asyncio.wait_for(agent.leave(5.0, "SIGTERM"), 20)
        assert agent.asked == ["notice", "SIGTERM"]

    asyncio.run(run())
