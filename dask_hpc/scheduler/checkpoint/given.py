"""Versions in memory that clients were given to read: their results are protected as soon as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dask_hpc.checkpoint.opening import block_keys
from dask_hpc.checkpoint.record import Record
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.to_memory import Kept
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.saved import MEMORY, MemoryCopy, copies_of

#: What a client was given it has submitted by then, in seconds.
_SUBMITTED_S = 60.0


class Given:
    """What one scheduler has given clients.

    Parameters
    ----------
    unclaimed
        Called for each version that nothing is read from though somebody was given it.
    """

    def __init__(
        self,
        watched: Watched,
        protected: Protected,
        memory: Memory,
        held: Held,
        unclaimed: Callable[[Record], None],
    ) -> None:
        self._watched, self._protected = watched, protected
        self._memory, self._held, self._unclaimed = memory, held, unclaimed
        #: What was not submitted yet, and what has just come, by key.
        self._due: dict[Any, MemoryCopy] = {}
        self._came: dict[Any, Kept] = {}
        self._ended = False

    def give(self, record: Record, trusted: bool, key_file: str | None = None) -> None:
        """A client is about to read a version.

        Parameters
        ----------
        trusted
            Whether it may unpickle what is in there.
        key_file
            File with the key that it has named; None: what workers are configured with.
        """
        if self._ended:
            return
        self._memory.touch(record.id)
        self._memory.about_to_be_read(record.id)
        copies = copies_of(record, key_file)
        token, plan = record.token(trusted, key_file), record.manifest.plan
        keys = [key for array in plan.arrays for key in block_keys(plan, array, token)]
        for key, copy in zip(keys, copies, strict=True):
            if key not in self._due and key not in self._protected:
                self._due[key] = copy
                self._watched.watch(key, self._moved)
        # a record has its files beside its plan
        plan = replace(plan, files=record.files)
        self._held.know(MEMORY + record.id, plan, record.manifest.version, keys)
        asyncio.get_running_loop().call_later(_SUBMITTED_S, self._over, record, keys)

    def end(self) -> None:
        """Wait for nothing any more."""
        self._ended = True
        for key in (*self._due, *self._came):
            self._watched.unwatch(key, self._moved)
        self._due.clear()
        self._came.clear()

    def _over(self, record: Record, keys: Sequence[Any]) -> None:
        """What has not been submitted by now is not waited for."""
        for key in keys:
            if self._due.pop(key, None) is not None:
                self._watched.unwatch(key, self._moved)
        if record.id in self._memory.records and MEMORY + record.id not in self._protected.folders():
            self._unclaimed(record)

    def _moved(self, key: Any, start: str, finish: str) -> None:
        copy = self._due.pop(key, None)
        if copy is not None:
            if not self._came:
                # not in the middle of a transition
                asyncio.get_running_loop().call_soon(self._protect)
            self._came[key] = copy, "object"

    def _protect(self) -> None:
        came, self._came = self._came, {}
        for key in came:
            self._watched.unwatch(key, self._moved)
        self._protected.add(came)
        for version in {copy.version for copy, _ in came.values()}:
            self._memory.read(version)
