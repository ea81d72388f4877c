"""What the workers do in a run: results that can be checked, and a line for each time a task runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc.errors import WorkerError
from dask_hpc.worker.host_memory import manager_folder
from dask_hpc.worker.managers import listening
from dask_hpc.worker.node import node_settings

#: Results of a version of a cluster that is killed.
BLOCKS = 8
Values = NDArray[np.float64]


def values(number: int, elements: int) -> Values:
    """The values of a number: no two numbers share one."""
    return np.arange(elements, dtype=float) + number * 1e9


def computed(number: int, elements: int, notes: str) -> Values:
    """A result from nothing; every run of it is noted in a file."""
    _note(notes, f"computed-{number}")
    time.sleep(0.01)
    return values(number, elements)


def slowly(number: int, elements: int) -> Values:
    """The values of a number, after a moment."""
    time.sleep(0.05)
    return values(number, elements)


def told(found: Sequence[Values]) -> list[tuple[int, int, bool]]:
    """Version and block of each of the values of a cluster that was killed, and whether they are right."""
    numbers = [round(float(each[0]) / 1e9) for each in found]
    return [
        (number // 100, number % 100, bool(np.array_equal(each, values(number, len(each)))))
        for number, each in zip(numbers, found, strict=True)
    ]


def derived(number: int, source: Values, notes: str) -> Values:
    """A result from another one; every run of it is noted in a file."""
    _note(notes, f"derived-{number}")
    return source + number


def passed(source: Values) -> Values:
    """What it is given, as a result of its own."""
    return source + 0.0


class Source:
    """An actor that has the values of a number."""

    def __init__(self, number: int, elements: int) -> None:
        self._values = values(number, elements)

    def tell(self) -> Values:
        """Its values."""
        return self._values


def asked(number: int, source: Any, notes: str) -> Values:
    """A result from what an actor tells; every run of it is noted in a file."""
    return derived(number, source.tell().result(), notes)


def host() -> str:
    """The host that this worker says it is on."""
    return node_settings().node_host or socket.gethostname()


async def end_manager(dask_worker: Any, memory: bool) -> None:
    """End the manager of this host at once, with all that is in the host's memory or not."""
    folder = _folder(dask_worker)
    if folder is None:
        return
    with suppress(OSError, ValueError):
        os.kill(listening(folder)["pid"], signal.SIGKILL)
    if memory:
        shutil.rmtree(folder, ignore_errors=True)


async def die() -> None:
    """End this process at once, as a failure would. A coroutine: nobody waits for its answer."""
    os.kill(os.getpid(), signal.SIGKILL)


async def die_while_writing(calls: int) -> None:
    """End this process in the middle of what it writes next: at so many calls to the file system."""
    write, left = os.pwrite, iter(range(calls))

    def last(descriptor: int, data: Any, offset: int) -> int:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, offset)

    os.pwrite = last


async def stand_still(seconds: float, worker: bool, manager: bool, dask_worker: Any) -> None:
    """Stop this process or not, and the manager of its host or not, and have them go on later."""
    stopped = [os.getpid()] if worker else []
    if manager and (folder := _folder(dask_worker)) is not None:
        with suppress(OSError, ValueError):
            stopped.insert(0, listening(folder)["pid"])
    for process in stopped:
        # one of them may be killed meanwhile
        command = ["sh", "-c", f"sleep {seconds:g}; kill -CONT {process}"]
        subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    for process in stopped:
        os.kill(process, signal.SIGSTOP)


def _folder(worker: Any) -> Path | None:
    """Folder of the manager of a worker's host; None also of one that has come a moment ago."""
    try:
        return manager_folder(worker)
    except WorkerError:
        return None


def _note(notes: str, text: str) -> None:
    # one write of a short line at the end of a file is whole, whoever else writes
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")
