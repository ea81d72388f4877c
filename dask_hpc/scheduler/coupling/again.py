"""Blocks that a worker has taken with it: producers send them again where they still have them.

A producer comes back by itself, once it has noticed, and says which steps it still has (`coupling.kept`). It
is told to send those whose data is awaited again; of the others that it has sent to the worker that is lost
the step fails. Until then their tasks wait; a producer that does not come fails the flow (`Flow.look`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow


class Again:
    """What is sent again in the flows of one scheduler."""

    def __init__(self, engine: Engine, give_up: Callable[[Sequence[Any]], None]) -> None:
        self._scheduler, self._awaited, self._give_up = engine.scheduler, engine.state.awaited, give_up

    def left(self, flow: Flow, place: int) -> None:
        """The worker of a place has gone, with what it had of steps that were not whole."""
        if flow.turns is None:
            return  # a program on the cluster computes its blocks again
        flow.adrift.add(place)
        flow.await_all(flow.members[place])
        if not self._may_come(flow, place):
            for turn in flow.turns.begun(place):
                self._lose_awaited(flow, turn, place, flow.places[place])

    def lost(self, flow: Flow, turn: int, place: int) -> None:
        """What a place had of a turn is nowhere any more, and somebody wants it."""
        assert flow.turns is not None
        if not self._may_come(flow, place) or turn not in flow.turns.begun(place):
            self._lose(flow, turn, flow.places[place])

    def wanted(
        self, flow: Flow, place: int, address: str, last: int | None, kept: Collection[int]
    ) -> list[int]:
        """Steps that a producer is to send again, oldest first; of others that it lacks the step fails.

        Parameters
        ----------
        address, last
            The worker that is lost, and the last step that the producer has sent.
        kept
            Steps that it still has.
        """
        if last is None or flow.turns is None:
            return []
        given = flow.turns.given
        begun = flow.turns.begun(place, last)
        flow.begun(given)
        found = []
        for turn, step in begun.items():
            if step in kept and self._is_awaited(flow.key(turn, place)):
                found.append(step)
            elif step not in kept:
                self._lose_awaited(flow, turn, place, address)
        return found

    def _may_come(self, flow: Flow, place: int) -> bool:
        """Whether blocks of a place may be sent again: its worker is lost, and nobody has left for good."""
        # its data is lost before it is said to have gone; later another may have its address
        gone = place in flow.adrift or flow.places[place] not in self._scheduler.workers
        return gone and not flow.failed and not any(flow.ranks[rank].left for rank in flow.members[place])

    def _is_awaited(self, key: Any) -> bool:
        ts = self._scheduler.tasks.get(key)
        needed = ts is not None and ts.state != "memory" and (ts.who_wants or ts.waiters)
        return key in self._awaited and bool(needed)

    def _lose_awaited(self, flow: Flow, turn: int, place: int, address: str) -> None:
        if self._is_awaited(flow.key(turn, place)):
            self._lose(flow, turn, address)

    def _lose(self, flow: Flow, turn: int, address: str) -> None:
        """A turn will never be whole."""
        assert flow.turns is not None
        flow.turns.lose(turn)
        why = f"worker {address} was lost with blocks of it"
        if address in self._scheduler.workers:
            why = "the last worker that had blocks of it was lost"
        flow.say("lost", turn=turn, reason=why)
        flow.bell.ring()
        self.over(*[flow.key(turn, place) for place in range(len(flow.places))])

    def over(self, *keys: Any) -> None:
        """Nobody brings these any more."""
        # once the tasks are where the loss leaves them
        asyncio.get_running_loop().call_soon(self._give_up, keys)
