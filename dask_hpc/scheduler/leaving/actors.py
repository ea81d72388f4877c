"""Actors of workers that have to go: those whose class gives their state move to other workers.

Handles of clients go on working: a client asks the scheduler to pass its calls on to the worker where the
actor once was, and from the first move on the scheduler passes them on to where it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import actor_homes, data, reads, remote
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Departure, Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker import actors as moves
from dask_hpc_policies.decision import Action, Reason, ReasonCode

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: How long a worker may take to answer what costs it nothing.
_ANSWER_S = 3.0
_PROXY = "proxy"
#: Name of what is noted of a departure: actors that can move, with where they are.
_NOTE = "actors"


class Actors:
    """Moves actors, and passes calls on to where they are."""

    def __init__(self, state: State, parts: Parts) -> None:
        self._state = state
        self._parts = parts
        self._scheduler: Scheduler = state.scheduler
        self._stock: Any = None

    async def leave(self, departure: Departure) -> bool:
        """Move the actors that can move, one after the other, as long as somebody has room."""
        state, scheduler = self._state, self._scheduler
        there = [address for address in departure.addresses if address in scheduler.workers]
        if _NOTE not in departure.notes:
            departure.notes[_NOTE] = await self.movable(there)
        actors = departure.notes[_NOTE]
        while actors and not departure.last:
            staying = [address for address, node in state.nodes.at.items() if not node.reserved]
            target = actor_homes.host_for_actor(scheduler, departure.addresses, staying)
            if target is None:
                break
            # data needs time, too, if a call of the actor takes for ever
            reserved_s = self._parts.reserved_s(departure)
            left_s = max(1.0, (departure.deadline_s - reserved_s - state.now_s()) / 3)
            key, source = actors.popitem()
            deadline_s = departure.deadline_s

            def hurries() -> bool:
                return departure.deadline_s < deadline_s  # noqa: B023

            if not await self.move(key, source, target, left_s, hurries) and hurries():
                actors[key] = source  # once more, in the time that is left
        return bool(actors)

    async def movable(self, addresses: Collection[str]) -> dict[Any, str]:
        """Keys of actors on these workers that can move, with where they are; why others cannot is logged."""
        found = {}
        for address in addresses:
            keys = actor_homes.actors_on(self._scheduler, address)
            if not keys:
                continue
            try:
                whys = await remote.run(self._scheduler, address, moves.examine, {"keys": keys}, _ANSWER_S)
            except Exception as error:  # whatever goes wrong on the worker, the departure goes on
                whys = dict.fromkeys(keys, str(error) or repr(error))
            for key in keys:
                if whys[key] is None:
                    found[key] = address
                else:
                    logger.warning("Actor %r cannot move: %s", key, whys[key])
        return found

    async def move(
        self, key: Any, source: str, target: str, within_s: float, hurries: Callable[[], bool]
    ) -> bool:
        """Move an actor; whether it has moved. If not, it goes on where it was.

        Its calls are waited for at most `within_s` seconds, and no more once the departure `hurries`.
        """
        self._wrap()

        def left_s() -> float:
            return 0.0 if hurries() else _ANSWER_S

        arguments = {"key": key, "source": source, "within_s": within_s}
        taking = remote.run(self._scheduler, target, moves.take, arguments, within_s + _ANSWER_S)
        asked = asyncio.ensure_future(taking)
        await data.in_time(asyncio.wait((asked,)), left_s)
        if not asked.done():
            await self._tell(source, moves.stop, {"key": key}, _ANSWER_S)
        try:
            why = await asyncio.wait_for(asked, _ANSWER_S)
        except Exception as error:
            why = str(error) or repr(error)
        if why is None and not data.rehome(self._scheduler, key, source, target):
            why = "it is not wanted any more"
        home = target if why is None else None
        if home is not None:
            for address in reads.holders(self._scheduler, key) - {target}:
                await self._tell(address, moves.follow, {"key": key, "home": home}, _ANSWER_S)
            logger.info("Actor %r has moved from %s to %s", key, source, target)
        else:
            logger.warning("Actor %r has not moved from %s to %s: %s", key, source, target, why)
        arguments = {"key": key, "home": home, "within_s": within_s}
        settling = asyncio.ensure_future(self._tell(source, moves.settle, arguments, within_s + _ANSWER_S))
        await data.in_time(asyncio.wait((settling,)), left_s)
        return home is not None

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """Why a node must stay: an actor lives there."""
        if not isinstance(subject, Node):
            return None
        keys = [key for address in subject.workers for key in actor_homes.actors_on(self._scheduler, address)]
        if not keys:
            return None
        text = f"actor {keys[0]!r} lives there (scale(force=True) moves or ends it)"
        return Reason(ReasonCode.KEPT, text)

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
        if msg.get("op") in (moves.EXECUTE, moves.ATTRIBUTE):
            worker = actor_homes.home(self._scheduler, msg.get("actor")) or worker
        return await self._stock(msg=msg, worker=worker, serializers=serializers)
