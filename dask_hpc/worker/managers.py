"""Starting the manager of a host, and finding where it listens: for workers, and for programs without any."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed.system import MEMORY_LIMIT

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.disk import SPARE_BYTES, usable_folder
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import ManagerSilentError, ask, listens, patience
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.manager import LISTENS, SECURITY, WANTED

logger = logging.getLogger("distributed.dask_hpc.managers")

#: A manager listens by then, in seconds; how often one looks.
_STARTS_S, _LOOK_S = 30.0, 0.02
#: One that was started and does not run is started anew, in seconds.
_AGAIN_S = 3.0


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
        "host": host,
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
    deadline_s = time.monotonic() + _STARTS_S
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
            # one that was killed a moment ago seems to be there until it is gone
            if time.monotonic() > deadline_s:
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
