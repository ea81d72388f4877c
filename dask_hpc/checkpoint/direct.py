"""Writing and reading at aligned places, past the page cache where the file system lets it.

One pass: values are copied piece by piece into an aligned buffer, the checksum is taken while the piece is
still in the processor's cache, and the buffer goes to disk when it is full. Blocks that follow each other
share a buffer, so that small ones cost no write each. Values that lie aligned in memory go to disk from
there.

What is in memory itself (tmpfs) has large pages, where the system has some, and is written through a mapping:
the system's own copy goes from one small page to the next, and takes half as long again.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.layout import ALIGNMENT, pack_checksum

#: Bytes of a write, which are copied, summed and written while they are in the cache.
BUFFER = 2 * 2**20
_DIRECT = getattr(os, "O_DIRECT", 0)
#: What file systems say that do not know direct writing, or not so aligned.
_REFUSED = {errno.EINVAL, errno.EOPNOTSUPP}
#: Bytes of a large page, and those that are mapped at a time: they count as memory of the process.
_LARGE, _MAPPED = 2**21, 2**23
#: Linux has these since 5.14 and 6.1: what is there is mapped at once; small pages are made a large one.
_POPULATE_READ, _COLLAPSE = 22, 25
#: What the file system is called that is in memory.
_TMPFS = 0x01021994

_local = threading.local()


class Writer:
    """Writes payloads with their checksums to an open file, each from an aligned place on, filled with zeros.

    For one thread. `flush` must be called at the end; durable is what was written before `os.fdatasync`.

    Parameters
    ----------
    descriptor
        Open for writing.
    direct
        Write past the page cache when the file system takes that.
    """

    def __init__(self, descriptor: int, *, direct: bool = True) -> None:
        self._descriptor = descriptor
        self._buffer: memoryview = _buffer()
        #: Where the first byte of the buffer goes, and how many are in it.
        self._start, self._fill = 0, 0
        if direct:
            _set_direct(descriptor, True)

    def put(self, offset: int, payload: Iterable[memoryview], slot: int | None = None) -> tuple[int, int]:
        """Write a payload and its checksum at an aligned `offset`; gives its bytes and the checksum.

        Parameters
        ----------
        payload
            Its parts, which are contiguous bytes.
        slot
            Bytes that are taken; None: as many as alignment needs.
        """
        if self._start + self._fill != offset:
            self.flush()
            self._start = offset
        crc = length = 0
        for part in payload:
            crc = self._part(part, crc)
            length += len(part)
        self._add(memoryview(pack_checksum(crc)))
        taken = length + 4
        self._zeros((slot or -(-taken // ALIGNMENT) * ALIGNMENT) - taken)
        return length, crc

    def flush(self) -> None:
        """Write what is in the buffer."""
        if self._fill:
            self._write(self._buffer[: self._fill], self._start)
            self._start += self._fill
            self._fill = 0

    def _part(self, part: memoryview, crc: int) -> int:
        if len(part) >= BUFFER and _address(part) % ALIGNMENT == 0 and self._fill % ALIGNMENT == 0:
            self.flush()
            whole = len(part) // ALIGNMENT * ALIGNMENT
            for at in range(0, whole, BUFFER):
                piece = part[at : min(at + BUFFER, whole)]
                crc = crc32c(piece, crc)
                self._write(piece, self._start)
                self._start += len(piece)
            part = part[whole:]
        return self._add(part, crc)

    def _add(self, part: memoryview, crc: int = 0) -> int:
        at = 0
        while at < len(part):
            room = min(len(part) - at, BUFFER - self._fill)
            into = self._buffer[self._fill : self._fill + room]
            _copy(into, part[at : at + room])
            crc = crc32c(into, crc)
            self._advance(room)
            at += room
        return crc

    def _zeros(self, count: int) -> None:
        while count:
            room = min(count, BUFFER - self._fill)
            self._buffer[self._fill : self._fill + room] = bytes(room)
            self._advance(room)
            count -= room

    def _advance(self, count: int) -> None:
        self._fill += count
        if self._fill == BUFFER:
            self.flush()

    def _write(self, content: memoryview, offset: int) -> None:
        while content:
            try:
                done = os.pwrite(self._descriptor, content, offset)
            except OSError as error:
                if error.errno not in _REFUSED or not _set_direct(self._descriptor, False):
                    raise
                continue
            if not done:
                raise OSError(errno.EIO, "nothing was written")
            content, offset = content[done:], offset + done


class Window:
    """Writes to a file in memory, of which a part is mapped, which moves along it.

    For one thread. A file that is not in memory is written as any other.

    Parameters
    ----------
    descriptor
        Open for reading and writing; closed with it. All bytes of the file are there.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size if _is_in_memory(descriptor) else 0
        #: What is mapped: where that begins in the file, and in memory.
        self._begin = self._address = 0
        self._bytes = np.empty(0, np.uint8)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        os.close(self._descriptor)

    def write(self, content: memoryview, offset: int) -> None:
        """Write bytes at a place; raises OSError when that fails."""
        while content:
            count = self._copied(content, offset) or os.pwrite(self._descriptor, content, offset)
            content, offset = content[count:], offset + count

    def _copied(self, content: memoryview, offset: int) -> int:
        """How many bytes of a content were written through the mapping; 0: it cannot be mapped."""
        if not self._begin <= offset < self._begin + len(self._bytes) and not self._move(offset):
            return 0
        into = self._bytes[offset - self._begin :][: len(content)]
        np.copyto(into, np.frombuffer(content[: len(into)], np.uint8))
        return len(into)

    def _move(self, offset: int) -> bool:
        """Map what begins with the large page of a place; whether that can be."""
        self._leave()
        begin = offset // _LARGE * _LARGE
        size = min(_MAPPED, self._size - begin)
        if size > offset - begin and (address := _map(self._descriptor, begin, size)):
            memory = memoryview((ctypes.c_char * size).from_address(address))
            self._begin, self._address, self._bytes = begin, address, np.frombuffer(memory, np.uint8)
            # one by one pages would take longer than the system's own copy
            if not _system().madvise(address, size, _POPULATE_READ):
                return True
            self._leave()
        self._size = 0
        return False

    def _leave(self) -> None:
        if self._address:
            _system().munmap(self._address, len(self._bytes))
            self._address, self._bytes = 0, np.empty(0, np.uint8)


def reserve(descriptor: int, size: int) -> None:
    """Have all bytes of a new file there; raises OSError when they cannot be had."""
    whole, left = size // _LARGE * _LARGE, os.fstatvfs(descriptor)
    # without room for all of it nothing is to be taken from others, not for a moment either
    if whole and size <= left.f_bavail * left.f_frsize and _is_in_memory(descriptor):
        os.ftruncate(descriptor, size)
        # a large page is made where there is a small one
        for at in range(0, whole, _LARGE):
            os.pwrite(descriptor, b"\0", at)
        if address := _map(descriptor, 0, whole):
            # what cannot be large is small
            _system().madvise(address, whole, _COLLAPSE)
            _system().munmap(address, whole)
    os.posix_fallocate(descriptor, 0, size)


def _map(descriptor: int, begin: int, size: int) -> int:
    """Map bytes of a file, as its large pages lie; gives the address, 0: that cannot be."""
    hint = 0
    with (
        suppress(OSError),
        mmap.mmap(-1, size + _LARGE, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE, mmap.PROT_READ) as room,
    ):
        hint = -(-_address(memoryview(room)) // _LARGE) * _LARGE
    # that is free now; when another thread has taken it meanwhile, it lies anywhere
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    found: int = _system().mmap(hint, size, protection, flags, descriptor, begin)
    return 0 if found == ctypes.c_size_t(-1).value else found


def _is_in_memory(descriptor: int) -> bool:
    told = (ctypes.c_long * 64)()
    return not _system().fstatfs(descriptor, told) and told[0] == _TMPFS


@functools.cache
def _system() -> Any:
    """Calls of the system that Python has not, or not so."""
    found, number = ctypes.CDLL(None), ctypes.c_size_t
    found.mmap.restype = number
    found.mmap.argtypes = [number, number, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    found.munmap.argtypes = [number, number]
    found.madvise.argtypes = [number, number, ctypes.c_int]
    return found


def read_aligned(descriptor: int, offset: int, length: int) -> np.ndarray:
    """Bytes at a place of a file, in memory that is aligned and may be written to.

    Raises
    ------
    ValueError
        When the file ends before.
    """
    memory = np.empty(length + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    found = memory[begin : begin + length]
    into, at = found.data, offset
    while into:
        count = os.preadv(descriptor, [into], at)
        if not count:
            raise ValueError(f"the file ends {len(into)} bytes early")
        into, at = into[count:], at + count
    return found


def taken_by(folder: str) -> bool:
    """Whether files in a folder can be written past the page cache. Nothing stays behind.

    Raises
    ------
    OSError
        When nothing can be written there.
    """
    probe = os.path.join(folder, f".probe-{uuid.uuid4().hex}")
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if not _set_direct(descriptor, True):
            return False
        os.pwrite(descriptor, mmap.mmap(-1, ALIGNMENT), 0)
        return True
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    finally:
        os.close(descriptor)
        os.unlink(probe)


def _buffer() -> memoryview:
    """This thread's buffer: aligned, and made once, because its pages are slow the first time."""
    made: memoryview | None = getattr(_local, "buffer", None)
    if made is None:
        # private: processes that are forked later must not have the very same memory
        made = _local.buffer = memoryview(mmap.mmap(-1, BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return made


def _set_direct(descriptor: int, on: bool) -> bool:
    """Switch direct writing on or off; gives whether that changed something."""
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = before | _DIRECT if on else before & ~_DIRECT
    if wanted == before:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
    except OSError:
        return False
    return True


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).ctypes.data)


def _copy(into: memoryview, part: memoryview) -> None:
    # NumPy's copy lets other threads run, that of memoryview does not
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(part, np.uint8))


def as_parts(frames: Sequence[Any]) -> list[memoryview]:
    """Frames of any buffer type as contiguous bytes."""
    # one without a length in any dimension cannot be cast
    return [memoryview(frame).cast("B") for frame in frames if memoryview(frame).nbytes]
