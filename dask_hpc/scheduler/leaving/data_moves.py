"""Data of workers that have to go: what only they hold is moved to others, as far as these have room."""

from __future__ import annotations

from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.tables.parts import Departure, Parts
from dask_hpc.scheduler.tables.state import State


class DataMoves:
    """Has Dask move what only the leaving workers hold."""

    def __init__(self, state: State, parts: Parts) -> None:
        self._state = state
        self._parts = parts

    async def leave(self, departure: Departure) -> bool:
        """Move what only they hold; whether some of it has found no room."""
        state, addresses = self._state, departure.addresses
        scheduler = state.scheduler
        # having waited for a worker that has room, it is tried again when there is one
        if not departure.last and (not departure.waits or reads.others_running(scheduler, addresses)):
            staying = [address for address, node in state.nodes.at.items() if not node.reserved]
            least_s = state.now_s() + 1.0

            def left_s() -> float:
                ends_s = departure.deadline_s - self._parts.reserved_s(departure)
                return max(least_s, ends_s) - state.now_s()

            await data.move_off(scheduler, addresses, staying, left_s)
        there = [address for address in addresses if address in scheduler.workers]
        return bool(reads.sole_keys(scheduler, there, addresses))
