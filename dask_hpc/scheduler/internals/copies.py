"""Copies of some data that housekeeping leaves alone.

Stock's Active Memory Manager has all copies of data dropped but one, every two seconds, and of that one where
most is to be done with it: the copy that stays may be the one that was fetched for a moment.

Rules of the file: one method of the scheduler is replaced, and put back by `Copies.unwrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

_METHOD = "request_remove_replicas"


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
        #: What was there in place of the scheduler's own method, and what is asked.
        self._before: Any = None
        self._remove_others: Any = None

    def wrap(self) -> None:
        """Keep them from now on."""
        if self._remove_others is None:
            self._before = vars(self._scheduler).get(_METHOD)
            self._remove_others = getattr(self._scheduler, _METHOD)
            setattr(self._scheduler, _METHOD, self._remove)

    def unwrap(self) -> None:
        """Keep them no more."""
        if vars(self._scheduler).get(_METHOD) != self._remove:
            return  # somebody has replaced it since, and may ask for what they found
        self._remove_others = None
        if self._before is None:
            delattr(self._scheduler, _METHOD)
        else:
            setattr(self._scheduler, _METHOD, self._before)

    def _remove(self, addr: str, keys: list[Any], *, stimulus_id: str) -> None:
        scheduler = self._scheduler
        if scheduler.workers[addr] in scheduler.running:
            keys = [key for key in keys if not self._keeps(key)]
        if keys:
            self._remove_others(addr, keys, stimulus_id=stimulus_id)
