"""Has the corridor's program solved beside the scheduler's loop.

Rules of the file: the loop never waits. A question whose answer is not known is handed to a process of its
own; when the answer is there, whoever asked is told and asks again. Of questions that come while one is under
way the last alone counts. What has failed is asked again, after a while. Which nodes would better be off is a
question that need not be answered: that it failed says nothing of the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from dask_hpc.processes import Process, ProcessError
from dask_hpc.scheduler.power import solving
from dask_hpc_policies.power.problem import Problem
from dask_hpc_policies.power.program import Plan

logger = logging.getLogger(__name__)

#: Answers that are kept.
_KEPT = 200
#: It is tried again after a failure after that, at first and at most, in seconds.
_FIRST_WAIT_S, _MOST_WAIT_S = 2.0, 120.0
#: Processor seconds of one question, loading the solver included.
_CPU_S = 30.0
#: And seconds of the clock: one that hangs uses none of these, and without an answer nobody may start.
_WALL_S = 120.0
#: How much lower than the scheduler's its priority is.
_NICE = 1


class Planner:
    """Questions and answers.

    Parameters
    ----------
    answered
        Called on the loop when there is an answer that was asked for.
    """

    def __init__(self, answered: Callable[[], None]) -> None:
        self._answered = answered
        self._process = Process(_NICE)
        self._answers: dict[Problem, Plan] = {}
        self._wanted: Problem | None = None
        #: The question that was answered last, and its answer.
        self._last: tuple[Problem, Plan] | None = None
        self._closed = False
        #: Until when nothing is asked after a failure, and how long the next wait is.
        self._again: asyncio.TimerHandle | None = None
        self._wait_s = _FIRST_WAIT_S
        self._task: asyncio.Task[None] | None = None
        #: Why the last question has no answer; empty when it has one.
        self.failure = ""
        #: Why the last one about nodes to be off had none; empty once such ones may be asked again.
        self.off_failure = ""
        self._off_again: asyncio.TimerHandle | None = None
        #: Questions that were handed on.
        self.asked = 0

    def start(self) -> None:
        """Load the solver, before it is needed."""
        self._task = asyncio.get_running_loop().create_task(self._work(warm=True))

    def solve(self, problem: Problem) -> Plan | None:
        """The answer; None: it is not known (yet)."""
        # most questions are the last one again, and to compare two costs less than to look one up
        if self._last is None or self._last[0] != problem:
            found = self._answers.get(problem)
            self._last = None if found is None else (problem, found)
        if self._last is not None:
            return self._last[1]
        self._wanted = problem
        if self._again is None:
            self._ask()
        return None

    def _ask(self) -> None:
        self._again = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """End the process; nothing more is answered."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for timer in (self._again, self._off_again):
            if timer is not None:
                timer.cancel()
        self._process.close()

    async def _work(self, warm: bool = False) -> None:
        if warm:
            try:
                await self._call({})
            except ProcessError as error:
                if self._wanted is not None and not self._closed:
                    # the question is asked all the same: until then nobody is to wait for it
                    self._failed(str(error))
        while self._wanted is not None and not self._closed:
            problem, self._wanted = self._wanted, None
            self.asked += 1
            while len(self._answers) >= _KEPT:
                del self._answers[next(iter(self._answers))]
            try:
                found = await self._call(solving.asked(problem))
            except ProcessError as error:
                if self._closed:
                    return
                if problem.max_off_nodes:
                    self._off_failed(str(error))
                    continue
                self._wanted = self._wanted or problem
                self._again = asyncio.get_running_loop().call_later(self._wait_s, self._ask)
                self._wait_s = min(2 * self._wait_s, _MOST_WAIT_S)
                self._failed(str(error))
                return
            self._answers[problem] = solving.answer(found)
            self.failure, self._wait_s = "", _FIRST_WAIT_S
            self._answered()

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        return await asyncio.to_thread(
            self._process.call, solving.SOLVED, arguments, cpu_s=_CPU_S, wall_s=_WALL_S
        )

    def _failed(self, why: str) -> None:
        """Whoever asked hears of it; the log hears of the first one."""
        if not self.failure:
            logger.error("The corridor's program has no answer, and is tried again: %s", why)
        self.failure = why
        self._answered()

    def _off_failed(self, why: str) -> None:
        """No such question is asked for a while; those about the corridor go on."""
        logger.error("Which nodes would better be off is not known, and asked later: %s", why)
        self.off_failure = why
        self._off_again = asyncio.get_running_loop().call_later(_MOST_WAIT_S, self._ask_off_again)
        self._answered()

    def _ask_off_again(self) -> None:
        self.off_failure = ""
        self._answered()
