"""Answers of solvers, fits and sweeps: looked for beside the scheduler's loop, held until the next ones come.

Rules of the file: nothing is computed here. A question is a JSON object for a function of an installed module
(`dask_hpc.processes`). While one is being answered the latest of those that come waits, earlier ones are
dropped; the last answer holds meanwhile. Policies see the answers in the picture that they decide on, so
that a recorded trace replays without a solver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.processes import Process, ProcessError
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.codec import encode

logger = logging.getLogger(__name__)

#: What answers are called in the picture.
SECTION = "answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of the last question that was answered."""

    question: Mapping[str, Any]
    #: None when it came to nothing; then `error` says why.
    result: Any = None
    error: str = ""
    #: When it was asked, on the runtime's clock, and how long the answer took.
    asked_s: float = 0.0
    took_s: float = 0.0


class Answers:
    """Questions under way and the answers that hold, by who asks.

    Parameters
    ----------
    came
        Called when an answer has come.
    """

    def __init__(self, state: State, came: Callable[[], None]) -> None:
        self._state = state
        self._came = came
        self._processes: dict[str, Process] = {}
        self._answers: dict[str, Answer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, tuple[str, Mapping[str, Any], float | None]] = {}

    def ask(self, who: str, function: str, question: Mapping[str, Any], cpu_s: float | None = None) -> None:
        """Have ``package.module:function`` answer a question within `cpu_s` seconds of processor time."""
        self._waiting[who] = (function, question, cpu_s)
        if who not in self._tasks:
            self._tasks[who] = asyncio.get_running_loop().create_task(self._work(who))

    def last(self, who: str) -> Answer | None:
        """The answer that holds; None before the first one."""
        return self._answers.get(who)

    def cancel(self, who: str) -> None:
        """Stop looking for an answer; the last one holds."""
        self._waiting.pop(who, None)
        if who in self._processes:
            self._processes[who].cancel()

    async def _work(self, who: str) -> None:
        try:
            while who in self._waiting:
                function, question, cpu_s = self._waiting.pop(who)
                process = self._processes.setdefault(who, Process(niceness=10))
                began_s, asked_s = stopwatch_s(), self._state.now_s()
                result, error = None, ""
                try:
                    result = await asyncio.to_thread(process.call, function, question, cpu_s=cpu_s)
                except ProcessError as failed:
                    error = str(failed)
                    logger.warning("No answer for %s: %s", who, error)
                took_s = stopwatch_s() - began_s
                if not error or who not in self._answers:
                    self._answers[who] = Answer(
                        question=question, result=result, error=error, asked_s=asked_s, took_s=took_s
                    )
                    self._came()
        finally:
            del self._tasks[who]

    def section(self) -> Mapping[str, Any]:
        """The answers that hold, by who asked."""
        found = {who: encode(answer) for who, answer in self._answers.items()}
        return {SECTION: found} if found else {}

    def unwrap(self) -> None:
        """End all processes."""
        self._waiting.clear()
        for process in self._processes.values():
            process.close()
        self._processes.clear()
