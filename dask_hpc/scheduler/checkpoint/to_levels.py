"""Writing one version to the levels that it is to have: the memories of hosts first, then the store."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dask_hpc.checkpoint import passing
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.opening import readers
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.segments import NO_ROOM
from dask_hpc.checkpoint.services import closed
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.store_threads import in_store, soon
from dask_hpc.checkpoint.versions import look_for, numbers
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.commit import Commit
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.checkpoint.left import Left
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.reading import Reading
from dask_hpc.scheduler.checkpoint.silent import Silent
from dask_hpc.scheduler.checkpoint.writing import UNKNOWN_S, Block, Writing, to_store
from dask_hpc.scheduler.internals import runs
from dask_hpc.scheduler.placing.gate import Gate
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.io.mounts import mount_of
from dask_hpc.worker.saved import Copy
from dask_hpc_policies.resilience.redundancy_sets import Scheme

K = TypeVar("K")
logger = logging.getLogger(__name__)

_STIMULUS = "hpc-checkpoint"
#: Versions of a name that are kept.
KEEP = 2
#: Names of which it is known which version was the last.
_NAMES = 10_000
#: Versions of fewer bytes do not tell what the file system can do: their time is that of asking for them.
_TELLING_BYTES = 1_000_000


class ToLevels:
    """Has versions written, each to its levels."""

    def __init__(
        self,
        state: State,
        gate: Gate,
        watched: Watched,
        protected: Protected,
        held: Held,
        left: Left,
        reading: Reading,
    ) -> None:
        self._state, self._scheduler = state, state.scheduler
        self._gate = gate
        self._watched = watched
        self._protected, self._held, self._left, self._reading = protected, held, left, reading
        #: The newest version of each name, and that which was written to each store last.
        self._newest: Counter[str] = Counter()
        self._stored: Counter[tuple[str, str]] = Counter()
        #: Most bytes per second that writing a version has reached; 0: it is not known.
        self.written_bytes_s = 0.0
        self.silent = Silent(state)
        #: Versions that were given up before they were begun, until nothing of them is left.
        self.given_up: set[asyncio.Task[None]] = set()

    async def write(self, commit: Commit, keys: Sequence[Any]) -> str:
        """Write a version that is held (`hold`); gives why it has less than was asked for.

        Raises
        ------
        CheckpointError, OSError, ValueError
            When it is on no level, or not in the store that was asked for.
        """
        notes, lacks = "", False
        if "L1" in commit.asked:
            notes, lacks = await self._write_memory(commit, keys)
        if commit.store is not None:
            await self._write_store(commit, commit.store)
        elif lacks and commit.instead is not None:
            commit.writings["L3"] = self._writing(commit, keys, "L3", None)
            commit.writings.pop("L1").end()
            try:
                await self._write_store(commit, commit.instead)
            except (CheckpointError, OSError) as error:
                if not commit.levels:
                    raise CheckpointError(f"{notes}; nor does the store take it: {error}") from error
                return f"{notes}; the store does not take it: {error}"
            return f"{notes}; it is in the store instead ({commit.instead})"
        return notes

    def hold(self, commit: Commit, keys: Sequence[Any], known: Mapping[Any, tuple[Copy, str]] | None) -> None:
        """Follow the results from now on: a level may come to write what nobody wants any more by then."""
        for level in commit.asked:
            if level != "L2":
                commit.writings[level] = self._writing(commit, keys, level, known)

    def _writing(
        self, commit: Commit, keys: Sequence[Any], level: str, known: Mapping[Any, tuple[Copy, str]] | None
    ) -> Writing:
        holder = f"{_STIMULUS}-{commit.id}-{level}"
        unknown_s = UNKNOWN_S if commit.job is None else 0.0
        writing = Writing(self._scheduler, self._watched, commit.stored, keys, holder, unknown_s, known)
        # what is called as one that was forgotten, now or later, is not what an earlier version has
        writing.forgotten.update(key for key in known or () if key not in self._protected.in_versions)
        return writing

    async def _write_memory(self, commit: Commit, keys: Sequence[Any]) -> tuple[str, bool]:
        """Levels L1 and L2; gives why there is less of them than was asked for, and whether fewer
        hosts may be lost for that (sets that are smaller than asked for survive as much).
        """
        began_s, settings = stopwatch_s(), self._state.settings
        scheme = None
        if "L2" in commit.asked:
            scheme = Scheme(settings.checkpoint_redundancy, settings.checkpoint_set_size)
        otherwise = commit.store is not None or commit.instead is not None
        try:
            name = commit.plan.name
            # a version has one number, wherever its copies are
            stored = await _newest_in(commit.store or commit.instead, name)
            number = 1 + max(self._newest[name], self._left.newest(name), stored)
            _note(self._newest, name, number)
            plan = await asyncio.to_thread(closed, commit.stored)
            found = await self._held_in_memory(commit, plan, number, keys, scheme, otherwise)
            commit.levels, note, as_asked = found
        except (CheckpointError, OSError) as error:
            if not otherwise:
                raise
            return f"L1: {error}", True
        commit.version = number
        if commit.store is None:
            commit.nbytes = sum(each.nbytes for each in commit.writings["L1"].written.values())
        commit.writing_s = stopwatch_s() - began_s
        return note, scheme is not None and scheme.name != "single" and not as_asked

    async def _held_in_memory(
        self,
        commit: Commit,
        plan: Plan,
        number: int,
        keys: Sequence[Any],
        scheme: Scheme | None,
        otherwise: bool,
    ) -> tuple[tuple[str, ...], str, bool]:
        """`Held.write`, for results in place of the version before where there is no room beside that."""
        again = False
        while True:
            writing = commit.writings["L1"]
            try:
                async with self.silent.done_without(writing) if otherwise else nullcontext():
                    return await self._held.write(plan, number, keys, writing, scheme, commit.protect)
            except CheckpointError as error:
                full = NO_ROOM in str(error) and commit.protect
                if again or not full or not self._held.make_room(plan.name):
                    raise
                # its results are held by another name before those of the first one are let go of
                commit.writings["L1"] = self._writing(commit, keys, "L1-again", None)
                writing.end()
                again = True
                # managers are told in the next turn of the loop, and waited for before the next try
                await asyncio.sleep(0)

    async def _write_store(self, commit: Commit, folder: str) -> None:
        """Level L3."""
        store, writing, name = Store(folder), commit.writings["L3"], commit.plan.name
        in_memory, before = self._held.newest(name), commit.version
        # the number of what has just been written to memory, or one above all that is there, or was
        last = self._stored[folder, name]
        above = max(self._left.newest(name), last)
        after = commit.version - 1 if commit.levels and commit.version else above
        beginning = asyncio.ensure_future(in_store(_begun, store, commit.stored, after, last))
        try:
            draft = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # a store that hangs does not keep whoever gives it up
            abandoning = asyncio.ensure_future(_abandoned(beginning))
            self.given_up.add(abandoning)
            abandoning.add_done_callback(self.given_up.discard)
            raise
        try:
            began_s = stopwatch_s()
            commit.version = draft.version
            _note(self._newest, name, max(self._newest[name], draft.version))
            writing.avoided = self.silent.known()
            if linked := writing.linked:
                try:
                    await _in_thread(draft.link, linked)
                except CheckpointError:
                    commit.removed = await in_store(_removed, {folder for folder, _, _ in linked})
                    raise
            # versions and tasks share what the file system gives
            writing.lease = self._gate.lease(await in_store(mount_of, Path(draft.path)))
            asked_s = stopwatch_s()
            if commit.protect:
                writing.draft, made = draft.path, partial(_copies, folder=draft.target, draft=draft.path)
                writing.wrote = self._protected.from_draft(made)
            touching = asyncio.ensure_future(_touch(draft.path))
            try:
                await writing.run(to_store(draft.path))
            finally:
                touching.cancel()
            wrote_s, commit.named = stopwatch_s(), True
            if not writing.waits and (nbytes := writing.own_bytes) >= _TELLING_BYTES:
                self.written_bytes_s = max(self.written_bytes_s, nbytes / max(wrote_s - asked_s, 1e-3))
            finish = partial(draft.finish, levels=(*commit.levels, "L3"), unheard=frozenset(writing.unheard))
            version = await _in_thread(finish, writing.written)
            commit.writing_s += wrote_s - began_s
            commit.finishing_s = stopwatch_s() - wrote_s
        except BaseException:
            commit.version = before
            self._protected.give_up(writing.draft)
            await asyncio.shield(in_store(draft.abandon))
            raise
        _note(self._stored, (folder, name), version.version)
        commit.path, commit.nbytes = version.path, version.bytes
        commit.levels = (*commit.levels, "L3")
        copies = _copies(writing.blocks, version.path)
        if commit.protect:
            self._protected.add({key: copies[key] for key in copies.keys() - writing.forgotten})
            self._held.stored(name, in_memory)
            await self._reading.protects(version.path)
        if commit.job is not None:
            commit.copies = copies
        await self._tidy(store, version.path)

    async def _tidy(self, store: Store, version: str) -> None:
        """Keep the last versions of a name in the store, and those that are in use."""
        home = os.path.dirname(version)
        name = os.path.basename(home)
        used = await in_store(_versions_in, home, self._protected.folders())
        newest = sorted(set(used.values()))[-KEEP:]
        self._protected.let_go_of({each for each, number in used.items() if number not in newest})
        try:
            spared = self._protected.folders()
            await self._reading.look()
            old = await in_store(store.collect, KEEP, spared, name=name, dry_run=True)
            # what was restored from one is read in the background, and again when it is lost
            names = {path: await in_store(readers, path) for path in old}
            unread = [path for path in old if self._unread(names[path])]
            await in_store(store.discard, unread, self._protected.folders())
        except (CheckpointError, OSError) as error:
            logger.warning("Old versions of checkpoint %r stay: %s", name, error)

    def _unread(self, names: Collection[str] | None) -> bool:
        """Whether no task of these names is there; None: it cannot be told which names."""
        return names is not None and not runs.in_use(self._scheduler, names)


def _begun(store: Store, plan: Plan, after: int, last: int) -> Draft:
    """The next version of a store, which is to have `last` of its name."""
    draft = store.begin(plan, after)
    look_for(store.folder, plan.name, last)
    return draft


def _copies(blocks: Mapping[Any, Block], folder: str, draft: str = "") -> dict[Any, tuple[Copy, str]]:
    """Copies of results, and the name of the type of each."""
    return {
        key: (Copy(folder, block.array, block.number, block.written, draft=draft), block.type_name)
        for key, block in blocks.items()
    }


def _versions_in(home: str, folders: Collection[str]) -> dict[str, int]:
    """Those of these versions that are in the folder of a name, whatever it is called there; by number."""
    real, called = os.path.realpath(home), os.path.basename(home)
    homes = {os.path.dirname(each) for each in folders}
    same = {each for each in homes if os.path.basename(each) == called and os.path.realpath(each) == real}
    return {each: int(os.path.basename(each)) for each in folders if os.path.dirname(each) in same}


def _removed(folders: Collection[str]) -> set[str]:
    """Versions that somebody has removed; one that cannot be looked at just now is there."""

    def is_removed(folder: str) -> bool:
        try:
            os.lstat(folder)
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return False

    return set(filter(is_removed, folders))


def _note(known: Counter[K], which: K, number: int) -> None:
    """Note the number of a version; of many names those are known that were written last."""
    known.pop(which, None)
    known[which] = number
    while len(known) > _NAMES:
        del known[next(iter(known))]


async def _newest_in(folder: str | None, name: str) -> int:
    """Number of the newest version of a name in a store; 0: there is none, or the store does not say."""
    if folder is None:
        return 0
    try:
        return max(await soon(numbers, Path(folder, name)), default=0)
    except (CheckpointError, OSError):
        # it will be said when something is to be written there; memory comes first
        return 0


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Have a thread do something that goes on when this is cancelled; it is waited for then."""
    doing = asyncio.ensure_future(in_store(function, *args))
    try:
        return await asyncio.shield(doing)
    finally:
        # what it has finished is not abandoned
        await asyncio.wait([doing])


async def _touch(folder: str) -> None:
    """Say now and then that a draft is written, though what it is to have may not be there for hours: who
    collects on another host may not see that it is locked.
    """
    while True:
        await asyncio.sleep(passing.TOUCHED_S)
        with suppress(OSError):
            await in_store(os.utime, folder)


async def _abandoned(beginning: asyncio.Future[Draft]) -> None:
    """Leave nothing of a version that was given up before it was begun."""
    await asyncio.wait([beginning])
    if not beginning.cancelled() and beginning.exception() is None:
        await in_store(beginning.result().abandon)
