"""What the workers do in a run: results that can be checked, and a line for each time a task runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import dask
import numpy as np
from numpy.typing import NDArray

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


def derived(number: int, source: Values, notes: str) -> Values:
    """A result from another one; every run of it is noted in a file."""
    _note(notes, f"derived-{number}")
    return source + number


def host() -> str:
    """The host that this worker says it is on."""
    return str(dask.config.get("hpc.node.host", None) or socket.gethostname())


async def die() -> None:
    """End this process at once, as a failure would. A coroutine: nobody waits for its answer."""
    os.kill(os.getpid(), signal.SIGKILL)


async def stand_still(seconds: float) -> None:
    """Stop this process, and have it go on later."""
    script = f"import os, signal, time; time.sleep({seconds!r}); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _note(notes: str, text: str) -> None:
    # one write of a short line at the end of a file is whole, whoever else writes
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")
