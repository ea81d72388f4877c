"""A version back as the object that it was made of: lazily, block by block, on any number of workers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from hashlib import blake2b
from typing import Any

import numpy as np
from dask._task_spec import Task

from dask_hpc.checkpoint import frames, manifest
from dask_hpc.checkpoint import keys as keys_of
from dask_hpc.checkpoint.blocks import block_file, check_written, checked_bytes
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.describe import RESULTS
from dask_hpc.checkpoint.dtypes import from_json, unpickled
from dask_hpc.checkpoint.inside import read_inside
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.metadata import DOCUMENT
from dask_hpc.checkpoint.names import checked_key_file, checked_path
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.checkpoint.sealing import read_key
from dask_hpc.checkpoint.services import opened_file, unwrapped
from dask_hpc.checkpoint.values import Form, form, from_bytes
from dask_hpc.errors import CheckpointError
from dask_hpc_policies.params import Bool

#: Whether what can run code may be loaded.
TRUST = Bool("allow_pickle", False)


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    allow_pickle: bool = False,
    key_file: str | os.PathLike[str] | None = None,
) -> Any:
    """The object that a version was made of; blocks are read when they are computed.

    Parameters
    ----------
    path
        Folder of the version.
    allow_pickle
        Whether Python values may be loaded, which can run any code: do that for what you or people you trust
        have written.
    key_file
        File with the key of an encrypted version, which whoever computes the blocks sees, too. None:
        ``hpc.checkpoint.key-file``, here and there.

    Returns
    -------
    object
        A dask array, xarray Dataset or DataArray, dask dataframe, Delayed; of a future its value as a
        Delayed, of several a list of them, of the results of a job a dict of them by key.

    Raises
    ------
    CheckpointError
        When it is no version of a checkpoint, was changed after it was written, is encrypted and the key is
        not there or another one, or has Python values and `allow_pickle` was not given.
    ValueError
        For a path that is none, and an `allow_pickle` that is neither True nor False.
    """
    folder = checked_path("path", path, "the folder of a version, such as STORE/NAME/000001")
    found = manifest.read(folder)
    name, allow_pickle = checked_key_file(key_file), TRUST.validate(allow_pickle)
    manifest.check_signed(folder, found, name)
    check_files(folder, found)
    refuse_pickled(folder, found, allow_pickle)
    return _InStore(folder, found, _token(folder, found, allow_pickle), allow_pickle, name).object()


def readers(path: str) -> set[str] | None:
    """Names of the tasks that `open_checkpoint` has read a version; none when its manifest is damaged.

    None: the file system does not say now what its manifest holds.
    """
    try:
        found = manifest.read(path)
    except CheckpointError as error:
        why = error.__context__
        return None if isinstance(why, OSError) and not isinstance(why, FileNotFoundError) else set()
    tokens = [_token(path, found, trusted) for trusted in (False, True)]
    return {_layer(found.plan, array, token) for array in found.plan.arrays for token in tokens}


def _token(folder: str, found: Manifest, trusted: bool) -> str:
    """The same for the same bytes that are read in the same way, another one for others."""
    # whoever writes may know the store under another name than who restores
    told = blake2b(f"{os.path.realpath(folder)} {found.created_s} {trusted}".encode(), digest_size=12)
    told.update(np.array(found.blocks, dtype="u8").tobytes())
    return told.hexdigest()


def refuse_pickled(where: str, found: Manifest, allowed: bool) -> None:
    """Raise CheckpointError when a version has Python values and they may not be loaded."""
    if not allowed and (pickled := _pickled(found)) is not None:
        raise CheckpointError(
            f"{pickled} in {where} holds Python values, which can run any code when they are loaded; if you "
            "trust who wrote it, open it with allow_pickle=True"
        )


def _pickled(found: Manifest) -> str | None:
    """The first array with blocks that are pickled; None when there is none."""
    first = 0
    for array in found.plan.arrays:
        numbers = range(first, first + array.count)
        first += array.count
        if array.kind == "opaque" and (
            found.plan.kind == "dataframe" or any(str(number) in found.digests for number in numbers)
        ):
            return array.path
    return None


def check_files(folder: str, found: Manifest) -> None:
    """Raise CheckpointError unless each file of a version that is no block is what was written."""
    for path in found.files:
        if (problem := file_problem(folder, found, path)) is not None:
            raise CheckpointError(
                f"{os.path.join(folder, path)} is not what was written: {problem}; restore another version"
            )


def file_problem(folder: str, found: Manifest, path: str, key: bytes | None = None) -> str | None:
    """What is wrong with a file of a version that is no block; None when nothing is.

    With the `key` of an encrypted version, also whether it was written with that.
    """
    length, crc = found.files[path]
    try:
        content = read_inside(folder, path, length)
    except OSError as error:
        return error.strerror or str(error)
    if len(content) != length:
        return f"it has {'more' if len(content) > length else 'fewer'} than {length} bytes"
    if crc32c(content) != crc:
        return "its checksum differs"
    try:
        if found.plan.sealed is not None and key is not None and not path.endswith(DOCUMENT):
            opened_file(found.plan, path, content, key)
    except ValueError as error:
        return str(error)
    return None


def load(
    folder: str, path: str, form: Form, told: tuple[Any, ...], trusted: bool, key_file: str | None = None
) -> Any:
    """The task that reads a block.

    Raises
    ------
    CheckpointError
        When it is not there or not what was written.
    """
    written = Written(*told)
    try:
        content = unwrapped(form, checked_bytes(folder, path, written), written.digest, key_file)
        return from_bytes(form, content, written.digest, trusted)
    except (OSError, ValueError) as error:
        where, why = os.path.join(folder, path), getattr(error, "strerror", None) or str(error)
        why = why if where in why else f"{where} cannot be read: {why}"
        raise CheckpointError(f"{why}; restore another version, or look at the file system") from None


class Opened(ABC):
    """A version on its way back.

    Parameters
    ----------
    where
        What it is called.
    token
        The same for the same bytes, another one for others.
    trusted
        Whether what is pickled may be unpickled.
    key_file
        File with the key of an encrypted version; None: what this process is configured with.
    """

    def __init__(
        self, where: str, found: Manifest, token: str, trusted: bool, key_file: str | None = None
    ) -> None:
        self.where, self.found, self.token, self.trusted = where, found, token, trusted
        self.key_file = key_file
        self.plan = found.plan

    @abstractmethod
    def task(self, key: Any, array: Array, number: int, at: int) -> Task:
        """What reads a block; `at` is its number over all arrays."""

    @abstractmethod
    def file(self, path: str) -> bytes:
        """The content of a file that is no block."""

    def object(self) -> Any:
        """The object, as `open_checkpoint` gives it.

        Raises
        ------
        CheckpointError
            When the manifest describes none.
        """
        try:
            return self._object()
        except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
            raise CheckpointError(
                f"the manifest of {self.where} describes no object that can be: {type(error).__name__} "
                f"{error}; "
                "restore another version"
            ) from None

    def _object(self) -> Any:
        from dask.delayed import Delayed

        kind = self.plan.kind
        if kind == "dask.array":
            return self.dask_array(0)
        if kind in ("xarray.Dataset", "xarray.DataArray"):
            from dask_hpc.checkpoint.labelled_back import labelled_object

            return labelled_object(self.found, self.dask_array, self._values)
        tasks = self.tasks(0)[1]
        if kind == "dataframe":
            return frames.frame_of(self.plan, tasks)
        if kind == "bag":
            from dask.bag import Bag

            return Bag(tasks, next(iter(tasks))[0], len(tasks))
        # each with its own task: with those of all others, thousands take minutes
        values = [Delayed(key, {key: task}) for key, task in tasks.items()]
        if kind in ("future", "delayed"):
            return values[0]
        if kind == "futures":
            return values
        if kind in (RESULTS, "dict"):
            keys = [keys_of.from_json(each) for each in self.plan.extra["keys"]]
            return dict(zip(keys, values, strict=True))
        raise CheckpointError(
            f"{self.where} holds a {kind!r:.80}, which this version of dask_hpc does not know; install "
            "the one that wrote it"
        )

    def dask_array(self, place: int) -> Any:
        """The dask array of the plan at `place`."""
        import dask.array as da

        array = self.plan.arrays[place]
        name, tasks = self.tasks(place)
        chunks = tuple(tuple(float("nan") if n < 0 else n for n in lengths) for lengths in array.chunks)
        if array.dtype is None:
            dtype = unpickled(self.plan.extra.get("dtypes", {}).get(array.path), self.trusted)
            return da.Array(tasks, name, chunks, dtype=dtype)
        dtype = from_json(array.dtype)
        empty = np.empty((0,) * len(array.shape), dtype)
        return da.Array(tasks, name, chunks, meta=np.ma.array(empty) if array.encoding == "masked" else empty)

    def tasks(self, place: int) -> tuple[str, dict[Any, Any]]:
        """Name and tasks of the blocks of an array."""
        array = self.plan.arrays[place]
        first = sum(each.count for each in self.plan.arrays[:place])
        keys = block_keys(self.plan, array, self.token)
        tasks = {key: self.task(key, array, at, first + at) for at, key in enumerate(keys)}
        return _layer(self.plan, array, self.token), tasks

    def _values(self, path: str) -> bytearray:
        """The values in a file that is no block."""
        key, content = None if self.plan.sealed is None else read_key(self.key_file), self.file(path)
        try:
            return opened_file(self.plan, path, content, key)
        except ValueError as error:  # the manifest is what it was
            raise CheckpointError(
                f"{self.where} cannot be opened: {error}; give the key that it was written with, or restore "
                "another version"
            ) from None


def block_keys(plan: Plan, array: Array, token: str) -> list[Any]:
    """Keys of the tasks that read the blocks of an array."""
    name = _layer(plan, array, token)
    return [(name, *array.block_index(number)) for number in range(array.count)]


def _layer(plan: Plan, array: Array, token: str) -> str:
    return f"checkpoint-{plan.name}-{array.path}-{token}"


class _InStore(Opened):
    """A version in a folder."""

    def task(self, key: Any, array: Array, number: int, at: int) -> Task:
        written = self.found.written(at)
        check_written(array, number, written)
        # nothing in it that grows with the array: each task has its own
        told = (written.offset, written.nbytes, written.crc32c, written.digest)
        path = block_file(array, number, written)
        what = form(array, number, written)
        return Task(key, load, self.where, path, what, told, self.trusted, self.key_file)

    def file(self, path: str) -> bytes:
        return read_inside(self.where, path, self.found.files[path][0])
