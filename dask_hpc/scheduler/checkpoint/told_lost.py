"""Who has a result that is lost for good is told so, each once for all that were lost together."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_hpc.scheduler.core.notices import notify
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker import saved

#: What is lost so soon after another result is told with that, in seconds.
_TOGETHER_S = 0.5


class ToldLost:
    """Tells clients of one scheduler of protected results that are lost."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: By client what was lost of it since it was last told, and why.
        self._untold: dict[str, list[tuple[Any, str]]] = {}

    def lost(self, key: Any, why: str) -> None:
        """No copy of it is of use, and it cannot be computed again."""
        loop, event = asyncio.get_running_loop(), {"action": "hpc-lost", "keys": [str(key)], "reason": why}
        # the broker calls plugins: not in the middle of a transition
        loop.call_soon(lambda: self._state.scheduler.log_event(saved.TOPIC, event))
        if not self._untold:
            loop.call_later(_TOGETHER_S, self._tell)
        for client in reads.wanted_by(self._state.scheduler, [key]):
            self._untold.setdefault(client, []).append((key, why))

    def end(self) -> None:
        """Tell nobody any more."""
        self._untold.clear()

    def _tell(self) -> None:
        untold, self._untold = self._untold, {}
        for client, lost in untold.items():
            key, why = lost[0]
            more = f", and {len(lost) - 1} more" * (len(lost) > 1)
            text = f"Protected result {key!r} is lost: no copy is of use ({why}){more}"
            notify(self._state, client, text)
