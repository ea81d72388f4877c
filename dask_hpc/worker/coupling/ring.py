"""A ring in the memory of a host: slots that a program fills and a worker reads, without a copy between them.

The worker has all its bytes reserved before anybody writes (a full memory file system would otherwise end
the writer by SIGBUS), and both sides touch every page before the first step. The file has no name: the
program opens it through the worker's descriptor, so that nothing is left of it when both are gone, however
they end. What the folder of this host's memory has no room for is in memory beside it.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import secrets
import stat
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_hpc.checkpoint.disk import fits
from dask_hpc.worker.coupling.room import alone, left_bytes
from dask_hpc.worker.host_process import memory_folder

#: Slots and blocks begin at whole pages.
_PAGE = 4096
#: Bytes at the beginning by which the program knows that it has opened this ring.
_TOKEN_BYTES = 16
#: The most that a ring takes of what is left of the host's memory.
_SHARE = 0.5


def paged(nbytes: int) -> int:
    """Bytes in whole pages."""
    return max(1, -(-nbytes // _PAGE)) * _PAGE


def _unlimited() -> float:
    return math.inf


def _check(size: int, allowed_bytes: Callable[[], float]) -> None:
    """Raise OSError as `Ring`: blocks that come over the connection can be moved to disk, a ring cannot."""
    left = left_bytes()
    if size > _SHARE * left:
        raise OSError(f"a ring takes {size:,} bytes; allowed: half of the {left:,} that are left here")
    if size > (most := allowed_bytes()):
        raise OSError(
            f"a ring takes {size:,} bytes; allowed: {max(0.0, most):,.0f} of its worker's memory limit; "
            "give it more memory (memory_limit)"
        )


def _reserved(folder: Path, size: int) -> int:
    """A descriptor of a file without a name that has all its memory; raises OSError as `Ring`."""
    try:
        if not fits(folder, size):
            raise OSError(errno.ENOSPC, f"{folder} has no room for a ring of {size:,} bytes")
        return _allocated(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), size)
    except OSError:
        # builds of Python for old systems have no other way
        if not hasattr(os, "memfd_create"):
            raise
    # the limit is that of the folder's file system, 64 MiB in most containers: there is memory. A file on
    # the disk would be written to that again and again
    return _allocated(os.memfd_create("dask-hpc-ring"), size)


def _allocated(descriptor: int, size: int) -> int:
    """A file all of whose bytes are there; closed when they cannot be had."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _Slot:
    """What arrays over one slot refer to: while any of them is there, so is this."""

    def __init__(self, ring: Ring, number: int) -> None:
        self.ring = ring
        address = ring.address + _PAGE + number * ring.slot_bytes
        self.__array_interface__ = {
            "shape": (ring.slot_bytes,), "typestr": "|u1", "data": (address, True), "version": 3,
        }  # fmt: skip


class Ring:
    """The worker's end.

    Parameters
    ----------
    slots, slot_bytes
        How many, and the bytes of each, which are rounded up to whole pages.
    allowed_bytes
        What its worker may hold beside what it holds already, asked with nobody beside (`left_of_limit`).

    Raises
    ------
    OSError
        When there is no room, it would take more than half of the memory that is left, or than its worker
        may hold, or this host has no such files.
    """

    def __init__(self, slots: int, slot_bytes: int, allowed_bytes: Callable[[], float] = _unlimited) -> None:
        self.slots, self.slot_bytes = slots, paged(slot_bytes)
        size = _PAGE + slots * self.slot_bytes
        folder = memory_folder()
        # what a ring beside this one is about to take is not left, and counts once its pages are touched
        with alone(folder):
            _check(size, allowed_bytes)
            self._descriptor = _reserved(folder, size)
            try:
                token = secrets.token_bytes(_TOKEN_BYTES)
                os.pwrite(self._descriptor, token, 0)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                self._bytes = np.frombuffer(mmap.mmap(self._descriptor, size, flags), np.uint8)
            except BaseException:
                os.close(self._descriptor)
                raise
        self.address: int = self._bytes.__array_interface__["data"][0]
        #: How the program finds it.
        self.told = {
            "process": os.getpid(), "descriptor": self._descriptor, "token": token, "size": size,
            "slots": slots, "slot_bytes": self.slot_bytes,
        }  # fmt: skip
        #: Slots to which no array refers any more, and the program has not been told so.
        self._free: deque[int] = deque()

    def opened(self) -> None:
        """The program has it, or will not: nobody else is to open it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def slot(self, number: int) -> np.ndarray:
        """The bytes of a slot, read-only; when nothing refers to them any more the slot is free."""
        if not 0 <= number < self.slots:
            raise ValueError(f"slot is {number}; allowed: 0 to {self.slots - 1}")
        base = _Slot(self, number)
        weakref.finalize(base, self._free.append, number).atexit = False
        return np.asarray(base)

    def freed(self) -> list[int]:
        """Slots that have become free since the last call."""
        found = []
        while self._free:
            found.append(self._free.popleft())
        return found


class RingEnd:
    """The program's end.

    Parameters
    ----------
    told
        What the worker has told (`Ring.told`).

    Raises
    ------
    OSError
        When it is on another host, or cannot be opened.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.slot_bytes: int = told["slot_bytes"]
        path = f"/proc/{int(told['process'])}/fd/{int(told['descriptor'])}"
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            # a process of that number on this host may be any
            there = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not there or found.st_size != told["size"] or found.st_nlink:
                raise OSError(f"{path} is not the ring")
            if os.pread(descriptor, _TOKEN_BYTES, 0) != told["token"]:
                raise OSError(f"{path} is another ring")
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._bytes = np.frombuffer(mmap.mmap(descriptor, found.st_size, flags), np.uint8)
        finally:
            os.close(descriptor)
        self.free: deque[int] = deque(range(told["slots"]))

    def put(self, number: int, blocks: Sequence[np.ndarray]) -> tuple[list[int], list[np.ndarray]]:
        """Copy blocks into a slot; gives their offsets in it, and the arrays that they are there."""
        offsets, copies, at = [], [], 0
        begin = _PAGE + number * self.slot_bytes
        for block in blocks:
            into = self._bytes[begin + at : begin + at + block.nbytes]
            copy = into.view(block.dtype).reshape(block.shape)
            np.copyto(copy, block)
            offsets.append(at)
            copies.append(copy)
            at += paged(block.nbytes)
        return offsets, copies


def needed_bytes(blocks: Sequence[np.ndarray]) -> int:
    """Bytes of a slot for these blocks."""
    return sum(paged(block.nbytes) for block in blocks)
