"""A version that a session goes back to: which one, and reading arrays of it into memory that is there."""

from __future__ import annotations

import itertools
import json
import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_hpc.checkpoint.blocks import block_file, check_written
from dask_hpc.checkpoint.dtypes import from_json
from dask_hpc.checkpoint.manifest import Manifest, check_signed
from dask_hpc.checkpoint.opening import check_files, load
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.values import form
from dask_hpc.checkpoint.versions import Version, numbers
from dask_hpc.errors import CheckpointError, CheckpointValueError
from dask_hpc.session.held import Held
from dask_hpc.session.ranks import Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A version that was opened."""

    version: Version
    manifest: Manifest

    @property
    def values(self) -> dict[str, Any]:
        """What was given to the commit."""
        return dict(json.loads(self.manifest.plan.extra["attrs"]))

    @property
    def ranks(self) -> int:
        """How many processes have written it."""
        return int(self.manifest.plan.extra.get("session", {}).get("ranks", 1))

    def read(self, name: str, target: Held | None, box: tuple[int, int] | None) -> np.ndarray:
        """Read an array into `target`, or the indices of `box`, or all, into a new one.

        Raises
        ------
        CheckpointError
            When a block is not there, or not what was written.
        CheckpointValueError
            When it has no such array or indices, or `target` cannot take them.
        """
        array, first = self._array(name)
        if target is not None and box is None:
            self._check(array, target)
            value, start = target.value, target.start or 0
        else:
            start, value = self._new(array, box)
        self._read(array, first, value, start)
        return value

    def _array(self, name: str) -> tuple[Array, int]:
        first = 0
        for array in self.manifest.plan.arrays:
            if array.path == name and array.dtype is not None:
                return array, first
            first += array.count
        there = ", ".join(array.path for array in self.manifest.plan.arrays if array.dtype is not None)
        raise CheckpointValueError(f"{self.version.path} has no array {name!r}; it has {there or 'none'}")

    def _new(self, array: Array, box: tuple[int, int] | None) -> tuple[int, np.ndarray]:
        """An array for the indices of a box, or for all, and the first of them."""
        shape, start = array.shape, 0
        if box is not None:
            try:
                start, stop = map(operator.index, box)
            except (TypeError, ValueError):
                start = stop = -1
            if not shape or not 0 <= start <= stop <= shape[0]:
                raise CheckpointValueError(
                    f"box is {box!r}; allowed for {array.path!r} of the shape {shape} in "
                    f"{self.version.path}: an index along the first dimension, and that behind the last"
                )
            shape = (stop - start, *shape[1:])
        return start, np.empty(shape, from_json(array.dtype))

    def _check(self, array: Array, target: Held) -> None:
        """Raise CheckpointValueError when an array cannot take what is stored."""
        value, start = target.value, target.start
        # a block of it may have any length
        shape = array.shape if start is None or not array.shape else (value.shape[0], *array.shape[1:])
        dtype = from_json(array.dtype)
        problem = None
        swapped = dtype if dtype.kind == "T" else dtype.newbyteorder()
        if value.shape != shape or value.dtype not in (dtype, swapped):
            problem = (
                f"is {value.dtype} of the shape {value.shape} here, and {dtype} of the shape {array.shape} "
                f"in {self.version.path}; add one like that, with start= when it is a block of it, or read "
                "it with dask_hpc.open_checkpoint"
            )
        elif start is not None and start + shape[0] > array.shape[0]:
            problem = (
                f"has the indices {start} to {start + shape[0]} here, and 0 to {array.shape[0]} in "
                f"{self.version.path}; give its block another start or length"
            )
        elif not value.flags.writeable:
            problem = "cannot be written to; add a copy of it"
        if problem is not None:
            raise CheckpointValueError(f"{array.path!r} {problem}")

    def _read(self, array: Array, first: int, target: np.ndarray, start: int) -> None:
        """Read what is stored from index `start` of the first dimension on, as much as `target` takes."""
        bounds = [[0, *itertools.accumulate(lengths)] for lengths in array.chunks]
        for number in range(array.count):
            places = zip(bounds, array.block_index(number), strict=True)
            where = [slice(at[place], at[place + 1]) for at, place in places]
            inside: Any = ...
            if where:
                low, high = max(where[0].start, start), min(where[0].stop, start + target.shape[0])
                if low >= high:
                    continue
                inside = slice(low - where[0].start, high - where[0].start)
                where[0] = slice(low - start, high - start)
            target[tuple(where)] = self._block(array, number, first)[inside]

    def _block(self, array: Array, number: int, first: int) -> Any:
        written, folder = self.manifest.written(first + number), self.version.path
        try:
            check_written(array, number, written)
        except ValueError as error:
            raise CheckpointError(
                f"{folder} is not what was written: {error}; restore another version"
            ) from None
        told = (written.offset, written.nbytes, written.crc32c, written.digest)
        return load(folder, block_file(array, number, written), form(array, number, written), told, False)


def go_back(
    store: Store, name: str, ranks: Ranks, asked: int | None, targets: Mapping[str, Held]
) -> tuple[int, Found | None]:
    """The newest version that all processes can open and read, or the one asked for.

    Parameters
    ----------
    targets
        Arrays that are read into, by name.

    Returns
    -------
    tuple
        Number of the newest version there is, 0 for none, and the one that was read; None: there is none.

    Raises
    ------
    UnknownCheckpoint
        When there is not the one asked for.
    CheckpointError
        When all are damaged.
    CheckpointValueError
        When no session has written it, or a target cannot take what there is.
    """
    newest, candidates = ranks.first(lambda: _candidates(store, name, asked))
    problem = None
    for number in candidates:
        opened: list[Found] = []
        told = ranks.together(partial(_problem, store, name, number, targets, opened))
        first = next((each for each in told if each is not None), None)
        if first is None:
            return newest, opened[0]
        problem = problem or first
        logger.warning("Version %d of %s is not gone back to: %s", number, name, first)
    if problem is not None:
        raise CheckpointError(problem)
    return newest, None


def _candidates(store: Store, name: str, asked: int | None) -> list[Any]:
    """Number of the newest version, and of those to try, in order."""
    newest = max(numbers(store.folder / name), default=0)
    if asked is not None:
        return [newest, [store.newest(name, asked).version]]
    whole = [each.version for each in store.versions(name) if each.complete]
    if newest and not whole:
        store.newest(name)  # says what is wrong with it
    return [newest, whole[::-1]]


def _problem(
    store: Store, name: str, number: int, targets: Mapping[str, Held], opened: list[Found]
) -> str | None:
    """Open a version and read; why not."""
    try:
        version = store.find(name, number)
        found = Found(version, version.manifest())
        check_signed(version.path, found.manifest)
        check_files(version.path, found.manifest)
        if found.manifest.plan.kind != "xarray.Dataset":
            raise CheckpointValueError(
                f"{version.path} is a {found.manifest.plan.kind}, which no session has written; give the "
                "session another name"
            )
        opened.append(found)
        for path, target in targets.items():
            found.read(path, target, None)
    except CheckpointError as error:
        return str(error)
    return None
