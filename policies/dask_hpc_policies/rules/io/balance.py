"""What runs and what waits, as the I/O-aware policy weighs it: sums kept up step by step, and choices.

ADMIRE (2023, D3.3, section 4.2.4). Rules of the file: jobs are known by keys of the caller; nothing is
decided here but which waiting job is best and which size of a running one. Every change costs a few
operations on arrays, whatever the number of jobs, and the sums are those that would be computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from dask_hpc_policies.jobs.constraints import (
    largest_at_most,
    legal_sizes,
    next_higher,
    next_lower,
    smallest_at_least,
)
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.io.candidates import SAME, Candidates, Choice
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity, preferred_size

K = TypeVar("K", bound=Hashable)


class Running(NamedTuple):
    """A job that runs."""

    nodes: int
    intensity: float


class Balance(Generic[K]):
    """System and workload intensity, and the candidates for a start in order of service."""

    __slots__ = (
        "_asked", "_candidates", "_counted", "_leader", "_tables", "keys", "queued", "running", "system"
    )  # fmt: skip

    def __init__(self) -> None:
        #: Running jobs, and their mix.
        self.running: dict[K, Running] = {}
        self.system = Mix()
        #: Waiting jobs in order of service, and their mix at preferred sizes.
        self.keys: list[K] = []
        self.queued = Mix()
        #: What each waiting job adds to `queued`: intensity and nodes.
        self._counted: list[tuple[float, int]] = []
        self._candidates = Candidates()
        #: Who led the queue when that was asked last, and by what; None: the queue has changed since.
        self._asked: tuple[Any, ...] | None = None
        self._leader: Choice | None = None
        #: Sizes of running jobs whose intensity differs with them, once they were asked for.
        self._tables: dict[K, list[tuple[int, float]]] = {}

    @property
    def workload(self) -> float:
        """Intensity of the workload: running and waiting jobs."""
        return self.system.joined(self.queued).intensity

    # ------------------------------------------------------------------ changes

    def submit(self, key: K, job: JobView, place: int | None = None) -> None:
        """A job waits: at `place` of the queue, else behind all others."""
        place = len(self.keys) if place is None else place
        self._candidates.insert(place, job)
        self._wait(place, key, job)

    def submit_all(self, jobs: Iterable[tuple[K, JobView]]) -> None:
        """Many jobs wait, in this order; nobody may wait yet."""
        waiting = list(jobs)
        self._candidates.fill(job for _, job in waiting)
        for place, (key, job) in enumerate(waiting):
            self._wait(place, key, job)

    def _wait(self, place: int, key: K, job: JobView) -> None:
        size = preferred_size(job)
        intensity = job_intensity(job, size) if size else 0.0
        self._asked = None
        self.keys.insert(place, key)
        self._counted.insert(place, (intensity, size))
        self.queued = self.queued.plus(intensity, size)

    def leave(self, place: int) -> K:
        """The job at `place` of the queue waits no longer; returns its key."""
        self._asked = None
        intensity, size = self._counted.pop(place)
        self.queued = self.queued.plus(intensity, -size)
        self._candidates.remove(place)
        return self.keys.pop(place)

    def run(self, key: K, nodes: int, intensity: float) -> None:
        """A job runs on `nodes` nodes from now on, with that intensity; also after a resize."""
        self._release(key)
        self.running[key] = Running(nodes, intensity)
        self.system = self.system.plus(intensity, nodes)

    def end(self, key: K) -> None:
        """A job runs no longer, if it did."""
        self._release(key)
        self._tables.pop(key, None)

    def _release(self, key: K) -> None:
        before = self.running.pop(key, None)
        if before is not None:
            self.system = self.system.plus(before.intensity, -before.nodes)

    # ------------------------------------------------------------------- choices

    def best(self, system: Mix, idle_nodes: int, reordering: float, *, block: bool) -> Choice | None:
        """The waiting job to start next on top of the mix `system`, and its size; None to start nobody.

        Parameters
        ----------
        block
            Whether the best of all jobs at its best size is waited for when that does not fit. Otherwise
            only sizes that fit take part.
        """
        if self._candidates.fewest_nodes() > idle_nodes:
            return None
        choice = self.leader(system, reordering, None if block else idle_nodes)
        return choice if choice is not None and choice.nodes <= idle_nodes else None

    def leader(self, system: Mix, reordering: float, most_nodes: int | None = None) -> Choice | None:
        """The best of all waiting jobs and its size, of at most `most_nodes`; None when there is none.

        See `Candidates.best`.
        """
        last = max(1, len(self.keys) + len(self.running) - 1)
        asked = (system, self.workload, last, reordering, most_nodes)
        if asked != self._asked:
            self._asked = asked
            self._leader = self._candidates.best(*asked)
        return self._leader

    def sizes_by_distance(
        self, key: K, job: JobView, idle_nodes: int, nearer: float = inf
    ) -> Iterator[tuple[int, float, float]]:
        """Other sizes of a running job, best first: (nodes, intensity, distance) by equation 4.13.

        Sizes that need more than the idle nodes are left out; of equals the larger one comes first. Of a job
        whose intensity differs from size to size only those are given whose distance is below `nearer`.
        """
        now = self.running[key]
        rest = self.system.plus(now.intensity, -now.nodes)
        workload, io_nodes, held = self.workload, rest.io_nodes, rest.nodes
        most_nodes = min(job.max_nodes, now.nodes + idle_nodes)

        def distance(nodes: int, intensity: float) -> float:
            return abs(workload - (io_nodes + intensity * nodes) / (held + nodes))

        if len(job.io_by_nodes) < 2:
            one = job_intensity(job, now.nodes)
            nil = (workload * held - io_nodes) / (one - workload) if one != workload else float("inf")
            for nodes in _outwards(job, nil, most_nodes, lambda size: distance(size, one)):
                if nodes != now.nodes:
                    yield nodes, one, distance(nodes, one)
            return
        found = [
            (apart, -nodes, share)
            for nodes, share in self._sizes(key, job)
            if nodes <= most_nodes and (apart := distance(nodes, share)) < nearer
        ]
        found.sort()
        for apart, less, share in found:
            if -less != now.nodes:
                yield -less, share, apart

    def _sizes(self, key: K, job: JobView) -> list[tuple[int, float]]:
        """Legal sizes of a running job, ascending, and its intensity on each."""
        found = self._tables.get(key)
        if found is None:
            sizes = legal_sizes(job.constraint, job.min_nodes, job.max_nodes)
            found = self._tables[key] = [(nodes, job_intensity(job, nodes)) for nodes in sizes]
        return found


def _outwards(job: JobView, nil: float, most_nodes: int, distance: Callable[[int], float]) -> Iterator[int]:
    """Legal sizes of a job of one intensity, the nearest first; of equals the larger.

    The distance is nil at `nil` nodes and grows on either side; where that is no size of the job, it grows
    from one end to the other (`io_candidates`).
    """
    low = smallest_at_least(job.constraint, job.min_nodes, most_nodes)
    if low is None:
        return
    high = largest_at_most(job.constraint, most_nodes, low) or low
    if not low < nil < high:
        nil = low if distance(low) < distance(high) - SAME else high
    below = largest_at_most(job.constraint, int(nil), low)
    above = next_higher(job.constraint, int(nil), high)
    while below is not None or above is not None:
        if above is None or (below is not None and distance(below) < distance(above)):
            assert below is not None
            yield below
            below = next_lower(job.constraint, below, low)
        else:
            yield above
            above = next_higher(job.constraint, above, high)
