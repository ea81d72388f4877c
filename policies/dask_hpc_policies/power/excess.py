"""What is drawn beyond what the sizes of jobs let expect, once that is sure: it counts like any other load.

John (2024, algorithm 4) acts when the measured draw leaves the corridor, or the predicted one. A program that
knows nothing of the difference would answer that all is well. What a job draws otherwise than was said of it
becomes known of the job first; what is left is counted here.

Rules of the file: pure, the same live and simulated; who builds a picture calls `Excess.look` with it. A
resize takes a moment to be seen in the draw, so that an excess counts only where the draw was outside at each
of the last `SEEN` looks, all at the same sizes and bounds. One that is smaller at other sizes holds for
`HELD` looks all the same: else jobs would go back to where it was found, and there and back without end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.view import PowerView

#: Looks at which the draw is outside before an excess counts: more than it takes to learn what a job draws.
SEEN = 8
#: Looks for which it counts though it is smaller.
HELD = 30


class Excess:
    """What is known of it.

    Parameters
    ----------
    every_s
        Looks that follow sooner than that are one.
    """

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        #: Watts, whole ones; negative: less is drawn than expected.
        self.watts = 0.0
        #: Of which sizes and bounds the looks are, since when; when the last one was, and what was found.
        self._of: Any = None
        self._since_s = 0.0
        self._last_s = float("-inf")
        self._found: deque[float] = deque(maxlen=SEEN)
        self._smaller = 0

    def look(
        self, view: ClusterSnapshot, power: PowerView, drawn_s: float | None, over_s: float = 0.0
    ) -> PowerView:
        """`power` with the excess among its load, and whether its draw is that of the present sizes.

        Parameters
        ----------
        power
            With what is expected of the sizes alone.
        drawn_s
            Since when the draw has been what it is said to be; None: it was not measured.
        over_s
            It is the mean over so many seconds.
        """
        if not power.bounded or power.draw_w is None or power.min_w is None or power.max_w is None:
            self._found.clear()
            return replace(power, settled=False)
        sizes = [(job.id, job.nodes) for job in view.jobs if job.nodes]
        of = sizes, view.pool_nodes, power.lower_w, power.upper_w
        if of != self._of or view.adapting:
            self._of, self._since_s = of, view.now_s
            self._found.clear()
        if drawn_s is None or drawn_s - over_s < self._since_s:
            self._found.clear()
        elif view.now_s - self._last_s >= self.every_s:
            self._last_s = view.now_s
            self._found.append(self._beyond_w(power.draw_w, power))
            self._take()
        settled = len(self._found) == SEEN
        if not self.watts:
            return replace(power, settled=settled)
        return replace(
            power,
            base_w=power.base_w + self.watts,
            min_w=max(0.0, power.min_w + self.watts),
            max_w=max(0.0, power.max_w + self.watts),
            settled=settled,
        )

    def _beyond_w(self, draw_w: float, power: PowerView) -> float:
        """How far a draw that is outside is from what is expected; inside that is nobody's business yet."""
        assert power.lower_w is not None
        assert power.upper_w is not None
        assert power.min_w is not None
        assert power.max_w is not None
        if not self.watts and power.lower_w <= draw_w <= power.upper_w:
            return 0.0
        return max(0.0, draw_w - power.max_w) + min(0.0, draw_w - power.min_w)

    def _take(self) -> None:
        """Have what all of the last looks have found."""
        found = self._found
        sure_w = max(0.0, min(found)) + min(0.0, max(found)) if len(found) == SEEN else 0.0
        if len(found) == SEEN and self.watts * sure_w >= 0 and abs(sure_w) >= abs(self.watts):
            self._smaller = 0
        else:
            self._smaller += 1
            if not self.watts or self._smaller < HELD:
                return
        # whole watts: a plan is asked for anew whenever they change
        self.watts, self._smaller = float(round(sure_w)), 0
