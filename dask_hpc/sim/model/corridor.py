"""Between which bounds a machine is to draw power, over time.

Rules of the file: frozen dataclasses; seconds of the workload's clock, watts of all nodes together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dask_hpc.errors import WorkloadError
from dask_hpc_policies.power.bounds import Bounds, BoundsError
from dask_hpc_policies.power.ramp import ramped


@dataclass(frozen=True, slots=True, kw_only=True)
class Corridor(Bounds):
    """The bounds of a workload's machine.

    Raises
    ------
    WorkloadError
        Without steps, when their times do not rise, or when bounds cannot be.
    """

    def __post_init__(self) -> None:
        try:
            Bounds.__post_init__(self)
        except BoundsError as error:
            raise WorkloadError(f"corridor: {error}") from None

    def led(self, ramp_w_s: float) -> Corridor:
        """The same with bounds that change by at most so many watts a second, from the start of the run.

        Raises
        ------
        WorkloadError
            For bounds that nothing which changes so slowly can stay inside of.
        """
        try:
            found = ramped(self, ramp_w_s, 0.0)
        except BoundsError as error:
            raise WorkloadError(f"corridor: {error}") from None
        return Corridor(steps=found.steps, coarse=found.coarse)


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
