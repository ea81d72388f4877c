"""A version that a session goes back to: which one, and reading arrays of it into memory that is there."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_hpc.checkpoint.blocks import block_file, check_written
from dask_hpc.checkpoint.branch import SESSION, Past, branch, past_of, read_beside
from dask_hpc.checkpoint.dtypes import from_json
from dask_hpc.checkpoint.manifest import Manifest, UnreadManifestError, check_signed
from dask_hpc.checkpoint.names import checked_version
from dask_hpc.checkpoint.opening import check_files, load
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.store_threads import SilentStoreError
from dask_hpc.checkpoint.values import form
from dask_hpc.checkpoint.versions import numbers
from dask_hpc.checkpoint.versions import past as past_in_store
from dask_hpc.errors import CheckpointError, CheckpointValueError, UnknownCheckpoint
from dask_hpc.session.held import Held
from dask_hpc.session.in_store import asked
from dask_hpc.session.ranks import Ranks
from dask_hpc_policies import numeric

if TYPE_CHECKING:
    from dask_hpc.session.memory import Memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A version that was opened."""

    #: What it is called.
    where: str
    manifest: Manifest
    #: What reads a block: its array, number in it, and number over all arrays.
    block: Callable[[Array, int, int], Any]

    @property
    def values(self) -> dict[str, Any]:
        """What was given to the commit."""
        return dict(json.loads(self.manifest.plan.extra["attrs"]))

    @property
    def ranks(self) -> int:
        """How many processes have written it."""
        return int(self.manifest.plan.extra.get(SESSION, {}).get("ranks", 1))

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
        raise CheckpointValueError(f"{self.where} has no array {name!r}; it has {there or 'none'}")

    def _new(self, array: Array, box: tuple[int, int] | None) -> tuple[int, np.ndarray]:
        """An array for the indices of a box, or for all, and the first of them."""
        shape, start = array.shape, 0
        if box is not None:
            try:
                first, behind = map(numeric.whole, box)
            except (TypeError, ValueError):
                first = behind = None
            if not shape or first is None or behind is None or not 0 <= first <= behind <= shape[0]:
                raise CheckpointValueError(
                    f"box is {box!r}; allowed for {array.path!r} of the shape {shape} in "
                    f"{self.where}: an index along the first dimension, and that behind the last"
                )
            start, shape = first, (behind - first, *shape[1:])
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
                f"in {self.where}; add one like that, with start= when it is a block of it, or read "
                "it with dask_hpc.open_checkpoint"
            )
        elif start is not None and start + shape[0] > array.shape[0]:
            problem = (
                f"has the indices {start} to {start + shape[0]} here, and 0 to {array.shape[0]} in "
                f"{self.where}; give its block another start or length"
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
            target[tuple(where)] = self.block(array, number, first + number)[inside]


def go_back(
    store: Store | None,
    memory: Memory | None,
    name: str,
    ranks: Ranks,
    version: int | None,
    targets: Mapping[str, Held],
) -> tuple[int, Found | None]:
    """The newest version that all processes can open and read, or the one asked for.

    Parameters
    ----------
    memory
        The memories of hosts, which are read first; None: there are none.
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
    version = checked_version(version)
    held = [] if memory is None else memory.readable()

    def past(id: str) -> Past:
        assert memory is not None
        return past_of(memory.record(id)[0].manifest)

    find = partial(_candidates, store, held, past, name, version)
    newest, candidates = ranks.first(find if store is None else partial(asked(store), find))
    if memory is not None:
        newest = max(newest, memory.newest)
    problem = None
    for number, id in candidates:
        opened: list[Found] = []
        place = memory if id else store
        told = ranks.together(partial(_problem, place, name, number, id, targets, opened))
        first = next((each for each in told if each is not None), None)
        if first is None:
            return newest, opened[0]
        problem = problem or first
        logger.warning("Version %d of %s is not gone back to: %s", number, name, first)
    if problem is not None:
        raise CheckpointError(problem)
    if memory is not None and memory.damaged:
        file, why = next(iter(memory.damaged.items()))
        raise CheckpointError(
            f"a version of {name!r} in the memory of hosts is not what was written ({file}: {why}), and "
            "there is no other; begin anew under another name, or remove that file"
        )
    if memory is not None and memory.newest:
        raise CheckpointError(
            f"version {memory.newest} of {name!r} is not in memory any more: too many of the hosts that held "
            "it are lost, and no store has one; begin anew under another name"
        )
    return newest, None


def _candidates(
    store: Store | None,
    held: Sequence[tuple[int, str]],
    past: Callable[[str], Past],
    name: str,
    asked: int | None,
) -> list[Any]:
    """Number of the newest version, and of those to try, in order, with the id of those in memory.

    Those that the newest one does not go on from are tried when they are asked for.
    """
    there = [] if store is None else numbers(store.folder / name)
    newest = max([0, *there, *(number for number, _ in held)])
    if asked is not None:
        found: list[Any] = [[number, id] for number, id in held if number == asked]
        if store is not None and (asked in there or not found):
            found.append([store.newest(name, asked).version, None])
        if not found:
            known = ", ".join(str(number) for number, _ in held) or "none"
            raise UnknownCheckpoint(
                f"{name!r} has no version {asked} in the memory of hosts; there are {known}"
            )
        return [newest, found]
    whole = [] if store is None else [each for each in store.versions(name) if each.complete]
    if store is not None and there and not whole and not held:
        store.newest(name)  # says what is wrong with it
    pasts = {each.version: past_in_store(each.path, name, each.version) for each in whole}
    pasts |= {number: past(id) for number, id in held}
    for number in set(there) - set(pasts):
        # one that is damaged is not read, and what was left before it is not either
        told = None if store is None else read_beside(store.path(name, number), number)
        if told is not None:
            pasts[number] = told
    wanted = set(branch(sorted(pasts, reverse=True), pasts.__getitem__))
    places: list[Any] = [[number, id] for number, id in held] + [[each.version, None] for each in whole]
    # of the same number, memory first
    places.sort(key=lambda each: (-each[0], each[1] is None))
    chosen = [each for each in places if each[0] in wanted]
    if store is not None:
        first = max([number for number, _ in chosen], default=0)
        _say_passed_over(store, name, [number for number in there if number > first], first)
    return [newest, chosen]


def _say_passed_over(store: Store, name: str, passed: Sequence[int], instead: int) -> None:
    """Say of versions of a store why none of them is gone back to, but another one (0: there is none).

    Raises
    ------
    CheckpointError
        When there is no other, or nobody knows what is wrong with one: it would be left, and removed.
    """
    for number in passed:
        try:
            store.find(name, number).manifest()
        except UnreadManifestError as error:
            text = f"{error}; restart from version={instead} to leave it" if instead else str(error)
            raise CheckpointError(text) from None
        except CheckpointError as error:
            logger.warning("Version %d of %s is not gone back to: %s", number, name, error)
    if passed and not instead:
        store.newest(name)  # says what is wrong, and which are whole


def _problem(
    place: Memory | Store | None,
    name: str,
    number: int,
    id: str | None,
    targets: Mapping[str, Held],
    opened: list[Found],
) -> str | None:
    """Open a version and read; why not."""
    try:
        assert place is not None
        found = _in_store(place, name, number) if isinstance(place, Store) else _in_memory(place, id or "")
        if found.manifest.plan.kind != "xarray.Dataset":
            raise CheckpointValueError(
                f"{found.where} is of kind {found.manifest.plan.kind}, which no session has written; give "
                "the session another name"
            )
        opened.append(found)
        for path, target in targets.items():
            found.read(path, target, None)
    except SilentStoreError:
        raise  # nobody knows what is wrong with it, and an older one is there no more than this
    except CheckpointError as error:
        return str(error)
    return None


def _in_store(store: Store, name: str, number: int) -> Found:
    ask = asked(store)
    folder, manifest = ask(_opened, store, name, number)

    def block(array: Array, number: int, at: int) -> Any:
        written = manifest.written(at)
        try:
            check_written(array, number, written)
        except ValueError as error:
            raise CheckpointError(
                f"{folder} is not what was written: {error}; restore another version"
            ) from None
        told = (written.offset, written.nbytes, written.crc32c, written.digest)
        file, kind = block_file(array, number, written), form(array, number, written)
        # into memory of its own: who gives up waiting has no array that is written to when the store is back
        return ask(load, folder, file, kind, told, False)

    return Found(folder, manifest, block)


def _opened(store: Store, name: str, number: int) -> tuple[str, Manifest]:
    version = store.find(name, number)
    folder, manifest = version.path, version.manifest()
    check_signed(folder, manifest)
    check_files(folder, manifest)
    return folder, manifest


def _in_memory(memory: Memory, id: str) -> Found:
    record, read = memory.record(id)
    where = f"version {record.manifest.version} of {record.name!r} in the memory of hosts"

    def block(_array: Array, _number: int, at: int) -> Any:
        try:
            return read(at)
        except (OSError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{where} cannot be read: {error}; restore another version") from None

    return Found(where, record.manifest, block)
