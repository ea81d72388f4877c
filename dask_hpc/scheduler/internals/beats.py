"""Has what workers say heard as their heartbeats come, each in its own turn of the loop.

Rules of the file: Dask's handler does its work first, and its answer is given whatever comes of ours; without
a corridor its handler is there alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

_BEAT = "heartbeat_worker"


class Beats:
    """Stands in front of Dask's handler of heartbeats.

    Parameters
    ----------
    heard
        Called with the worker, whose metrics are those of the heartbeat.
    """

    def __init__(self, scheduler: Scheduler, heard: Callable[[WorkerState], None]) -> None:
        self._scheduler, self._heard = scheduler, heard
        #: What was there before ours, for as long as ours is called.
        self._stock: Callable[..., Any] | None = None
        self.on = False

    def begin(self) -> None:
        """Be told of heartbeats from now on."""
        self.on = True
        if self._stock is None:
            self._stock = self._scheduler.handlers[_BEAT]
            self._scheduler.handlers[_BEAT] = self.beat

    def end(self) -> None:
        """Be told of none any more."""
        self.on = False
        if self._stock is not None and self._scheduler.handlers.get(_BEAT) == self.beat:
            self._scheduler.handlers[_BEAT], self._stock = self._stock, None
        # else somebody stands before ours now, and calls it

    def beat(self, **said: Any) -> Any:
        """A worker's heartbeat."""
        assert self._stock is not None
        answer = self._stock(**said)
        ws = self._scheduler.workers.get(said["address"])
        if self.on and ws is not None:
            try:
                self._heard(ws)
            except Exception:  # a worker would be told that its heartbeat failed
                logger.exception("What %s says of its power cannot be read", ws.address)
        return answer
