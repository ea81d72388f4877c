"""Where segments are that the memory of a host has no room for: a folder on its disk, of this user alone.

The folder of a manager in memory has a link to it, so that all who know that one find it; and it has a link
back, by which it is known for one that was left when its manager was killed or the machine started anew. A
program that does not see the memory of another one, in a container say, cannot follow that link. So the
manager has a lock in it besides, and what is locked is not taken for one that was left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask

#: What the links are called: in the folder in memory, and in that on the disk.
LINK, _BACK = "disk", "memory"
#: What the manager locks: a file, for on NFS a lock on a folder is known on its own host alone.
_LOCK = "manager.lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: So many bytes of a memory file system are left to other programs.
SPARE_BYTES = 8 * 2**20
#: File systems that are in memory.
_MEMORY = ("tmpfs", "ramfs", "rootfs")
#: What is to be done where the memory has no room.
MORE = (
    "give the container more (docker run --shm-size=2g), or set hpc.node.memory-folder to a folder with more"
)
#: Who makes one links it by then, in seconds.
_LINKED_S = 60.0


def local_folder() -> Path:
    """Where a host has such folders: in Dask's ``temporary-directory``, or that of the system.

    Managers of workers and of sessions make them there, and whoever removes those that were left looks there.
    A worker's ``--local-directory`` is not used: nobody but that worker knows it.
    """
    return Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir()).absolute()


def usable_folder() -> Path | None:
    """`local_folder`; None where that is in memory too, of which it would take what programs need."""
    folder = local_folder()
    return None if _in_memory(folder) else folder


def _in_memory(folder: Path) -> bool:
    """Whether a folder is on a memory file system, as far as the system tells."""
    with suppress(OSError):
        device = folder.stat().st_dev
        which = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == which:
                return source.split()[0] in _MEMORY
    return False


def spare_on_disk(total_bytes: int) -> int:
    """How many bytes of a disk that has so many are left to other programs."""
    return max(2**30, total_bytes // 20)


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
    (disk / _LOCK).touch(0o600)
    (disk / _BACK).symlink_to(folder)
    (folder / LINK).unlink(missing_ok=True)
    (folder / LINK).symlink_to(disk)
    return disk


def held(disk: Path) -> int:
    """A descriptor that shares the lock of a folder on the disk with others until it is closed.

    Without locks of the file system it has none; `left` then removes nothing there.

    Raises
    ------
    OSError
        When the folder is gone, or goes meanwhile.
    """
    lock = os.open(disk / _LOCK, _OPEN)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        # who had it before may have removed the folder
        os.stat(disk / _LOCK)
    except BaseException:
        os.close(lock)
        raise
    return lock


def remove(folder: Path) -> None:
    """Remove a folder in memory, and that on the disk."""
    if (disk := linked(folder)) is not None:
        shutil.rmtree(disk, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def left(base: Path, dry_run: bool = False) -> list[Path]:
    """Remove folders of this host below `base` that no manager and no folder in memory has; gives these.

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
                with _alone(disk):
                    found.append(disk)
                    if not dry_run:
                        shutil.rmtree(disk, ignore_errors=True)
    return found


@contextmanager
def _alone(disk: Path) -> Iterator[None]:
    """Have the lock of a folder with nobody beside; raises OSError when that cannot be."""
    try:
        lock = os.open(disk / _LOCK, _OPEN)
    except FileNotFoundError:
        yield  # its maker was killed before anybody could hold it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


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
