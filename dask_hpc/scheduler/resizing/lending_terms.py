"""What the picture says of lending, for who goes on from it: how it is set, and whose nodes are not lent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_hpc.scheduler.internals import crowds
from dask_hpc.scheduler.resizing.windows import Windows
from dask_hpc.scheduler.tables.state import State


class LendingTerms:
    """A part that adds the section ``lending`` while slots are lent."""

    def __init__(
        self,
        state: State,
        windows: Windows,
        ahead_s: Callable[[], Mapping[str, float]],
        ends_in_s: Callable[[], Mapping[str, float]],
    ) -> None:
        self._state = state
        #: Thread-seconds that jobs had been served ahead of their shares, and in how long they end, by id.
        self._ahead_s, self._ends_in_s = ahead_s, ends_in_s
        self._windows = windows

    def section(self) -> Mapping[str, Any]:
        """Seconds of the longest tasks that are lent; tasks sent to a thread; jobs that keep their slots.

        And the jobs that take turns, with the thread-seconds that each was served ahead of its share, and in
        how long each ends as far as their order goes.
        """
        limit_s = self._state.settings.lend_s
        if limit_s <= 0:
            return {}
        told: dict[str, Any] = {"limit_s": limit_s}
        if (saturation := crowds.sent_to_a_thread(self._state.scheduler)) is not None:
            told["saturation"] = saturation
        if self._windows.producers:
            told["keep"] = sorted(self._windows.producers)
        ahead_s, ends_s = self._ahead_s(), self._ends_in_s()
        named = [job.id for job in self._state.jobs.named if job.undeclared]
        if named:
            told["turns"] = {id: round(ahead_s.get(id, 0.0), 3) for id in named}
            told["ends"] = {id: round(ends_s[id], 3) for id in named if id in ends_s}
        return {"lending": told}
