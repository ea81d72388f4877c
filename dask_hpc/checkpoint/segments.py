"""Segments: files in the memory of a host that hold the blocks of checkpoints one behind the other.

A segment is reserved before anything is written to it (a full memory file system would otherwise end the
writer by SIGBUS), and when nobody needs it any more its file is used again: pages that are there already take
a write three times as fast as new ones. It is known by a name that is drawn, so what has its name is it.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.names import is_pack
from dask_hpc.errors import CheckpointError

#: What names of files of segments end with, and of those that nobody needs.
_SUFFIX, _UNUSED = ".segment", ".unused"
#: A segment is used again for at least this share of its length.
_FITS = 0.5
#: What a refusal for lack of room says.
NO_ROOM = "or leave out L1 and L2 (levels=('L3',))"
#: Bytes that are written and summed while they are in the processor's cache.
_PIECE = 1 << 18
#: Files of a memory file system have whole pages.
_PAGE = 4096


def held_bytes(folder: str) -> int:
    """Bytes of segments in a folder that somebody needs."""
    found = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):
                    found += entry.stat(follow_symlinks=False).st_size
    return found


def segment_names(folder: str) -> list[str]:
    """Names of the segments in a folder that somebody needs."""
    return [path.name.removesuffix(_SUFFIX) for path in Path(folder).glob(f"*{_SUFFIX}")]


def segment_path(folder: str, name: str) -> str:
    """The file of a segment.

    Raises
    ------
    CheckpointError
        For a name that no segment has.
    """
    if not is_pack(name):
        raise CheckpointError(f"{name!r:.80} is no name of a segment; allowed: 32 hexadecimal digits")
    return os.path.join(folder, name + _SUFFIX)


def open_segment(folder: str, name: str, flags: int) -> int:
    """A descriptor of a segment.

    Raises
    ------
    OSError
        When it cannot be opened, or is no plain file of this user.
    """
    path = segment_path(folder, name)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(errno.EPERM, "it is no file of this user", path)
    return descriptor


def read_segment(folder: str, name: str, offset: int, into: np.ndarray) -> None:
    """Read bytes of a segment into memory.

    Raises
    ------
    OSError
        When it cannot be read.
    ValueError
        When it is not as long as that.
    """
    descriptor = open_segment(folder, name, os.O_RDONLY)
    try:
        _read(descriptor, name, offset, into)
    finally:
        os.close(descriptor)


def _read(descriptor: int, name: str, offset: int, into: np.ndarray) -> None:
    rest, at = into.data, offset
    while rest:
        count = os.preadv(descriptor, [rest], at)
        if not count:
            raise ValueError(f"segment {name} ends {len(rest)} bytes early")
        rest, at = rest[count:], at + count


def write_segment(descriptor: int, offset: int, parts: Iterable[memoryview]) -> int:
    """Write parts one behind the other from `offset` on; gives the checksum of all their bytes."""
    at, crc = offset, 0
    for part in parts:
        for start in range(0, len(part), _PIECE):
            rest = piece = part[start : start + _PIECE]
            while rest:
                count = os.pwrite(descriptor, rest, at)
                rest, at = rest[count:], at + count
            crc = crc32c(piece, crc)
    return crc


class Segments:
    """All segments in one folder: what is reserved, what is free to be used again. For one process.

    Parameters
    ----------
    folder
        On a memory file system, of this user alone. Segments that are there already are taken over.
    limit_bytes
        What all of them may take together.
    others
        Bytes that others have of that.
    """

    def __init__(self, folder: str, limit_bytes: int, others: Callable[[], int] = int) -> None:
        self._folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._others = others
        #: Bytes that each segment takes, and each file that nobody needs.
        self._sizes: dict[str, int] = {}
        self._unused: dict[Path, int] = {}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            self._sizes[path.name.removesuffix(_SUFFIX)] = path.lstat().st_size
        for path in self._folder.glob(f"*{_UNUSED}"):
            self._unused[path] = path.lstat().st_size
        # what is asked for comes from several threads
        self._turn = threading.Lock()

    def reserve(self, nbytes: int) -> str:
        """A segment of at least `nbytes`, whatever its content; gives its name.

        Raises
        ------
        CheckpointError
            When there is no room.
        """
        size = max(1, -(-nbytes // _PAGE)) * _PAGE
        name = uuid.uuid4().hex
        path = Path(segment_path(str(self._folder), name))
        with self._turn:
            fitting = [old for old, has in self._unused.items() if has * _FITS <= size <= has]
            if fitting:
                old = min(fitting, key=lambda each: self._unused[each])
                old.rename(path)
                self._sizes[name] = self._unused.pop(old)
                return name
            self._make_room(size)
            self._sizes[name] = size
        try:
            _allocate(path, size)
        except OSError as error:
            self._sizes.pop(name)
            raise CheckpointError(
                f"{self._folder} has no room for {size} bytes more: {error.strerror}; free some there, "
                f"set hpc.node.memory-folder to a folder with more, {NO_ROOM}"
            ) from None
        return name

    def names(self) -> list[str]:
        """All that are reserved."""
        with self._turn:
            return list(self._sizes)

    def drop(self, names: Collection[str]) -> None:
        """Nobody needs these any more; unknown ones are left alone."""
        with self._turn:
            for name in names:
                if name in self._sizes:
                    path = Path(segment_path(str(self._folder), name))
                    # whoever still knows its name must not find other bytes there
                    unused = path.rename(path.with_suffix(_UNUSED))
                    self._unused[unused] = self._sizes.pop(name)

    def shrink(self, name: str, nbytes: int) -> None:
        """Keep the first bytes of a segment alone; an unknown one is left alone."""
        with self._turn:
            if name in self._sizes:
                size = max(1, -(-nbytes // _PAGE)) * _PAGE
                os.truncate(segment_path(str(self._folder), name), size)
                self._sizes[name] = size

    def give_up(self, names: Collection[str]) -> None:
        """Nobody is to write to these any more; who still does writes to what nobody reads."""
        with self._turn:
            for name in names:
                if self._sizes.pop(name, None) is not None:
                    Path(segment_path(str(self._folder), name)).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        others = self._others()
        for path in sorted(self._unused, key=lambda each: self._unused[each]):
            if others + self._taken + size <= self.limit_bytes:
                break
            path.unlink(missing_ok=True)
            self._unused.pop(path)
        if (taken := others + self._taken) + size > self.limit_bytes:
            raise CheckpointError(
                f"checkpoints have {taken} of the {self.limit_bytes} bytes that they may have in this "
                f"host's memory, {size} more do not fit; raise hpc.checkpoint.host-memory, {NO_ROOM}"
            )

    @property
    def _taken(self) -> int:
        return sum(self._sizes.values()) + sum(self._unused.values())


def _allocate(path: Path, size: int) -> None:
    """Make a file all of whose bytes are there; none when they cannot be had."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
