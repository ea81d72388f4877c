"""What was drawn, allowed and expected since the corridor was set, in at most so many rows: for charts."""

from __future__ import annotations

from dask_hpc.scheduler.power.draw import Sample
from dask_hpc_policies.power.view import PowerView, Step

#: When there are so many, every second one is dropped, and rows are taken half as often.
MOST_ROWS = 240
#: Rows that a view of the panel has.
BRIEF_ROWS = 48
#: Seconds from the first row to the next one.
_FIRST_S = 0.25

#: Seconds, watts drawn (None: not known), lower and upper bound, least and most watts expected.
Row = tuple[float, float | None, float | None, float | None, float | None, float | None]


class Recent:
    """The rows, the oldest first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._every_s = _FIRST_S

    def add(self, sample: Sample, step: Step | None, view: PowerView | None) -> None:
        """What is so now; kept when the last row is old enough."""
        if self.rows and sample.t_s - self.rows[-1][0] < self._every_s:
            return
        lower_w, upper_w = (None, None) if step is None else step[1:]
        min_w, max_w = (None, None) if view is None else (view.min_w, view.max_w)
        watts = None if sample.label == "unavailable" else sample.total_w
        self.rows.append((sample.t_s, watts, lower_w, upper_w, min_w, max_w))
        if len(self.rows) >= MOST_ROWS:
            self.rows = self.rows[::2]
            self._every_s *= 2

    def brief(self, now_s: float) -> list[list[int | float | None]]:
        """At most `BRIEF_ROWS` of them, in whole watts: little enough for what is asked twice a second."""
        every = -(-len(self.rows) // BRIEF_ROWS) or 1
        # the last one is always there
        rows = self.rows[::-1][::every][::-1]
        return [
            [round(row[0] - now_s, 1), *(None if watts is None else round(watts) for watts in row[1:])]
            for row in rows
        ]

    def told(self, now_s: float) -> list[list[float | None]]:
        """The rows, with seconds from now on, which are negative."""
        return [[row[0] - now_s, *row[1:]] for row in self.rows]
