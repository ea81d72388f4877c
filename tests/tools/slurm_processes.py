"""The processes of a private Slurm: waiting for them, finding them, ending them, and ports for them.

Run as a program it is a cluster's watcher: it waits until its input is closed, by intent or because the
process that started it has ended, and then ends what is left of the cluster in the folder that it is given.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

#: This file, to be run as a program.
WATCHER = __file__
#: How long daemons and jobs may take to come up, and to go.
START_S = 60.0
STOP_S = 10.0
#: Everything this cluster starts, and what that starts in turn, carries this variable.
MARK = "DASK_HPC_PRIVATE_SLURM"
#: Ports outside the range from which systems give ports to whoever asks for any.
PORTS = range(12_000, 32_000)


def poll(ask: Callable[[], T], what: str, timeout_s: float = START_S) -> T:
    """The first answer of `ask` that is true; fails with `what` when none comes in time."""
    end_s = time.monotonic() + timeout_s
    while not (answer := ask()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}; last answer {answer!r}")
        time.sleep(0.05)
    return answer


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
            if len(held) == count:
                break
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def processes(folder: Path) -> list[psutil.Process]:
    """All processes that run and belong to the cluster in `folder`."""
    return [process for process in psutil.process_iter() if _belongs(process, folder)]


def clear(folder: Path) -> None:
    """End all processes of the cluster in `folder` and remove it."""

    def none_left() -> bool:
        found = processes(folder)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return not found

    # nothing that they would write before they go is read again; a daemon may leave a job that it was just
    # starting, so look until there is nothing
    poll(none_left, "the processes of the cluster to end", STOP_S)
    shutil.rmtree(folder, ignore_errors=True)


def _belongs(process: psutil.Process, folder: Path) -> bool:
    home = Path("/proc", str(process.pid))
    try:
        if f"{MARK}={folder}\0".encode() in (home / "environ").read_bytes():
            return True
        # what keeps a job overwrites part of its environment with its title, but holds its log open
        held = (home / "fd").iterdir() if (home / "comm").read_text().startswith("slurm") else ()
        return any(os.readlink(one).startswith(f"{folder}/") for one in held)
    except OSError:  # it has ended, or is another user's
        return False


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clear(Path(sys.argv[1]))
