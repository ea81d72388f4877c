"""Tells of workers that come and go, by what stock logs of each, for as long as the runtime is there.

By what it logs of tasks that are stolen, an actor that is one of them is listed where it has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals.data import settle_actor

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
        for ws in scheduler.workers.values():
            for ts in list(ws.actors):
                settle_actor(ts, ws)

    def unwrap(self) -> None:
        """Tell no more."""
        if vars(self._scheduler).get("log_event") == self._log_event:
            del vars(self._scheduler)["log_event"]

    def _log_event(self, topic: Any, msg: Any) -> None:
        assert self._stock is not None
        self._stock(topic, msg)
        try:
            if topic == "all" and isinstance(msg, dict):
                self._tell(msg)
            elif topic == "stealing" and isinstance(msg, tuple) and msg[:1] == ("confirm",):
                self._stolen(*msg[1:4])
        except Exception:
            # this runs in the midst of what stock does to the worker
            logger.exception("dask_hpc cannot tell what becomes of a worker, or of an actor")

    def _tell(self, msg: Mapping[str, Any]) -> None:
        action, address = msg.get("action"), msg.get("worker")
        # anybody may log events
        if action == "remove-worker" and address not in self._scheduler.workers:
            self._removed(msg)
        elif action == "add-worker" and isinstance(address, str):
            # stock says so first
            asyncio.get_running_loop().call_soon(self._joined, address)

    def _stolen(self, key: Any, _: str, victim: str) -> None:
        ts = self._scheduler.tasks.get(key)
        if ts is not None and ts.actor:
            settle_actor(ts, self._scheduler.workers.get(victim))
