"""What a node is taken to draw where nobody measures it: by its load, between idle and busy.

Rules of the file: pure; watts of one node, loads from 0 (idle) to 1 (every thread executes). The curve is
idle watts and straight lines through points that never fall (`fit.fit_curve` finds them). It says what share
of the way from idle to busy a load takes; a job that draws more or less than any busy node takes the same
share of its own way.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Watts of a node by its load.

    Parameters
    ----------
    points
        Pairs of load (0 to 1) and watts, loads rising from 0 to 1, watts never falling; straight lines lie
        between them.
    error
        Mean absolute error at points left out of the fit, a share of the largest watts that were measured;
        None: it was not fitted.
    """

    points: tuple[tuple[float, float], ...]
    error: float | None = None

    @property
    def idle_w(self) -> float:
        """Watts at load 0."""
        return self.points[0][1]

    @property
    def busy_w(self) -> float:
        """Watts at load 1."""
        return self.points[-1][1]

    def watts(self, load: float, busy_w: float | None = None) -> float:
        """What a node draws at `load`; `busy_w`: what it draws at load 1 under the job that it runs.

        Loads outside of 0 to 1 count as the nearer of these.
        """
        load = min(1.0, max(0.0, load))
        i = min(len(self.points) - 1, bisect_right(self.points, load, key=lambda point: point[0]))
        (x0, y0), (x1, y1) = self.points[i - 1], self.points[i]
        found_w = y0 + (y1 - y0) * (load - x0) / (x1 - x0)
        if busy_w is None:
            return found_w
        way_w = self.busy_w - self.idle_w
        share = (found_w - self.idle_w) / way_w if way_w else load
        return self.idle_w + (busy_w - self.idle_w) * share

    def column_w(self, loads: NDArray[np.float64], busy_w: NDArray[np.float64]) -> NDArray[np.float64]:
        """`watts` of many nodes, as many loads and watts at load 1."""
        loads = np.clip(loads, 0.0, 1.0)
        bends, watts = np.array(self.points).T
        found_w, way_w = np.interp(loads, bends, watts), self.busy_w - self.idle_w
        shares = (found_w - self.idle_w) / way_w if way_w else loads
        return np.asarray(self.idle_w + (busy_w - self.idle_w) * shares)

    def raised(self, by_w: float) -> LoadCurve:
        """The same, everywhere by so many watts higher."""
        return LoadCurve(tuple((load, watts + by_w) for load, watts in self.points), self.error)

    def between(self, idle_w: float, busy_w: float) -> LoadCurve:
        """The same bends between other ends."""
        return LoadCurve(tuple((load, self._placed(watts, idle_w, busy_w)) for load, watts in self.points))

    def _placed(self, watts: float, idle_w: float, busy_w: float) -> float:
        return idle_w + (watts - self.idle_w) * (busy_w - idle_w) / (self.busy_w - self.idle_w)
