"""A Zarr store that says what tasks read and write through it.

What one operation moves is told to Dask's own meter of the task that has asked for it, so that it comes to
the scheduler with the worker's heartbeats, apart for each span of tasks, and shows among Dask's own metrics.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from distributed.metrics import context_meter
from zarr.abc.store import Store
from zarr.storage import WrapperStore

from dask_hpc.wire import IO_METRIC

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

#: Kinds of file systems that all nodes share, by what the system calls them; others are local.
_SHARED = {
    "lustre": "lustre", "nfs": "nfs", "nfs4": "nfs", "gpfs": "gpfs", "beegfs": "beegfs", "ceph": "ceph",
}  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")


def metered(store: Any, target: str | None = None) -> MeteredStore:
    """A Zarr store whose reads and writes are counted for the tasks that do them: see ``rt.io()``.

    Works wherever the store itself does: ``xarray.open_zarr(metered(store))``, ``to_zarr``,
    ``dask.array.from_zarr``. Nothing else changes.

    Parameters
    ----------
    store
        A Zarr store (also of fsspec, or of icechunk), or the path of a folder.
    target
        What it is a part of, as far as bandwidth is shared: stores of one target are counted together. None:
        the mount of a folder, else the class of the store.

    Raises
    ------
    TypeError
        For what is neither a store nor a path, and a target that is no text.
    ValueError
        For an empty target.
    """
    if isinstance(store, str | os.PathLike):
        from zarr.storage import LocalStore

        store = LocalStore(os.fspath(store))
    if not isinstance(store, Store):
        raise TypeError(f"store is {store!r}; allowed: a Zarr store, or the path of a folder")
    if isinstance(store, MeteredStore):
        store = store._store
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target is {target!r}; allowed: text, or None")
    if target is not None and not target.strip():
        raise ValueError(f"target is {target!r}; allowed: any text, such as 'scratch'")
    root = getattr(store, "root", None)
    kind, place = mount_of(Path(root)) if isinstance(root, Path) else ("store", type(store).__name__)
    return MeteredStore(store, place if target is None else target, kind)


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

    def __repr__(self) -> str:
        return f"metered({self._store!r}, target={self.target!r})"

    def __eq__(self, value: object) -> bool:
        return isinstance(value, MeteredStore) and self._store == value._store and self.target == value.target

    __hash__ = None  # type: ignore[assignment]

    @contextmanager
    def _busy(self) -> Iterator[None]:
        began = _busy.begin(self.target)
        try:
            yield
        finally:
            seconds = _busy.end(began)
            if seconds is not None:
                self._tell("busy", seconds, "seconds")

    def _tell(self, what: str, value: float, unit: str) -> None:
        context_meter.digest_metric(f"{IO_METRIC} {what} {self.kind} {self.target}", value, unit)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value."""
        with self._busy():
            value = await self._store.get(key, prototype, byte_range)
        if value is not None:
            self._tell("read", len(value), "bytes")
        return value

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read parts of values."""
        with self._busy():
            values = await self._store.get_partial_values(prototype, key_ranges)
        self._tell("read", sum(len(value) for value in values if value is not None), "bytes")
        return values

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for request in requests:
            yield request[0], await self.get(*request)

    async def set(self, key: str, value: Buffer) -> None:
        """Write a value."""
        with self._busy():
            await self._store.set(key, value)
        self._tell("write", len(value), "bytes")

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write a value unless there is one; one that is there counts as none written."""
        with self._busy():
            absent = not await self._store.exists(key)
            await self._store.set_if_not_exists(key, value)
        self._tell("write", len(value) if absent else 0, "bytes")

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        values = list(values)
        with self._busy():
            await self._store._set_many(values)
        self._tell("write", sum(len(value) for _, value in values), "bytes")

    async def exists(self, key: str) -> bool:
        """Whether there is a value."""
        with self._busy():
            return await self._store.exists(key)

    async def delete(self, key: str) -> None:
        """Delete a value."""
        with self._busy():
            await self._store.delete(key)


class _Busy:
    """Time in which a task has at least one operation under way with a target: Zarr has several at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Operations under way and when the first of them began, by task and target.
        self._under_way: dict[tuple[int, str], tuple[int, float]] = {}

    def begin(self, target: str) -> tuple[int, str]:
        """An operation begins; gives what `end` takes."""
        # what listens to the meter belongs to one task; it goes along into the thread that Zarr works in
        which = (id(context_meter._callbacks.get()), target)
        with self._lock:
            count, since = self._under_way.get(which, (0, perf_counter()))
            self._under_way[which] = (count + 1, since)
        return which

    def end(self, which: tuple[int, str]) -> float | None:
        """It has ended; seconds since the first that was under way with it began, when it is the last."""
        with self._lock:
            count, since = self._under_way.pop(which)
            if count > 1:
                self._under_way[which] = (count - 1, since)
                return None
        return perf_counter() - since


_busy = _Busy()


def mount_of(folder: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Kind (lustre, nfs, gpfs, beegfs, ceph or local) and mount point of the file system of a folder.

    The folder need not be there yet. Where nobody says what is mounted: local, the root.
    """
    folder = Path(os.path.realpath(folder))
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "local", "/"
    found = ("local", Path("/"))
    for fields in (line.split() for line in lines):
        if len(fields) > 2:
            # the system writes a space in a name as \040
            point = Path(fields[1].replace("\\040", " "))
            if folder.is_relative_to(point) and len(point.parts) >= len(found[1].parts):
                found = (_SHARED.get(fields[2].removeprefix("fuse."), "local"), point)
    return found[0], str(found[1])
