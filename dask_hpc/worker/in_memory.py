"""Versions in the memories of hosts as the objects that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask._task_spec import Task

from dask_hpc.checkpoint.opening import Opened, refuse_pickled
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.record import Record, parse
from dask_hpc.worker.saved import copies_of, read_held


def open_records(texts: Sequence[str], allow_pickle: bool, key_file: str | None = None) -> Any:
    """The object that a version was made of; blocks are read on workers when they are computed.

    Parameters
    ----------
    texts
        Records as the scheduler has them: one, or several of the results of a job, oldest first.
    allow_pickle
        Whether Python values may be unpickled.
    key_file
        File with the key of an encrypted version, which whoever computes the blocks sees, too. None:
        ``hpc.checkpoint.key-file``, here and there.

    Raises
    ------
    CheckpointError
        When they are not what was written, or hold Python values and `allow_pickle` was not given.
    """
    found = [_InMemory(parse(text), allow_pickle, key_file).object() for text in texts]
    if len(found) == 1:
        return found[0]
    return {key: value for each in found for key, value in each.items()}


class _InMemory(Opened):
    """A version in the memories of hosts."""

    def __init__(self, record: Record, trusted: bool, key_file: str | None) -> None:
        where = f"version {record.manifest.version} of {record.name!r} in the memory of hosts"
        super().__init__(where, record.manifest, record.token(trusted, key_file), trusted, key_file)
        refuse_pickled(where, record.manifest, trusted)
        self._files, self._copies = record.files, copies_of(record, key_file)

    def task(self, key: Any, array: Array, number: int, at: int) -> Task:
        return Task(key, read_held, self._copies[at], self.trusted)

    def file(self, path: str) -> bytes:
        return self._files[path]
