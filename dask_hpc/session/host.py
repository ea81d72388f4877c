"""A process's hold on the manager of its host, in the name of a session: there is no Dask worker.

The manager outlives the program by ``hpc.checkpoint.linger``. A run that is started again finds it by the
name of the session.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import os
import socket
import time
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil
from distributed import Security
from distributed.utils import get_ip

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.locks import close
from dask_hpc.config import Settings
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.left_behind import MANAGER, TARGET
from dask_hpc.worker.managers import listens_now, started, wanted

#: What the run that has the folder holds; it says which run that is.
_RUN = "session.lock"
#: Says which start of which kernel this is, and which of its networks.
_BOOT, _NETWORK = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"
#: A manager that was told to end has ended by then; how often one looks, in seconds.
_ENDS_S, _LOOK_S = 10.0, 0.02


class Host:
    """The hold; it begins at once.

    The manager answers those alone who are known by `security`, which is to be set before it is asked for.

    Parameters
    ----------
    name, word
        Of the session, and what tells this run of it from others.
    nearby
        Whether all processes of the run are on this host.

    Raises
    ------
    CheckpointError
        When another run of that name is on this host.
    WorkerError
        When the folder of the manager belongs to somebody else.
    """

    def __init__(self, name: str, word: str, settings: Settings, nearby: bool) -> None:
        self._name, self._settings = name, settings
        self.security = Security()
        self._address = "127.0.0.1" if nearby else reached_at()
        linger_s = settings.checkpoint_linger_s
        self._process = HostProcess(MANAGER, TARGET, f"session {name}", settings.node_host, linger_s)
        try:
            self._run: int | None = _only(self.folder / _RUN, word)
            self._by = os.getpid()
        except BaseException:
            self._process.stop()
            raise
        if self._run is None:
            self._process.stop()
            raise CheckpointError(
                f"another run of session {name!r} has its versions in the memory of this host: let it end, "
                "or give this session another name"
            )

    @property
    def folder(self) -> Path:
        """Folder of the manager."""
        return self._process.folder

    @property
    def domain(self) -> str:
        """Who fails together with this host."""
        return self._settings.node_domain or self._settings.node_host or self._address

    async def home(self) -> Home:
        """The manager, which listens where all processes of the run reach it; started if need be.

        Raises
        ------
        CheckpointError
            When none comes to listen.
        """
        secure, settings = bool(self.security.require_encryption), self._settings
        share = settings.checkpoint_host_memory
        told = wanted(secure, self._address, share, self.security, settings.node_host)
        said = listens_now(self._process)
        if said is not None and said.get("mark") != told["mark"]:
            # the run before was on one host alone, or this one is, or it had another key
            self._process.end()
            deadline_s = time.monotonic() + _ENDS_S
            while self._process.pid == said["pid"] and time.monotonic() < deadline_s:
                await asyncio.sleep(_LOOK_S)
        return Home(await started(self._process, told, f"session {self._name!r}"), str(self.folder))

    def now(self) -> Home | None:
        """The manager, if it listens now."""
        said = listens_now(self._process)
        return None if said is None else Home(str(said["address"]), str(self.folder))

    def is_gone(self) -> bool:
        """Whether somebody has removed the folder, with all that was there."""
        return not (self.folder / _RUN).exists()

    def stop(self) -> None:
        """Let go of it; it lingers with what it holds."""
        if self._run is not None:
            close(self._run, self._by)
            self._run = None
        self._process.stop()


def this_host() -> list[str]:
    """What is the same for all processes that reach each other by the loopback of a host, and for no others:
    hosts, or containers, may have the same name.
    """
    found = [socket.gethostname()]
    # neither is to be had everywhere
    with suppress(OSError):
        found.append(Path(_BOOT).read_text().strip())
    with suppress(OSError):
        found.append(os.readlink(_NETWORK))
    return found + _addresses()


def reached_at() -> str:
    """The address at which other hosts reach this one: that of the way to all others, as Dask has it.

    Where there is no such way, as in a network of its own, Dask goes by the name of the host, which may be
    none that is known, or one of the loopback.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found: str = get_ip()
    if not ipaddress.ip_address(found).is_loopback:
        return found
    up = {name for name, its in psutil.net_if_stats().items() if its.isup}
    return next(iter(_addresses(up)), found)


def _addresses(interfaces: Collection[str] | None = None) -> list[str]:
    """Addresses of these interfaces, or of all, at which other hosts may reach them; of IPv4 first."""
    every = [
        (one.family, one.address)
        for name, its in psutil.net_if_addrs().items()
        if interfaces is None or name in interfaces
        for one in its
    ]
    of = {
        family: [ipaddress.ip_address(address) for found, address in every if found == family]
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return [
        str(each)
        for found in of.values()
        for each in found
        if not each.is_loopback and not each.is_link_local
    ]


def _only(path: Path, word: str) -> int | None:
    """The lock of the one run that has a folder, shared by its processes; None when another run has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # who has it alone is about to say its word
            fcntl.flock(file, fcntl.LOCK_SH)
        else:
            os.ftruncate(file, 0)
            os.pwrite(file, word.encode(), 0)
            fcntl.flock(file, fcntl.LOCK_SH)
        if os.pread(file, 100, 0).decode() == word:
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None
