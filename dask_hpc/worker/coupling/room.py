"""What a ring may take of the memory of its host and its worker: what is left, with nobody beside.

Several producers come at once, and the memory that one of them is about to reserve is left to nobody else.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from distributed.system import MEMORY_LIMIT

from dask_hpc.clock import stopwatch_s

#: Others have reserved what they need by then, in seconds; and how often it is tried until then.
_LOCK_S = 30.0
_LOOK_S = 0.01
#: Of its memory limit a worker holds no more than this once it has a ring, which Dask cannot move to disk:
#: analyses need some, and beyond 0.8 it takes no tasks, as long as the ring is there.
_OF_LIMIT = 0.5


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have the lock of a folder, with nobody beside; it leaves no file.

    Raises
    ------
    OSError
        When somebody else has it for too long, as anybody may who can read the folder.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until_s = stopwatch_s() + _LOCK_S
        while not _locked(lock):
            if stopwatch_s() >= until_s:
                raise OSError(f"{folder} has been locked by others for {_LOCK_S:g} s")
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def left_of_limit(worker: Any) -> float:
    """Bytes that a worker's memory limit leaves for a ring; the host's memory, where it has none.

    All that its process holds counts: the rings that it has are touched, so that they are part of that.
    """
    manager = worker.memory_manager
    limit = manager.memory_limit or MEMORY_LIMIT
    # where its user has Dask move data to disk, or pause, before that
    fractions = manager.memory_target_fraction, manager.memory_spill_fraction, manager.memory_pause_fraction
    share = min([_OF_LIMIT, *[float(one) for one in fractions if one]])
    return float(share * limit - worker.monitor.get_process_memory())


def left_bytes(mine: Path = Path("/proc/self/cgroup"), base: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this host has left, and each memory group that this process is in.

    Parameters
    ----------
    mine, base
        Where the kernel tells of the groups of this process, and of all groups, of either version.
    """
    left = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    try:
        lines = mine.read_text().splitlines()
    except OSError:
        return left
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = base / "memory" if kinds else base
        names = ("limit_in_bytes", "usage_in_bytes") if kinds else ("max", "current")
        group = top / path.strip("/")
        # a container may be told the path on its host, which it does not see: then its own is the topmost
        for each in (group, *group.parents):
            if each.is_relative_to(top):
                left = min(left, _left_of(each, *names, default=left))
    return left


def _left_of(group: Path, limit: str, used: str, default: int) -> int:
    """Limit of a group less what it uses; of that files that were read go when memory is needed."""
    try:
        most, now = (int((group / f"memory.{name}").read_text()) for name in (limit, used))
        told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # there is none, or it has no limit
        return default
    files = int(told.get("total_inactive_file", told.get("inactive_file", 0)))
    return max(0, most - now + files)
