"""Checkpoints from a client's side: beginning one, waiting for it, and having one back on any cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future as Answer
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
from dask.base import is_dask_collection
from dask.typing import Key
from distributed import Client, Future

from dask_hpc.channel import Channel, answered
from dask_hpc.checkpoint.levels import checked_levels, what_there_is
from dask_hpc.checkpoint.names import checked_folder, checked_key_file, checked_name, checked_version
from dask_hpc.client.arguments import client_of
from dask_hpc.config import find
from dask_hpc.errors import CheckpointError, CheckpointTypeError, InstallError
from dask_hpc.show import line
from dask_hpc_policies.codec import encode
from dask_hpc_policies.params import Bool, Duration

logger = logging.getLogger(__name__)

#: Where the folder of checkpoints is configured.
_STORE = "checkpoint.store"
#: What is between two versions, if so much is to be.
_EVERY = Duration("every", None, lo=0.01, hi=30 * 86400.0, none_ok=True)
#: How long a commit is waited for, and whether the call for it does so.
_TIMEOUT, _WAIT = Duration("timeout", None, lo=0.0, hi=30 * 86400.0, none_ok=True), Bool("wait", True)
#: A question after a commit is answered after so long at the latest, in seconds.
_ASK_S = 5.0
#: States of what goes on no more.
_OVER = ("complete", "failed")


class Commit:
    """One version of a checkpoint, asked for, under way or ended. Made by `Runtime.checkpoint`."""

    def __init__(
        self, channel: Channel, name: str, kept: Any, asked: Answer[Any], default: bool, wait: bool
    ) -> None:
        self._channel = channel
        self._row: dict[str, Any] = {"name": name, "version": None, "state": "asked", "path": None}
        #: What is being written must not be forgotten meanwhile.
        self._kept = kept
        #: Whether nobody has said which levels it is to have, and whether the caller hears of a refusal.
        self._default, self._heard = default, wait
        self._asked = asked
        asked.add_done_callback(self._answered)

    def __repr__(self) -> str:
        row = self._row
        return line("Commit", name=row["name"], version=row["version"], state=row["state"], path=row["path"])

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return str(self._row["name"])

    @property
    def version(self) -> int | None:
        """Number of the version; None: it was not known when the cluster was asked last."""
        version: int | None = self._row["version"]
        return version

    @property
    def path(self) -> str | None:
        """Folder of the version, a Zarr group; None: it was not whole when the cluster was asked last."""
        path: str | None = self._row["path"]
        return path

    def wait(self, timeout: float | str | None = None) -> Any:
        """Wait until the version is whole; gives this commit.

        Parameters
        ----------
        timeout
            Seconds to wait at most, or text such as ``"5 min"``; None: as long as it takes, which may
            include computing what is written.

        Raises
        ------
        CheckpointError
            When there is no new version; earlier ones are as they were.
        ConfigError, InstallError, ValueError
            When the cluster has refused it, or `timeout` is none.
        TimeoutError
            When it takes longer. It goes on all the same.
        """
        return self._channel.run(self._wait, _TIMEOUT.validate(timeout))

    def status(self) -> Any:
        """How far it is: state, version, blocks, bytes, seconds it took, and the reason if it has failed."""
        return self._channel.run(self._status)

    def _answered(self, asked: Answer[Any]) -> None:
        """The cluster has begun it, names the last one instead, or refuses it."""
        if asked.cancelled():
            self._row |= {"state": "failed", "reason": "the client was closed before the cluster was asked"}
        elif error := asked.exception():
            self._row |= {"state": "failed", "reason": str(error) or repr(error)}
            if not self._heard:
                logger.error("Checkpoint %r: no new version: %s", self.name, self._row["reason"])
        else:
            self._row = dict(asked.result())
            if self._default and "L3" not in self._row["asked"]:
                warn_of_memory(f"checkpoint {self.name!r}", ", or say levels=('L1', 'L2')")
        if not self._row.get("begun"):
            self._kept = None
        elif not self._heard:
            loop: Any = self._channel.client.loop
            loop.add_callback(self._ended)

    async def _ended(self) -> None:
        """Keep what is being written for as long as it is, whoever asks how far it is, or lets go of this."""
        with suppress(Exception):  # nobody may be there any more
            while (await self._ask(_ASK_S))["state"] not in _OVER:
                pass
        self._kept = None

    async def begun(self) -> bool:
        """Wait until the cluster has heard of it; whether this call has begun it. Raises what it refuses."""
        return bool((await answered(self._asked))["begun"])

    async def _status(self) -> dict[str, Any]:
        await asyncio.gather(answered(self._asked), return_exceptions=True)
        return await self._ask(0.0) if "id" in self._row else dict(self._row)

    async def _ask(self, wait_s: float) -> dict[str, Any]:
        most_s = min(_ASK_S, wait_s)
        self._row = dict(await self._channel.ask("checkpoint_row", commit=self._row["id"], wait_s=most_s))
        if self._row["state"] in _OVER:
            self._kept = None
        return dict(self._row)

    async def _wait(self, timeout: float | None) -> Commit:
        loop = asyncio.get_running_loop()
        deadline_s = math.inf if timeout is None else loop.time() + timeout
        try:
            # one that has been heard of says so, however busy this loop is
            await asyncio.wait_for(self.begun(), None if self._asked.done() else timeout)
        except TimeoutError:
            text = f"the cluster has not heard of checkpoint {self.name!r} after {timeout:g} s; it goes on"
            raise TimeoutError(text) from None
        while (row := await self._ask(max(0.01, deadline_s - loop.time())))["state"] not in _OVER:
            if loop.time() >= deadline_s:
                raise TimeoutError(
                    f"checkpoint {self.name!r} is not whole after {timeout:g} s: {row['blocks_left']} of "
                    f"{row['blocks']} results are not written; it goes on"
                )
        if row["state"] == "failed":
            there = what_there_is(row["version"], row["levels"])
            raise CheckpointError(f"checkpoint {self.name!r} has {there}: {row['reason']}")
        return self


def begin(
    channel: Channel,
    obj: Any,
    name: str,
    store: str | os.PathLike[str] | None,
    levels: Sequence[str] | None,
    every: float | str | None,
    services: str | None,
    wait: bool,
) -> Any:
    """Begin a version; see `Runtime.checkpoint`.

    The object is described in the thread that calls, and the cluster asked behind it: neither the loop of the
    client, which may be that of its cluster, nor the cluster is waited for.
    """
    wait = _WAIT.validate(wait)

    def asked() -> Commit:
        """Refuse what can be seen to be wrong here; have the cluster asked."""
        from dask_hpc.checkpoint.describe import describe

        plan, keys = describe(obj, name)
        every_s = _EVERY.validate(every)
        _require_there(channel.client, keys)
        folder = None if store is None else checked_folder(store)
        at = None if levels is None else list(checked_levels(levels))
        arguments = {"store": folder, "levels": at, "every_s": every_s, "services": services}
        answer = channel.ask_behind("checkpoint", plan=encode(plan), keys=keys, **arguments)
        return Commit(channel, name, obj, answer, levels is None, wait)

    async def there() -> Commit:
        commit = asked()
        return await _whole(commit) if wait else commit

    if channel.client.asynchronous:
        return there()
    commit = asked()
    return channel.run(_whole, commit) if wait else commit


async def _whole(commit: Commit) -> Commit:
    return await commit._wait(None) if await commit.begun() else commit


def warn_of_memory(what: str, otherwise: str = "") -> None:
    """Say that something outlives workers and hosts, and not the cluster."""
    warnings.warn(
        f"{what} is in the memory of hosts alone: hpc.checkpoint.store is not set, so the loss of the whole "
        "cluster loses it, and so does letting go of its results for hpc.checkpoint.linger; name a folder, "
        f"rt.update(checkpoint_store=...){otherwise}",
        stacklevel=2,
    )


def _require_there(client: Client, keys: Iterable[Key]) -> None:
    """Refuse what the client does not have on the cluster, or about to be."""
    missing = [key for key in keys if key not in client.futures]
    if missing:
        raise ValueError(
            f"{len(missing)} results of what is to be written are not on the cluster, the first is "
            f"{missing[0]!r}: persist it first (obj = obj.persist(), client.persist(obj)), or give futures"
        )


def restore(
    name: str,
    client: Client,
    *,
    store: str | os.PathLike[str] | None = None,
    version: int | None = None,
    allow_pickle: bool = False,
    key_file: str | os.PathLike[str] | None = None,
) -> Any:
    """Have a checkpoint back on a cluster of any size: the object as it was, its values on the workers.

    The runtime need not be installed; the workers need dask_hpc and the store. Reading goes on in the
    background, and what is lost later is read again: whoever removes old versions leaves this one for that,
    where the runtime is installed, this client and the scheduler reach the store by the same path, and its
    file system has locks. A warning says when the scheduler could not lock it.

    Parameters
    ----------
    name
        What it was called.
    client
        A connected client.
    store
        Its folder. None: what is configured (``hpc.checkpoint.store``), here or on the scheduler, or the
        memory of hosts, whichever has the newest version.
    version
        Which version; None: the newest. Where that is damaged the error says which are whole.
    allow_pickle
        Whether values other than arrays may be unpickled, which can run any code that somebody has put there.
    key_file
        File with the key of an encrypted version, which the workers see, too. None:
        ``hpc.checkpoint.key-file``, here and there.

    Returns
    -------
    object
        Of the kind that was written, persisted; a list of futures for futures and scattered data, a
        dict of them by key for the results of a job.

    Raises
    ------
    UnknownCheckpoint
        When there is no such name or version.
    CheckpointError
        When it cannot be read, or unpickling would be needed, or the store has not answered for
        ``hpc.checkpoint.silence``.
    CheckpointTypeError, InstallError
        When `client` is no client, or is closed.
    ValueError
        When no store is named, and no host has it in memory; for a name, version or path that is none, and an
        `allow_pickle` that is neither True nor False.
    """
    client = client_of(client, CheckpointTypeError)
    return client.sync(_restore, client, name, store, version, allow_pickle, key_file)


async def _restore(client: Client, *asked: Any) -> Any:
    return (await restored(client, *asked)).made


@dataclass(frozen=True, slots=True)
class Restored:
    """What is being loaded, and of which version."""

    made: Any
    version: int
    #: Of all its files, or blocks in memory.
    bytes: int
    #: None: it is in the memory of hosts.
    path: str | None


async def restored(
    client: Client,
    name: str,
    store: str | os.PathLike[str] | None,
    version: int | None,
    allow_pickle: bool,
    key_file: str | os.PathLike[str] | None,
) -> Restored:
    """What `restore` does, and which version it has taken."""
    from dask_hpc.checkpoint.opening import TRUST, open_checkpoint
    from dask_hpc.checkpoint.store import Store
    from dask_hpc.checkpoint.store_threads import Asked, SilentStoreError
    from dask_hpc.worker.in_memory import open_records

    allow_pickle, key_file = TRUST.validate(allow_pickle), checked_key_file(key_file)
    asked = {"name": checked_name(name), "version": checked_version(version), "allow_pickle": allow_pickle}
    folder = await _folder(client, store)
    # who names a store wants what is there
    held = (await _in_memory(client, asked) if store is None else None) or {}
    if folder is None and not held:
        what = repr(name) if version is None else f"version {version} of {name!r}"
        raise ValueError(
            f"no store is named, and no host holds {what} in memory: give store=..., or set hpc.{_STORE}"
        )
    patience_s = find("checkpoint.silence").configured()
    store_of, records, newest_s = Asked(folder, patience_s), held.get("records", ()), None
    if folder is not None:
        try:
            found = await store_of.soon(Store(folder).newest, name, version)
            newest_s = found.created_s
        except CheckpointError as error:
            if not records:
                raise type(error)(f"{error}; {held['why']}" if held else str(error)) from None
            if version is None and isinstance(error, SilentStoreError):
                warnings.warn(
                    f"version {held['version']} of {name!r} is restored from the memory of hosts, the store "
                    f"may have a later one: {error}",
                    stacklevel=2,
                )
    if newest_s is not None and (not records or newest_s >= held["created_s"]):
        await _is_read(client, found.path, patience_s)
        opened = partial(open_checkpoint, found.path, allow_pickle=allow_pickle, key_file=key_file)
        made = on_cluster(client, await store_of.soon(opened))
        # opening may have taken longer than the scheduler waits for the tasks
        if not await _is_read(client, found.path, patience_s) and found.manifest().plan.arrays:
            warnings.warn(
                f"version {found.version} of {name!r} may be removed while it is read: the scheduler cannot "
                f"lock {found.path}; have it see the store by this path, and collect no versions meanwhile",
                stacklevel=2,
            )
        return Restored(made, found.version, found.bytes, found.path)
    if not records:
        raise CheckpointError(f"{name!r} cannot be restored: {held['why']}; no store is named")
    made = on_cluster(client, await asyncio.to_thread(open_records, records, allow_pickle))
    return Restored(made, held["version"], held["bytes"], None)


async def _is_read(client: Client, path: str, patience_s: float) -> bool:
    """Have the scheduler lock a version; whether it has, or nobody has to as it is not installed there."""
    try:
        asking = Channel(client).ask("version_is_read", path=path)
        return bool((await asyncio.wait_for(asking, patience_s))["locked"])
    except TimeoutError:
        return False  # the mount may hang there alone
    except InstallError:
        return True


async def _in_memory(client: Client, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] | None = await Channel(client).ask("version_in_memory", **asked)
    except InstallError:
        return None  # it is not installed there
    return found


async def _folder(client: Client, store: str | os.PathLike[str] | None) -> str | None:
    folder = checked_folder(store) if store is not None else dask.config.get(f"hpc.{_STORE}", None)
    if folder is None:
        try:
            folder = (await Channel(client).ask("status"))["settings"]["checkpoint_store"]
        except InstallError:
            folder = None  # it is not installed there
    return None if folder is None else os.fspath(folder)


def on_cluster(client: Client, made: Any) -> Any:
    """What `open_checkpoint` gives, its values on the workers: a persisted collection, or futures."""
    if isinstance(made, dict):
        return dict(zip(made, on_cluster(client, list(made.values())), strict=True))
    if isinstance(made, (list, tuple)):
        return client.compute(list(made))  # thousands in one graph
    if not is_dask_collection(made):
        return made
    if type(made).__module__.startswith("dask.delayed"):
        future: Future = client.compute(made)
        return future
    return client.persist(made)
