"""Locks on folders, which end with the process that holds them.

On NFS and Lustre a lock on a folder is known on its own host alone, though the system says that it is locked;
one on a file is known to all hosts, where the file system is mounted with locks. So a version, which has a
manifest, is locked by that as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_hpc.checkpoint.manifest import FILE

#: What file systems say that have no locks; the last one: who may not write the file cannot exclude others.
_NONE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF}
#: What a file says that is not there, or not ours to open.
_CLOSED = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}


class Lock:
    """A lock on a folder and on its manifest, if it has one; without locks of the file system on nothing."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._by = os.getpid()

    @classmethod
    def take(cls, folder: str | os.PathLike[str]) -> Lock:
        """Wait for the lock; raises OSError when the folder cannot be opened, or goes meanwhile."""
        found = cls._opened(folder, fcntl.LOCK_EX)
        assert found is not None
        return found

    @classmethod
    def attempt(cls, folder: str | os.PathLike[str]) -> Lock | None:
        """The lock, or None when somebody else holds it; raises as `take`."""
        return cls._opened(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def shared(cls, folder: str | os.PathLike[str]) -> Lock | None:
        """A lock that several may hold at once, and nobody beside them, or None; raises as `take`."""
        return cls._opened(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let others have it."""
        while self._descriptors:
            close(self._descriptors.pop(), self._by)

    @classmethod
    def _opened(cls, folder: str | os.PathLike[str], how: int) -> Lock | None:
        lock = cls()
        try:
            for descriptor in _parts(folder, how):
                lock._descriptors.append(descriptor)
                _lock(descriptor, how)
            # who held it before may have removed it, or given it another name
            if not os.path.samestat(os.fstat(lock._descriptors[0]), os.lstat(folder)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(folder))
        except BlockingIOError:
            lock.release()
            return None
        except BaseException:
            lock.release()
            raise
        return lock

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def kept(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Have nobody remove a version that is read meanwhile, where it can be locked."""
    lock = None
    with suppress(OSError):
        lock = Lock.shared(folder)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def close(descriptor: int, by: int) -> None:
    """Let go of what process `by` has locked, also where one that was forked from it has it open, too.

    That one may close it as well: the lock stays then.
    """
    if by == os.getpid():
        with suppress(OSError):  # there may be no locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _parts(folder: str | os.PathLike[str], how: int) -> Iterator[int]:
    """Descriptors of what is to be locked, each opened when those before are locked."""
    common = os.O_NOFOLLOW | os.O_CLOEXEC
    yield os.open(folder, os.O_RDONLY | os.O_DIRECTORY | common)
    # between hosts only who may write a file can exclude others from it
    for mode in (os.O_RDONLY,) if how & fcntl.LOCK_SH else (os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(os.path.join(folder, FILE), mode | os.O_NONBLOCK | common)
        except OSError as error:
            if error.errno not in _CLOSED:
                raise
            continue
        yield descriptor
        return


def _lock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NONE:
            raise
