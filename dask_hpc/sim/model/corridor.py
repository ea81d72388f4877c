"""Between which bounds a machine is to draw power, over time.

Rules of the file: frozen dataclasses; seconds of the workload's clock, watts of all nodes together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from dask_hpc.errors import WorkloadError

#: From when on, lower and upper bound.
Step = tuple[float, float, float]
#: Most watts that a bound may have.
_MOST_W = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Corridor:
    """Lower and upper bounds, each pair from its time on until the next one; before the first there is none.

    Raises
    ------
    WorkloadError
        Without steps, when their times do not rise, or when bounds cannot be.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise WorkloadError("corridor: no steps; give at least one [t_s, lower_w, upper_w]")
        before_s = -1.0
        for number, (t_s, lower_w, upper_w) in enumerate(self.steps, start=1):
            where = f"corridor: step {number}"
            if not (isfinite(t_s) and t_s >= 0):
                raise WorkloadError(f"{where}: t_s is {t_s!r}; allowed: at least 0 s")
            if t_s <= before_s:
                raise WorkloadError(f"{where}: t_s is {t_s:g}, not after {before_s:g}; times rise")
            if not 0 <= lower_w <= upper_w <= _MOST_W:
                raise WorkloadError(
                    f"{where}: lower_w is {lower_w!r}, upper_w {upper_w!r}; allowed: from 0 to "
                    f"{_MOST_W:g} W, lower_w not above upper_w"
                )
            before_s = t_s

    def at(self, t_s: float) -> Step | None:
        """The step that holds at `t_s`; None before the first one."""
        number = self._begun(t_s)
        return self.steps[number - 1] if number else None

    def after(self, t_s: float) -> tuple[Step, ...]:
        """The steps that are still to come at `t_s`."""
        return self.steps[self._begun(t_s) :]

    def _begun(self, t_s: float) -> int:
        return bisect_right(self.steps, t_s, key=lambda step: step[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CorridorRun:
    """How a run kept its corridor, from its first moment to the end of its last job."""

    #: Watts outside the corridor over time, both sides together.
    violation_ws: float
    #: Time outside, and of it the time when some allocation of the jobs present would have been inside.
    outside_s: float
    avoidable_s: float
    #: Times outside at a stretch of more than `DEPARTURE_S`.
    departures: int
    #: What was drawn, as steps of (time, watts from then on).
    draw: tuple[tuple[float, float], ...] = ()


#: Being outside for longer than this counts as a departure.
DEPARTURE_S = 30.0


def corridor(steps: Iterable[Iterable[float]]) -> Corridor:
    """The corridor of rows (t_s, lower_w, upper_w)."""
    rows = [tuple(map(float, step)) for step in steps]
    for number, row in enumerate(rows, start=1):
        if len(row) != 3:
            raise WorkloadError(
                f"corridor: step {number} has {len(row)} numbers; give [t_s, lower_w, upper_w]"
            )
    return Corridor(steps=tuple((row[0], row[1], row[2]) for row in rows))
