"""Where the managers of a scheduler are, as a small file in the store: for a scheduler that comes after it.

Workers of the next cluster find what was left on their own hosts. When it has none on these hosts, but the
same store, its scheduler finds the managers by this file.

Rules of the file: it lies in a folder of this user alone, is replaced as a whole, never unpickled, and
checked in full; it names managers, which are asked, and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.manifest import seal, unseal
from dask_hpc.checkpoint.record import check_home
from dask_hpc_policies.codec import decode, encode

logger = logging.getLogger(__name__)

#: Layout of what a file says; larger ones are not read.
SCHEMA = 1
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The managers of one scheduler."""

    #: Id of the scheduler, and where it listens.
    cluster: str
    scheduler: str
    homes: tuple[Home, ...]


def save(store: str, told: Whereabouts) -> None:
    """Have it in a store, in place of what it had of the same scheduler.

    Raises
    ------
    OSError
        When it cannot be written, or somebody else has made its folder.
    """
    folder = _folder(store)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} is not a folder of this user alone; have its owner remove it")
    written = folder / f".{uuid.uuid4().hex}"
    try:
        with written.open("xb") as file:
            file.write(seal(SCHEMA, encode(told)))
            file.flush()
            os.fsync(file.fileno())
        written.replace(_path(store, told.cluster))
    finally:
        written.unlink(missing_ok=True)


def load(store: str) -> list[Whereabouts]:
    """What schedulers of this user have in a store; what is no such file is passed over."""
    found, folder = [], _folder(store)
    with suppress(FileNotFoundError):
        if not _is_own(folder):
            return []
        for path in sorted(folder.glob("*.json")):
            try:
                found.append(_read(path))
            except (OSError, ValueError) as error:
                logger.warning("%s does not say where managers are: %s", path, error)
    return found


def forget(store: str, cluster: str) -> None:
    """There is nothing left of a scheduler."""
    with suppress(OSError):
        _path(store, cluster).unlink()


def _read(path: Path) -> Whereabouts:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        content = unseal(file.read(_MOST_BYTES), SCHEMA)["content"]
    told = decode(Whereabouts, content)
    for home in told.homes:
        check_home(home)
    return told


def _folder(store: str) -> Path:
    return Path(store) / f".managers-{os.geteuid()}"


def _path(store: str, cluster: str) -> Path:
    return _folder(store) / f"{hashlib.sha256(cluster.encode()).hexdigest()[:32]}.json"


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
