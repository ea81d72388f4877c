"""Files within a folder, and never outside: each part of a path is opened on its own and no link is followed.

Paths come from manifests, which anybody may have edited.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_hpc.errors import CheckpointError

#: Bytes that are copied at once.
_PIECE = 4 * 2**20
#: What file systems say that have no further names for a file, or not as many.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS}
#: What they say whose folders cannot be made durable apart: names are as durable there as they make them.
_NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP}
#: What they say when there is no room, or no more may be had.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def wrong(error: OSError) -> str:
    """What is wrong with a folder that files were to be written to."""
    # it is made where there is none
    there = isinstance(error, FileExistsError)
    return "it is no folder: a file, or a link to nothing" if there else error.strerror or str(error)


def remedy(error: OSError, otherwise: str) -> str:
    """What to do when files cannot be written: `otherwise`, and where there is no room that is one, too."""
    room = f"free some space there (dask hpc checkpoint gc removes old versions), or {otherwise}"
    return room if error.errno in _NO_ROOM else otherwise


def no_memory(folder: object, error: OSError) -> str:
    """Why nothing can be written to the folder in the memory of a host, and what to do."""
    otherwise = "set hpc.node.memory-folder to a folder that can be written to"
    return f"{folder} cannot be written to: {wrong(error)}; {remedy(error, otherwise)}"


def parts(relative: str) -> list[str]:
    """The parts of a relative path.

    Raises
    ------
    CheckpointError
        When it could lead out of its folder.
    """
    found = relative.split("/")
    if not relative or "\0" in relative or any(part in ("", ".", "..") for part in found):
        raise CheckpointError(
            f"{relative[:200]!r} is no path within a checkpoint; allowed: names joined by /, none of them . "
            "or .."
        )
    return found


def open_inside(folder: str, relative: str, flags: int, *, make: bool = False) -> int:
    """A descriptor of a file below `folder`.

    Parameters
    ----------
    make
        Make folders on the way that are absent.

    Raises
    ------
    OSError
        When it cannot be opened, or is a link, or one of its folders is.
    CheckpointError
        When the path could lead out of the folder.
    """
    *folders, name = parts(relative)
    try:
        with _inner(folder, folders, make) as descriptor:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=descriptor)
    except OSError as error:
        error.filename = os.path.join(folder, relative)  # not the last part alone
        raise


def read_inside(folder: str, relative: str, most: int | None = None) -> bytes:
    """Content of a regular file below `folder`; `most` bytes and one more at most.

    Raises
    ------
    OSError
        When it cannot be read, is a link or no file, or one of its folders is a link.
    CheckpointError
        When the path could lead out of the folder.
    """
    # a pipe would have the reader wait for ever
    with open(open_inside(folder, relative, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{folder}/{relative} is not a file")
        return file.read(-1 if most is None else most + 1)


def write_inside(folder: str, relative: str, content: bytes) -> None:
    """Write a whole file below `folder`, and make its folders; its content is durable afterwards."""
    descriptor = open_inside(folder, relative, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, make=True)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_inside(folder: str, into: str, relative: str) -> None:
    """Copy a file below one folder to the same place below another; its content is durable afterwards.

    Holes stay holes, where the file system tells of them.
    """
    with (
        open(open_inside(folder, relative, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as source,
        open(open_inside(into, relative, os.O_WRONLY | os.O_CREAT | os.O_EXCL, make=True), "wb", 0) as copy,
    ):
        for start, stop in _filled(source.fileno()):
            source.seek(start)
            copy.seek(start)
            while (left := stop - source.tell()) > 0 and (piece := source.read(min(left, _PIECE))):
                write_all(copy.fileno(), piece)
        os.ftruncate(copy.fileno(), os.fstat(source.fileno()).st_size)
        os.fsync(copy.fileno())


def _filled(descriptor: int) -> Iterator[tuple[int, int]]:
    """Where a file has something, in order: from, to."""
    at, size = 0, os.fstat(descriptor).st_size
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole up to the end
            raise
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, at


def link_inside(folder: str, into: str, relative: str) -> None:
    """Give a file below one folder the same place below another; copied where there are no such links."""
    *folders, name = parts(relative)
    try:
        with _inner(folder, folders, make=False) as source, _inner(into, folders, make=True) as target:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy_inside(folder, into, relative)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content` at the place where the file is."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def rename(old: str, new: str) -> None:
    """Give a file or folder another name; raises OSError when that cannot be.

    On NFS the answer may be lost: who asks again is told that there is nothing of the old name.
    """
    found = os.lstat(old)
    try:
        os.rename(old, new)
    except FileNotFoundError:
        if not _is(new, found):
            raise


def _is(path: str, found: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(found, os.lstat(path))
    return False


def sync_folder(path: str) -> None:
    """Make the names in a folder durable; it may be reached by a link, as a store that its user names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_folders(top: str) -> None:
    """Make the names in a folder and all folders below it durable, the innermost first."""
    for path, _, _ in os.walk(top, topdown=False):
        sync_folder(path)


@contextmanager
def _inner(folder: str, folders: list[str], make: bool) -> Iterator[int]:
    # the folder itself may be reached by links: its user gave it
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folders:
            inner = _step(descriptor, name, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _step(descriptor: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another writer was faster
        os.mkdir(name, 0o755, dir_fd=descriptor)
    return os.open(name, _FOLDER, dir_fd=descriptor)
