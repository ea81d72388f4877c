"""Locks on folders, which end with the process that holds them."""

from __future__ import annotations

import errno
import fcntl
import os

#: What file systems say that have no locks.
_NONE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """A lock on a folder; where its file system has none, it holds nothing."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: str | os.PathLike[str]) -> Lock:
        """Wait for the lock; raises OSError when the folder cannot be opened."""
        found = cls._opened(folder, fcntl.LOCK_EX)
        assert found is not None
        return found

    @classmethod
    def attempt(cls, folder: str | os.PathLike[str]) -> Lock | None:
        """The lock, or None when somebody else holds it; raises OSError when the folder cannot be opened."""
        return cls._opened(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def shared(cls, folder: str | os.PathLike[str]) -> Lock | None:
        """A lock that several may hold at once, and nobody beside them, or None; raises as `attempt`."""
        return cls._opened(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @classmethod
    def _opened(cls, folder: str | os.PathLike[str], how: int) -> Lock | None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder, flags)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _NONE:
                os.close(descriptor)
                raise
        return cls(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
