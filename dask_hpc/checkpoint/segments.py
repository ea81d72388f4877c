"""Segments: files in the memory of a host that hold the blocks of checkpoints one behind the other.

A segment is reserved before anything is written to it (a full memory file system would otherwise end the
writer by SIGBUS), and when nobody needs it any more its file is used again: pages that are there already take
a write three times as fast as new ones. It is known by a name that is drawn, so what has its name is it. What
the memory has no room for is on the host's disk (`dask_hpc.checkpoint.disk`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from dask_hpc.checkpoint import disk
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.direct import Window, reserve
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
    """Bytes of segments of a folder that somebody needs, those on the disk among them."""
    return _bytes_in(folder) + disk_bytes(folder)


def disk_bytes(folder: str) -> int:
    """Bytes of segments of a folder that somebody needs and that are on the disk."""
    other = disk.linked(Path(folder))
    return 0 if other is None else _bytes_in(str(other))


def _bytes_in(folder: str) -> int:
    found = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):
                    found += entry.stat(follow_symlinks=False).st_size
    return found


def segment_names(folder: str) -> list[str]:
    """Names of the segments of a folder that somebody needs."""
    return [path.name.removesuffix(_SUFFIX) for path in _files(Path(folder), _SUFFIX)]


def _files(folder: Path, suffix: str) -> list[Path]:
    other = disk.linked(folder)
    places = [folder] if other is None else [folder, other]
    return [path for place in places for path in place.glob(f"*{suffix}")]


def segment_path(folder: str, name: str) -> str:
    """The file of a segment: in the folder, or on the disk; in the folder when it is in neither.

    Raises
    ------
    CheckpointError
        For a name that no segment has.
    """
    if not is_pack(name):
        raise CheckpointError(f"{name!r:.80} is no name of a segment; allowed: 32 hexadecimal digits")
    path = os.path.join(folder, name + _SUFFIX)
    other = os.path.join(folder, disk.LINK, name + _SUFFIX)
    return other if not os.path.lexists(path) and os.path.lexists(other) else path


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


def write_piece(folder: str, name: str, offset: int, data: np.ndarray) -> None:
    """Write bytes of a segment; raises OSError when that fails.

    It is opened for that: a thread may still write when whoever asked has given up.
    """
    with opened(folder, name) as window:
        window.write(data.data, offset)


def opened(folder: str, name: str) -> Window:
    """A segment to be written; raises OSError as `open_segment`."""
    return Window(open_segment(folder, name, os.O_RDWR))


def write_segment(window: Window, offset: int, parts: Iterable[memoryview]) -> int:
    """Write parts one behind the other from `offset` on; gives the checksum of all their bytes."""
    at, crc = offset, 0
    for part in parts:
        for start in range(0, len(part), _PIECE):
            piece = part[start : start + _PIECE]
            crc = crc32c(piece, crc)
            window.write(piece, at)
            at += len(piece)
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
    base
        Where a folder is made for what the memory has no room for, on a disk; None: that is refused.
    spare_bytes
        What is left to others of the memory file system when there is a `base`.
    """

    def __init__(
        self,
        folder: str,
        limit_bytes: int,
        others: Callable[[], int] = int,
        base: str | None = None,
        spare_bytes: int = disk.SPARE_BYTES,
    ) -> None:
        self._folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._others = others
        self._base = None if base is None else Path(base)
        self._spare_bytes = spare_bytes
        #: Said when a segment was on the disk for the first time; whoever tells somebody clears it.
        self.note, self._noted = "", False
        #: The folder on the disk that is locked, as long as this is there.
        self._held: Path | None = None
        if (place := disk.linked(self._folder)) is not None:
            with suppress(OSError):
                self._hold(place)
        #: Bytes that each segment takes, and each file that nobody needs.
        self._sizes: dict[str, int] = {}
        self._unused: dict[Path, int] = {}
        for path in _files(self._folder, _SUFFIX):
            self._sizes[path.name.removesuffix(_SUFFIX)] = path.lstat().st_size
        for path in _files(self._folder, _UNUSED):
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
        with self._turn:
            if self._again(name, size, in_memory=True):
                return name
            fits = self._base is None or self._fits(self._folder, size, self._spare_bytes)
            if not fits and self._again(name, size, in_memory=False):
                return name
            self._make_room(size)
            self._sizes[name] = size
        try:
            self._allocated(name, size, fits)
        except OSError as error:
            self._sizes.pop(name)
            both = f"neither {self._folder} nor {self._base} has"
            nobody = f"{self._folder} has no" if self._base is None else both
            raise CheckpointError(
                f"{nobody} room for {size} bytes more: {error.strerror}; free some there, "
                f"set hpc.node.memory-folder to a folder with more, {NO_ROOM}"
            ) from None
        return name

    def _again(self, name: str, size: int, in_memory: bool) -> bool:
        """Use a file again that nobody needs; whether there is one, in memory or on the disk."""
        fitting = [
            (has, old)
            for old, has in self._unused.items()
            if has * _FITS <= size <= has and (old.parent == self._folder) == in_memory
        ]
        for has, old in sorted(fitting):
            del self._unused[old]
            with suppress(FileNotFoundError):  # somebody has removed it
                old.rename(old.with_name(name + _SUFFIX))
                self._sizes[name] = has
                return True
        return False

    def _fits(self, place: Path, size: int, spare_bytes: int) -> bool:
        """Whether memory or disk has room, for which files there that nobody needs go."""
        in_memory = place == self._folder
        unused = sorted(self._unused, key=lambda each: self._unused[each])
        for path in [path for path in unused if (path.parent == self._folder) == in_memory]:
            if disk.fits(place, size, spare_bytes):
                break
            path.unlink(missing_ok=True)
            self._unused.pop(path)
        return disk.fits(place, size, spare_bytes)

    def _allocated(self, name: str, size: int, fits: bool) -> None:
        """Make the file of a segment, in memory if that has room; raises OSError when there is none."""
        if fits:
            try:
                _allocate(self._folder / (name + _SUFFIX), size)
                return
            except OSError:
                # others may have taken it meanwhile
                if self._base is None:
                    raise
        assert self._base is not None
        with self._turn:
            place = disk.made(self._folder, self._base)
            self._hold(place)
            spare_bytes = disk.spare_on_disk(shutil.disk_usage(place).total)
            if not self._fits(place, size, spare_bytes):
                raise OSError(errno.ENOSPC, f"{spare_bytes} bytes of a disk are left to other programs")
        _allocate(place / (name + _SUFFIX), size)
        if not self._noted:
            self._noted = True
            self.note = (
                f"{self._folder.parent} has no room for {size} bytes more: what does not fit of the versions "
                f"in this host's memory is on its disk, in {place}; {disk.MORE}"
            )

    def _hold(self, place: Path) -> None:
        """Have the lock of the folder on the disk, by which others see that somebody needs it."""
        if place != self._held:
            weakref.finalize(self, os.close, disk.held(place))
            self._held = place

    @property
    def folder(self) -> Path:
        """Where they are, those on the disk apart."""
        return self._folder

    def names(self) -> list[str]:
        """All that are reserved."""
        with self._turn:
            return list(self._sizes)

    def drop(self, names: Collection[str]) -> None:
        """Nobody needs these any more; unknown ones are left alone."""
        with self._turn:
            for name in names:
                if name in self._sizes:
                    size, path = self._sizes.pop(name), Path(segment_path(str(self._folder), name))
                    # whoever still knows its name must not find other bytes there; one that somebody has
                    # removed takes no room
                    with suppress(FileNotFoundError):
                        self._unused[path.rename(path.with_suffix(_UNUSED))] = size

    def free(self) -> None:
        """Give back the room of what nobody needs: nobody comes soon to reserve it again."""
        with self._turn:
            while self._unused:
                self._unused.popitem()[0].unlink(missing_ok=True)

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
                if name in self._sizes:
                    # what cannot be removed takes its room still
                    Path(segment_path(str(self._folder), name)).unlink(missing_ok=True)
                    del self._sizes[name]

    def _make_room(self, size: int) -> None:
        others = self._others()
        for path in sorted(self._unused, key=lambda each: self._unused[each]):
            if others + self._taken + size <= self.limit_bytes:
                break
            path.unlink(missing_ok=True)
            self._unused.pop(path)
        if (taken := others + self._taken) + size > self.limit_bytes:
            theirs = f" ({others} of them those of other clusters and sessions)" * bool(others)
            raise CheckpointError(
                f"checkpoints have {taken} of the {self.limit_bytes} bytes that they may have in this "
                f"host's memory{theirs}, {size} more do not fit; raise hpc.checkpoint.host-memory, {NO_ROOM}"
            )

    @property
    def _taken(self) -> int:
        return sum(self._sizes.values()) + sum(self._unused.values())


def _allocate(path: Path, size: int) -> None:
    """Make a file all of whose bytes are there; none when they cannot be had."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        reserve(descriptor, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
