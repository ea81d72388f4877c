"""Work beside the kernel's loop, with progress and cancel.

Rules of the file: knows no widget. The work runs in a thread and says how far it is by a function that also
ends it when it was cancelled. What it came to is told in the loop from which it was started.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Least time between two reports of progress.
_PERIOD_S = 0.1
#: Longest that a piece of work keeps the interpreter from other threads that wait for it. Python's own 5 ms
#: add up: whatever the kernel sends a page lets go of it, ten messages so would take 50 ms.
_TURN_S = 0.001

#: Told the share that is done, 0 to 1.
Progress = Callable[[float], None]


class Cancelled(Exception):
    """The work was told to end."""


class _Turns:
    """Has threads take turns sooner while any work goes on, or anything is told a page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before_s = 0.0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Short turns inside, and those of before once nothing needs them."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_s, _TURN_S))
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    sys.setswitchinterval(self._before_s)


_turns = _Turns()


def shown_soon(function: Callable[..., Any], *arguments: Any) -> None:
    """Call what tells a page something, in the loop of the kernel: it comes to its turn again soon."""
    with _turns.short():
        function(*arguments)


class Work:
    """One piece of work.

    Parameters
    ----------
    function
        Called with a `Progress` that it should call often; what it returns or raises is the outcome.
    progress
        Called in the loop, at most ten times a second.
    done
        Called in the loop with the outcome, an exception among them; `Cancelled` when it was.

    Without a running loop the work is done at once, in this thread.
    """

    def __init__(
        self, function: Callable[[Progress], Any], progress: Progress, done: Callable[[Any], None]
    ) -> None:
        self._function = function
        self._progress = progress
        self._done = done
        self._cancelled = threading.Event()
        self._told_s = 0.0
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        if self._loop is None:
            done(self._outcome())
        else:
            threading.Thread(target=self._run, name="dask-hpc-simulation", daemon=True).start()

    def cancel(self) -> None:
        """End it soon; its outcome is `Cancelled`."""
        self._cancelled.set()

    def _run(self) -> None:
        with _turns.short():
            outcome = self._outcome()
        self._tell(self._done, outcome)

    def _outcome(self) -> Any:
        try:
            return self._function(self._step)
        except Cancelled as error:
            # its traceback would hold all that was made so far
            return error.with_traceback(None)
        except Exception as error:
            return error

    def _step(self, share: float) -> None:
        if self._cancelled.is_set():
            raise Cancelled("cancelled")
        now_s = time.monotonic()
        if now_s - self._told_s >= _PERIOD_S:
            self._told_s = now_s
            self._tell(self._progress, share)

    def _tell(self, function: Callable[[Any], None], value: Any) -> None:
        if self._loop is None:
            function(value)
            return
        try:
            self._loop.call_soon_threadsafe(shown_soon, function, value)
        except RuntimeError:
            self.cancel()  # the loop is closed: nobody is there to be told
