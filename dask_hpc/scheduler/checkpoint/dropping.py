"""Having managers drop what nobody needs any more, also those that cannot be reached when it is said.

A manager that hangs, or is cut off, is told when it may answer again, and one that was killed with the next
version: it would hold for good what it has not heard of. One that is cut off is looked for as long as it may
linger without its workers. Who is there when the scheduler closes is told then, also of what was to stay a
while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from distributed.comm import get_address_host

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker.fetching import (
    ManagerAwayError,
    ManagerSilentError,
    ask,
    is_open,
    listens,
    patience,
    silent,
)

logger = logging.getLogger(__name__)

#: Managers of which it is remembered what they have not heard, those that were there last.
_REMEMBERED = 1000


class Dropping:
    """What the managers of one cluster are to drop; `told` is called when what was planned has been done."""

    def __init__(self, state: State, told: Callable[[], None]) -> None:
        self._state, self._told = state, told
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Managers, and versions and segments of each of which they have not heard, by host and folder: one
        #: that is started anew may listen elsewhere.
        self._unheard: dict[tuple[str, str], tuple[Home, dict[str, set[str]]]] = {}
        #: When those of them that are cut off are looked for again, which may have no worker any more.
        self._looked_for: dict[tuple[str, str], asyncio.TimerHandle] = {}
        #: What is dropped later.
        self._planned: dict[asyncio.TimerHandle, tuple[Home, Collection[str], str]] = {}

    def drop(self, home: Home, segments: Collection[str], version: str) -> None:
        """Have a manager drop segments, the record of a version, and all that was reserved for that."""
        self.later(self._drop(home, set(segments), version))

    def drop_at(self, when_s: float, home: Home, segments: Collection[str], version: str) -> None:
        """The same at a time on the clock of the loop."""

        def due() -> None:
            self.drop(*self._planned.pop(timer))
            self._told()

        timer: asyncio.TimerHandle = asyncio.get_event_loop().call_at(when_s, due)
        self._planned[timer] = home, segments, version

    @property
    def plans(self) -> bool:
        """Whether something is to be dropped later."""
        return bool(self._planned)

    def again(self, homes: Iterable[Home]) -> None:
        """These are there: they are told what they have not heard."""
        hang = silent()
        for home in homes:
            if home.address not in hang:
                listens(home.address)  # it may have been away a moment ago
            for version, segments in self._unheard.pop(_which(home), (home, {}))[1].items():
                self.drop(home, segments, version)

    async def closing(self, homes: Iterable[Home]) -> set[Home]:
        """Nobody reads any more: what was to be dropped later is now. Gives those of all that are there."""
        planned, self._planned = self._planned, {}
        while self._looked_for:
            self._looked_for.popitem()[1].cancel()
        waiting = {home for home, _, _ in planned.values()} | {home for home, _ in self._unheard.values()}
        every = list(waiting.union(homes))
        found = await asyncio.gather(*(is_open(home.address) for home in every))
        there = {home for home, is_there in zip(every, found, strict=True) if is_there}
        self.again(there)
        for timer, (home, segments, version) in planned.items():
            timer.cancel()
            if home in there:
                self.drop(home, segments, version)
        return there

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done beside."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self, within_s: float) -> None:
        """Wait until all have heard of it, not longer than that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def _drop(self, home: Home, segments: set[str], version: str) -> None:
        try:
            pool, names = self._state.scheduler.rpc, sorted(segments)
            await ask(pool, home.address, "drop", segments=names, version=version)
        except ManagerSilentError:
            # it may come to answer, and would hold them for good
            self.drop_at(asyncio.get_running_loop().time() + patience().again_s, home, segments, version)
        except CheckpointError as error:
            logger.warning("Segments of a checkpoint stay: %s", error)
        except (OSError, RuntimeError) as error:
            # also when the scheduler closes; its memory goes with the last worker of the host, or later
            logger.info("Segments of a checkpoint stay: %s", error)
            _, unheard = self._unheard.setdefault(_which(home), (home, {}))
            unheard.setdefault(version, set()).update(segments)
            while len(self._unheard) > _REMEMBERED:
                del self._unheard[next(iter(self._unheard))]
            if isinstance(error, ManagerAwayError) and _which(home) not in self._looked_for:
                lingers_s = self._state.settings.checkpoint_linger_s
                self._look_for(home, asyncio.get_running_loop().time() + lingers_s)

    def _look_for(self, home: Home, until_s: float) -> None:
        """Tell a manager that is cut off what it has not heard, once it can be reached again."""
        loop = asyncio.get_running_loop()

        async def look() -> None:
            if await is_open(home.address):
                self.again([home])
            elif loop.time() < until_s and _which(home) in self._unheard:
                self._look_for(home, until_s)

        def due() -> None:
            del self._looked_for[_which(home)]
            self.later(look())

        self._looked_for[_which(home)] = loop.call_later(patience().again_s, due)


def _which(home: Home) -> tuple[str, str]:
    return get_address_host(home.address), home.folder
