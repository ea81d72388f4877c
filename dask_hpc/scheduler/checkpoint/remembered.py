"""Commits by their numbers: those under way, the last ones that have ended, and the rows of those before."""

from __future__ import annotations

from typing import Any

from dask_hpc.scheduler.checkpoint.commit import Commit

#: Commits that are remembered as a whole after their end, with all that they were made of.
_WHOLE = 50
#: Rows of those before: so many at most, for so long after their end, in seconds.
_ROWS, _ROWS_S = 10_000, 3600.0


class Remembered:
    """The commits of one scheduler."""

    def __init__(self) -> None:
        #: By number, in the order in which they were begun.
        self.commits: dict[int, Commit] = {}
        #: How often what is asked for every so often is to be written, by folder and name: until the next one
        #: is due the newest is remembered.
        self.repeated: dict[tuple[str | None, str], float] = {}
        #: Of those that are forgotten: when each was begun and has ended, and its row.
        self._rows: dict[int, tuple[float, float, dict[str, Any]]] = {}

    def latest(self) -> dict[tuple[str | None, str], Commit]:
        """The newest commit of each name, by folder and name."""
        return {one.place: one for one in self.commits.values()}

    def row(self, id: int, now_s: float) -> dict[str, Any]:
        """Row of a commit.

        Raises
        ------
        ValueError
            When it is not known (any more).
        """
        if (one := self.commits.get(id)) is not None:
            return one.row(now_s)
        if id not in self._rows:
            raise ValueError(f"commit is {id!r}, which is not known (any more); see rt.status()")
        submitted_s, _, row = self._rows[id]
        return {**row, "age_s": round(now_s - submitted_s, 3)}

    def forget(self, now_s: float) -> None:
        """Remember the last commits, those that are under way, and what the next ones are to wait after; of
        the others their rows, for a while.
        """
        latest = self.latest()
        self.repeated = {
            place: every_s
            for place, every_s in self.repeated.items()
            if place in latest and latest[place].due(now_s, every_s) is None
        }
        needed = [latest[place] for place in self.repeated]
        for one in list(self.commits.values())[:-_WHOLE]:
            if one.ended_s is not None and one not in needed:
                del self.commits[one.id]
                self._rows[one.id] = one.submitted_s, one.ended_s, one.row(now_s)
        while self._rows:
            first, (_, ended_s, _) = next(iter(self._rows.items()))
            if len(self._rows) <= _ROWS and now_s - ended_s <= _ROWS_S:
                break
            del self._rows[first]
