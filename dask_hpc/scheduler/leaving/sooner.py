"""Workers whose walltime ends sooner than they know: Slurm's time limit was lowered while their job runs.

Their own agents would have them emptied at the end that was told when the job began, which is too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dask_hpc.scheduler.tables.state import State

logger = logging.getLogger(__name__)


class Sooner:
    """Has such workers emptied as long before their end as agents do.

    Parameters
    ----------
    depart
        Empties a worker that is gone in so many seconds (`Departures.depart`).
    """

    def __init__(self, state: State, depart: Callable[[str, float, str], Awaitable[object]]) -> None:
        self._state = state
        self._depart = depart
        self._going: dict[str, asyncio.Task[None]] = {}

    def tick(self, now_s: float) -> None:
        """Look for those whose time has come."""
        settings = self._state.settings
        margin_s = settings.walltime_margin_s
        due = self._state.nodes.sooner(now_s + settings.walltime_notice_s + margin_s)
        # one that cannot be emptied is tried once
        self._going = {address: task for address, task in self._going.items() if address in due}
        for address, end_s in due.items():
            if address not in self._going:
                left_s = max(0.0, end_s - now_s)
                # where there is less time than that, half of it
                within_s = left_s - min(margin_s, left_s / 2)
                self._going[address] = asyncio.ensure_future(self._let_go(address, within_s))

    async def _let_go(self, address: str, within_s: float) -> None:
        logger.warning(
            "Worker %s ends sooner than it was to: %.0f s of its walltime are left", address, within_s
        )
        try:
            await self._depart(address, within_s, "its walltime ends")
        except Exception as error:  # nobody waits for this task
            logger.error("Worker %s was not emptied before its walltime ends", address, exc_info=error)

    def unwrap(self) -> None:
        """The runtime is being uninstalled: nobody is emptied any more."""
        for task in self._going.values():
            task.cancel()
