"""What was drawn, allowed and expected since the corridor was set, in at most so many rows: for charts."""

from __future__ import annotations

from dask_hpc.scheduler.power.draw import Sample
from dask_hpc_policies.power.view import PowerView, Step

#: When there are so many, every second one is dropped, and rows are taken half as often.
MOST_ROWS = 240
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

    def told(self, now_s: float) -> list[list[float | None]]:
        """The rows, with seconds from now on, which are negative."""
        return [[row[0] - now_s, *row[1:]] for row in self.rows]
