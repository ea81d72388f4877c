"""Progress of several jobs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TextIO

from dask_hpc.terminal import progress_bar

#: What a bar and its counts take of a line.
_BAR_COLUMNS = 50
#: Seconds between lines when the stream is no terminal.
QUIET_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far one job is."""

    name: str
    state: str
    #: Nodes it holds; None when that means nothing.
    nodes: int | None
    done: int
    #: Tasks known so far.
    total: int
    #: Shown in place of the counts, for a job whose amount of work is not known.
    text: str = ""


class Tally:
    """Counts the tasks of a job from how many of them are unfinished, seen now and then."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def see(self, unfinished: int) -> None:
        """Take note of `unfinished` tasks; more of them than before are new ones."""
        self.total += max(0, unfinished - (self.total - self.done))
        self.done = self.total - unfinished


def describe(job: JobProgress) -> str:
    """State, size and work of one job in a few words."""
    size = f" on {job.nodes}" if job.nodes else ""
    far = f" {job.text}" if job.text else f" {job.done}/{job.total}" if job.total else ""
    return f"{job.name} {job.state}{size}{far}"


class ProgressDisplay:
    """Shows the latest progress on a stream.

    On a terminal it is a bar over all tasks that are known; elsewhere one line is written when a job changes
    its state or size, and otherwise every `QUIET_INTERVAL_S` seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._bar = ExitStack()
        self._show: Callable[..., None] | None = None
        self._last_s = -QUIET_INTERVAL_S
        self._last_states: Sequence[tuple[str, str, int | None]] = ()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._bar.close()
        self._show = None
        print(text, file=self._stream, flush=True)
        self._last_states = ()

    def show(self, now_s: float, jobs: Sequence[JobProgress]) -> None:
        """Show `jobs` as they are at `now_s` (seconds since the run began)."""
        told = " | ".join(map(describe, jobs)) or "nothing submitted"
        if self._terminal:
            if self._show is None:
                self._show = self._bar.enter_context(progress_bar("  tasks", self._stream, eta=False))
            assert self._show is not None
            # a line that wraps would break the redrawing
            room = max(0, shutil.get_terminal_size().columns - _BAR_COLUMNS)
            all = sum(job.total for job in jobs)
            self._show(sum(job.done for job in jobs), max(1, all), f"{now_s:.0f} s  {told}"[:room])
            return
        states = [(job.name, job.state, job.nodes) for job in jobs]
        if states == self._last_states and now_s - self._last_s < QUIET_INTERVAL_S:
            return
        self._last_s, self._last_states = now_s, states
        print(f"  {now_s:5.1f} s  {told}", file=self._stream, flush=True)
