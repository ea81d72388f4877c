"""Tells of workers that come and go, by what stock logs of each, for as long as the runtime is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


class WorkerEvents:
    """Tells of workers that come and go, also while no job is active.

    A plugin in the scheduler costs every task a call. This costs none anything: of each worker stock logs an
    event, and `Scheduler.log_event` is what is replaced, from `wrap` to `unwrap`.

    Parameters
    ----------
    joined
        Gets the address of a worker that has come, once the scheduler knows it.
    removed
        Gets what stock logs of a worker that has gone, which the scheduler knows no more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        joined: Callable[[str], None],
        removed: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._scheduler = scheduler
        self._joined = joined
        self._removed = removed
        self._stock: Callable[..., None] | None = None

    def wrap(self) -> None:
        """Tell from now on."""
        scheduler: Any = self._scheduler
        self._stock = scheduler.log_event
        scheduler.log_event = self._log_event

    def unwrap(self) -> None:
        """Tell no more."""
        if vars(self._scheduler).get("log_event") == self._log_event:
            del vars(self._scheduler)["log_event"]

    def _log_event(self, topic: Any, msg: Any) -> None:
        assert self._stock is not None
        self._stock(topic, msg)
        if topic == "all" and isinstance(msg, dict):
            try:
                self._tell(msg)
            except Exception:
                # this runs in the midst of what stock does to the worker
                logger.exception("dask_hpc cannot count a worker that comes or goes")

    def _tell(self, msg: Mapping[str, Any]) -> None:
        action, address = msg.get("action"), msg.get("worker")
        # anybody may log events
        if action == "remove-worker" and address not in self._scheduler.workers:
            self._removed(msg)
        elif action == "add-worker" and isinstance(address, str):
            # stock says so first
            asyncio.get_running_loop().call_soon(self._joined, address)
