"""The blocks of one version on their way to the store: whoever holds a result writes it, once it is there.

Results that are not computed yet are waited for; what is there stays until the version has ended, whoever
else lets go of it. A worker that is lost while it writes takes nothing with
it but time: what it had not written is written by another one that holds it, or when it is there again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.scheduler.internals import actor_homes, reads, remote, writes
from dask_hpc.scheduler.placing.gate import Lease
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import saved
from dask_hpc.worker.saved import Copy
from dask_hpc.worker.values import Refused
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

_STIMULUS = "hpc-checkpoint"
#: Calls that one worker has at a time: two write, a third is on its way. What each asks for at most.
_CALLS = 3
_BATCH_BLOCKS, _BATCH_BYTES = 500, 256 << 20
#: Less than that waits while a call is under way, for what comes meanwhile: each makes files of its own.
_FEW_BYTES = 1 << 20
#: What they ask for together, over the worker's memory limit, unless one result is larger: what was spilled
#: is in memory again meanwhile, and copied where it does not lie in memory as it is written.
_SHARE = 0.02
#: Results that the scheduler has not heard of by then are none of anybody's, in seconds.
UNKNOWN_S = 30.0
#: A worker that cannot be reached is left for the scheduler to notice; then it is tried again, in seconds.
_AGAIN_S = 0.25
#: How often a worker may have no use of what it is said to hold.
_TRIES = 20
#: As good as asked for so many results is who is asked last.
_LAST = 1 << 40
#: Time that a worker has to write a batch: at least, and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 60.0, 4e6


#: What writes results of an array, by number, on the worker at an address: the function and its arguments.
Call = Callable[[str, Array, Mapping[int, Any]], tuple[Any, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Block:
    """A result that is written."""

    array: Array
    number: int
    written: Written
    #: Of the type of the value.
    type_name: str
    #: The manager that holds it; None: it is in a file.
    home: Home | None = None


def to_store(folder: str) -> Call:
    """Has workers write below the folder of a draft."""
    return lambda address, array, keys: (saved.write, {"folder": folder, "array": array, "keys": keys})


class Writing:
    """Has workers write all blocks of a version.

    Parameters
    ----------
    unknown_s
        Results that the scheduler has not heard of by then are none of anybody's.
    holder
        A name that is no client's: as one of that name results are held that are there.
    known
        Copies of results that an earlier version has, which are linked into this one before it `run`s.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        watched: Watched,
        plan: Plan,
        keys: Sequence[Any],
        holder: str,
        unknown_s: float = UNKNOWN_S,
        known: Mapping[Any, tuple[Copy, str]] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._watched = watched
        self._arrays = plan.arrays
        self._holder = holder
        self._unknown_s = unknown_s
        self._first = [0, *accumulate(array.count for array in plan.arrays)]
        if len(keys) != self._first[-1]:
            raise CheckpointError(f"there are {len(keys)} results for {self._first[-1]} blocks")
        #: Where each result goes: array and number in it. One may go to several places.
        self._places: dict[Any, list[tuple[int, int]]] = {}
        for index in range(len(plan.arrays)):
            for number, key in enumerate(keys[self._first[index] : self._first[index + 1]]):
                self._places.setdefault(key, []).append((index, number))
        #: What is written, by number over all arrays, and where each result is: of several, in the last one.
        self.every: dict[int, Block] = {}
        self.blocks: dict[Any, Block] = {}
        self._call_of: Call = to_store("")
        self._known = known or {}
        self._left = dict.fromkeys(key for key in self._places if key not in self._known)
        self._unknown: set[Any] = set()
        #: Results that workers could not make bytes of.
        self.unwritable: set[Any] = set()
        #: Results that were forgotten: what is called so by the time that all is written is another one.
        self.forgotten: set[Any] = set()
        self._held: set[Any] = set()
        #: Results in memory that no worker was asked for yet, and those that workers will be asked for; calls
        #: that are under way, with the worker and the bytes of results.
        self._ready: list[Any] = []
        self._queues: dict[str, deque[Any]] = {}
        self._calls: dict[asyncio.Task[None], tuple[str, int]] = {}
        self._tries: Counter[Any] = Counter()
        #: Blocks of calls that have had no answer: who was asked may have written them, or may yet.
        self.unheard: set[int] = set()
        self._problem: str | None = None
        #: Workers that are asked only for what nobody else holds.
        self.avoided: set[str] = set()
        #: Who has not answered after so many seconds, before anything is written, is told to it; gives those
        #: that are done without. None: all are waited for.
        self.late: tuple[float, Callable[[Collection[str]], Awaitable[set[str]]]] | None = None
        #: What the version is called until it is whole; hears of what has been written of it, by result.
        self.draft = ""
        self.wrote: Callable[[Mapping[Any, Block]], None] | None = None
        #: Tokens of the file system that is written to, one a call; None: it is none that has some.
        self.lease: Lease | None = None
        self._moves = asyncio.Event()
        # from now on: what is forgotten before the first block is written must not be waited for
        for key in self._places:
            watched.watch(key, self._moved)
        states = reads.states(scheduler, self._left)
        self._unknown = {key for key in self._left if key not in states}
        for key, state in states.items():
            if state == "erred":
                self._moved(key, "", state)
        self._is_there([key for key, state in states.items() if state == "memory"])
        #: Whether some results were not there yet: then `run` takes longer than writing does.
        self.waits = len(self._ready) < len(self._left)

    @property
    def own_bytes(self) -> int:
        """Bytes that were written here: without what is linked."""
        places = [place for key, places in self._places.items() if key not in self._known for place in places]
        return sum(self.every[self._first[index] + number].written.nbytes for index, number in places)

    @property
    def written(self) -> dict[int, Written]:
        """Where what is written lies, by number over all arrays."""
        return {at: block.written for at, block in self.every.items()}

    @property
    def held(self) -> list[tuple[Home, Written]]:
        """What managers hold of it by now."""
        return [(block.home, block.written) for block in self.every.values() if block.home is not None]

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

    @property
    def asked(self) -> set[str]:
        """Workers that are writing now."""
        return {address for address, _ in self._calls.values()}

    def needs(self, addresses: Collection[str]) -> bool:
        """Whether some of what is left to write is held by these workers alone."""
        last = dict.fromkeys(addresses, _LAST)
        return not last.keys().isdisjoint(reads.least_asked(self._scheduler, self._left, last))

    def give_up(self, why: str) -> None:
        """Have `run` end with a `CheckpointError`."""
        self._problem = why
        self._moves.set()

    def end(self) -> None:
        """Look at the results no more, and let go of them."""
        for key in self._places:
            self._watched.unwatch(key, self._moved)
        held, self._held = self._held, set()
        if held:
            writes.want_no_more(self._scheduler, held, self._holder, _STIMULUS)

    async def run(self, call: Call) -> None:
        """Have every block written.

        Raises
        ------
        CheckpointError
            When one of them cannot be: its task has failed, nobody wants it any more, or nobody can write it.
        """
        self._call_of = call
        for key, (copy, type_name) in self._known.items():
            for index, number in self._places[key]:
                self._note(index, number, key, copy.written, type_name)
        try:
            deadline_s = asyncio.get_running_loop().time() + self._unknown_s
            while self._left and self._problem is None:
                self._call_all()
                await self._moved_on(deadline_s if self._unknown else None)
        finally:
            calls = list(self._calls)
            for each in calls if self._problem is not None else ():
                each.cancel()
            # nobody writes into a version that is given up
            await asyncio.gather(*calls, return_exceptions=True)
        if self._problem is not None:
            raise CheckpointError(self._problem)

    def again(self, lost: Collection[Home]) -> None:
        """Have the next `run` write what these managers held, which are lost."""
        gone = {at for at, block in self.every.items() if block.home in lost}
        at_of = {key: [self._first[i] + number for i, number in at] for key, at in self._places.items()}
        keys = [key for key, places in at_of.items() if not gone.isdisjoint(places)]
        for at in [at for key in keys for at in at_of[key]]:
            del self.every[at]
        # they may be there after all
        self.unheard |= gone
        self._queues.clear()
        self._left = dict.fromkeys(keys)
        states = reads.states(self._scheduler, keys)
        for key in keys:
            self._moved(key, "", states.get(key, "forgotten"))

    async def _moved_on(self, deadline_s: float | None) -> None:
        now_s = asyncio.get_running_loop().time()
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - now_s)
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
        if finish == "forgotten":
            self.forgotten.add(key)
        if key not in self._left:
            return
        if finish == "memory":
            self._is_there([key])
        elif finish in ("erred", "forgotten"):
            # what is held here goes for nobody's lack of interest
            gone = "it was lost with its worker" if key in self._held else "nobody wants it any more"
            why = "its task has failed" if finish == "erred" else gone
            self._problem = f"result {key!r} cannot be written: {why}"
        self._moves.set()

    def _is_there(self, keys: list[Any]) -> None:
        """Have them written, and stay until then: a client that computes step by step lets go of a step soon.

        What is not computed yet is not held: it need not be computed for this alone.
        """
        for key in keys:
            if actor_homes.home(self._scheduler, key) is not None:
                # no worker has its value as a result, and none would ever be asked for it
                self._problem = (
                    f"result {key!r} cannot be written: it is an actor, which stays on its worker; "
                    "checkpoint what a method of it gives"
                )
        self._ready += keys
        if new := [key for key in keys if key not in self._held]:
            self._held.update(new)
            writes.want(self._scheduler, new, self._holder)

    def _again(self, keys: Iterable[Any]) -> None:
        """Ask somebody else for results that were not written; what is in memory nowhere will come to be."""
        self._ready += keys
        self._moves.set()

    def _call_all(self) -> None:
        """Ask every worker that holds something to write and has not too much to do."""
        for address in self._queues.keys() - self._scheduler.workers.keys():  # to connect takes up to 30 s
            self._ready += self._queues.pop(address)
        asked = dict.fromkeys(self.avoided, _LAST)
        asked |= {at: len(queue) + asked.get(at, 0) for at, queue in self._queues.items()}
        for address, held in reads.least_asked(self._scheduler, dict.fromkeys(self._ready), asked).items():
            self._queues.setdefault(address, deque()).extend(held)
        self._ready = []
        calls, busy_bytes = Counter[str](), Counter[str]()
        for address, nbytes in self._calls.values():
            calls[address], busy_bytes[address] = calls[address] + 1, busy_bytes[address] + nbytes
        for address, queue in self._queues.items():
            most = min(_CALLS * _BATCH_BYTES, _SHARE * reads.memory_limit(self._scheduler, address))
            while queue and calls[address] < _CALLS and busy_bytes[address] < most:
                few = len(queue) < _BATCH_BLOCKS and reads.nbytes(self._scheduler, queue) < _FEW_BYTES
                if calls[address] and few:
                    break
                if self.lease is not None and not self.lease.open():
                    return  # the end of a call looks again
                calls[address] += 1
                for index, keys in self._batch(queue, most / _CALLS).items():
                    nbytes = reads.nbytes(self._scheduler, keys.values())
                    busy_bytes[address] += nbytes
                    task = asyncio.ensure_future(self._call(address, index, keys))
                    self._calls[task] = address, nbytes
                    if self.lease is not None:
                        self.lease.take()
                    task.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        del self._calls[task]
        if self.lease is not None:
            self.lease.give()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._problem = f"{type(error).__name__}: {error}"
        self._moves.set()

    def _batch(self, queue: deque[Any], most_bytes: float) -> dict[int, dict[int, Any]]:
        """The next results of a queue, by array and number in it."""
        batch: dict[int, dict[int, Any]] = {}
        blocks = nbytes = 0
        while queue and blocks < _BATCH_BLOCKS:
            key = queue.popleft()
            if key not in self._left:
                continue
            nbytes += reads.nbytes(self._scheduler, [key])
            if blocks and nbytes > most_bytes:
                queue.appendleft(key)
                break
            for index, number in self._places[key]:
                batch.setdefault(index, {})[number] = key
                blocks += 1
        return batch

    async def _call(self, address: str, index: int, keys: Mapping[int, Any]) -> None:
        array = self._arrays[index]
        within_s = _LEAST_S + reads.nbytes(self._scheduler, keys.values()) / _SLOWEST
        write, arguments = self._call_of(address, array, dict(keys))
        try:
            answers = await remote.run(self._scheduler, address, write, arguments, within_s)
        except OSError as error:
            self.unheard.update(self._first[index] + number for number in keys)
            if isinstance(error, TimeoutError):
                self._tried(keys.values(), address, f"it has not answered within {within_s:.0f} s")
            await asyncio.sleep(_AGAIN_S)
            self._again(keys.values())
            return
        except WorkerError as error:
            self._problem = f"worker {address} cannot write: {error}"
            return
        if isinstance(answers, Refused):
            self._problem = f"worker {address} cannot write: {answers.why}"
            return
        missing = [keys[number] for number, answer in answers.items() if answer is None]
        for number, answer in answers.items():
            if isinstance(answer, (str, Refused)):
                text = f"block {number} of {array.path!r} (result {keys[number]!r}) cannot be written"
                why = answer.why if isinstance(answer, Refused) else answer
                self._problem = f"{text} by worker {address}: {why}"
                if why is answer:  # for its value: it never will be
                    self.unwritable.add(keys[number])
            elif answer is not None:
                self._note(index, number, keys[number], *answer)
        if self.wrote is not None:
            self.wrote({key: self.blocks[key] for key in keys.values() if key in self.blocks})
        if missing:
            self._tried(missing, address, "it has not got it")
            await asyncio.sleep(_AGAIN_S)
            self._again(missing)

    def _tried(self, keys: Any, address: str, why: str) -> None:
        self._tries.update(keys)
        key, times = self._tries.most_common(1)[0]
        if times > _TRIES:
            self._problem = f"worker {address} cannot write result {key!r}: {why} ({times} times)"

    def _note(self, index: int, number: int, key: Any, written: Written, *more: Any) -> None:
        at = self._first[index] + number
        self.every[at] = self.blocks[key] = Block(self._arrays[index], number, written, *more)
        if all(self._first[at] + which in self.every for at, which in self._places[key]):
            self._left.pop(key, None)
