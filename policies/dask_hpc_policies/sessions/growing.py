"""First come, first served with growing jobs, told step by step: the incremental form of `fcfs-malleable`.

Rules of the file: the answers are those of `decide`; only the work is less: the queue is kept in order, and
of what runs only jobs that may be resized now are looked at.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping, Set
from typing import Any

from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import JobRequest, JobView, Trigger
from dask_hpc_policies.rules.admission import needed_nodes, start_size
from dask_hpc_policies.views import job_view


def growing_session(idle_nodes: int, kinds: Set[str], _: Mapping[str, Any]) -> GrowingSession | None:
    """A session of `fcfs-malleable`; None when evolving jobs come."""
    return None if "evolving" in kinds else GrowingSession(idle_nodes)


class GrowingSession:
    """See `dask_hpc_policies.protocol.Session`."""

    __slots__ = ("_anytime", "_idle", "_jobs", "_points", "_queue", "_running", "scans")

    def __init__(self, idle_nodes: int) -> None:
        self._idle = idle_nodes
        self._jobs: dict[int, JobView] = {}
        #: Waiting jobs in order of service: priority, then submission.
        self._queue: deque[tuple[int, int]] = deque()
        #: Start and size of what runs.
        self._running: dict[int, tuple[float, int]] = {}
        #: Running malleable jobs that can be resized at any time, and those at a scheduling point now.
        self._anytime: set[int] = set()
        self._points: set[int] = set()
        self.scans = 0

    def submit(self, key: int, job: JobRequest, anytime: bool = True) -> None:
        """`job` waits from now on."""
        self._jobs[key] = job = job_view(job, id="", at_scheduling_point=anytime)
        if needed_nodes(job) is None:
            return  # it never starts, and is in nobody's way
        rank = (-job.priority, key)
        if self._queue and rank < self._queue[-1]:
            ordered = list(self._queue)
            insort(ordered, rank)
            self._queue = deque(ordered)
        else:
            self._queue.append(rank)

    def finish(self, key: int) -> None:
        """A started job has ended; its nodes are idle."""
        self._idle += self._running.pop(key)[1]
        self._anytime.discard(key)
        self._points.discard(key)
        del self._jobs[key]

    def resized(self, key: int, nodes: int) -> None:
        """A running job holds `nodes` nodes from now on."""
        start_s, before = self._running[key]
        self._idle += before - nodes
        self._running[key] = (start_s, nodes)

    def at_point(self, key: int, there: bool) -> None:
        """A running job has come to a scheduling point, or goes on from it."""
        (self._points.add if there else self._points.discard)(key)

    def decide(self, now_s: float, trigger: Trigger, key: int | None) -> list[tuple[int, int]]:
        """Jobs to start and then jobs to grow, with their sizes."""
        answer: list[tuple[int, int]] = []
        while self._queue:
            first = self._queue[0][1]
            size = start_size(self._jobs[first], self._idle)
            if size is None:
                break
            self._queue.popleft()
            self._running[first] = (now_s, size)
            self._idle -= size
            answer.append((first, size))
            if self._jobs[first].kind == "malleable" and self._jobs[first].at_scheduling_point:
                self._anytime.add(first)
        started = {key for key, _ in answer}
        idle = self._idle
        for other in sorted(self._points | self._anytime, key=self._oldest) if idle else ():
            job, nodes = self._jobs[other], self._running[other][1]
            if job.kind != "malleable" or other in started:
                continue
            reach = min(job.max_nodes, nodes + idle)
            target = largest_at_most(job.constraint, reach, nodes + 1)
            if target is not None:
                idle -= target - nodes
                answer.append((other, target))
        return answer

    def _oldest(self, key: int) -> tuple[float, int, int]:
        return self._running[key][0], -self._jobs[key].priority, key
