"""What only workers that have to go hold: written at last, read back by the next ones.

Below ``hpc.spill.directory``, or in the store when that is not set, this scheduler has a folder of its own.
What a worker writes at once is in a folder of it, as blocks of a version are, and is protected as they are
(`Protected`) until it is back. Nobody else may enter that folder, and nothing of it outlives the scheduler.

Time is short: workers write little at a time, and what is written by the end of the time is not lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint import passing
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.store_threads import Asked, SilentStoreError, in_store
from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.internals import data, reads, remote
from dask_hpc.scheduler.tables.parts import Departure
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import saved
from dask_hpc.worker.saved import Copy
from dask_hpc.worker.values import Refused

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: A copy of a result, and the name of its type.
Kept = tuple[Copy, str]

#: Bytes per second that are counted on until something has been written.
_BANDWIDTH = 100e6
#: Least time kept for writing, in seconds, unless that is more than half of all there is.
_LEAST_S = 2.0
#: What a worker is asked to write at once, at most, unless it is one result.
_BATCH_BLOCKS, _BATCH_BYTES = 500, 32 << 20


class Departing:
    """What has been written by workers that had to go, and is not back."""

    def __init__(self, state: State, watched: Watched, protected: Protected) -> None:
        self._state = state
        self._watched = watched
        self._protected = protected
        self._scheduler: Scheduler = state.scheduler
        #: Folders of this scheduler, by the directory they are in: nobody else's files are there.
        self._own: dict[str, str] = {}
        self._used = passing.Owned()
        self._touching: asyncio.TimerHandle | None = None
        self._touched: asyncio.Future[None] | None = None
        #: Such folders from before, which could not be deleted.
        self._stale: set[str] = set()
        #: Folders in them that results may be read from.
        self._folders: set[str] = set()
        self._count = count(1)
        #: Calls of `write` under way.
        self._writing = 0
        self._bandwidth = _BANDWIDTH
        self._background: set[asyncio.Task[None]] = set()
        protected.unused.append(self._drop)

    def reserved_s(self, departure: Departure) -> float:
        """How much of the time of a departure writing what only its workers hold may need."""
        if self._directory is None:
            return 0.0
        there = [address for address in departure.addresses if address in self._scheduler.workers]
        return self.writing_s(reads.sole_bytes(self._scheduler, there), departure.within_s)

    def writing_s(self, nbytes: int, within_s: float) -> float:
        """Seconds of `within_s` to keep for writing so many bytes: by the measured bandwidth, twice over."""
        return min(max(_LEAST_S, 2 * nbytes / self._bandwidth), within_s / 2)

    async def leave(self, departure: Departure) -> bool:
        """At last, have written what only the leaving workers hold, if there is a folder for it."""
        addresses, directory = departure.addresses, self._directory
        there = [address for address in addresses if address in self._scheduler.workers]
        safe = {key for held in departure.kept.values() for key in held}
        keys = [key for key in reads.sole_keys(self._scheduler, there, addresses) if key not in safe]
        if not departure.last or directory is None or not keys:
            return False
        began_s = self._state.now_s()

        def left_s() -> float:
            # a tenth for what comes after
            return 0.9 * (departure.deadline_s - began_s) - (self._state.now_s() - began_s)

        for address, held in (await self.write(directory, keys, addresses, left_s)).items():
            departure.kept.setdefault(address, []).extend(held)
        return False

    async def write(
        self, directory: str, keys: Iterable[Any], leaving: Collection[str], left_s: Callable[[], float]
    ) -> dict[str, list[Any]]:
        """Have workers that leave write what only they hold below `directory`.

        Gives the keys that are on disk then, by the worker that holds them; what could not be written in the
        time that is left (`left_s`, which may become less) is not among them, and the log says why.
        """
        wanted = reads.spillable(self._scheduler, keys, leaving)
        if not wanted:
            return {}
        self._watched.listen(self)
        self._writing += 1
        folders: set[str] = set()
        try:
            done = await asyncio.gather(
                *(
                    self._write(address, directory, held, left_s, folders)
                    for address, held in wanted.items()
                )
            )
            copies = {key: copy for each in done for key, copy in each.items()}
            # workers were asked a while ago: some may not be wanted any more, or have been moved after all
            still = reads.spillable(self._scheduler, copies, leaving)
            self._protected.add({key: copies[key] for held in still.values() for key in held})
        finally:
            self._writing -= 1
            self._folders |= folders
            self._drop(folders - self._protected.folders())
        return still

    async def _write(
        self,
        address: str,
        directory: str,
        keys: list[Any],
        left_s: Callable[[], float],
        folders: set[str],
    ) -> dict[Any, Kept]:
        """What one worker has written in time; the folders are noted that something may be in."""
        nbytes, began_s = reads.nbytes(self._scheduler, keys), stopwatch_s()
        copies: dict[Any, Kept] = {}
        problems: dict[Any, str] = {}
        for batch in self._batches(keys):
            folder = os.path.join(self._top(directory), f"{next(self._count):06}")
            try:
                written = None
                if (batch_s := left_s()) > 0:
                    folders.add(folder)
                    # the file system itself may not answer
                    written = await data.in_time(self._batch(address, folder, batch, batch_s), left_s)
                if written is None:
                    raise TimeoutError
            except TimeoutError:
                problems |= dict.fromkeys(batch, "not written within the time that there was")
            except Exception as error:  # whatever goes wrong on the worker, the departure goes on
                problems |= dict.fromkeys(batch, f"{type(error).__name__}: {error}")
            else:
                problems |= {key: found for key, found in written.items() if isinstance(found, str)}
                copies |= {key: found for key, found in written.items() if not isinstance(found, str)}
        for why in set(problems.values()):
            several = [key for key, found in problems.items() if found == why]
            text = "%d results of worker %s cannot be written below %s (%s): %s"
            logger.error(text, len(several), address, directory, self._setting, why)
        if not problems:
            self._bandwidth = max(1.0, nbytes / max(stopwatch_s() - began_s, 1e-3))
        return copies

    async def _batch(
        self, address: str, folder: str, keys: list[Any], within_s: float
    ) -> dict[Any, Kept | str]:
        """Have results written together; gives where each is, or why it is nowhere.

        Raises
        ------
        Exception
            When none of them could be written, whatever the reason.
        """
        await in_store(_make, folder)
        await in_store(self._used.have, os.path.dirname(folder))
        self._touch_later()
        array = Array("data", "opaque", None, (len(keys),), ((1,) * len(keys),))
        arguments = {"folder": folder, "array": array, "keys": dict(enumerate(keys))}
        answers = await remote.run(self._scheduler, address, saved.write, arguments, within_s)
        found: dict[Any, Kept | str] = {}
        for number, key in enumerate(keys):
            answer = answers[number]
            if answer is None:
                found[key] = "the worker has not got it any more"
            elif isinstance(answer, (str, Refused)):
                found[key] = answer.why if isinstance(answer, Refused) else answer
            else:
                written, type_name = answer
                found[key] = Copy(folder, array, number, written, passing=True), type_name
        return found

    def _batches(self, keys: Iterable[Any]) -> Iterator[list[Any]]:
        """Keys that are written together, small results first: so most of them are written in time."""
        sizes = {key: reads.nbytes(self._scheduler, [key]) for key in keys}
        batch: list[Any] = []
        nbytes = 0
        for key, more in sorted(sizes.items(), key=lambda one: one[1]):
            if batch and (len(batch) == _BATCH_BLOCKS or nbytes + more > _BATCH_BYTES):
                yield batch
                batch, nbytes = [], 0
            batch.append(key)
            nbytes += more
        if batch:
            yield batch

    @property
    def _directory(self) -> str | None:
        return self._state.settings.spill_directory or self._state.settings.checkpoint_store

    @property
    def _setting(self) -> str:
        given = self._state.settings.spill_directory
        return "hpc.checkpoint.store" if given is None else "hpc.spill.directory"

    def _top(self, directory: str) -> str:
        return self._own.setdefault(directory, passing.drawn(directory))

    # ------------------------------------------------------------------ events

    async def closing(self) -> None:
        """The scheduler is closing: what is on disk cannot come back."""
        for folder in {*self._own.values(), *self._stale}:
            ask = Asked(folder, self._state.settings.checkpoint_silence_s)
            try:
                await ask.soon(shutil.rmtree, folder, True)
            except SilentStoreError as error:
                logger.warning("What workers wrote there that had to go stays: %s", error)
                return
        await self._rest()

    def _touch_later(self) -> None:
        if self._touching is None:
            self._touching = asyncio.get_running_loop().call_later(passing.TOUCHED_S, self._touch)

    def _touch(self) -> None:
        """Say that what is on disk is in use, as long as it is."""
        self._touching = None
        if self._own or self._stale:
            # a mount that hangs would keep one more thread each time
            if self._touched is None or self._touched.done():
                self._touched = asyncio.ensure_future(in_store(self._used.touch))
            self._touch_later()

    async def _rest(self) -> None:
        """Let go of folders that are deleted."""
        await in_store(self._used.let_go)
        if self._touching is not None and not (self._own or self._stale):
            self._touching.cancel()
            self._touching = None

    def _drop(self, unused: Collection[str]) -> None:
        """Delete what no result is read from, and what is left when nothing is on disk any more."""
        gone = self._folders.intersection(unused)
        self._folders -= gone
        if not gone and (self._folders or self._writing or not self._own):
            return
        # disks may be slow
        task = asyncio.ensure_future(self._delete(gone))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _delete(self, folders: Collection[str]) -> None:
        await in_store(_remove, folders)
        if self._folders or self._writing:
            return
        # what is written from now on goes elsewhere
        own, self._own = self._own, {}
        # a worker that was late may still write there: that goes when the scheduler closes
        self._stale = await in_store(_remove_empty, {*own.values(), *self._stale})
        await self._rest()
        if not (self._folders or self._writing or self._own or self._stale):
            self._watched.leave(self)


def problem(directory: str) -> str | None:
    """Why nothing can be written below a folder, which need not be there yet; None when something can."""
    at = there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        # what is too long is not there either, and can never be
        for at in (*(os.path.join(there, part) for part in directory[len(there) :].split("/")), directory):
            with suppress(FileNotFoundError):
                os.lstat(at)
        return None
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}: {at!r}"


def _make(folder: str) -> None:
    """Make a folder in one that is its owner's only.

    Raises
    ------
    OSError
        When it cannot be made, or that one belongs to somebody else or is open to others.
    """
    top = os.path.dirname(folder)
    os.makedirs(os.path.dirname(top), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(top, 0o700)
    found = os.lstat(top)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{top} is not a folder that is yours only (mode 0700)")
    os.mkdir(folder, 0o700)


def _remove(folders: Collection[str]) -> None:
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except (FileNotFoundError, NotADirectoryError):
            pass  # nothing could be written there
        except OSError as error:
            logger.warning("What is not needed any more cannot be deleted: %s", error)


def _remove_empty(folders: Collection[str]) -> set[str]:
    """Delete empty folders; gives those that are not gone."""
    for folder in folders:
        with suppress(OSError):
            os.rmdir(folder)
    return {folder for folder in folders if os.path.lexists(folder)}
