"""What the system has counted of a thread: bytes that went through its reads and writes.

Linux counts them by thread in ``/proc`` (``rchar`` and ``wchar``: proc(5)), whatever library has made the
call: files, HDF5, NetCDF; what the page cache answers, too. Not: files mapped into memory, and sockets.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter
from typing import Any, NamedTuple

from dask_hpc.worker.io.mounts import UNKNOWN, mount_of_file, mount_of_open_files

_THREAD = "/proc/thread-self/io"
_PROCESS = "/proc/self/io"
#: Below so many bytes a task is not taken to have waited for them.
FEW_BYTES = 4096
#: Files of a task whose places are looked up, the latest.
_MOST_FILES = 16


class Counts(NamedTuple):
    """Bytes read and written so far."""

    read: int
    write: int
    #: How many this look itself has read, which counts from now on.
    own: int


def counts(path: str = _THREAD) -> Counts:
    """What is counted of this thread, or of what `path` is about.

    Raises
    ------
    OSError
        Where the system does not tell.
    """
    return Counts(*_Open(path).look())


class _Open:
    """One of these files, open; it is closed with the last reference to it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)

    def look(self) -> tuple[int, int, int]:
        """The fields of `Counts`."""
        told = os.pread(self._file, 512, 0)
        words = told.split(None, 4)
        return int(words[1]), int(words[3]), len(told)

    def __del__(self) -> None:
        # there is none when it could not be opened
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)


def of_process() -> Counts:
    """What is counted of all threads of the process, also of those that have ended."""
    return counts(_PROCESS)


def of_thread(native_id: int) -> Counts:
    """What is counted of one thread of the process; nothing once it has ended."""
    try:
        return counts(f"/proc/self/task/{native_id}/io")
    except OSError:
        return Counts(0, 0, 0)


@dataclass(slots=True)
class Moved:
    """What one task has moved on its thread."""

    read: int = 0
    write: int = 0
    #: Seconds in which the thread did not compute for the task: it was in the system, or waited.
    waited_s: float = 0.0
    #: Seconds of them that metered stores have told of.
    metered_s: float = 0.0
    #: Kind and mount point of what it has read from and written to.
    read_from: tuple[str, str] = UNKNOWN
    written_to: tuple[str, str] = UNKNOWN
    #: Whether it was counted at all.
    counted: bool = False


#: What the task that executes here, or is being handed to a thread, moves; None: it is not counted.
MOVED: ContextVar[Moved | None] = ContextVar("hpc_moved", default=None)


class _Here(threading.local):
    """Of one thread that runs tasks: its counters, open as long as it lives, and what its task has opened."""

    look: Callable[[], tuple[int, int, int]] | None = None
    opened: deque[tuple[Any, ...]] | None = None


_here = _Here()
_listening = False


def listen() -> None:
    """Hear from now on which files tasks open, while `counted` runs them.

    What Python calls an audit hook: it stays for the life of the process.
    """
    global _listening
    if not _listening:
        _listening = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        opened = _here.opened
        if opened is not None and isinstance(arguments[0], str):
            opened.append(arguments)


def counted(function: Callable[[], Any], moved: Moved) -> Any:
    """Call a function on this thread; `moved` says then what it has moved.

    Raises
    ------
    Exception
        Whatever the function raises.
    """
    look = _here.look
    if look is None:
        try:
            look = _here.look = _Open(_THREAD).look
        except OSError:  # too many files are open
            return function()
    (read, written, own), began, used = look(), perf_counter(), getrusage(RUSAGE_THREAD).ru_utime
    opened: deque[tuple[Any, ...]] = deque(maxlen=_MOST_FILES)
    _here.opened = opened
    try:
        return function()
    finally:
        _here.opened = None
        read_after, written_after, _ = look()
        computed = getrusage(RUSAGE_THREAD).ru_utime - used
        moved.waited_s = max(0.0, perf_counter() - began - computed)
        moved.read = max(0, read_after - read - own)
        moved.write = written_after - written
        moved.counted = True
        # no failure of this is the task's: where it was stays unknown
        with suppress(OSError, ValueError):
            if moved.read:
                moved.read_from = _place(opened, writing=False)
            if moved.write:
                moved.written_to = _place(opened, writing=True)


def _place(opened: Sequence[tuple[Any, ...]], *, writing: bool) -> tuple[str, str]:
    """Where the latest file is that was opened for this; files that others opened: where all of them are."""
    for path, _, flags in reversed(opened):
        access = flags & os.O_ACCMODE
        fits = access != os.O_RDONLY if writing else access != os.O_WRONLY
        if fits and (found := mount_of_file(path)) is not None:
            return found
    return mount_of_open_files()
