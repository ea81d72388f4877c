"""The trace file of one scheduler: opened, changed, written beside the loop, as its mount may hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from dask_hpc.checkpoint.store_threads import PATIENCE_S, begin, in_store, soon, wait_for
from dask_hpc.scheduler.internals import selfcheck
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.files import TraceFile, cannot_write

logger = logging.getLogger(__name__)


class Tracing:
    """Has what is recorded written to a file, when there is one.

    Parameters
    ----------
    spawn
        Runs a coroutine beside whatever is under way.
    """

    def __init__(
        self, state: State, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._state = state
        self._spawn = spawn
        self._file: TraceFile | None = None
        #: Held from `prepare` to `to`: who opens a file at a path moves what is there.
        self.changing = asyncio.Lock()
        #: What `prepare` has opened.
        self._prepared: TraceFile | None = None
        self._flushing: asyncio.Task[None] | None = None
        #: Called before it ends: what parts still have to record.
        self.last_words: list[Callable[[], None]] = []

    async def prepare(self, path: str | None) -> None:
        """Open the file that `to` will write to, while the loop goes on.

        Raises
        ------
        TraceError
            When the file cannot be written, or is not opened within `PATIENCE_S`.
        """
        if path is None or _is_at(self._file, path):
            return
        try:
            self._prepared = await soon(TraceFile, path, self.header())
        except TimeoutError as error:
            raise cannot_write(path, str(error)) from None

    def to(self, path: str | None) -> None:
        """Write to `path` from now on; None: to no file.

        Raises
        ------
        TraceError
            When the file cannot be written; what was there before goes on.
        """
        present = self._file
        prepared, self._prepared = self._prepared, None
        if path is None and present is None or _is_at(present, path):
            return
        if path is None:
            self._file = None
        else:
            self._file = prepared if _is_at(prepared, path) else self._opened(path)
        if present is not None:
            self._state.listeners.remove(present.add)
            self._flushing = None
            _end(present)
        if self._file is not None:
            self._state.listeners.append(self._file.add)

    def _opened(self, path: str) -> TraceFile:
        answer = begin(TraceFile, path, self.header())
        if not wait_for(answer, PATIENCE_S):
            raise cannot_write(path, f"it has not answered within {PATIENCE_S:g} s")
        return answer.result()

    def header(self) -> Any:
        """First record of this scheduler's trace."""
        return selfcheck.trace_header(self._state.clock.started)

    def tick(self, now_s: float) -> None:
        """Have what was recorded since the last tick written."""
        # one that hangs would keep one more thread each time
        if self._file is not None and (self._flushing is None or self._flushing.done()):
            self._flushing = self._spawn(_flush(self._file))

    async def flush(self) -> None:
        """Have everything on disk, unless that takes longer than `PATIENCE_S`."""
        if self._file is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await _flush(self._file)

    def close(self) -> None:
        """End the file."""
        try:
            for call in self.last_words:
                call()
        finally:
            if self._file is not None:
                _end(self._file)


def _is_at(file: TraceFile | None, path: str | None) -> bool:
    return file is not None and str(file.path) == path


async def _flush(file: TraceFile) -> None:
    # what comes meanwhile, too: nobody else writes it before the next tick
    while file.pending:
        await in_store(file.flush)


def _end(file: TraceFile) -> None:
    if not wait_for(begin(file.close), PATIENCE_S):
        text = "the end of the trace %s is not written: its file system has not answered within %g s"
        logger.error(text, file.path, PATIENCE_S)
