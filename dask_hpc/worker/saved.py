"""Results in checkpoints: what a worker writes of a version, and the task that brings a result back.

Both ends run on workers, beside the tasks: values are read where they are, and one thread a call writes.
What cannot be written or read is said to the scheduler, which knows what else to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.utils import typename
from distributed import Reschedule, get_worker, secede
from distributed.utils import sync

from dask_hpc.checkpoint.blobs import Group, Home, Range, finder
from dask_hpc.checkpoint.blocks import NotTaken, stored_value, write_blocks
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.record import Record
from dask_hpc.checkpoint.segments import read_segment
from dask_hpc.checkpoint.services import unwrapped
from dask_hpc.checkpoint.store_threads import PATIENCE_S, begin, in_store, wait_for
from dask_hpc.checkpoint.values import form, from_bytes
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import (
    ManagerAwayError,
    PartsAwayError,
    fetch,
    in_pieces,
    patience,
    remake,
)
from dask_hpc.worker.small import SmallCopy
from dask_hpc.worker.values import Answers, Refused, read_values

logger = logging.getLogger("distributed.dask_hpc")

#: Event topic in which a worker says why no copy of a result could be read.
TOPIC = "hpc-checkpoint"
#: What names of versions in memories begin with; no folder is called so.
MEMORY = "memory:"
#: Who holds what is to be read cannot be reached just now; how soon it is tried again, in seconds.
_AWAY, _BACK_S = (ManagerAwayError, PartsAwayError), 0.5


class UnmadeError(CheckpointError):
    """What is there is what was written, and this worker can make no value of it, without a key or module."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Where one result is in a version of a checkpoint."""

    #: Folder of the version, and what of it.
    folder: str
    array: Array
    number: int
    written: Written
    #: Whether it is deleted once its result is back; else it stays as long as its version.
    passing: bool = False
    #: Where the version is until it is whole and has its folder; empty: it is.
    draft: str = ""

    @property
    def name(self) -> str:
        """Name of the block, among all there are."""
        return f"{self.folder}/{self.array.path}/{self.number}"

    def stored(self) -> Callable[[], Any]:
        """Read it; gives what makes its value. Raises what `stored_value` raises."""
        if self.draft:
            # once that is gone, the folder is there
            with suppress(OSError, ValueError, CheckpointError):
                return self._stored(self.draft)
        return self._stored(self.folder)

    def _stored(self, folder: str) -> Callable[[], Any]:
        return stored_value(folder, self.array, self.number, self.written, trusted=True)


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """Where one result is in a version in the memories of hosts."""

    #: Of the version, among all there are.
    version: str
    array: Array
    number: int
    #: Its pack is the segment that it is in.
    written: Written
    #: Whose memory that is.
    home: Home
    #: The hosts that hold parities of it (see `blobs.finder`), which of their blobs it is in, and where its
    #: segment begins there; None: there is level L1 alone.
    group: Group | None = None
    blob: int = 0
    start: int = 0
    #: As long as the version is not whole, its name; else empty.
    draft: str = ""
    #: Name of the checkpoint that it is a version of.
    of: str = ""
    #: File with the key of what is encrypted; None: what the process that reads it is configured with.
    key_file: str | None = None

    @property
    def folder(self) -> str:
        """Name of the version, among all there are."""
        return f"{MEMORY}{self.version}"

    @property
    def name(self) -> str:
        """Name of the block, among all there are."""
        return f"{self.folder}/{self.array.path}/{self.number}"

    def read(self, trusted: bool = True) -> Any:
        """The value.

        Parameters
        ----------
        trusted
            Whether what is pickled may be unpickled.

        Raises
        ------
        OSError, ValueError, CheckpointError
            When neither its host nor the others of its group hold what was written; `UnmadeError`: they do.
        """
        written = self.written
        try:
            # where this host has it, no turn of the loop is waited for
            found = np.empty(written.nbytes, np.uint8)
            read_segment(self.home.folder, str(written.pack), written.offset, found)
            content = self._checked(found)
        except (OSError, ValueError, CheckpointError):
            worker = get_worker()
            content = sync(worker.loop, self.content, worker.rpc)
        try:
            return self.value(content, trusted)
        except ValueError:
            raise
        except Exception as error:  # types of users may raise anything when they are loaded
            raise UnmadeError(str(error) or repr(error)) from error

    def value(self, content: np.ndarray, trusted: bool) -> Any:
        """The value that `content` has; raises ValueError or CheckpointError when it may not be made."""
        told, digest = form(self.array, self.number), self.written.digest
        return from_bytes(told, unwrapped(told, content, digest, self.key_file), digest, trusted)

    async def content(self, pool: Any) -> np.ndarray:
        """Its bytes, from its host, or made of what others of its group hold; raises as `read`."""
        try:
            return self._checked(await self._held(pool))
        except (OSError, ValueError, CheckpointError) as error:
            if self.group is None:
                raise
            logger.info("%s is made of what other hosts hold: %s", self.name, error)
            try:
                return self._checked(await self._remade(pool))
            except (OSError, ValueError, CheckpointError) as other:
                if isinstance(error, ManagerAwayError):
                    raise PartsAwayError(str(other)) from None
                raise

    async def _held(self, pool: Any) -> np.ndarray:
        written = self.written
        return await fetch(pool, self.home, [Range(str(written.pack), written.offset, written.nbytes)])

    async def _remade(self, pool: Any) -> np.ndarray:
        group, first = self.group, self.start + self.written.offset
        assert group is not None
        found = np.empty(self.written.nbytes, np.uint8)

        async def piece(start: int, stop: int) -> None:
            found[start:stop] = await remake(pool, group, self.blob, first + start, first + stop)

        # all at once, it would take as many times its bytes as the group has hosts
        await in_pieces(found.nbytes, piece, 2)
        return found

    def _checked(self, content: np.ndarray) -> np.ndarray:
        if crc32c(content) != self.written.crc32c:
            raise ValueError(f"{self.name} is not what was written: its checksum differs")
        return content


#: Where a result can be read.
AnyCopy = Copy | MemoryCopy | SmallCopy


def copies_of(record: Record, key_file: str | None = None) -> list[MemoryCopy]:
    """Where the results of a version in memory are, in the order of its plan; `key_file` as theirs."""
    found = []
    find = finder(record.groups)
    numbers = [(array, number) for array in record.manifest.plan.arrays for number in range(array.count)]
    for at, ((array, number), place) in enumerate(zip(numbers, record.places, strict=True)):
        written, home = record.manifest.written(at), record.homes[place]
        group, blob, start = find(home, str(written.pack))
        found.append(
            MemoryCopy(
                record.id, array, number, written, home, group, blob, start, of=record.name, key_file=key_file
            )
        )
    return found


def read_held(copy: MemoryCopy, trusted: bool) -> Any:
    """The task that reads a result of a version in memory.

    Raises
    ------
    CheckpointError
        When the hosts that are left do not hold what was written, or were away for
        ``hpc.checkpoint.silence``.
    """
    try:
        try:
            return copy.read(trusted)
        except _AWAY:
            return _read_late([copy], trusted)
    except UnmadeError as error:
        raise CheckpointError(f"{copy.name} cannot be had on this worker: {error}") from None
    except (OSError, ValueError, CheckpointError) as error:
        raise CheckpointError(
            f"{copy.name} cannot be read from the memory of hosts: {error}; restore a version of the store"
        ) from None


def _read_late(copies: Sequence[Copy | MemoryCopy], trusted: bool = True) -> Any:
    """The value of copies whose hosts or store were away a moment ago, from the first of them that is back.

    Other tasks of the worker go on meanwhile.

    Raises
    ------
    Exception
        What the last one raises, once none is away, or they were for ``hpc.checkpoint.silence``.
    """
    # a task may read several, and leaves its thread once
    with suppress(AttributeError, KeyError):
        secede()
    deadline_s, left = time.monotonic() + patience().silence_s, list(copies)
    while True:
        late = time.monotonic() >= deadline_s
        for copy in list(left):
            try:
                return copy.read(trusted) if isinstance(copy, MemoryCopy) else begin(copy.stored).result()()
            except Exception as error:
                if not (isinstance(error, _AWAY) or _is_ours(copy, error)):
                    left.remove(copy)
                if late or not left:
                    raise
        time.sleep(_BACK_S)


async def write(
    folder: str, array: Array, keys: Mapping[int, Any], dask_worker: Any
) -> dict[int, tuple[Written, str] | Refused | str | None]:
    """Write results of the worker that this runs on as blocks of an array; durable when it returns.

    Returns
    -------
    dict
        By number of the block what was written and the type of the value, or why there is nothing (a text,
        or `Refused` where the file system has not taken it), or None for what the worker has not got any
        more.
    """
    answers: dict[int, tuple[Written, str] | Refused | str | None] = Answers.fromkeys(keys)
    values = read_values(dask_worker, keys, answers)
    numbers = list(values)
    # a mount that hangs keeps none of the threads that all else on the worker needs
    done = await in_store(write_blocks, folder, array, numbers, [values[n] for n in numbers])
    for number, written in zip(numbers, done, strict=True):
        if isinstance(written, NotTaken):
            answers[number] = Refused(str(written))
        else:
            told = written if isinstance(written, str) else (written, typename(type(values[number])))
            answers[number] = told
    return answers


#: What stores have not answered.
_hanging: set[Future[Any]] = set()
#: Who asks a store while one hangs has tasks beside it go on so soon, in seconds.
_SOON_S = 0.2


def _answers(answer: Any, go_on: bool, last: bool) -> bool:
    """Whether a store answers the task that asks it within ``hpc.checkpoint.silence``.

    Parameters
    ----------
    go_on
        Whether other tasks are to have its thread when it does not answer soon.
    last
        There is nobody else to ask, so longer is not waited here.
    """
    silence_s = patience().silence_s
    soon_s = min(silence_s, _SOON_S if _hanging else PATIENCE_S)
    if wait_for(answer, soon_s):
        return True
    _hanging.add(answer)
    answer.add_done_callback(_hanging.discard)
    if go_on:
        secede()
    return not last and wait_for(answer, max(_SOON_S, silence_s - soon_s))


def load(copies: Sequence[AnyCopy], insists: bool = False) -> Any:
    """The task that brings a result back, from the first copy that is what was written.

    It never fails: when there is no such copy it says so to the scheduler, which knows what else to do, and
    gives itself back. So it does where it may be this worker alone that cannot read them. While a store hangs
    it keeps no other task from its worker, and the next copy is read; for the last one is waited. So it is,
    for ``hpc.checkpoint.silence``, while hosts are away, and for one that `insists`, while it cannot read the
    store: no other worker can, either.
    """
    problems: list[str] = []
    unable = False
    away: list[Copy | MemoryCopy] = []
    late: dict[Future[Any], AnyCopy] = {}

    def note(copy: AnyCopy, error: Exception) -> None:
        nonlocal unable
        ours = _is_ours(copy, error)
        unable = unable or ours
        if not isinstance(copy, SmallCopy) and (isinstance(error, _AWAY) or (insists and ours)):
            away.append(copy)
        problems.append(f"{copy.name}: {type(error).__name__}: {error}")
        logger.warning("A copy of a result is of no use: %s", problems[-1])

    for copy in copies:
        try:
            if not isinstance(copy, Copy):
                return copy.read()
            answer = begin(copy.stored)
            if _answers(answer, go_on=not late, last=copy is copies[-1]):
                return answer.result()()
            late[answer] = copy
        except Exception as error:
            note(copy, error)
    while late:
        for heard in wait(late, return_when=FIRST_COMPLETED).done:
            copy = late.pop(heard)
            try:
                return heard.result()()
            except Exception as error:
                note(copy, error)
    if away:
        try:
            return _read_late(away)
        except Exception as error:
            note(away[-1], error)
    worker = get_worker()
    event = {"key": worker.get_current_task(), "block": copies[0].name, "error": "; ".join(problems)}
    worker.log_event(TOPIC, event | ({"unable": worker.address} if unable else {}))
    raise Reschedule


def _is_ours(copy: AnyCopy, error: Exception) -> bool:
    """Whether it may be of this worker alone that it cannot read a copy; else it is no use to anybody.

    What is in memories is asked for from whoever may hold it, and waited for.
    """
    if isinstance(copy, MemoryCopy):
        return isinstance(error, (MemoryError, UnmadeError))
    return not isinstance(error, ValueError)
