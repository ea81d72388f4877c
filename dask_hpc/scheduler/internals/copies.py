"""Copies of some data that housekeeping leaves alone.

Stock's Active Memory Manager has all copies of data dropped but one, every two seconds, and of that one where
most is to be done with it: the copy that stays may be the one that was fetched for a moment.

Rules of the file: one method of that manager is replaced, and put back by `Copies.unwrap`. It is where the
manager looks for a copy to drop: of such data it finds none, and so goes on as if nobody had proposed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

_METHOD = "_find_dropper"


class Copies:
    """Keeps every copy of some data on one scheduler, from `wrap` to `unwrap`.

    Workers that leave, or are paused because their memory is short, let go of theirs all the same.

    Parameters
    ----------
    keeps
        Whether the data of a key is such.
    """

    def __init__(self, scheduler: Scheduler, keeps: Callable[[Any], bool]) -> None:
        self._scheduler: Any = scheduler
        self._keeps = keeps
        #: The manager, what was there in place of its own method, and what is asked.
        self._manager: Any = None
        self._before: Any = None
        self._find: Any = None

    def wrap(self) -> None:
        """Keep them from now on."""
        manager = self._scheduler.extensions.get("amm")
        if self._find is None and manager is not None:
            self._manager = manager
            self._before = vars(manager).get(_METHOD)
            self._find = getattr(manager, _METHOD)
            setattr(manager, _METHOD, self._to_drop)

    def unwrap(self) -> None:
        """Keep them no more."""
        manager = self._manager
        if manager is None or vars(manager).get(_METHOD) != self._to_drop:
            return  # somebody has replaced it since, and may ask for what they found
        self._find = self._manager = None
        if self._before is None:
            delattr(manager, _METHOD)
        else:
            setattr(manager, _METHOD, self._before)

    def _to_drop(self, ts: Any, candidates: set[Any] | None, pending_drop: set[Any]) -> Any:
        """The worker that is to drop its copy of a task's result, or None."""
        if self._keeps(ts.key):
            there = (ts.who_has or set()) - self._scheduler.running
            candidates = there if candidates is None else candidates & there
            if not candidates:
                return None
        return self._find(ts, candidates, pending_drop)
