"""What a node is taken to draw where nobody measures it: by its load, between idle and busy.

Rules of the file: pure; watts of one node, loads from 0 (idle) to 1 (every thread executes). The curve is
that of `fit.fit_curve`, idle watts and a line through points that never falls. It says what share of the way
from idle to busy a load takes; a job that draws more or less than any busy node takes the same share of its
own way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dask_hpc_policies.params import shown


class CurveError(ValueError):
    """A curve that cannot be; the message names the point and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """Watts of a node by its load.

    Attributes
    ----------
    idle_w, busy_w
        At load 0 and at load 1.
    shares
        Points (load, share of the way from idle to busy), from (0, 0) to (1, 1).
    """

    idle_w: float
    busy_w: float
    shares: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))

    def watts(self, load: float, busy_w: float | None = None) -> float:
        """What a node draws at `load`; `busy_w`: what it draws at load 1 under the job that it runs."""
        top_w = self.busy_w if busy_w is None else busy_w
        return self.idle_w + (top_w - self.idle_w) * self.share(load)

    def share(self, load: float) -> float:
        """The share of the way from idle to busy."""
        if load <= 0.0:
            return 0.0
        if load >= 1.0:
            return 1.0
        i = bisect_right(self.shares, load, key=lambda point: point[0])
        (x0, y0), (x1, y1) = self.shares[i - 1], self.shares[i]
        return y0 + (y1 - y0) * (load - x0) / (x1 - x0)


def load_curve(idle_w: float, busy_w: float, points: Mapping[str, Any] | None = None) -> LoadCurve:
    """The curve of idle and busy watts, and of watts at loads between them.

    Parameters
    ----------
    points
        Watts by load (above 0, below 1), as a table of a configuration has them; empty: a straight line.

    Raises
    ------
    CurveError
        When a load or watts cannot be, or the curve falls.
    """
    if busy_w < idle_w:
        raise CurveError(f"busy watts are {busy_w:g}; allowed: at least the idle ones, which are {idle_w:g}")
    rows = sorted((_load(load), _watts(load, value)) for load, value in (points or {}).items())
    before_w = idle_w
    for load, watts in rows:
        if not before_w <= watts <= busy_w:
            raise CurveError(
                f"the curve has {watts:g} W at load {load:g}; allowed: {before_w:g} (what comes before it) "
                f"to {busy_w:g} W (busy): it never falls"
            )
        before_w = watts
    way_w = busy_w - idle_w
    inner = tuple((load, (watts - idle_w) / way_w) for load, watts in rows) if way_w else ()
    return LoadCurve(idle_w=idle_w, busy_w=busy_w, shares=((0.0, 0.0), *inner, (1.0, 1.0)))


def _load(text: object) -> float:
    found = _number(text)
    if found is None or not 0 < found < 1:
        raise CurveError(f"the curve has load {shown(text)}; allowed: numbers above 0 and below 1")
    return found


def _watts(load: object, value: object) -> float:
    found = _number(value)
    if found is None:
        raise CurveError(f"the curve has {shown(value)} at load {shown(load)}; allowed: a number of watts")
    return found


def _number(value: object) -> float | None:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if isfinite(found) else None
