"""Where the change against the baseline turns its sign along a factor of a study.

Rules of the file: pure functions of rows; between two values of the factor the change is taken as straight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_hpc.sim.study_model import Study
from dask_hpc.sim.study_results import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where the change of a metric against the baseline changes its sign along a factor."""

    metric: str
    place: Mapping[str, Any]
    factor: str
    #: Values of the factor, by linear interpolation between neighbours; several when it turns back.
    at: tuple[float, ...]
    #: Change at the lowest and at the highest value, per cent.
    first: float
    last: float


def turns(study: Study, rows: Sequence[Row]) -> list[Turn]:
    """Where changes against the baseline turn along `Study.sign_change`, per workload, policy and metric."""
    along = study.sign_change
    if along is None:
        return []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.pairs and isinstance(row.factors.get(along), (int, float)):
            rest = tuple((name, value) for name, value in row.place.items() if name != along)
            groups.setdefault(rest, []).append(row)
    found = []
    for rest, group in groups.items():
        for metric in study.metrics:
            points = sorted(
                (float(row.factors[along]), change)
                for row in group
                if isinstance(change := row.statistic(metric, "change"), (int, float))
            )
            if len(points) > 1:
                at = tuple(sign_changes(points))
                ends = {"first": points[0][1], "last": points[-1][1]}
                found.append(Turn(metric=metric, place=dict(rest), factor=along, at=at, **ends))
    return found


def sign_changes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Where a function through `points` (ascending, straight between them) goes from one sign to the other.

    Zeros are of neither sign: one that lies between two signs is where it turns, several in a row turn at the
    first of them.
    """
    found = []
    before: tuple[float, float] | None = None
    zero: float | None = None
    for x, y in points:
        if y == 0:
            zero = x if zero is None else zero
            continue
        if before is not None and (before[1] < 0) != (y < 0):
            x0, y0 = before
            found.append(zero if zero is not None else x0 + (x - x0) * y0 / (y0 - y))
        before, zero = (x, y), None
    return found
