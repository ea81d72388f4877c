"""Checkpoints from a client's side: beginning one, waiting for it, and having one back on any cluster."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.base import is_dask_collection
from dask.typing import Key
from distributed import Client, Future

from dask_hpc.channel import Channel
from dask_hpc.checkpoint.levels import checked_levels
from dask_hpc.checkpoint.names import checked_folder, checked_key_file, checked_name, checked_version
from dask_hpc.client.arguments import client_of
from dask_hpc.client.commit import Commit
from dask_hpc.config import find
from dask_hpc.errors import CheckpointError, CheckpointTypeError, InstallError, UnknownCheckpoint
from dask_hpc_policies.codec import encode
from dask_hpc_policies.params import Bool, Duration

#: Where the folder of checkpoints is configured.
_STORE = "checkpoint.store"
#: What is between two versions, if so much is to be.
_EVERY = Duration("every", None, lo=0.01, hi=30 * 86400.0, none_ok=True)
#: Whether the call for a commit waits for it.
_WAIT = Bool("wait", True)


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

    def described() -> Callable[[], Commit]:
        """Refuse what can be seen to be wrong here; what has the cluster asked."""
        from dask_hpc.checkpoint.describe import describe

        plan, keys = describe(obj, name)
        every_s = _EVERY.validate(every)
        _require_there(channel.client, keys)
        folder = None if store is None else checked_folder(store)
        at = None if levels is None else list(checked_levels(levels))
        arguments = {"store": folder, "levels": at, "every_s": every_s, "services": services}

        def asked() -> Commit:
            answer = channel.ask_behind("checkpoint", plan=encode(plan), keys=keys, **arguments)
            return Commit(channel, name, obj, answer, levels is None, wait)

        return asked

    async def there() -> Commit:
        commit = described()()
        return await _whole(commit) if wait else commit

    if channel.client.asynchronous:
        return there()
    asked = described()

    async def whole() -> Commit:
        # asked on the loop: who is interrupted in between would have nothing in hand to give up
        return await _whole(asked())

    return channel.run(whole) if wait else asked()


async def _whole(commit: Commit) -> Commit:
    try:
        return await commit.whole(None) if await commit.begun() else commit
    except asyncio.CancelledError:
        # nobody else could: whoever called has nothing in hand
        commit.give_up()
        raise


def _require_there(client: Client, keys: Iterable[Key]) -> None:
    """Refuse what the client does not have on the cluster, or about to be."""
    missing = [key for key in keys if key not in client.futures]
    if missing:
        raise ValueError(
            f"this client has no futures of {len(missing)} results of what is to be written, the first is "
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
        Of the kind that was written, persisted; futures for futures, scattered data and single values
        of collections, in a list or a dict where they were; a dict of them by key for the results of a job.

    Raises
    ------
    UnknownCheckpoint
        When there is no such name or version, or no folder of the store on the client's host.
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
    from dask_hpc.checkpoint.store_threads import Asked
    from dask_hpc.checkpoint.versions import UnseenStoreError
    from dask_hpc.worker.in_memory import open_records

    allow_pickle, key_file = TRUST.validate(allow_pickle), checked_key_file(key_file)
    asked = {"name": checked_name(name), "version": checked_version(version)}
    asked |= {"allow_pickle": allow_pickle, "key_file": key_file}
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
            # that there is none is no news; one that is damaged may be newer
            known = isinstance(error, UnknownCheckpoint) and not isinstance(error, UnseenStoreError)
            if version is None and not known:
                warnings.warn(
                    f"version {held['version']} of {name!r} is restored from the memory of hosts, the store "
                    f"may have a later one: {error}",
                    stacklevel=2,
                )
    from_store = newest_s is not None and (not records or newest_s >= held["created_s"])
    _say_what_is_lost(name, held, newest_s if from_store else held.get("created_s"))
    if from_store:
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
    made = on_cluster(client, await asyncio.to_thread(open_records, records, allow_pickle, key_file))
    return Restored(made, held["version"], held["bytes"], None)


def _say_what_is_lost(name: str, held: Mapping[str, Any], restored_s: float | None) -> None:
    """Say that what is restored, which was written then, is not the newest version that there was."""
    if restored_s is not None and held.get("lost_s", restored_s) > restored_s:
        warnings.warn(f"an older version of {name!r} is restored: {held['why']}", stacklevel=3)


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
    folder = checked_folder(store) if store is not None else find(_STORE).configured()
    if folder is None:
        try:
            folder = (await Channel(client).ask("status"))["settings"]["checkpoint_store"]
        except InstallError:
            folder = None  # it is not installed there
    return folder


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
