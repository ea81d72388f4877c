"""I/O-aware scheduling told step by step: the incremental form of `io-aware`.

Rules of the file: the answers are those of `io_aware.decide`; only the work is less. What is kept between
passes is the `Balance`: the sums of the intensities and the candidates of the queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set
from typing import Any

from dask_hpc_policies.model import JobRequest, JobView, Trigger
from dask_hpc_policies.rules.io.balance import Balance
from dask_hpc_policies.rules.io.intensity import job_intensity
from dask_hpc_policies.rules.io.policy import IoAwareState, better_size, reordering_now
from dask_hpc_policies.views import job_view


def io_session(idle_nodes: int, kinds: Set[str], params: Mapping[str, Any]) -> IoSession | None:
    """A session for `params` of `io-aware`; None when evolving jobs come."""
    return None if "evolving" in kinds else IoSession(idle_nodes, params)


class IoSession:
    """See `dask_hpc_policies.protocol.Session`."""

    __slots__ = (
        "_anytime", "_block", "_idle", "_jobs", "_params", "_points", "_ranks", "_state", "balance", "scans"
    )  # fmt: skip

    def __init__(self, idle_nodes: int, params: Mapping[str, Any]) -> None:
        self._params = params
        self._block = params["unfitting"] == "block"
        self._state = IoAwareState()
        self._idle = idle_nodes
        #: What runs and what waits.
        self.balance: Balance[int] = Balance()
        self._jobs: dict[int, JobView] = {}
        #: Rank of each waiting job: priority, then submission.
        self._ranks: list[tuple[int, int]] = []
        #: Running malleable jobs that can be resized at any time, and those at a scheduling point now.
        self._anytime: set[int] = set()
        self._points: set[int] = set()
        self.scans = 0

    def submit(self, key: int, job: JobRequest, anytime: bool = True) -> None:
        """`job` waits from now on."""
        self._jobs[key] = job = job_view(job, id="", at_scheduling_point=anytime)
        rank = self._rank(key)
        place = bisect_left(self._ranks, rank)
        self._ranks.insert(place, rank)
        self.balance.submit(key, job, place)

    def finish(self, key: int) -> None:
        """A started job has ended; its nodes are idle."""
        self._idle += self.balance.running[key].nodes
        self.balance.end(key)
        self._anytime.discard(key)
        self._points.discard(key)
        del self._jobs[key]

    def resized(self, key: int, nodes: int) -> None:
        """A running job holds `nodes` nodes from now on."""
        before = self.balance.running[key].nodes
        if nodes != before:
            self._idle += before - nodes
            self.balance.run(key, nodes, job_intensity(self._jobs[key], nodes))

    def at_point(self, key: int, there: bool) -> None:
        """A running job has come to a scheduling point, or goes on from it."""
        (self._points.add if there else self._points.discard)(key)

    def decide(self, now_s: float, trigger: Trigger, key: int | None) -> list[tuple[int, int]]:
        """Jobs to resize and to start, with their sizes; shrinks first."""
        balance = self.balance
        if self._params["adaptive"] and self._jobs:
            self._state = self._state.seen(balance.workload)
        reordering = reordering_now(self._params, self._state, balance.workload)
        answer: list[tuple[int, int]] = []
        shrinks: list[tuple[int, int]] = []
        if self._points or self._anytime:
            for other in sorted(self._points | self._anytime, key=self._rank):
                self._resize(other, reordering, answer, shrinks)
        self._start(reordering, answer)
        return shrinks + answer

    def _rank(self, key: int) -> tuple[int, int]:
        return -self._jobs[key].priority, key

    def _start(self, reordering: float, answer: list[tuple[int, int]], most: int | None = None) -> None:
        balance = self.balance
        while (most is None or most > 0) and balance.keys and self._idle > 0:
            self.scans += 1
            choice = balance.best(balance.system, self._idle, reordering, block=self._block)
            if choice is None:
                return
            key = balance.leave(choice.place)
            del self._ranks[choice.place]
            job = self._jobs[key]
            balance.run(key, choice.nodes, job_intensity(job, choice.nodes))
            self._idle -= choice.nodes
            answer.append((key, choice.nodes))
            if job.at_scheduling_point and job.kind == "malleable":
                self._anytime.add(key)
            most = None if most is None else most - 1

    def _resize(
        self, key: int, reordering: float, answer: list[tuple[int, int]], shrinks: list[tuple[int, int]]
    ) -> None:
        job, before = self._jobs[key], self.balance.running[key].nodes
        if job.kind != "malleable":
            return
        found = better_size(self.balance, key, job, self._idle, reordering, self._block)
        if found is None:
            return
        nodes, intensity, _ = found
        self.balance.run(key, nodes, intensity)
        self._idle += before - nodes
        (shrinks if nodes < before else answer).append((key, nodes))
        if nodes < before:
            self._start(reordering, answer, most=1)
