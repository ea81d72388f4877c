"""Actors of workers that have to go: those whose class gives their state move to other workers.

Handles of clients go on working: a client asks the scheduler to pass its calls on to the worker where the
actor once was, and from the first move on the scheduler passes them on to where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import data, reads, remote
from dask_hpc.worker import actors

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: How long a worker may take to answer what costs it nothing.
_ANSWER_S = 3.0
_PROXY = "proxy"


class Actors:
    """Moves actors, and passes calls on to where they are."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._stock: Any = None

    async def movable(self, addresses: Collection[str]) -> dict[Any, str]:
        """Keys of actors on these workers that can move, with where they are; why others cannot is logged."""
        found = {}
        for address in addresses:
            keys = reads.actors_on(self._scheduler, address)
            if not keys:
                continue
            try:
                whys = await remote.run(self._scheduler, address, actors.examine, {"keys": keys}, _ANSWER_S)
            except Exception as error:  # whatever goes wrong on the worker, the departure goes on
                whys = dict.fromkeys(keys, str(error) or repr(error))
            for key in keys:
                if whys[key] is None:
                    found[key] = address
                else:
                    logger.warning("Actor %r cannot move: %s", key, whys[key])
        return found

    async def move(self, key: Any, source: str, target: str, within_s: float) -> bool:
        """Move an actor; whether it has moved. If not, it goes on where it was."""
        self._wrap()
        arguments = {"key": key, "source": source, "within_s": within_s}
        try:
            why = await remote.run(self._scheduler, target, actors.take, arguments, within_s + _ANSWER_S)
        except Exception as error:
            why = str(error) or repr(error)
        if why is None and not data.rehome(self._scheduler, key, source, target):
            why = "it is not wanted any more"
        home = target if why is None else None
        if home is not None:
            for address in reads.holders(self._scheduler, key) - {target}:
                await self._tell(address, actors.follow, {"key": key, "home": home}, _ANSWER_S)
            logger.info("Actor %r has moved from %s to %s", key, source, target)
        else:
            logger.warning("Actor %r has not moved from %s to %s: %s", key, source, target, why)
        arguments = {"key": key, "home": home, "within_s": within_s}
        await self._tell(source, actors.settle, arguments, within_s + _ANSWER_S)
        return home is not None

    async def _tell(
        self, address: str, function: Any, arguments: Mapping[str, Any], timeout_s: float
    ) -> None:
        try:
            await remote.run(self._scheduler, address, function, arguments, timeout_s)
        except Exception as error:
            logger.warning("Worker %s was not told where an actor is: %r", address, error)

    # ------------------------------------------------------------ calls of clients

    def _wrap(self) -> None:
        handlers = self._scheduler.handlers
        if self._stock is None:
            self._stock = handlers[_PROXY]
            handlers[_PROXY] = self.proxy

    async def proxy(self, msg: dict[str, Any], worker: str, serializers: Any = None) -> Any:
        """Stock's ``proxy``, with calls of actors going to where these are."""
        if msg.get("op") in (actors.EXECUTE, actors.ATTRIBUTE):
            worker = reads.home(self._scheduler, msg.get("actor")) or worker
        return await self._stock(msg=msg, worker=worker, serializers=serializers)
