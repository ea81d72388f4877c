"""Which file system a path is on, and of what kind that is."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path

#: Kinds of file systems that all nodes share, by what the system calls them; others are local.
_SHARED = {
    "lustre": "lustre", "nfs": "nfs", "nfs4": "nfs", "gpfs": "gpfs", "beegfs": "beegfs", "ceph": "ceph",
}  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")
_OPEN_FILES = "/proc/self/fd"
#: Where what is open is no file of anybody's data, and where in there it is.
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
_FILES = "/dev/shm/"
#: Open as long as the process is: what it is told and says, as into the file of a batch job.
_STANDARD = frozenset("012")
#: Whose file system is not known.
UNKNOWN = ("unknown", "files")
#: The files that the process has open are looked at anew after so long.
_LOOK_AGAIN_S = 1.0


def mount_of(folder: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Kind (lustre, nfs, gpfs, beegfs, ceph or local) and mount point of the file system of a folder.

    The folder need not be there yet. Where nobody says what is mounted: local, the root.
    """
    folder = Path(os.path.realpath(folder))
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "local", "/"
    found = ("local", Path("/"))
    for fields in (line.split() for line in lines):
        if len(fields) > 2:
            # the system writes a space in a name as \040
            point = Path(fields[1].replace("\\040", " "))
            if folder.is_relative_to(point) and len(point.parts) >= len(found[1].parts):
                found = (_SHARED.get(fields[2].removeprefix("fuse."), "local"), point)
    return found[0], str(found[1])


@lru_cache(maxsize=1024)
def mount_of_folder(folder: str) -> tuple[str, str]:
    """`mount_of` an absolute folder, looked up once."""
    return mount_of(Path(folder))


def mount_of_file(path: str) -> tuple[str, str] | None:
    """`mount_of` a file; None for what is no file of data (of /proc, or a device)."""
    if not path.startswith("/"):
        path = os.path.abspath(path)
    no_file = path.startswith(_NO_FILES) and not path.startswith(_FILES)
    return None if no_file else mount_of_folder(path[: path.rindex("/")] or "/")


_looked: tuple[float, tuple[str, str]] = (-_LOOK_AGAIN_S, UNKNOWN)


def mount_of_open_files() -> tuple[str, str]:
    """The one file system that the process has files open on; `UNKNOWN` when there is none, or several.

    For libraries that open files past Python. Looked up at most once a second.
    """
    global _looked
    now_s = time.monotonic()
    if now_s - _looked[0] >= _LOOK_AGAIN_S:
        found = set()
        for name in set(os.listdir(_OPEN_FILES)) - _STANDARD:
            try:
                path = os.readlink(f"{_OPEN_FILES}/{name}")
            except OSError:  # closed meanwhile
                continue
            if path.startswith("/") and not path.startswith(_NO_FILES) and os.path.isfile(path):
                found.add(mount_of_folder(os.path.dirname(path)))
        _looked = (now_s, found.pop() if len(found) == 1 else UNKNOWN)
    return _looked[1]
