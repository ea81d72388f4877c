"""Results on disk: written by workers that had to go, brought back by the next ones.

The scheduler keeps the digests: nothing is read that it did not have written itself. A key on disk has a
task that loads its file, in place of how it was made; both are put right when it is in memory again. A file
that cannot be read counts as a loss: a computed result is made again, anything else is forgotten and named.

What is on disk is watched (`tables.watched`) for longer than jobs are active.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from dask._task_spec import Task

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.internals import data, lineage, reads, remote
from dask_hpc.scheduler.internals.lineage import Lineage
from dask_hpc.scheduler.tables.parts import Departure
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import spill

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Bytes per second that are counted on until something has been written.
_BANDWIDTH = 100e6
#: Least time kept for writing, in seconds, unless that is more than half of all there is.
_LEAST_S = 2.0
_STIMULUS = "hpc-spill"


@dataclass(slots=True)
class _File:
    """Where a key is, and what its loader stands in for."""

    path: str
    lineage: Lineage
    #: Why the file is of no use, once that is known.
    bad: str | None = None


class Spilled:
    """What is on disk, by key."""

    def __init__(self, state: State, watched: Watched, let_run_anywhere: Callable[[Any], None]) -> None:
        self._state = state
        self._let_run_anywhere = let_run_anywhere
        self._watched = watched
        self._scheduler: Scheduler = state.scheduler
        self._files: dict[Any, _File] = {}
        self._keys: dict[str, Any] = {}
        self._count = count()
        #: Name of the folder of this scheduler: nobody else's files are in it.
        self._folder_name = f"dask-hpc-{uuid.uuid4().hex}"
        self._folders: set[str] = set()
        #: Calls of `write` under way.
        self._writing = 0
        self._bandwidth = _BANDWIDTH
        self._background: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._files)

    def reserved_s(self, departure: Departure) -> float:
        """How much of the time of a departure writing what only its workers hold may need."""
        if self._state.settings.spill_directory is None:
            return 0.0
        there = [address for address in departure.addresses if address in self._scheduler.workers]
        return self.writing_s(reads.sole_bytes(self._scheduler, there), departure.within_s)

    def writing_s(self, nbytes: int, within_s: float) -> float:
        """Seconds of `within_s` to keep for writing so many bytes: by the measured bandwidth, twice over."""
        return min(max(_LEAST_S, 2 * nbytes / self._bandwidth), within_s / 2)

    async def leave(self, departure: Departure) -> bool:
        """At last, write what only the leaving workers hold to disk, if the user wants that."""
        addresses, directory = departure.addresses, self._state.settings.spill_directory
        there = [address for address in addresses if address in self._scheduler.workers]
        safe = {key for held in departure.kept.values() for key in held}
        keys = [key for key in reads.sole_keys(self._scheduler, there, addresses) if key not in safe]
        if not departure.last or directory is None or not keys:
            return False
        left_s = departure.deadline_s - self._state.now_s()
        on_disk = await self.write(directory, keys, addresses, left_s)
        for address, held in on_disk.items():
            departure.kept.setdefault(address, []).extend(held)
        written = [key for held in on_disk.values() for key in held]
        departure.at_end.append(lambda: self.release(written, addresses))
        return False

    async def write(
        self, directory: str, keys: Iterable[Any], leaving: Collection[str], within_s: float
    ) -> dict[str, list[Any]]:
        """Have workers that leave write what only they hold below `directory`.

        Gives the keys that are on disk then, by the worker that holds them (call `release` before that goes);
        what could not be written within `within_s` seconds is not among them, and the log says why.
        """
        folder = os.path.join(directory, self._folder_name)
        self._folders.add(folder)
        self._watched.listen(self)
        wanted = reads.spillable(self._scheduler, keys, leaving)
        self._writing += 1
        try:
            done = await asyncio.gather(
                *(self._write(address, folder, held, leaving, within_s) for address, held in wanted.items())
            )
        finally:
            self._writing -= 1
            self._clean([])
        return dict(zip(wanted, done, strict=True))

    def release(self, keys: Iterable[Any], leaving: Collection[str]) -> None:
        """Have what is on disk be there only: it comes back on the next worker, if it is still wanted."""
        data.stop_intake(self._scheduler, leaving, _STIMULUS)
        data.release(self._scheduler, [key for key in keys if key in self._files], _STIMULUS)

    async def _write(
        self, address: str, folder: str, keys: list[Any], leaving: Collection[str], within_s: float
    ) -> list[Any]:
        names = {key: spill.file_name(key, next(self._count)) for key in keys}
        nbytes, began_s = reads.nbytes(self._scheduler, keys), stopwatch_s()
        try:
            # a tenth for what comes after
            arguments = {"folder": folder, "names": names, "within_s": 0.9 * max(0.0, within_s)}
            answers = await remote.run(self._scheduler, address, spill.write, arguments, within_s + 1.0)
        except Exception as error:  # whatever goes wrong on the worker, the departure goes on
            answers = dict.fromkeys(names.values(), str(error) or repr(error))
        problems = {key: answers[name] for key, name in names.items() if isinstance(answers[name], str)}
        for why in set(problems.values()):
            several = [key for key, found in problems.items() if found == why]
            logger.error(
                "%d results of worker %s cannot be written below %s (hpc.spill.directory): %s",
                len(several),
                address,
                os.path.dirname(folder),
                why,
            )
        if not problems:
            self._bandwidth = max(1.0, nbytes / max(stopwatch_s() - began_s, 1e-3))
        written = {key: os.path.join(folder, name) for key, name in names.items() if key not in problems}
        # the worker was asked a while ago: some may not be wanted any more, or have been moved after all
        still = reads.spillable(self._scheduler, written, leaving)
        on_disk = [key for held in still.values() for key in held]
        for key in on_disk:
            digest, length, type_name = answers[names[key]]
            self._note(key, written[key], Task(key, spill.load, written[key], digest, length), type_name)
        self._clean(path for key, path in written.items() if key not in on_disk)
        return on_disk

    def _note(self, key: Any, path: str, task: Task, type_name: str) -> None:
        if key not in self._files:
            self._watched.watch(key, self._moved)
        made = lineage.stand_in(self._scheduler, key, task, type_name)
        self._let_run_anywhere(key)
        self._files[key] = _File(path, made)
        self._keys[os.path.basename(path)] = key

    # ------------------------------------------------------------------ events

    def heard(self, topic: str, message: Any) -> None:
        """A worker says that it could not read a file."""
        if topic == spill.TOPIC and isinstance(message, dict) and isinstance(message.get("file"), str):
            file = self._files.get(self._keys.get(message["file"]))
            if file is not None:
                file.bad = str(message.get("error"))

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """A key that is on disk is in memory again, cannot be loaded, or is not needed any more."""
        file = self._files[key]
        if finish == "memory":
            lineage.put_back(self._scheduler, key, file.lineage)
        elif start == "processing" and finish == "released" and file.bad is not None:
            again = lineage.fall_back(self._scheduler, key, file.lineage)
            text = "is computed again" if again else "is lost"
            logger.error("Result %r %s: it cannot be loaded (%s)", key, text, file.bad)
            if not again:
                message = {"action": "hpc-lost", "keys": [str(key)], "reason": file.bad}
                # the broker calls plugins: not in the middle of a transition
                self._later(lambda: self._scheduler.log_event(spill.TOPIC, message))
        elif finish != "forgotten":
            return
        del self._files[key], self._keys[os.path.basename(file.path)]
        self._watched.unwatch(key, self._moved)
        self._later(lambda: lineage.sweep(self._scheduler, file.lineage, _STIMULUS))
        self._clean([file.path])

    async def closing(self) -> None:
        """The scheduler is closing: what is on disk cannot come back."""
        for folder in self._folders:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def _later(self, work: Any) -> None:
        asyncio.get_running_loop().call_soon(work)

    def _clean(self, paths: Iterable[str]) -> None:
        """Delete files, and what is left when nothing is on disk any more; disks may be slow."""
        task = asyncio.ensure_future(self._delete(list(paths)))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _delete(self, paths: list[str]) -> None:
        await asyncio.to_thread(_unlink, paths)
        if self._files or self._writing:
            return
        # what remains holds a part of a file, which goes when the scheduler closes
        self._folders -= await asyncio.to_thread(_rmdir, set(self._folders))
        if not (self._files or self._writing or self._folders):
            self._watched.leave(self)


def _unlink(paths: list[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("A file that is not needed any more cannot be deleted: %s", error)


def _rmdir(folders: Collection[str]) -> set[str]:
    """Delete empty folders; gives those that are gone."""
    gone = set()
    for folder in folders:
        with suppress(OSError):
            os.rmdir(folder)
        if not os.path.lexists(folder):
            gone.add(folder)
    return gone
