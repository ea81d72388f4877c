"""The blocks of one version on their way to the store: whoever holds a result writes it, once it is there.

Results that are not computed yet are waited for. A worker that is lost while it writes takes nothing with
it but time: what it had not written is written by another one that holds it, or when it is there again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.scheduler.internals import reads, remote
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import saved
from dask_hpc.worker.saved import Copy
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Calls that one worker has at a time, and what each asks for at most.
_CALLS = 2
_BATCH_BLOCKS, _BATCH_BYTES = 500, 256 << 20
#: Results that the scheduler has not heard of by then are none of anybody's, in seconds.
UNKNOWN_S = 30.0
#: A worker that cannot be reached is left for the scheduler to notice; then it is tried again, in seconds.
_AGAIN_S = 0.25
#: How often a worker may have no use of what it is said to hold.
_TRIES = 20
#: Time that a worker has to write a batch: at least, and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 60.0, 4e6


class Writing:
    """Has workers write all blocks of a version.

    Parameters
    ----------
    unknown_s
        Results that the scheduler has not heard of by then are none of anybody's.
    known
        Copies of results that an earlier version has, which are linked into this one before it `run`s.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        watched: Watched,
        plan: Plan,
        keys: Sequence[Any],
        unknown_s: float = UNKNOWN_S,
        known: Mapping[Any, tuple[Copy, str]] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._watched = watched
        self._arrays = plan.arrays
        self._folder = ""
        self._unknown_s = unknown_s
        self._first = [0, *accumulate(array.count for array in plan.arrays)]
        if len(keys) != self._first[-1]:
            raise CheckpointError(f"there are {len(keys)} results for {self._first[-1]} blocks")
        #: Where each result goes: array and number in it. One may go to several places.
        self._places: dict[Any, list[tuple[int, int]]] = {}
        for index in range(len(plan.arrays)):
            for number, key in enumerate(keys[self._first[index] : self._first[index + 1]]):
                self._places.setdefault(key, []).append((index, number))
        #: What is durable, by number over all arrays, and where each result can be read.
        self.written: dict[int, Written] = {}
        self.copies: dict[Any, tuple[Copy, str]] = {}
        self._known = known or {}
        self._left = dict.fromkeys(key for key in self._places if key not in self._known)
        self._unknown: set[Any] = set()
        #: Results that workers could not make bytes of.
        self.unwritable: set[Any] = set()
        #: Results in memory that no worker was asked for yet, and those that workers will be asked for.
        self._ready: list[Any] = []
        self._queues: dict[str, deque[Any]] = {}
        self._calls: dict[asyncio.Task[None], str] = {}
        self._tries: Counter[Any] = Counter()
        self._problem: str | None = None
        self._moves = asyncio.Event()
        # from now on: what is forgotten before the first block is written must not be waited for
        for key in self._left:
            watched.watch(key, self._moved)
        states = reads.states(scheduler, self._left)
        self._unknown = {key for key in self._left if key not in states}
        for key, state in states.items():
            if state == "erred":
                self._moved(key, "", state)
        self._ready += [key for key, state in states.items() if state == "memory"]

    @property
    def left(self) -> int:
        """Results that are not written yet."""
        return len(self._left)

    @property
    def linked(self) -> set[tuple[str, str, str]]:
        """What is to be linked into the draft (see `Draft.link`)."""
        return {
            (copy.folder, copy.array.path, copy.written.pack)
            for copy, _ in self._known.values()
            if copy.written.pack is not None
        }

    def end(self) -> None:
        """Look at the results no more."""
        for key in self._places:
            self._watched.unwatch(key, self._moved)

    async def run(self, folder: str) -> None:
        """Have every block written below the folder of a draft.

        Raises
        ------
        CheckpointError
            When one of them cannot be: its task has failed, nobody wants it any more, or nobody can write it.
        """
        self._folder = folder
        for key, (copy, type_name) in self._known.items():
            for index, number in self._places[key]:
                self._note(index, self._arrays[index], number, key, copy.written, type_name)
        try:
            deadline_s = asyncio.get_running_loop().time() + self._unknown_s
            while self._left and self._problem is None:
                self._call_all()
                await self._moved_on(deadline_s if self._unknown else None)
        finally:
            calls = list(self._calls)
            if self._problem is not None:
                for call in calls:
                    call.cancel()
            # nobody writes into a version that is given up
            await asyncio.gather(*calls, return_exceptions=True)
        if self._problem is not None:
            raise CheckpointError(self._problem)

    async def _moved_on(self, deadline_s: float | None) -> None:
        timeout_s = None
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        try:
            await asyncio.wait_for(self._moves.wait(), timeout_s)
        except TimeoutError:
            if self._unknown:
                first = next(iter(self._unknown))
                self._problem = (
                    f"the cluster does not know {counted(len(self._unknown), 'result')}, the first is "
                    f"{first!r}; checkpoint what this client has persisted, submitted or scattered"
                )
        self._moves.clear()

    def _moved(self, key: Any, start: str, finish: str) -> None:
        self._unknown.discard(key)
        if key not in self._left:
            return
        if finish == "memory":
            self._ready.append(key)
        elif finish in ("erred", "forgotten"):
            why = "its task has failed" if finish == "erred" else "nobody wants it any more"
            self._problem = f"result {key!r} cannot be written: {why}"
        self._moves.set()

    def _again(self, keys: Iterable[Any]) -> None:
        """Ask somebody else for results that were not written; what is in memory nowhere will come to be."""
        self._ready += keys
        self._moves.set()

    def _call_all(self) -> None:
        """Ask every worker that holds something to write and has not too much to do."""
        asked = {address: len(queue) for address, queue in self._queues.items()}
        for address, held in reads.least_asked(self._scheduler, self._ready, asked).items():
            self._queues.setdefault(address, deque()).extend(held)
        self._ready = []
        busy = Counter(self._calls.values())
        for address, queue in self._queues.items():
            for _ in range(_CALLS - busy[address]):
                batch = self._batch(queue)
                for index, keys in batch.items():
                    task = asyncio.ensure_future(self._call(address, index, keys))
                    self._calls[task] = address
                    task.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        del self._calls[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._problem = f"{type(error).__name__}: {error}"
        self._moves.set()

    def _batch(self, queue: deque[Any]) -> dict[int, dict[int, Any]]:
        """The next results of a queue, by array and number in it."""
        batch: dict[int, dict[int, Any]] = {}
        blocks = nbytes = 0
        while queue and blocks < _BATCH_BLOCKS and nbytes < _BATCH_BYTES:
            key = queue.popleft()
            if key not in self._left:
                continue
            for index, number in self._places[key]:
                batch.setdefault(index, {})[number] = key
                blocks += 1
            nbytes += reads.nbytes(self._scheduler, [key])
        return batch

    async def _call(self, address: str, index: int, keys: Mapping[int, Any]) -> None:
        array = self._arrays[index]
        within_s = _LEAST_S + reads.nbytes(self._scheduler, keys.values()) / _SLOWEST
        arguments = {"folder": self._folder, "array": array, "keys": dict(keys)}
        try:
            answers = await remote.run(self._scheduler, address, saved.write, arguments, within_s)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._tried(keys.values(), address, f"it has not answered within {within_s:.0f} s")
            await asyncio.sleep(_AGAIN_S)
            self._again(keys.values())
            return
        except WorkerError as error:
            self._problem = f"worker {address} cannot write: {error}"
            return
        missing = [keys[number] for number, answer in answers.items() if answer is None]
        for number, answer in answers.items():
            if isinstance(answer, str):
                text = f"block {number} of {array.path!r} (result {keys[number]!r}) cannot be written"
                self._problem = f"{text} by worker {address}: {answer}"
                self.unwritable.add(keys[number])
            elif answer is not None:
                self._note(index, array, number, keys[number], *answer)
        if missing:
            self._tried(missing, address, "it has not got it")
            await asyncio.sleep(_AGAIN_S)
            self._again(missing)

    def _tried(self, keys: Any, address: str, why: str) -> None:
        self._tries.update(keys)
        key, times = self._tries.most_common(1)[0]
        if times > _TRIES:
            self._problem = f"worker {address} cannot write result {key!r}: {why} ({times} times)"

    def _note(
        self, index: int, array: Array, number: int, key: Any, written: Written, type_name: str
    ) -> None:
        self.written[self._first[index] + number] = written
        self.copies[key] = (Copy(self._folder, array, number, written), type_name)
        if all(self._first[at] + which in self.written for at, which in self._places[key]):
            self._left.pop(key, None)
