"""The only place that reads a clock.

Everything else gets the time passed in, so that the same code runs live, in tests and simulated.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable


class Clock:
    """Seconds since it was made, on a clock that never goes back."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        #: Wall-clock time at which the clock was made, ISO 8601 with zone.
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self._start_s

    def at_s(self, epoch_s: float) -> float:
        """The same moment on this clock as `epoch_s` seconds since 1970 on the machine's clock of now."""
        return epoch_s - time.time() + self.now_s()


def stopwatch_s() -> float:
    """A reading of the finest clock there is; differences are durations in seconds."""
    return time.perf_counter()


def countdown(limit_s: float) -> Callable[[], float]:
    """Says how many of so many seconds from now on are left; below 0 when they are over."""
    end_s = stopwatch_s() + limit_s
    return lambda: end_s - stopwatch_s()


def epoch_s() -> float:
    """Seconds since 1970 on the machine's clock of now, which may be set: for what is told to users."""
    return time.time()


def local_time(epoch_s: float) -> str:
    """A moment as the machine's users write it, to the second."""
    return datetime.datetime.fromtimestamp(epoch_s).isoformat(sep=" ", timespec="seconds")
