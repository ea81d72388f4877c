"""Folders of schedulers in a store: what is there for a while only, and goes with its scheduler.

A scheduler that is killed leaves its folder behind. Whoever has one locks it, and touches it now and then,
for where the file system has no locks between machines; so what nobody has locked and what did not change
for long belongs to nobody any more.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from contextlib import suppress
from pathlib import Path

from dask_hpc.checkpoint.locks import Lock

#: So often its owner has touched a folder that is in use, in seconds.
TOUCHED_S = 600.0
_NAME = re.compile(r"\.dask-hpc-[0-9a-f]{32}")


def drawn(directory: str) -> str:
    """A folder that nobody has, for one scheduler; it is not made. No name of a checkpoint begins so."""
    return os.path.join(directory, f".dask-hpc-{uuid.uuid4().hex}")


def in_store(folder: Path) -> list[str]:
    """Such folders in a store that this user has made, whoever uses them."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            if named and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                found.append(entry.path)
    return sorted(found)


class Owned:
    """The folders that this process uses; nobody collects them."""

    def __init__(self) -> None:
        self._locks: dict[str, Lock] = {}
        self._turn = threading.Lock()

    def have(self, folder: str) -> None:
        """This folder, which is there, is in use from now on; raises OSError when it cannot be opened."""
        with self._turn:
            if folder not in self._locks:
                # who collects has it for a moment
                self._locks[folder] = Lock.take(folder)

    def touch(self) -> None:
        """All of them are in use."""
        for folder in list(self._locks):
            with suppress(OSError):
                os.utime(folder)

    def let_go(self) -> None:
        """Of those that are not there any more, and have nothing to lock."""
        # threads of several departures may be here at once, or take one more
        for folder in [each for each in list(self._locks) if not os.path.lexists(each)]:
            if (lock := self._locks.pop(folder, None)) is not None:
                lock.release()
