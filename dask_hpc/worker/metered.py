"""A Zarr store that says what tasks read and write through it.

What one operation moves is told to Dask's own meter of the task that has asked for it, so that it comes to
the scheduler with the worker's heartbeats, apart for each span of tasks, and shows among Dask's own metrics.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from distributed.metrics import context_meter

from dask_hpc.wire import IO_METRIC, IO_SECONDS
from dask_hpc.worker.io.counters import MOVED
from dask_hpc.worker.io.mounts import mount_of
from dask_hpc.worker.io.rest import through_files

try:
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, LocalStore, WrapperStore, ZipStore
except ImportError as error:
    raise ImportError("a metered store needs Zarr: pip install 'dask-hpc[checkpoint]'") from error

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_T = TypeVar("_T")
#: Kind of a store that is no folder.
_NO_FILES = "store"
#: Protocols of fsspec for folders of this host, or what it has mounted.
_FILES = ("file", "local")


def metered(store: Any, target: str | None = None) -> MeteredStore:
    """A Zarr store whose reads and writes are counted for the tasks that do them: see ``rt.io()``.

    Works wherever the store itself does: ``xarray.open_zarr(metered(store))``, ``to_zarr``,
    ``dask.array.from_zarr``. Nothing else changes.

    Parameters
    ----------
    store
        A Zarr store (also of fsspec, or of icechunk), the path of a folder, or a URL or a mapper of fsspec.
    target
        What it is a part of, as far as bandwidth is shared: stores of one target are counted together. None:
        the mount of a folder or a zip file; protocol and bucket of a store of fsspec; else the class of the
        store, inside what wraps it. Of a store that is metered already: what was said of it.

    Raises
    ------
    TypeError
        For what is none of these, and a target that is no text.
    ValueError
        For an empty target, and a URL of a protocol that fsspec does not know.
    ImportError
        For a URL whose protocol needs a package that is not installed; the message names it.
    """
    store = _opened(store)
    if not isinstance(store, Store):
        raise TypeError(
            f"store is {store!r}; allowed: a Zarr store, the path of a folder, a URL or a mapper of fsspec"
        )
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target is {target!r}; allowed: text, or None")
    if target is not None and (not target.strip() or _told(target) != target):
        raise ValueError(f"target is {target!r}; allowed: any text that UTF-8 can say, such as 'scratch'")
    if isinstance(store, MeteredStore):
        if target is None:
            return store
        store = store._store
    kind, place = _whereabouts(store)
    return MeteredStore(store, _told(place) if target is None else target, kind)


def _opened(store: Any) -> Any:
    """A store where a path, a URL or a mapper is given, else what is given."""
    if isinstance(store, str | os.PathLike):
        text = os.fspath(store)
        protocol, apart, path = text.partition("://")
        if apart and protocol not in _FILES:
            return FsspecStore.from_url(text)
        return LocalStore(path if apart else text)
    if hasattr(store, "fs") and hasattr(store, "root") and not isinstance(store, Store):
        return FsspecStore.from_mapper(store)
    return store


def _told(text: str) -> str:
    """A text as heartbeats can tell it: a worker with one that cannot be sent would be taken for lost."""
    return text.encode(errors="replace").decode()


def _whereabouts(store: Store) -> tuple[str, str]:
    """Kind of the file system that a store is on, and what shares its bandwidth."""
    while isinstance(store, WrapperStore) and not isinstance(store, MeteredStore):
        store = store._store
    if isinstance(store, LocalStore):
        return mount_of(Path(store.root))
    if isinstance(store, ZipStore) and store.path is not None:  # later releases of Zarr: one in memory
        return mount_of(Path(store.path))
    if not isinstance(store, FsspecStore):
        return _NO_FILES, type(store).__name__
    protocols = store.fs.protocol
    protocol = protocols if isinstance(protocols, str) else protocols[0]
    if protocol in _FILES:
        return mount_of(Path(store.path))
    path = store.path
    if "://" in path:  # of a web server it is the whole URL
        protocol, _, path = path.partition("://")
    bucket = path.strip("/").partition("/")[0]
    return _NO_FILES, f"{protocol}://{bucket}"


class MeteredStore(WrapperStore[Store]):
    """What `metered` returns.

    Parameters
    ----------
    store
        Where it reads and writes.
    target, kind
        What shares its bandwidth, and what kind of file system that is.
    """

    def __init__(self, store: Store, target: str, kind: str) -> None:
        super().__init__(store)
        self.target = target
        self.kind = kind

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self.target, self.kind)

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, or one that is not written to; wrappers of Zarr before 3.1.6 have no such way."""
        return self._with_store(self._store.with_read_only(read_only))

    def __getattr__(self, name: str) -> Any:
        # what only this kind of store has: icechunk asks for the session of the store of an array
        if name.startswith("_") or name.endswith("_sync"):  # those would not be counted
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return f"metered({self._store!r}, target={self.target!r})"

    def __eq__(self, value: object) -> bool:
        return isinstance(value, MeteredStore) and self._store == value._store and self.target == value.target

    __hash__ = None  # type: ignore[assignment]

    @contextmanager
    def _busy(self) -> Iterator[None]:
        began = _busy.begin(self.target), _busy.begin(None)
        try:
            yield
        finally:
            here, anywhere = (_busy.end(which) for which in began)
            if here is not None:
                # no part of what Dask divides a task's seconds into: several targets may be busy at once
                context_meter.digest_metric(f"{IO_METRIC} busy {self.kind} {self.target}", here, "s")
            if anywhere is not None:
                context_meter.digest_metric(IO_SECONDS, anywhere, "seconds")
                if (moved := MOVED.get()) is not None:
                    moved.metered_s += anywhere

    def _tell(self, what: str, nbytes: int) -> None:
        # what is told to nobody (a thread that a task has started knows nothing of it) is not known
        if self.kind != _NO_FILES and context_meter._callbacks.get():
            through_files.add(what, nbytes)
        context_meter.digest_metric(f"{IO_METRIC} {what} {self.kind} {self.target}", nbytes, "bytes")

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value."""
        with self._busy():
            value = await self._store.get(key, prototype, byte_range)
        if value is not None:
            self._tell("read", len(value))
        return value

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        """Read parts of values."""
        with self._busy():
            values = await self._store.get_partial_values(prototype, key_ranges)
        self._tell("read", sum(len(value) for value in values if value is not None))
        return values

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for request in requests:
            yield request[0], await self.get(*request)

    async def get_ranges(self, key: str, byte_ranges: Any, **how: Any) -> AsyncGenerator[Any, None]:
        """Read parts of one value, several at once; of a store that has a way to."""
        store: Any = self._store
        async for group in self._each(store.get_ranges(key, byte_ranges, **how)):
            self._tell("read", sum(len(value) for _, value in group if value is not None))
            yield group

    # later releases of Zarr can do without a loop, in threads that know nothing of the task: not here
    get_sync: Any = None
    set_sync: Any = None
    delete_sync: Any = None

    async def set(self, key: str, value: Buffer) -> None:
        """Write a value."""
        with self._busy():
            await self._store.set(key, value)
        self._tell("write", len(value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write a value unless there is one; one that is there counts as none written."""
        with self._busy():
            absent = not await self._store.exists(key)
            await self._store.set_if_not_exists(key, value)
        self._tell("write", len(value) if absent else 0)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        values = list(values)
        with self._busy():
            await self._store._set_many(values)
        self._tell("write", sum(len(value) for _, value in values))

    async def exists(self, key: str) -> bool:
        """Whether there is a value."""
        with self._busy():
            return await self._store.exists(key)

    async def getsize(self, key: str) -> int:
        """Bytes of a value, as the store itself finds that out: few have to read it."""
        with self._busy():
            return await self._store.getsize(key)

    async def getsize_prefix(self, prefix: str) -> int:
        """Bytes of all values under a prefix, in the same way."""
        with self._busy():
            return await self._store.getsize_prefix(prefix)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """As the store says: one that has a way of its own says no."""
        return self._store.supports_consolidated_metadata

    async def delete(self, key: str) -> None:
        """Delete a value."""
        with self._busy():
            await self._store.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all values under a prefix."""
        with self._busy():
            await self._store.delete_dir(prefix)

    async def clear(self) -> None:
        """Delete all values."""
        with self._busy():
            await self._store.clear()

    async def is_empty(self, prefix: str) -> bool:
        """Whether there is no value under a prefix."""
        with self._busy():
            return await self._store.is_empty(prefix)

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Keys under a prefix."""
        return self._each(self._store.list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names in a folder."""
        return self._each(self._store.list_dir(prefix))

    def list(self) -> AsyncIterator[str]:
        """All keys."""
        return self._each(self._store.list())

    async def _each(self, found: AsyncIterator[_T]) -> AsyncGenerator[_T, None]:
        while True:
            # who asks for them may take its time between two
            with self._busy():
                one = await anext(found, None)
            if one is None:
                return
            yield one


class _Busy:
    """Time in which a task has at least one operation under way: Zarr has several at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Operations under way and when the first of them began, by task and target (None: any).
        self._under_way: dict[tuple[int, str | None], tuple[int, float]] = {}

    def begin(self, target: str | None) -> tuple[int, str | None]:
        """An operation begins; gives what `end` takes."""
        # what listens to the meter belongs to one task; it goes along into the thread that Zarr works in
        which = (id(context_meter._callbacks.get()), target)
        with self._lock:
            count, since = self._under_way.get(which, (0, perf_counter()))
            self._under_way[which] = (count + 1, since)
        return which

    def end(self, which: tuple[int, str | None]) -> float | None:
        """It has ended; seconds since the first that was under way with it began, when it is the last."""
        with self._lock:
            count, since = self._under_way.pop(which)
            if count > 1:
                self._under_way[which] = (count - 1, since)
                return None
        return perf_counter() - since


_busy = _Busy()
