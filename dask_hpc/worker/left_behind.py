"""What earlier clusters of this user have left in the memory of a host, and how a new one takes it over.

A scheduler that is lost leaves the versions that managers hold. The first worker of a later cluster on the
host takes them over: it joins their manager, which so stays, and tells its scheduler what there is.

Rules of the file: whose scheduler answers, or has workers on the host, keeps what it has, and so do clusters
of other users, whose folders are never looked into. What was left after a scheduler had begun is not for it:
of two clusters of one user, the one that goes on does not take what is kept for who comes after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed.core import Status

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.record import read_records, records
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.worker.fetching import ask, is_open
from dask_hpc.worker.host_process import HostProcess, collect, folders, join, seen_s, take

logger = logging.getLogger("distributed.dask_hpc")

#: Name of the process of a manager, and what it runs.
MANAGER, TARGET = "manager", "dask_hpc.worker.manager:run"
#: Workers of a scheduler that is lost have ended by then; how often one looks, in seconds.
_END_S, _LOOK_S = 60.0, 0.25
#: Whoever asks does not wait longer, in seconds.
_PATIENCE_S = 20.0
#: A scheduler that is there has answered by then, in seconds.
_ANSWER_S = 3.0
_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose versions a manager holds."""

    #: Id of its scheduler, and where that listens or did.
    cluster: str
    scheduler: str
    #: When they were taken over, by the first of the schedulers that have had no use of them since, in
    #: seconds since the epoch; 0: they are its own.
    taken_s: float = 0.0


def write_owner(folder: Path, owner: Owner) -> None:
    """Note whose the folder of a manager is."""
    path = folder / f"{_OWNER}.{os.getpid()}-{time.monotonic_ns()}"
    try:
        path.touch(0o600)
        path.write_text(json.dumps(asdict(owner)))
        path.replace(folder / _OWNER)
    finally:
        path.unlink(missing_ok=True)


def read_owner(folder: Path) -> Owner | None:
    """Whose it is; None when it does not say."""
    try:
        told = json.loads((folder / _OWNER).read_text())
        return Owner(str(told["cluster"]), str(told["scheduler"]), float(told["taken_s"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class LeftBehind:
    """One worker's search for what earlier clusters have left on its host; it begins with `start`.

    Parameters
    ----------
    take
        Holds the manager of an earlier cluster from then on, and has it listen; gets the share of the memory
        of the host that it may have, should it be started anew.
    """

    def __init__(self, worker: Any, take: Callable[[HostProcess, float], Awaitable[Home]]) -> None:
        self._worker, self._take = worker, take
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look, beside all else that the worker does."""
        if folders():
            self._task = asyncio.ensure_future(self._look())

    async def looked(self) -> bool:
        """Wait until all was looked at, for a while at most; whether it was."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PATIENCE_S)
        return self._task is None or self._task.done()

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        try:
            told = await self._worker.scheduler.identity(n_workers=0)
            wanted = await self._worker.scheduler.hpc(method="manager_settings")
            if "error" in wanted:
                return
            me, began_s = Owner(told["id"], told["address"]), float(told["started"])
            done: set[Path] = set()
            deadline_s = time.monotonic() + _END_S
            while time.monotonic() < deadline_s:
                left = [folder for folder in folders() if folder not in done and records(str(folder))]
                done |= {
                    folder for folder in left if await self._settled(folder, me, began_s, wanted["result"])
                }
                if done.issuperset(left):
                    break
                await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(collect, max(_END_S, float(wanted["result"]["linger_s"])))
        except (OSError, WorkerError) as error:
            logger.warning("What earlier clusters have left in memory was not taken over: %s", error)
        except RuntimeError:
            # what a pool of connections says that its worker has closed
            if self._worker.status not in (Status.closing, Status.closed, Status.failed):
                raise

    async def _settled(self, folder: Path, me: Owner, began_s: float, wanted: Any) -> bool:
        """Take over a folder if it was left; whether it is known what becomes of it."""
        owner = read_owner(folder)
        if owner is None or _is_secure(owner) != _is_secure(me):
            return True
        ours = owner.cluster == me.cluster
        if (ours and not owner.taken_s) or (not ours and await answers(self._worker.rpc, owner)):
            return True
        try:
            if ours:
                here: int | None = join(folder)
            else:
                if seen_s(folder) > began_s + _END_S:
                    return True
                me = replace(me, taken_s=_taken_s(folder, owner))
                here = take(folder, lambda: _noted(folder, owner, me))
            if here is None:
                return False
            taken = HostProcess.taken(MANAGER, TARGET, folder, here, float(wanted["linger_s"]))
            home = await self._take(taken, float(wanted["share"]))
            if not ours:
                await self._tidied(home)
            told = await asyncio.to_thread(read_records, str(folder))
        except FileNotFoundError:
            return True  # its manager has ended
        except CheckpointError as error:
            logger.warning("What was left in %s cannot be read: %s", folder, error)
            return True
        age_s = time.time() - (owner if ours else me).taken_s
        arguments = {"address": home.address, "folder": home.folder, "cluster": owner.cluster, "age_s": age_s}
        answer = await self._worker.scheduler.hpc(
            method="took_over", arguments={**arguments, "records": told}
        )
        if "error" in answer:
            logger.warning("The scheduler refuses what was left in %s: %s", folder, answer["error"])
        return True

    async def _tidied(self, home: Home) -> None:
        """Have dropped what was reserved for versions that the lost scheduler had not written to the end."""
        try:
            await ask(self._worker.rpc, home.address, "tidy")
        except (OSError, CheckpointError) as error:
            logger.warning("What a lost cluster was writing stays in %s: %s", home.folder, error)


async def answers(pool: Any, owner: Owner) -> bool:
    """Whether the scheduler that something belongs to is there, as far as it can be known."""
    told = urlsplit(owner.scheduler)
    if told.scheme == "inproc" or told.hostname is None or told.port is None:
        return False  # its workers were in its process
    until_s = time.monotonic() + _ANSWER_S
    while await is_open(owner.scheduler, _ANSWER_S):
        if time.monotonic() > until_s:
            return True  # it hangs
        try:
            answer = await asyncio.wait_for(pool(owner.scheduler).identity(n_workers=0), _ANSWER_S)
        except (RuntimeError, TypeError):
            return True  # somebody is there, and it may be that one
        except OSError:
            # what one that is being killed has accepted breaks, and its port is closed a moment later
            await asyncio.sleep(_LOOK_S)
        else:
            return bool(answer.get("id") == owner.cluster)
    return False


def _taken_s(folder: Path, owner: Owner) -> float:
    """When what is left there was taken over first since anybody has had use of it."""
    used_s = max((os.stat(each).st_mtime for each in records(str(folder))), default=0.0)
    return owner.taken_s if used_s < owner.taken_s else time.time()


def _noted(folder: Path, was: Owner, now: Owner) -> bool:
    """Note that a folder has another owner; whether it has."""
    if read_owner(folder) != was:
        return False
    write_owner(folder, now)
    return True


def _is_secure(owner: Owner) -> bool:
    return urlsplit(owner.scheduler).scheme in ("tls", "wss")
