"""What the tasks of a job that are not finished are expected to take: what such tasks took before.

Sizes of jobs are learned while they run, from the tasks that have ended (HFSP; Pastorelli et al. 2013,
section 3.2). Tasks are told apart by kind, Dask's task prefix: half a second of loading says nothing about
the reductions that follow. A kind of which the job has ended none takes what it took in others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix


class _Kind:
    """Tasks of one kind: how many came, how many of them ended, and their seconds."""

    __slots__ = ("came", "ended", "seconds")

    def __init__(self) -> None:
        self.came = self.ended = 0
        self.seconds = 0.0


class Expected:
    """Tasks of one job by kind.

    Attributes
    ----------
    done_s
        What those that have ended took together, in seconds of one thread.
    ended_tasks
        How many those are.
    came_tasks
        Tasks that were submitted.
    grown
        Whether tasks came since somebody has looked, who resets it.
    """

    __slots__ = ("_kinds", "came_tasks", "done_s", "ended_tasks", "grown")

    def __init__(self) -> None:
        self.done_s = 0.0
        self.came_tasks = self.ended_tasks = 0
        self.grown = False
        self._kinds: dict[TaskPrefix, _Kind] = {}

    def came(self, kind: TaskPrefix, tasks: int = 1) -> None:
        """Tasks of the kind were submitted. Runs for every task that is looked at by itself."""
        row = self._kinds.get(kind)
        if row is None:
            row = self._kinds[kind] = _Kind()
        row.came += tasks
        self.came_tasks += tasks
        self.grown = True

    def ended(self, kind: TaskPrefix, seconds: float) -> None:
        """A task of the kind has ended. Runs for every task."""
        row = self._kinds.get(kind)
        if row is None:
            row = self._kinds[kind] = _Kind()
        row.ended += 1
        row.seconds += seconds
        self.done_s += seconds
        self.ended_tasks += 1

    def left_s(self, usual_s: Callable[[TaskPrefix], float], unfinished: int | None = None) -> float:
        """Seconds of one thread that what has not ended will take.

        Parameters
        ----------
        usual_s
            What a task of a kind takes of which the job has ended none.
        unfinished
            Tasks that are still to be computed, where that is known: some that came are not wanted any more,
            and some that have ended are computed again.
        """
        tasks, seconds, ended = 0, 0.0, 0
        for kind, row in self._kinds.items():
            ended += row.ended
            left = row.came - row.ended
            if left > 0:
                tasks += left
                seconds += left * (row.seconds / row.ended if row.ended else usual_s(kind))
        if unfinished is None:
            return seconds
        if not tasks:
            return unfinished * self.done_s / ended if ended else 0.0
        return seconds * unfinished / tasks
