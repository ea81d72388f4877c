"""Where segments are that the memory of a host has no room for: a folder on its disk, of this user alone.

The folder of a manager in memory has a link to it, so that all who know that one find it; and it has a link
back, by which it is known for one that was left when its manager was killed or the machine started anew.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import dask

#: What the links are called: in the folder in memory, and in that on the disk.
LINK, _BACK = "disk", "memory"
#: So many bytes of a memory file system are left to other programs.
SPARE_BYTES = 8 * 2**20
#: What is to be done where the memory has no room.
MORE = (
    "give the container more (docker run --shm-size=2g), or set hpc.node.memory-folder to a folder with more"
)
#: Who makes one links it by then, in seconds.
_LINKED_S = 60.0


def local_folder() -> Path:
    """Where a host has its temporary files: Dask's ``temporary-directory``, or the system's."""
    return Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir())


def fits(folder: Path, nbytes: int, spare_bytes: int = SPARE_BYTES) -> bool:
    """Whether the file system of a folder has so many bytes, and leaves `spare_bytes` to others."""
    found = os.statvfs(folder)
    # one without a limit says that it has no blocks
    return not found.f_blocks or nbytes + spare_bytes <= found.f_bavail * found.f_frsize


def linked(folder: Path) -> Path | None:
    """The folder on the disk of a folder in memory; None: there is none of this user alone."""
    with suppress(OSError):
        disk = Path(os.readlink(folder / LINK))
        if disk.name.startswith(_prefix()) and _is_own(disk):
            return disk
    return None


def made(folder: Path, base: Path) -> Path:
    """The folder on the disk of a folder in memory, made below `base` if need be.

    What was left there is removed first.

    Raises
    ------
    OSError
        When there cannot be one.
    """
    if (disk := linked(folder)) is not None:
        return disk
    left(base)
    disk = Path(tempfile.mkdtemp(prefix=_prefix(), dir=base))
    (disk / _BACK).symlink_to(folder)
    (folder / LINK).unlink(missing_ok=True)
    (folder / LINK).symlink_to(disk)
    return disk


def remove(folder: Path) -> None:
    """Remove a folder in memory, and that on the disk."""
    if (disk := linked(folder)) is not None:
        shutil.rmtree(disk, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def left(base: Path, dry_run: bool = False) -> list[Path]:
    """Remove folders of this host below `base` that no folder in memory has; gives these.

    Parameters
    ----------
    dry_run
        Remove nothing.
    """
    found = []
    for disk in sorted(base.glob(f"{_prefix()}*")):
        with suppress(OSError):
            since_s = time.time() - disk.lstat().st_mtime
            if _is_own(disk) and since_s >= _LINKED_S and linked(_back(disk)) != disk:
                found.append(disk)
                if not dry_run:
                    shutil.rmtree(disk, ignore_errors=True)
    return found


def _back(disk: Path) -> Path:
    try:
        return Path(os.readlink(disk / _BACK))
    except FileNotFoundError:
        return disk  # its maker was killed in between


def _prefix() -> str:
    # several hosts may have their temporary files in one place
    return f"dask-hpc-disk-{os.getuid()}-{socket.gethostname()}-"


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
