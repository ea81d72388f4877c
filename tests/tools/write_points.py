"""Every call by which a process changes files: counted, cut short and killed at, or listed.

Nothing is simulated: the calls of `os` are wrapped where they are looked up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

CHANGES = (
    "mkdir", "open", "write", "pwrite", "posix_fallocate", "ftruncate", "truncate", "fsync", "fdatasync",
    "rename", "replace", "link", "unlink", "rmdir", "close",
)  # fmt: skip


@dataclass
class Points:
    """Wraps the calls.

    Parameters
    ----------
    last
        At the call of this number the process is killed, in the middle of what it writes; 0: never.
    others
        Gives processes that are killed with it, before it.
    """

    last: int = 0
    others: Callable[[], Iterable[int]] = tuple
    count: int = 0
    #: Name of the call and the path it was about, in order.
    done: list[tuple[str, str]] = field(default_factory=list)

    def wrap(self) -> Points:
        """Wrap the calls of this process for good."""
        for name in CHANGES:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        return self

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if name == "close" or name == "open" and not arguments[1] & os.O_CREAT:
                return call(*arguments, **named)
            self.count += 1
            path = _path(arguments[0], named)
            if self.count == self.last:
                if name in ("write", "pwrite"):
                    half = len(arguments[1]) // 2 // 4096 * 4096 or len(arguments[1]) // 2
                    call(arguments[0], arguments[1][:half], *arguments[2:])
                for process in [*self.others(), os.getpid()]:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            found = call(*arguments, **named)
            self.done.append((name, path))
            return found

        return wrapped


def _path(about: Any, named: dict[str, Any]) -> str:
    if isinstance(about, int):
        return os.readlink(f"/proc/self/fd/{about}")
    if "dir_fd" in named and named["dir_fd"] is not None:
        return os.path.join(os.readlink(f"/proc/self/fd/{named['dir_fd']}"), about)
    return os.fspath(about)
