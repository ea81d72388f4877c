"""Starting the manager of a host, and finding where it listens: for workers, and for programs without any."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed.comm import unparse_host_port
from distributed.system import MEMORY_LIMIT

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.disk import SPARE_BYTES, usable_folder
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import ManagerSilentError, ask, hangs, is_open, listens, patience
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.manager import LISTENS, SECURITY, WANTED

logger = logging.getLogger("distributed.dask_hpc.managers")

#: A manager listens by then, in seconds; how often one looks.
_STARTS_S, _LOOK_S = 30.0, 0.02
#: One that was started and does not run is started anew, in seconds.
_AGAIN_S = 3.0
#: One that was killed and does not come up is tried again after that, twice that and so on, in seconds.
_REVIVED_S, _REVIVED_MOST_S = 10.0, 300.0
_TURN = "revive.lock"


def wanted(secure: bool, host: str, share: float, security: Any, label: str | None) -> dict[str, Any]:
    """What a manager is told when it is started.

    Parameters
    ----------
    host
        The address of this host at which it listens.
    share
        What checkpoints may have of the memory of the host.
    security
        The `distributed.Security` of those who ask it.
    label
        Of this host, where one machine stands for several.
    """
    fields = {name: getattr(security, name, None) for name in SECURITY}
    least = getattr(security, "tls_min_version", None)
    asked = {
        "protocol": "tls" if secure else "tcp",
        # as it is part of an address: in brackets where it is of IPv6
        "host": unparse_host_port(host),
        "security": {**fields, "tls_min_version": None if least is None else int(least)},
    }
    # who finds one that runs knows by it whether it listens as it should
    mark = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    more = {"limit_bytes": int(share * MEMORY_LIMIT), "label": label or "", "patience": asdict(patience())}
    base = usable_folder()
    return {**asked, **more, "base": base and str(base), "spare_bytes": SPARE_BYTES, "mark": mark}


async def started(process: HostProcess, told: Mapping[str, Any], who: str) -> str:
    """Where the manager listens; it is started if need be, and told that then.

    Raises
    ------
    CheckpointError
        When none comes to listen on the host of `who`.
    """
    deadline_s = time.monotonic() + _STARTS_S
    started_s = -_AGAIN_S
    while (said := listens_now(process)) is None:
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise CheckpointError(
                f"no manager has come up within {_STARTS_S:g} s on the host of {who}; see manager.log in "
                f"{process.folder}"
            )
        if process.pid is None and now_s - started_s > _AGAIN_S:
            started_s = now_s
            _write(process.folder, told)
            await asyncio.to_thread(process.start)
        await asyncio.sleep(_LOOK_S)
    return str(said["address"])


@contextmanager
def in_turn(folder: Path) -> Iterator[bool]:
    """Whether it is up to us to start a manager that was killed; what is done then raises when it fails.

    Of all workers of a host one does at a time. After each failure all of them wait twice as long as before,
    for one that cannot come up: whoever is there keeps its folder.

    Raises
    ------
    OSError
        When the folder is gone.
    """
    file = os.open(folder / _TURN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # whoever has failed last says how long all wait since then; what cannot be read says nothing
        said = os.pread(file, 20, 0)
        wait_s = float(said) if said.replace(b".", b"", 1).isdigit() else 0.0
        if 0 <= time.time() - os.fstat(file).st_mtime < wait_s:
            yield False
            return
        try:
            yield True
        except (CheckpointError, OSError):
            wait_s = min(max(_REVIVED_S, 2 * wait_s), _REVIVED_MOST_S)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{wait_s:g}".encode(), 0)
            raise
        os.ftruncate(file, 0)
    finally:
        os.close(file)


async def reserved(
    pool: Any,
    home: Callable[[], Awaitable[Home]],
    nbytes: int,
    version: str = "",
    ended: Sequence[str] = (),
) -> tuple[Home, str]:
    """Room for so many bytes: the manager that has it, and the name of the segment.

    Parameters
    ----------
    home
        Gives the manager of this host, which listens.
    version
        What it is for: it goes with that, also when nobody has heard of it. Empty: nobody says.
    ended
        Versions that nobody needs; what their records name is told otherwise.

    Raises
    ------
    OSError
        When it does not answer.
    CheckpointError
        When there is none, or no room, or the version is given up.
    """
    began_s = time.monotonic()
    while True:
        where = await home()
        try:
            answer = await ask(pool, where.address, "reserve", nbytes=nbytes, version=version, ended=ended)
            if note := answer.get("note"):
                logger.warning("Memory of this host: %s", note)
            return where, answer["segment"]
        except ManagerSilentError:
            raise
        except OSError:
            waited_s = time.monotonic() - began_s
            # who has no connection yet, and hangs, takes one and says nothing; one that is gone takes none
            if waited_s >= patience().silence_s and await is_open(where.address):
                raise hangs(where.address) from None
            # one that was killed a moment ago seems to be there until it is gone
            if waited_s > _STARTS_S:
                raise
            listens(where.address)
            await asyncio.sleep(_LOOK_S)


def listens_now(process: HostProcess) -> dict[str, Any] | None:
    """Address, process and mark (`wanted`) of the manager that runs now."""
    try:
        said = listening(process.folder)
    except (OSError, ValueError):
        return None
    return said if said.get("pid") == process.pid else None


def listening(folder: Path) -> dict[str, Any]:
    """Address and process of the manager that was the last to listen.

    Raises
    ------
    OSError, ValueError
        When none has.
    """
    said: dict[str, Any] = json.loads((folder / LISTENS).read_text())
    return said


def _write(folder: Path, told: Mapping[str, Any]) -> None:
    # several may do so at once
    path = folder / f"{WANTED}.{os.getpid()}-{uuid.uuid4().hex}"
    path.touch(0o600)
    path.write_text(json.dumps(told))
    path.replace(folder / WANTED)
