"""Reads that other workers try: a mount may be stale, or memory short, on one worker alone.

A result that one worker could not read is not lost for it, and not computed again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.tables.state import State

#: Workers that try to read a result before it is computed again, and where it cannot be.
_TRY, _TRY_HARD = 3, 16


class Elsewhere:
    """The results of one scheduler that some workers could not read: others do."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._scheduler = state.scheduler
        #: By key the workers that have failed; and the lane of its task before it was aimed, while it is.
        self._failed: dict[Any, list[str]] = {}
        #: Those that one of them goes on to try, as nobody else is there.
        self._insisted: set[Any] = set()
        self._lanes: dict[Any, Lane | None] = {}

    def failed(self, key: Any, address: str) -> None:
        """A worker cannot read it, which says nothing of its copies."""
        if address not in self._scheduler.workers:
            # it may call itself by a name (``--contact-address``), and would be asked again and again
            with suppress(OSError, ValueError):
                address = self._scheduler.coerce_address(address)
        self._failed.setdefault(key, []).append(address)

    def another(self, key: Any, again: bool) -> bool:
        """Whether another worker is to try.

        Parameters
        ----------
        again
            Whether it can be computed again otherwise.
        """
        tried = len(self._failed.get(key, ()))
        return 0 < tried < (_TRY if again else _TRY_HARD) and bool(self._others(key))

    def insist(self, key: Any) -> bool:
        """Whether one of those that have failed is to go on trying: once, for a store may come back."""
        if key not in self._failed or key in self._insisted:
            return False
        self._insisted.add(key)
        return True

    def moved(self, key: Any, finish: str) -> None:
        """A result is in another state: before it is placed its task is aimed at who has not failed."""
        if key not in self._failed:
            return
        if finish == "waiting" and (others := self._others(key)):
            self._lanes.setdefault(key, self._state.owner.get(key))
            writes.aim(self._scheduler, self._state.owner, key, others, loose=True)
        elif finish in ("released", "memory"):
            self._aim_no_more(key)
            if finish == "memory":
                del self._failed[key]
                self._insisted.discard(key)

    def drop(self, key: Any) -> None:
        """It is not read any more, or its copies are other ones."""
        self._aim_no_more(key)
        self._failed.pop(key, None)
        self._insisted.discard(key)

    def _aim_no_more(self, key: Any) -> None:
        if key in self._lanes:
            writes.aim_no_more(self._scheduler, self._state.owner, key, self._lanes.pop(key))

    def _others(self, key: Any) -> set[str]:
        """Workers that have not failed: of its job, if there are any."""
        others = reads.running(self._scheduler).difference(self._failed[key])
        lane = self._state.owner.get(key)
        return (lane is not None and others & lane.job.reach) or others
