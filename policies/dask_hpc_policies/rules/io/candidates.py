"""The waiting jobs and the sizes they could start on, as arrays: which of them balances best.

ADMIRE (2023, D3.3, section 4.2.4), equations 4.5 to 4.11. Rules of the file: candidates are numbers; who
waits at a place of the queue is the caller's business.

A job of one size, or whose I/O intensity differs from size to size, has a row for each size. A job of one
intensity has one row in all: the intensity of the system with it is a fraction of two straight lines in its
number of nodes, which only rises or only falls. So the distance from the workload's is largest on its
smallest or its largest size, and least there or on one of the two sizes around the point where it is nil.
Hundreds of sizes cost what four do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.jobs.constraints import CONSTRAINTS, largest_at_most, legal_sizes
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity

#: Distances between intensities that differ by no more than this are equal: rounding makes such.
SAME = 1e-12

Array = NDArray[np.float64]


class Choice(NamedTuple):
    """A waiting job and a size for it."""

    place: int
    nodes: int
    #: Distance between the intensities of workload and system with that job (equation 4.7).
    delta: float


class Candidates:
    """What could start, by place in the queue."""

    __slots__ = ("_curves", "_fewest", "_rows")

    def __init__(self) -> None:
        #: Place, nodes, intensity * nodes.
        self._rows = _Table(3)
        #: Place, smallest and largest size, intensity, number of the constraint.
        self._curves = _Table(5)
        #: The smallest size of any job; None when it is to be looked for.
        self._fewest: float | None = None

    def insert(self, place: int, job: JobView) -> None:
        """A job waits at `place`; those there and behind it move up by one."""
        self._fewest = None
        rows: list[tuple[float, ...]] = []
        curves: list[tuple[float, ...]] = []
        _describe(place, job, rows, curves)
        self._rows.insert(place, rows)
        self._curves.insert(place, curves)

    def fill(self, jobs: Iterable[JobView]) -> None:
        """All jobs that wait, in order of service; what was there before is gone."""
        self._fewest = None
        rows: list[tuple[float, ...]] = []
        curves: list[tuple[float, ...]] = []
        for place, job in enumerate(jobs):
            _describe(place, job, rows, curves)
        self._rows.fill(rows)
        self._curves.fill(curves)

    def remove(self, place: int) -> None:
        """The job at `place` waits no longer; those behind it move down by one."""
        self._fewest = None
        self._rows.remove(place)
        self._curves.remove(place)

    def fewest_nodes(self) -> float:
        """The smallest size of any job; infinite when nobody waits."""
        if self._fewest is None:
            tables = [table for table in (self._rows, self._curves) if table.count]
            self._fewest = min([float(table.view[1].min()) for table in tables], default=float("inf"))
        return self._fewest

    def best(
        self, system: Mix, workload: float, last: int, reordering: float, most_nodes: int | None = None
    ) -> Choice | None:
        """The candidate of the smallest weighted priority on top of the mix `system`; None without any.

        Equations 4.5 to 4.11: the smallest sum of (1 - `reordering`) times the place among all jobs and
        `reordering` times the normalized distance of the intensities; of equals the one that waits longest.

        Parameters
        ----------
        workload
            Intensity of the whole workload.
        last
            Place of the last of all jobs, running ones too; at least 1.
        most_nodes
            Sizes above this take no part.
        """
        place, nodes, io = self._rows.view
        if most_nodes is not None:
            fits = nodes <= most_nodes
            place, nodes, io = place[fits], nodes[fits], io[fits]
        if self._curves.count:
            more = self._from_curves(system, workload, most_nodes)
            both = zip((place, nodes, io), more, strict=True) if len(nodes) else ()
            place, nodes, io = [np.concatenate(pair) for pair in both] or more
        if not len(nodes):
            return None
        delta = io + system.io_nodes
        held = nodes + system.nodes
        delta /= held if system.nodes else np.maximum(held, 1)  # on no nodes there is no intensity
        np.subtract(workload, delta, out=delta)
        np.abs(delta, out=delta)
        least, most = float(delta.min()), float(delta.max())
        weighted = place * ((1.0 - reordering) / last)
        # Alone in the queue, or all alike but for rounding: then that part decides nothing.
        if most - least > SAME:
            norm = delta - least
            norm *= reordering / (most - least)
            weighted += norm
        first = weighted.argmin()
        # Rows are in order of their places, but for those from curves.
        if self._curves.count:
            chosen = place[weighted == weighted[first]].min()
            own = np.flatnonzero(place == chosen)
        else:
            chosen = place[first]
            own = np.arange(*place.searchsorted((chosen, chosen + 1)))
        # Of its sizes the one that balances best, also where balance has no weight; of equals the larger.
        near = own[delta[own] <= delta[own].min() + SAME]
        row = near[nodes[near].argmax()]
        return Choice(int(chosen), int(nodes[row]), float(delta[row]))

    def _from_curves(self, system: Mix, workload: float, most_nodes: int | None) -> tuple[Array, ...]:
        """Columns of rows for the jobs of one intensity: their end sizes, and the two around the best one."""
        place, low, high, intensity, code = table = self._curves.view
        if most_nodes is not None:
            fits = low <= most_nodes
            place, low, high, intensity, code = table[:, fits]
            high = np.minimum(high, _floor(code, np.maximum(low, most_nodes)))
        with np.errstate(divide="ignore", invalid="ignore"):
            nil = (workload * system.nodes - system.io_nodes) / (intensity - workload)
        # Where there is none (nan) any size will do.
        below = np.maximum(low, _floor(code, np.fmin(np.fmax(nil, low), high)))
        nodes = np.array((low, below, np.minimum(_next(code, below), high), high))
        return np.broadcast_to(place, nodes.shape).ravel(), nodes.ravel(), (intensity * nodes).ravel()


def _describe(
    place: int, job: JobView, rows: list[tuple[float, ...]], curves: list[tuple[float, ...]]
) -> None:
    """Append what the job could start on."""
    low = needed_nodes(job)
    if low is None:
        return
    high: int | None = low
    if not (job.is_default or job.start_nodes is not None or job.kind == "rigid"):
        high = largest_at_most(job.constraint, job.max_nodes, low)
    if high is None or high == low:
        rows.append((place, low, job_intensity(job, low) * low))
    elif len(job.io_by_nodes) < 2:
        curves.append((place, low, high, job_intensity(job, low), CONSTRAINTS.index(job.constraint)))
    else:
        sizes = legal_sizes(job.constraint, low, high)
        rows.extend((place, nodes, job_intensity(job, nodes) * nodes) for nodes in sizes)


class _Table:
    """Rows of numbers in the order of their first one, the place; kept column by column."""

    __slots__ = ("_data", "count")

    def __init__(self, columns: int) -> None:
        self._data = np.zeros((columns, 64))
        self.count = 0

    @property
    def view(self) -> Array:
        """The columns, without room that is not used."""
        return self._data[:, : self.count]

    def fill(self, rows: Sequence[Sequence[float]]) -> None:
        """Have these rows, and no others."""
        self.count = len(rows)
        if rows:
            self._data = np.array(rows, dtype=float).T

    def insert(self, place: int, rows: Sequence[Sequence[float]]) -> None:
        """Rows of `place` come in; rows of that place and behind it move up."""
        data, count, more = self._data, self.count, len(rows)
        if count + more > data.shape[1]:
            room = np.zeros((len(data), max(data.shape[1], more)))
            self._data = data = np.concatenate((data, room), axis=1)
        first = int(data[0, :count].searchsorted(place))
        if first < count:
            data[:, first + more : count + more] = data[:, first:count].copy()
            data[0, first + more : count + more] += 1
        if more:
            data[:, first : first + more] = np.array(rows).T
            self.count += more

    def remove(self, place: int) -> None:
        """Rows of `place` go; rows behind it move down."""
        data, count = self._data, self.count
        first, behind = data[0, :count].searchsorted((place, place + 1))
        if behind < count:
            gone = behind - first
            data[:, first : count - gone] = data[:, behind:count].copy()
            data[0, first : count - gone] -= 1
        self.count -= int(behind - first)


# ------------------------------------------------------------------ sizes of many jobs at once

#: `constraints.largest_at_most` and `next_higher` without bounds, for arrays, by number of the constraint.
_FLOORS: tuple[Any, ...] = (
    np.floor,
    lambda n: 2.0 * np.floor(n / 2.0),
    lambda n: 2.0 * np.floor((n - 1.0) / 2.0) + 1.0,
    lambda n: np.ldexp(1.0, np.frexp(n)[1] - 1),
    lambda n: np.floor(np.sqrt(np.floor(n))) ** 2,
    lambda n: _cube_roots(np.floor(n)) ** 3,
)
_NEXTS: tuple[Any, ...] = (
    lambda n: n + 1.0,
    lambda n: n + 2.0,
    lambda n: n + 2.0,
    lambda n: n * 2.0,
    lambda n: (np.sqrt(n) + 1.0) ** 2,
    lambda n: (np.rint(np.cbrt(n)) + 1.0) ** 3,
)


def _cube_roots(n: Array) -> Array:
    roots = np.rint(np.cbrt(n))
    return roots - (roots**3 > n)


def _floor(code: Array, n: Array) -> Array:
    """The largest legal size at most `n` (at least 1), each under its own constraint."""
    return _each(_FLOORS, code, n)


def _next(code: Array, n: Array) -> Array:
    """The legal size that follows the legal size `n`."""
    return _each(_NEXTS, code, n)


def _each(functions: tuple[Any, ...], code: Array, n: Array) -> Array:
    found: Array = functions[0](n)
    if code.any():
        for number in range(1, len(functions)):
            mine = code == number
            if mine.any():
                found[mine] = functions[number](n[mine])
    return found
