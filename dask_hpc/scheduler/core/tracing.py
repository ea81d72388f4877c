"""The trace file of one scheduler: opened, changed, written beside the loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dask_hpc.scheduler.internals import selfcheck
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.files import TraceFile


class Tracing:
    """Has what is recorded written to a file, when there is one.

    Parameters
    ----------
    spawn
        Runs a coroutine beside whatever is under way.
    """

    def __init__(self, state: State, spawn: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        self._state = state
        self._spawn = spawn
        self._file: TraceFile | None = None
        #: Called before it ends: what parts still have to record.
        self.last_words: list[Callable[[], None]] = []

    def to(self, path: str | None) -> None:
        """Write to `path` from now on; None: to no file.

        Raises
        ------
        TraceError
            When the file cannot be written; what was there before goes on.
        """
        present = self._file
        if path == (None if present is None else str(present.path)):
            return
        self._file = None if path is None else TraceFile(path, self.header())
        if present is not None:
            self._state.listeners.remove(present.add)
            present.close()
        if self._file is not None:
            self._state.listeners.append(self._file.add)

    def header(self) -> Any:
        """First record of this scheduler's trace."""
        return selfcheck.trace_header(self._state.clock.started)

    def tick(self, now_s: float) -> None:
        """Have what was recorded since the last tick written."""
        if self._file is not None:
            self._spawn(self._file.flush())

    async def flush(self) -> None:
        """Have everything on disk."""
        if self._file is not None:
            await self._file.flush()

    def close(self) -> None:
        """End the file."""
        try:
            for call in self.last_words:
                call()
        finally:
            if self._file is not None:
                self._file.close()
