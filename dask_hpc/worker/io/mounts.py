"""Which file system a path is on, and of what kind that is."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from pathlib import Path

from dask_hpc.checkpoint.store_threads import begin

#: Kinds of file systems that all nodes share, by what the system calls them; others are local.
_SHARED = {
    "lustre": "lustre", "nfs": "nfs", "nfs4": "nfs", "gpfs": "gpfs", "beegfs": "beegfs", "ceph": "ceph",
}  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")
#: What is open, what the system says of it, and the mounts by their numbers.
_OPEN_FILES, _SAID, _NUMBERED = "/proc/self/fd", "/proc/self/fdinfo", Path("/proc/self/mountinfo")
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
            kind, place = _told(fields[2], fields[1])
            point = Path(place)
            if folder.is_relative_to(point) and len(point.parts) >= len(found[1].parts):
                found = (kind, point)
    return found[0], str(found[1])


def mount_of_file(path: str) -> tuple[str, str] | None:
    """`mount_of` a file; None for what is no file of data (of /proc, or a device)."""
    if not path.startswith("/"):
        path = os.path.abspath(path)
    no_file = path.startswith(_NO_FILES) and not path.startswith(_FILES)
    return None if no_file else mount_of_folder(path[: path.rindex("/")] or "/")


def mount_of_folder(folder: str) -> tuple[str, str]:
    """`mount_of` an absolute folder, looked up once; `UNKNOWN` when its file system does not answer soon.

    The task that has used it is done by then, and would hang with a mount that began to only now.
    """
    if (found := _found.get(folder)) is not None:
        return found
    for other in [other for other, answer in list(_asked.items()) if answer.done()]:
        _asked.pop(other, None)
    if folder in _asked or len(_asked) >= _MOST_ASKED:
        return UNKNOWN
    answer = begin(mount_of, Path(folder))
    if not wait([answer], _SOON_S).done:
        _asked[folder] = answer
        return UNKNOWN
    if len(_found) >= _MOST_FOLDERS:
        _found.clear()
    found = _found[folder] = answer.result()
    return found


#: What was found of folders, so many at most; their file systems have so long to answer, in seconds.
_found: dict[str, tuple[str, str]] = {}
_MOST_FOLDERS, _SOON_S = 1024, 1.0
#: Those that have not answered: while there are so many no other is asked, as each keeps a thread of stores.
_asked: dict[str, Future[tuple[str, str]]] = {}
_MOST_ASKED = 2

_looked: tuple[float, tuple[str, str]] = (-_LOOK_AGAIN_S, UNKNOWN)


def mount_of_open_files() -> tuple[str, str]:
    """The one file system that the process has files open on; `UNKNOWN` when there is none, or several.

    For libraries that open files past Python. Looked up at most once a second.
    """
    global _looked
    now_s = time.monotonic()
    if now_s - _looked[0] >= _LOOK_AGAIN_S:
        numbers = {number for name in set(os.listdir(_OPEN_FILES)) - _STANDARD if (number := _number(name))}
        found = _numbered(numbers)
        _looked = (now_s, found.pop() if len(found) == 1 else UNKNOWN)
    return _looked[1]


def _number(name: str) -> str:
    """The number of the mount that an open file is on; empty: it is no file.

    No file system is asked: one that hangs would have whoever asks hang, too.
    """
    try:
        path, text = os.readlink(f"{_OPEN_FILES}/{name}"), Path(_SAID, name).read_text()
    except OSError:  # closed meanwhile
        return ""
    removed = path.endswith(" (deleted)")
    if removed or not path.startswith("/") or (path.startswith(_NO_FILES) and not path.startswith(_FILES)):
        return ""
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    folder = int(said.get("flags", "0"), 8) & os.O_DIRECTORY
    return "" if folder else said.get("mnt_id", "").strip()  # not every system tells


def _numbered(numbers: Collection[str]) -> set[tuple[str, str]]:
    """Kind and mount point of mounts; none where nobody says what is mounted."""
    try:
        text = _NUMBERED.read_text(encoding="utf-8", errors="replace") if numbers else ""
    except OSError:
        return set()
    found = set()
    for fields in (line.split() for line in text.splitlines()):
        if fields[0] in numbers:
            found.add(_told(fields[fields.index("-") + 1], fields[4]))
    return found


def _told(kind: str, point: str) -> tuple[str, str]:
    """Kind and mount point, from what the system calls them."""
    # the system writes a space in a name as \040
    return _SHARED.get(kind.removeprefix("fuse."), "local"), point.replace("\\040", " ")
