"""Specifications of workers that are taken out by hand, as stock allows.

That closes nothing that is in use: their workers leave as any others do, and those that cannot leave are
specified again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.core import Status

from dask_hpc.deploy.specified import SpecifiedWorkers, names_of

logger = logging.getLogger(__name__)


class ChangedByHand(SpecifiedWorkers):
    """A cluster that is made of worker specifications, and closes none that are in use."""

    #: Has a pool come to the size that was asked for.
    _adjust: Callable[[str], Awaitable[None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Specifications of what has been started, by name: one that is taken out by hand is known from here.
        self._made: dict[Any, Any] = {}
        #: Lets those go whose specifications were taken out by hand.
        self._taken_out: set[asyncio.Task[None]] = set()
        self._outgoing = set()
        self._correcting = asyncio.Lock()
        super().__init__(*args, **kwargs)

    async def _correct_state_internal(self) -> None:
        # one after the other, and nobody is waited for before stock looks for what it closes: whom another
        # call has started meanwhile is there by then, and may be in use
        async with self._correcting:
            removed = {
                spec: self._made[spec]
                for spec in list(self.workers)
                if spec not in self.worker_spec and spec in self._made
            }
            if removed and self.status == Status.running:
                there = self._there()
                # what we let go ourselves has left the scheduler by now
                used = [s for s in removed if any(str(name) in there for name in names_of(s, removed[s]))]
                self.worker_spec.update({spec: removed[spec] for spec in used})
                if used:
                    self._outgoing.update(used)
                    task = asyncio.ensure_future(self._let_go(used))
                    self._taken_out.add(task)
                    task.add_done_callback(self._taken_out.discard)
            self._made.update(self.worker_spec)
            await super()._correct_state_internal()
            self._made = {name: self._made[name] for name in self._made.keys() & self.workers.keys()}

    async def _let_go(self, specs: list[Any]) -> None:
        """Have workers leave whose specifications were taken out by hand."""
        try:
            await self.scale_down([name for spec in specs for name in self._workers_of(spec)])
        finally:
            self._outgoing.difference_update(specs)
        stay = [spec for spec in specs if spec in self.worker_spec]
        if stay and self.status == Status.running:
            logger.warning(
                "Workers %s were taken out of worker_spec and cannot leave now; they are specified again",
                ", ".join(map(str, stay)),
            )
            for pool in {self._pool_of(spec) for spec in stay}:
                # of others, more may have to go
                await self._adjust(pool)
