"""Progress of several jobs: live bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

BAR_WIDTH = 24
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
    #: Shown in place of the bar and the counts, for a job whose amount of work is not known.
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


def bar(done: int, total: int, width: int = BAR_WIDTH) -> str:
    """A bar of `width` characters, filled by the share of `total` that is done."""
    filled = width * done // total if total else 0
    return "#" * filled + "." * (width - filled)


def format_line(job: JobProgress) -> str:
    """One line about one job."""
    size = "" if job.nodes is None else f"{job.nodes} node{'s' if job.nodes != 1 else ''}"
    counts = f"{job.done}/{job.total}" if job.total else ""
    far = job.text or f"[{bar(job.done, job.total)}] {counts}"
    return f"  {job.name:<14} {job.state:<10} {size:<8} {far}"


class Progress:
    """Shows the latest progress on a stream.

    On a terminal the lines are redrawn in place; elsewhere one line is written when a job changes its
    state or size, and otherwise every `QUIET_INTERVAL_S` seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._drawn = 0
        self._last_s = -QUIET_INTERVAL_S
        self._last_states: Sequence[tuple[str, str, int | None]] = ()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._erase()
        print(text, file=self._stream, flush=True)
        self._last_states = ()

    def show(self, now_s: float, jobs: Sequence[JobProgress]) -> None:
        """Show `jobs` as they are at `now_s` (seconds since the run began)."""
        if self._terminal:
            # A line that wraps would break the redrawing.
            columns = shutil.get_terminal_size().columns - 1
            lines = [f"  {now_s:4.0f} s", *(format_line(job) for job in jobs)]
            self._erase()
            self._stream.write("".join(line[:columns] + "\n" for line in lines))
            self._stream.flush()
            self._drawn = len(lines)
            return
        states = [(job.name, job.state, job.nodes) for job in jobs]
        if states == self._last_states and now_s - self._last_s < QUIET_INTERVAL_S:
            return
        self._last_s, self._last_states = now_s, states
        parts = [
            f"{job.name} {job.state}"
            + (f" on {job.nodes}" if job.nodes else "")
            + (f" {job.text}" if job.text else f" {job.done}/{job.total}" if job.total else "")
            for job in jobs
        ]
        print(
            f"  {now_s:5.1f} s  " + (" | ".join(parts) or "nothing submitted"), file=self._stream, flush=True
        )

    def _erase(self) -> None:
        if self._drawn:
            # Up by the lines drawn, then clear to the end of the screen.
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0
