"""What runs and what waits, as the I/O-aware policy weighs it: sums and candidates, kept up step by step.

ADMIRE (2023, D3.3, section 4.2.4). Rules of the file: jobs are known by keys of the caller; nothing is
decided here but which waiting job is best and which size of a running one. Every change costs a few
operations on arrays, whatever the number of jobs, and the sums are those that would be computed anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from dask_hpc_policies.admission import needed_nodes
from dask_hpc_policies.constraints import legal_sizes
from dask_hpc_policies.intensity import Mix, job_intensity, preferred_size
from dask_hpc_policies.model import JobView

#: Distances between intensities that differ by no more than this are equal: rounding makes such.
SAME = 1e-12

K = TypeVar("K", bound=Hashable)


class Choice(NamedTuple):
    """A waiting job and a size for it."""

    place: int
    nodes: int
    #: Distance between the intensities of workload and system with that job (equation 4.7).
    delta: float


class Running(NamedTuple):
    """A job that runs."""

    nodes: int
    intensity: float


def sizes_to_start(job: JobView) -> tuple[int, ...]:
    """The configurations of a waiting job, ascending; empty when no size is legal."""
    need = needed_nodes(job)
    if need is None:
        return ()
    if job.is_default or job.start_nodes is not None or job.kind == "rigid":
        return (need,)
    return legal_sizes(job.constraint, need, job.max_nodes)


class Balance(Generic[K]):
    """System and workload intensity, and the candidates for a start in order of service."""

    __slots__ = (
        "_count",
        "_counted",
        "_first",
        "_io",
        "_nodes",
        "_place",
        "keys",
        "queued",
        "running",
        "system",
    )

    def __init__(self) -> None:
        #: Running jobs, and their mix.
        self.running: dict[K, Running] = {}
        self.system = Mix()
        #: Waiting jobs in order of service, and their mix at preferred sizes.
        self.keys: list[K] = []
        self.queued = Mix()
        #: What each waiting job adds to `queued`: intensity and nodes.
        self._counted: list[tuple[float, int]] = []
        #: A row for each size of each waiting job, in order: place in the queue, nodes, intensity * nodes.
        self._place = np.zeros(64)
        self._nodes = np.zeros(64)
        self._io = np.zeros(64)
        self._count = 0
        #: First row of each waiting job.
        self._first: list[int] = []

    @property
    def workload(self) -> float:
        """Intensity of the workload: running and waiting jobs."""
        return self.system.joined(self.queued).intensity

    # ------------------------------------------------------------------ changes

    def submit(self, key: K, job: JobView, place: int | None = None) -> None:
        """A job waits: at `place` of the queue, else behind all others."""
        place = len(self.keys) if place is None else place
        sizes = sizes_to_start(job)
        size = preferred_size(job)
        intensity = job_intensity(job, size) if size else 0.0
        self._reserve(len(sizes))
        first = self._first[place] if place < len(self._first) else self._count
        rows = slice(first, first + len(sizes))
        for column in (self._place, self._nodes, self._io):
            column[rows.stop : self._count + len(sizes)] = column[first : self._count].copy()
        self._count += len(sizes)
        self._place[rows] = place
        self._place[rows.stop : self._count] += 1
        self._nodes[rows] = sizes
        self._io[rows] = [job_intensity(job, nodes) * nodes for nodes in sizes]
        self._first[place:] = [first, *(row + len(sizes) for row in self._first[place:])]
        self.keys.insert(place, key)
        self._counted.insert(place, (intensity, size))
        self.queued = self.queued.plus(intensity, size)

    def leave(self, place: int) -> K:
        """The job at `place` of the queue waits no longer; returns its key."""
        intensity, size = self._counted.pop(place)
        self.queued = self.queued.plus(intensity, -size)
        rows = self._rows(place)
        gone = rows.stop - rows.start
        for column in (self._place, self._nodes, self._io):
            column[rows.start : self._count - gone] = column[rows.stop : self._count]
        self._count -= gone
        self._place[rows.start : self._count] -= 1
        self._first[place:] = [row - gone for row in self._first[place + 1 :]]
        return self.keys.pop(place)

    def run(self, key: K, nodes: int, intensity: float) -> None:
        """A job runs on `nodes` nodes from now on, with that intensity; also after a resize."""
        self.end(key)
        self.running[key] = Running(nodes, intensity)
        self.system = self.system.plus(intensity, nodes)

    def end(self, key: K) -> None:
        """A job runs no longer, if it did."""
        before = self.running.pop(key, None)
        if before is not None:
            self.system = self.system.plus(before.intensity, -before.nodes)

    def _reserve(self, rows: int) -> None:
        if self._count + rows > len(self._place):
            more = max(len(self._place), rows)
            self._place, self._nodes, self._io = (
                np.concatenate([column, np.zeros(more)]) for column in (self._place, self._nodes, self._io)
            )

    def _rows(self, place: int) -> slice:
        last = self._first[place + 1] if place + 1 < len(self._first) else self._count
        return slice(self._first[place], last)

    # ------------------------------------------------------------------- choices

    def best(self, system: Mix, idle_nodes: int, reordering: float, *, block: bool) -> Choice | None:
        """The waiting job to start next on top of the mix `system`, and its size; None to start nobody.

        Parameters
        ----------
        block
            Whether the best of all jobs at its best size is waited for when that does not fit. Otherwise
            only sizes that fit take part.
        """
        if not self._count or self._nodes[: self._count].min() > idle_nodes:
            return None
        choice = self.leader(system, reordering, None if block else idle_nodes)
        return choice if choice is not None and choice.nodes <= idle_nodes else None

    def leader(self, system: Mix, reordering: float, most_nodes: int | None = None) -> Choice | None:
        """The best of all waiting jobs and its size, of at most `most_nodes`; None when there is none.

        Equations 4.5 to 4.11: the smallest sum of (1 - `reordering`) times the place among all jobs and
        `reordering` times the normalized distance of the intensities; of equals the one that waits longest.
        """
        count = self._count
        place, io, nodes = self._place[:count], self._io[:count], self._nodes[:count]
        if most_nodes is not None:
            fits = nodes <= most_nodes
            place, io, nodes = place[fits], io[fits], nodes[fits]
        if not len(nodes):
            return None
        delta = np.abs(self.workload - (system.io_nodes + io) / (system.nodes + nodes))
        least, most = float(delta.min()), float(delta.max())
        # Alone in the queue, or all alike but for rounding: then that part decides nothing.
        last = max(1, len(self.keys) + len(self.running) - 1)
        weighted = place * ((1.0 - reordering) / last)
        if most - least > SAME:
            weighted += (delta - least) * (reordering / (most - least))
        chosen = int(place[int(weighted.argmin())])
        # Of its sizes the one that balances best, also where balance has no weight; of equals the larger.
        first, behind = np.searchsorted(place, (chosen, chosen + 1))
        row = max(range(int(first), int(behind)), key=lambda row: (-delta[row], row))
        return Choice(chosen, int(nodes[row]), float(delta[row]))

    def sizes_by_distance(self, key: K, job: JobView, idle_nodes: int) -> Iterator[tuple[int, float, float]]:
        """Other sizes of a running job, best first: (nodes, intensity, distance) by equation 4.13.

        Sizes that need more than the idle nodes are left out; of equals the larger one comes first.
        """
        now = self.running[key]
        rest = self.system.plus(now.intensity, -now.nodes)
        workload, io_nodes, held = self.workload, rest.io_nodes, rest.nodes
        found = []
        for nodes in legal_sizes(job.constraint, job.min_nodes, min(job.max_nodes, now.nodes + idle_nodes)):
            if nodes != now.nodes:
                intensity = job_intensity(job, nodes)
                delta = abs(workload - (io_nodes + intensity * nodes) / (held + nodes))
                found.append((delta, -nodes, intensity))
        found.sort()
        return ((-nodes, intensity, delta) for delta, nodes, intensity in found)
