"""What became of reconfigurations: told as events, and remembered for those who wait or ask later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dask_hpc.scheduler.resizing.round import Round
from dask_hpc.scheduler.tables.events import ActionEnded, Event
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Action, Outcome, Reason

#: Outcomes remembered for those who ask after the end.
_KEPT = 100


class Outcomes:
    """Ids of reconfigurations and their outcomes."""

    def __init__(self, state: State, handle: Callable[[Event], None]) -> None:
        self._state = state
        self._handle = handle
        self._next_id = 1
        self._waiters: dict[int, asyncio.Future[Outcome]] = {}
        self._outcomes: dict[int, Outcome] = {}

    def new_id(self) -> int:
        """Id of the next reconfiguration."""
        id, self._next_id = self._next_id, self._next_id + 1
        return id

    def known(self, id: int) -> bool:
        """Whether the outcome of a reconfiguration is known."""
        return id in self._outcomes

    async def wait(self, id: int) -> Outcome:
        """The outcome of a reconfiguration, when it is known."""
        if id in self._outcomes:
            return self._outcomes[id]
        future = self._waiters.get(id)
        if future is None:
            future = self._waiters[id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)

    def end(self, round: Round, action: Action, id: int, result: str, why: Reason) -> None:
        """An action of a round has ended."""
        latency_s = self._state.now_s() - round.began_s
        outcome = Outcome(action=action, result=result, reason=why, reconfig_id=id, latency_s=latency_s)
        self._handle(ActionEnded(outcome, round.trigger))
        self._outcomes[id] = outcome
        if len(self._outcomes) > _KEPT:
            del self._outcomes[next(iter(self._outcomes))]
        future = self._waiters.pop(id, None)
        if future is not None:
            future.set_result(outcome)
