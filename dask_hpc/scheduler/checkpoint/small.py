"""Copies of the small results of jobs: asked of workers now and then, read back when their worker is lost.

The None of a block that was written to a file is all that says so: with it everything that the block was made
from would be computed again. No client holds it, so no version of the job's results has it.

Workers are asked: they need not know which tasks belong to jobs, and what is gone after a moment, as most of
what a graph makes on its way, is never sent. One call brings what a worker has finished since the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any

from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import reads, remote
from dask_hpc.scheduler.internals import runs as made
from dask_hpc.scheduler.tables.parts import Departure
from dask_hpc.scheduler.tables.small import MOST_BYTES
from dask_hpc.wire import TELL
from dask_hpc.worker import small
from dask_hpc.worker.small import SmallCopy

logger = logging.getLogger(__name__)

#: Workers that are asked at once, those first that have waited longest, and results that each is asked for.
_WORKERS, _KEYS = 40, 2000
#: A worker that is busy answers by then, in seconds.
_PATIENCE_S = 30.0
#: So long they are waited for when nobody asks any more.
_SETTLES_S = 5.0


class SmallCopies:
    """The copies of the small results of one scheduler's jobs."""

    def __init__(self, engine: Engine, protected: Protected) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._small = engine.small
        self._protected = protected
        self._calls: dict[str, asyncio.Task[None]] = {}
        #: Whether every worker that was there at first has had our plugin; those that come later bring it.
        self.equipped = False
        #: Addresses of workers that do not answer such a question.
        self._deaf: set[str] = set()
        #: Protected results that were lost when one last looked.
        self._lost_before = 0
        self._small.lost = self._lost

    def tick(self, now_s: float) -> None:
        """Ask workers for what they have finished since the last time."""
        fresh, waiting = self._small.fresh, self._small.waiting
        self._deaf &= self._scheduler.workers.keys()
        if self._protected.lost != self._lost_before:
            self._lost_before = self._protected.lost
            self._small.look_again()
        if self._small.outdated:
            self._small.outdated = False
            self._have(self._small.held.copy())
        keys = [key for key in dict.fromkeys(fresh) if key not in self._protected]
        fresh.clear()
        for address, runs in made.sendable(self._scheduler, keys).items():
            waiting.setdefault(address, {}).update(runs)
        for address in list(waiting):
            if len(self._calls) >= _WORKERS:
                break
            ws = self._scheduler.workers.get(address)
            if ws is None or address in self._deaf:
                del waiting[address]
            # without our plugin they do not know the question
            elif address not in self._calls and self.equipped:
                self._ask(address, waiting.pop(address))

    async def leave(self, departure: Departure) -> bool:
        """What is held need not find room elsewhere: at last it is let go, and comes back."""
        if departure.last:
            there = [address for address in departure.addresses if address in self._scheduler.workers]
            for address in there:
                kept = departure.kept.setdefault(address, [])
                safe = set(kept)
                found = reads.sole_keys(self._scheduler, {address}, departure.addresses)
                kept += [key for key in found if key in self._small.held and key not in safe]
        return False

    def status(self) -> Mapping[str, Any]:
        """How many are held, and what that takes."""
        held = self._small.held
        return {"small_results": {"held": len(held), "bytes": self._small.nbytes}} if held else {}

    def unwrap(self) -> None:
        """The runtime is being uninstalled: results are computed again as in stock."""
        self._small.clear()

    async def settled(self) -> None:
        """Wait until workers have answered, a moment at most: they may forget the question then."""
        if self._calls:
            _, late = await asyncio.wait(self._calls.values(), timeout=_SETTLES_S)
            for call in late:
                call.cancel()

    # ------------------------------------------------------------------ inside

    def _ask(self, address: str, runs: Mapping[Any, int]) -> None:
        if len(runs) > _KEYS:
            self._small.waiting[address] = dict(islice(runs.items(), _KEYS, None))
            runs = dict(islice(runs.items(), _KEYS))
        call = self._calls[address] = asyncio.ensure_future(self._asked(address, runs))
        call.add_done_callback(lambda _: self._calls.pop(address, None))

    async def _asked(self, address: str, runs: Mapping[Any, int]) -> None:
        limit_bytes = self._engine.state.settings.checkpoint_small_bytes
        arguments = {"keys": list(runs), "limit_bytes": limit_bytes}
        try:
            answer = await remote.ask(self._scheduler, address, TELL, _PATIENCE_S, **arguments)
            contents = small.contents(answer, len(runs))
        except OSError as error:
            logger.info("Worker %s did not tell its small results: %s", address, str(error) or repr(error))
            self._small.waiting.setdefault(address, {}).update(runs)
        except Exception as error:
            # it has no dask_hpc, or an interpreter in trouble; tasks there go on as in stock
            logger.warning("Small results of worker %s have no copy: %r", address, error)
            self._deaf.add(address)
        else:
            told = zip(runs.items(), contents, strict=True)
            self._have({key: SmallCopy(run, content) for (key, run), content in told if content is not None})

    def _have(self, copies: Mapping[Any, SmallCopy]) -> None:
        """Hold what is still the result of its task."""
        if not self._engine.awake:
            return
        there = made.in_memory(self._scheduler, copies)
        good = [key for key, run in there.items() if copies[key].run == run and key not in self._protected]
        sole = reads.not_remade(self._scheduler, good, self._small.doubtful)
        for key in good:
            besides_bytes = self._protected.small_bytes
            if key not in sole:
                self._small.hold(key, copies[key], besides_bytes)
            elif besides_bytes < MOST_BYTES:
                if key in self._small.held:
                    self._small.drop(key)
                # stock forgets such results when they are lost, before anybody is asked
                self._protected.carry(key, copies[key], lost=False)

    def _lost(self, key: Any, copy: SmallCopy) -> None:
        if key not in self._protected:
            self._protected.carry(key, copy, lost=True)
