"""Has workers sample what their hosts draw while somebody goes by it, those that join later included."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.state import State
from dask_hpc.wire import POWER

#: A worker that is new sets up its plugins first; one whose heartbeats then carry nothing is asked again.
_NEW_S = 1.0
_AGAIN_S = 10.0
_TRIES = 3


class Sampling:
    """Switches sampling on and off."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: What talks to workers now.
        self._telling: set[asyncio.Task[None]] = set()
        self._on = False
        #: How often a worker was asked, and when that is next due, by address.
        self._asked: dict[str, tuple[int, float]] = {}

    def begin(self, now_s: float, silent: Sequence[str]) -> None:
        """Have them sample from now on; `silent` as of `look`."""
        if not self._on:
            self._on = True
            self._asked = dict.fromkeys(silent, (0, now_s))
            self.look(now_s, silent)

    def look(self, now_s: float, silent: Sequence[str]) -> None:
        """Ask those that have come, and those that have not begun yet.

        Parameters
        ----------
        silent
            Addresses of workers whose heartbeats carry nothing of power.
        """
        if not self._on:
            return
        self._asked = {address: self._asked.get(address, (0, now_s + _NEW_S)) for address in silent}
        due = [address for address, (tries, at_s) in self._asked.items() if tries < _TRIES and at_s <= now_s]
        if due:
            for address in due:
                self._asked[address] = (self._asked[address][0] + 1, now_s + _AGAIN_S)
            self._tell(due, on=True)

    def end(self, *, told: bool = True) -> None:
        """Have them sample no more; not `told`: they end it by themselves, for they lose our plugin."""
        if self._on:
            self._on = False
            self._asked.clear()
            if told:
                self._tell(list(self._state.scheduler.workers), on=False)

    def _tell(self, addresses: list[str], *, on: bool) -> None:
        telling = remote.tell(self._state.scheduler, addresses, POWER, on=on)
        task = asyncio.get_running_loop().create_task(telling)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
