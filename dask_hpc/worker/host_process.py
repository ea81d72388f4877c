"""One process a host that serves all workers of a cluster there and outlives each of them.

It is started by the first worker that has a use for it, and ends when no worker of its cluster has been on
the host for `linger_s`, when what it runs returns, or with the allocation (batch systems end every process of
it). What one cluster has left a worker of the next one may `take`. Who is there is told by the kernel: every
worker holds a shared lock on one file, which goes with its process however that ends; the process itself
holds another file's, so that there is one.

Rules of the file: what is run is named by our own code or a capability's, never by what comes from elsewhere;
the folder belongs to the user alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from dask_hpc.checkpoint import disk
from dask_hpc.checkpoint.locks import close
from dask_hpc.errors import WorkerError

#: Seconds without a worker after which a process ends: a worker that is started again finds it.
LINGER_S = 30.0
#: How often it looks, in seconds, and how long its function has to return once it is told to stop.
_LOOK_S = 0.5
_STOP_S = 10.0
#: What was left is for nobody after so long, at least, in seconds: whoever takes it over has come by then.
LEFT_S = 60.0
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_WORKERS = "workers.lock"


class HostProcess:
    """A worker's hold on the process of its host.

    Parameters
    ----------
    name
        What the process is called: lower-case letters, digits, hyphens.
    target
        ``package.module:function`` that it runs, with its folder and an event that tells it to stop.
    cluster, host
        Address of the scheduler, and the label of the host where one machine stands for several.
    linger_s
        Seconds without a worker after which it ends.

    Raises
    ------
    ValueError
        For a name that cannot be.
    WorkerError
        When the folder belongs to somebody else.
    """

    def __init__(
        self, name: str, target: str, cluster: str, host: str | None = None, linger_s: float = LINGER_S
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"name is {name!r}; allowed: up to 31 lower-case letters, digits and hyphens")
        self.name, self._target, self._linger_s = name, target, linger_s
        self.folder = _folder(cluster, host)
        self._here: int | None = join(self.folder)
        self._by = os.getpid()

    @classmethod
    def taken(cls, name: str, target: str, folder: Path, here: int, linger_s: float) -> Self:
        """The hold on a folder that another cluster has left; `here` is the lock that `take` gave."""
        made = cls.__new__(cls)
        made.name, made._target, made._linger_s = name, target, linger_s
        made.folder, made._here, made._by = folder, here, os.getpid()
        return made

    @property
    def pid(self) -> int | None:
        """Id of the process that runs now; None when none does."""
        path = self.folder / f"{self.name}.lock"
        if (free := _tried(path)) is not None:
            os.close(free)
            return None
        text = path.read_text()
        return int(text) if text.isdigit() else None

    def start(self) -> None:
        """Start the process and wait until it is one of its own; it may not hold its lock yet."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            # ends at once, and leaves a process that is not the worker's: see `main`
            subprocess.run(
                (
                    sys.executable,
                    "-m",
                    __name__,
                    str(self.folder),
                    self.name,
                    self._target,
                    repr(self._linger_s),
                ),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def end(self) -> None:
        """Have the process end now; what it has in files stays."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def stop(self) -> None:
        """Be a worker there no more."""
        if self._here is not None:
            close(self._here, self._by)
            self._here = None


def folders() -> list[Path]:
    """Folders of all clusters that this user has, or had, on this host."""
    found = []
    for path in sorted(memory_folder().glob(f"dask-hpc-{os.getuid()}-*")):
        with suppress(FileNotFoundError):
            if _is_own(path):
                found.append(path)
    return found


def occupied(folder: Path) -> bool:
    """Whether a worker is there.

    Raises
    ------
    FileNotFoundError
        When the folder is gone.
    """
    if (free := _tried(folder / _WORKERS)) is None:
        return True
    os.close(free)
    return False


def take(folder: Path, mine: Callable[[], bool]) -> int | None:
    """Be a worker in a folder that no worker is in; gives the lock that says so, None when one is there.

    Parameters
    ----------
    mine
        Whether it is to be so, and notes in the folder that it is; nobody else takes it meanwhile.

    Raises
    ------
    FileNotFoundError
        When the folder is gone.
    """
    if (here := _tried(folder / _WORKERS)) is None:
        return None
    try:
        if mine():
            fcntl.flock(here, fcntl.LOCK_SH)
            return here
    except BaseException:
        os.close(here)
        raise
    os.close(here)
    return None


def seen(folder: Path) -> None:
    """Note that a worker is there now."""
    os.utime(folder / _WORKERS)


def seen_s(folder: Path) -> float:
    """When a worker was there last, as far as somebody has looked, in seconds since the epoch."""
    return (folder / _WORKERS).stat().st_mtime


def collect(older_than_s: float, dry_run: bool = False) -> list[Path]:
    """Remove folders of this user in which no worker and no process has been for so long; gives these.

    A process that ends removes its own; this is for those that were killed. Whoever is alive holds a lock of
    its folder, also when it does not answer, so what somebody has is never touched. So do folders on the disk
    go that belong to none of these.

    Parameters
    ----------
    dry_run
        Remove nothing.
    """
    found = []
    for folder in folders():
        with suppress(FileNotFoundError):
            if time.time() - seen_s(folder) < older_than_s or (here := take(folder, lambda: True)) is None:
                continue
            free = [_tried(path) for path in folder.glob("*.lock") if path.name != _WORKERS]
            if None not in free:
                found.append(folder)
                if not dry_run:
                    disk.remove(folder)
            for lock in [here, *free]:
                if lock is not None:
                    os.close(lock)
    return [*found, *disk.left(disk.local_folder(), dry_run)]


def memory_folder() -> Path:
    """Where files in the memory of this host are."""
    # the process of a host needs no settings
    from dask_hpc.worker.node import node_settings

    wanted = node_settings().node_memory_folder
    if wanted is not None:
        # what is there is known by it, as one path
        return Path(os.path.abspath(wanted))
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _folder(cluster: str, host: str | None) -> Path:
    """The folder of a cluster on this host, for this user alone.

    Raises
    ------
    WorkerError
        When somebody else has made it.
    """
    which = hashlib.sha256(f"{cluster}\n{host or ''}".encode()).hexdigest()[:16]
    folder = memory_folder() / f"dask-hpc-{os.getuid()}-{which}"
    _made(folder)
    return folder


def _made(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise WorkerError(f"{folder} is not a folder of this user alone; have its owner remove it")


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def join(folder: Path) -> int:
    """Be one more worker in a folder; gives the lock that says so."""
    path = folder / _WORKERS
    while True:
        here = _locked(path, fcntl.LOCK_SH)
        # the last process may have removed the file while the lock was waited for
        with suppress(FileNotFoundError):
            if os.fstat(here).st_ino == path.stat().st_ino:
                return here
        os.close(here)
        _made(folder)


def _locked(path: Path, how: int) -> int:
    """A descriptor of the file, locked; raises `BlockingIOError` when it cannot be and is not waited for."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, how)
    except BaseException:
        os.close(file)
        raise
    return file


def _tried(path: Path) -> int | None:
    """The file locked for us alone; None when somebody holds it."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _watch(folder: Path, stop: threading.Event, linger_s: float) -> None:
    """Tell the process to stop once no worker has been there for `linger_s`, and see to it that it does."""
    seen_s = time.monotonic()
    while not stop.wait(min(_LOOK_S, linger_s / 4)):
        try:
            free = _tried(folder / _WORKERS)
        except OSError:
            break  # somebody has removed the folder: no worker finds this process any more
        if free is None:
            seen_s = time.monotonic()
        else:
            os.close(free)
            if time.monotonic() - seen_s >= linger_s:
                break
    stop.set()
    time.sleep(_STOP_S)
    os._exit(1)


def _mine(path: Path) -> int | None:
    """The lock that says that this is the process; None when there is one."""
    for _ in range(10):
        if (mine := _tried(path)) is not None:
            return mine
        time.sleep(0.05)  # somebody may only look whether it is free
    return None


def main(folder: str, name: str, target: str, linger_s: str) -> None:
    """Run `target` as the one process of that name, unless there is one; tidy up after the last worker."""
    if os.fork():
        # a child of a worker would be one that it has to wait for, and would get its signals
        os._exit(0)
    place = Path(folder)
    mine = _mine(place / f"{name}.lock")
    if mine is None:
        return
    os.ftruncate(mine, 0)
    os.write(mine, str(os.getpid()).encode())
    stop = threading.Event()
    threading.Thread(target=_watch, args=(place, stop, float(linger_s)), daemon=True).start()
    # of those that were killed, also of other clusters, nobody else may ever come to tidy up
    threading.Thread(target=collect, args=(max(LEFT_S, float(linger_s)),), daemon=True).start()
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)(place, stop)
    if _tried(place / _WORKERS) is not None:
        # nobody can join before this process has ended and let go of the lock
        disk.remove(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
