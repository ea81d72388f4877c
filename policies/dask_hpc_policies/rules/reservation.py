"""When nodes will be free: the arithmetic of reservations that all backfilling shares.

Rules of the file: times are on the clock of the snapshot, `math.inf` stands for never. A running job
gives its nodes back when it is expected to end; one that is over its time gives them back soon, but not
now. An estimate that does not exist is infinite: nothing is ever promised on it.

* `shadow`: the one reservation of EASY backfilling. The *shadow time* is when the head can start, the
  *extra nodes* are those it leaves over then (Lifka 1995; Mu'alem and Feitelson 2001, section 2).
* `Profile`: free nodes over time, in which every job gets the earliest place that delays nobody placed
  before it. That is conservative backfilling (Mu'alem and Feitelson 2001, section 2).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nextafter

from dask_hpc_policies.jobs.estimates import remaining_s
from dask_hpc_policies.model import ClusterSnapshot, JobRequest, JobView


def expected_s(job: JobView) -> float:
    """How long the job is expected to run from now on (running) or from its start (pending).

    Its remaining time where that is known, else what `requested_s` says.
    """
    return job.remaining_s if job.remaining_s is not None else requested_s(job)


def requested_s(job: JobRequest) -> float:
    """How long a job that has not run is expected to (`estimates.remaining_s`); infinity when not known."""
    left_s = remaining_s(0.0, job.recorded_s, job.walltime_s)
    return inf if left_s is None else left_s


def releases(view: ClusterSnapshot) -> list[tuple[float, int]]:
    """When how many nodes become free: (time, nodes), times ascending, never ones left out.

    Nodes of running and adapting jobs, and lost nodes that come back.
    """
    now_s = view.now_s
    soon_s = nextafter(now_s, inf)
    ends = [
        (max(soon_s, now_s + job.remaining_s), job.nodes)
        for job in view.jobs
        if job.nodes > 0 and job.remaining_s is not None and not job.is_default
    ]
    ends += [(max(soon_s, t_s), 1) for t_s in view.returns_s]
    ends.sort()
    return ends


@dataclass(frozen=True, slots=True)
class Shadow:
    """The reservation of a waiting job."""

    #: When enough nodes are free for it; infinite when that is never known to happen.
    start_s: float
    #: Nodes that are free then beyond those it needs.
    extra_nodes: int


def shadow(need_nodes: int, idle_nodes: int, ends: Iterable[tuple[float, int]]) -> Shadow:
    """Reservation of a job that needs `need_nodes` and finds `idle_nodes`, fewer than these.

    Parameters
    ----------
    ends
        What becomes free when, as `releases` gives it.
    """
    free = idle_nodes
    start_s = inf
    for end_s, nodes in ends:
        if end_s > start_s:
            break
        free += nodes
        if free >= need_nodes:
            # Whatever else ends at that very moment is extra, too.
            start_s = end_s
    return Shadow(start_s, free - need_nodes) if start_s < inf else Shadow(inf, 0)


class Profile:
    """Free nodes over time."""

    __slots__ = ("_free", "_times")

    def __init__(self, now_s: float, idle_nodes: int, ends: Iterable[tuple[float, int]] = ()) -> None:
        #: From each time on (ascending, the first is now) so many nodes are free.
        self._times = [now_s]
        self._free = [idle_nodes]
        for end_s, nodes in ends:
            if end_s == self._times[-1]:
                self._free[-1] += nodes
            else:
                self._times.append(end_s)
                self._free.append(self._free[-1] + nodes)

    def copy(self) -> Profile:
        """A profile of its own with the same free nodes."""
        other = Profile.__new__(Profile)
        other._times, other._free = list(self._times), list(self._free)
        return other

    def earliest_s(self, nodes: int, duration_s: float) -> float:
        """The first time from which `nodes` nodes are free for `duration_s`; infinite when there is none."""
        start_s = end_s = inf
        for time_s, available in zip(self._times, self._free, strict=True):
            if time_s >= end_s:
                break
            if available < nodes:
                start_s = end_s = inf
            elif start_s == inf:
                start_s = time_s
                end_s = time_s + duration_s
        return start_s

    def least_nodes(self, start_s: float, duration_s: float) -> int:
        """The fewest nodes that are free at any time from `start_s` for `duration_s`."""
        first = bisect_right(self._times, start_s) - 1
        last = bisect_left(self._times, start_s + duration_s)
        return min(self._free[first : max(last, first + 1)])

    def take(self, start_s: float, duration_s: float, nodes: int) -> None:
        """Reserve `nodes` nodes from `start_s` for `duration_s`; `start_s` is not before now."""
        # Also a job of no length at all holds its nodes for a moment.
        end_s = max(start_s + duration_s, nextafter(start_s, inf))
        first = self._split(start_s)
        last = len(self._times) if end_s == inf else self._split(end_s)
        self._free[first:last] = [free - nodes for free in self._free[first:last]]

    def _split(self, time_s: float) -> int:
        """Index of the step that begins at `time_s`, made when there is none."""
        i = bisect_left(self._times, time_s)
        if i == len(self._times) or self._times[i] != time_s:
            self._times.insert(i, time_s)
            self._free.insert(i, self._free[i - 1])
        return i
