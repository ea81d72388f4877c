"""Fair shares told step by step: the incremental form of `fair`.

Rules of the file: the answers are those of `rules.fair.policy.decide`, whose rules are asked here; only the
work is less. What is kept between passes are the parts of the jobs that hold nodes (`rules.fair.shares`):
when time goes on, only what they have attained and their levels change. No job is ever found to be
reconfiguring, because a resize is over in the moment in which it is decided.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Set
from typing import Any

from dask_hpc_policies.jobs.queue_orders import place
from dask_hpc_policies.model import ClusterSnapshot, JobRequest, JobView, Trigger
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair.policy import keep_sizes, share, with_beginners
from dask_hpc_policies.rules.fair.shares import Part, reach
from dask_hpc_policies.rules.fair.starting import choose
from dask_hpc_policies.rules.fair.terms import almost_over, ranking
from dask_hpc_policies.rules.sizing import resizable
from dask_hpc_policies.views import job_view, move_on, stand

#: Place in the order of service, and key.
_Rank = tuple[Any, int]


def fair_session(idle_nodes: int, kinds: Set[str], params: Mapping[str, Any]) -> FairSession | None:
    """A session for `params` of `fair`; None when evolving jobs come."""
    return None if "evolving" in kinds else FairSession(idle_nodes, params)


class _Holder:
    """A job that holds nodes."""

    __slots__ = ("changed_s", "end_s", "high", "low", "nodes_s", "part", "since_s", "span", "start_s")

    def __init__(self, job: JobView, now_s: float) -> None:
        self.start_s = now_s
        #: Node-seconds that it had attained when it came to its present size, and when that was.
        self.nodes_s = 0.0
        self.since_s = now_s
        #: When its size changed last; None: it never did.
        self.changed_s: float | None = None
        #: When it is expected to end; None: unknown.
        self.end_s = None if job.walltime_s is None else now_s + job.walltime_s
        #: Smallest and largest size at any moment, unless it cannot be resized; and at this one.
        self.span: tuple[int, int] | None = None
        self.low = self.high = job.nodes
        self.part = Part(job, job.nodes, job.nodes, job.nodes)

    def present_end_s(self, now_s: float) -> float | None:
        """When it is expected to end: what is recorded is about the size at which it starts."""
        job, start_s, end_s = self.part.job, self.start_s, self.end_s
        recorded_s, limit_s = job.recorded_s, job.walltime_s
        if self.changed_s is not None or recorded_s is None:
            return end_s
        if limit_s is None:
            return start_s + recorded_s
        return start_s + min(recorded_s, limit_s) if now_s - start_s < recorded_s else end_s


class FairSession:
    """See `dask_hpc_policies.protocol.Session`."""

    __slots__ = ("_held", "_idle", "_now_s", "_order", "_params", "_running", "_waiting", "scans")

    #: Resizes must not wait for scheduling points.
    anytime = True

    def __init__(self, idle_nodes: int, params: Mapping[str, Any]) -> None:
        self._params = params
        self._idle = idle_nodes
        #: All jobs in order of service, and how many of them wait.
        self._order: list[tuple[_Rank, JobView]] = []
        self._waiting = 0
        #: Those that hold nodes, in order of service and by key.
        self._held: list[tuple[_Rank, _Holder]] = []
        self._running: dict[int, _Holder] = {}
        #: Time of the last pass, of which their views and parts tell.
        self._now_s = 0.0
        self.scans = 0

    def submit(self, key: int, job: JobRequest, anytime: bool = True) -> None:
        """`job` waits from now on."""
        insort(self._order, ((place(job), key), job_view(job, id=str(key))))
        self._waiting += 1

    def finish(self, key: int) -> None:
        """A started job has ended; its nodes are idle."""
        one = self._running.pop(key)
        self._idle += one.part.job.nodes
        rank = (_rank(key, one.part.job),)
        del self._held[bisect_left(self._held, rank)]
        del self._order[bisect_left(self._order, rank)]

    def resized(self, key: int, nodes: int) -> None:
        """A running job holds `nodes` nodes from now on."""
        one, now_s = self._running[key], self._now_s
        before = one.part.job.nodes
        self._idle += before - nodes
        one.nodes_s += before * (now_s - one.since_s)
        one.since_s = one.changed_s = now_s
        self._hold(one, nodes)

    def at_point(self, key: int, there: bool) -> None:
        """Jobs can be resized at any time."""

    def decide(self, now_s: float, trigger: Trigger, key: int | None) -> list[tuple[int, int]]:
        """Jobs to shrink, to expand and to start, with their sizes."""
        params, waiting = self._params, self._waiting
        if now_s != self._now_s:
            self._now_s = now_s
            self._move_on([one for _, one in self._held])
        jobs = tuple([job for _, job in self._order]) if waiting else ()
        plan = Pass(
            ClusterSnapshot(now_s=now_s, trigger=trigger, jobs=jobs, idle_nodes=self._idle, brief=True)
        )
        parts = [one.part for _, one in self._held]
        for _, one in self._held:
            one.part.low, one.part.high = one.low, one.high
        self.scans += 1
        starting = choose(plan, parts, params) if waiting else []
        if starting:
            parts = with_beginners(plan, parts, starting)
        else:
            cooldown_s = params["cooldown_s"]
            keep_sizes(
                [
                    one.part
                    for _, one in self._held
                    if one.changed_s is not None and now_s - one.changed_s < cooldown_s
                ]
            )
        share(plan, parts, params)
        return self._answer(parts)

    def _answer(self, parts: list[Part]) -> list[tuple[int, int]]:
        shrinks: list[tuple[int, int]] = []
        expands: list[tuple[int, int]] = []
        starts: list[tuple[int, int]] = []
        for part in parts:
            nodes, size = part.job.nodes, part.size
            if part.starts:
                key = int(part.job.id)
                starts.append((key, size))
                self._start(key, part.job, size)
            elif part.resizable and size != nodes:
                (expands if size > nodes else shrinks).append((int(part.job.id), size))
        return shrinks + expands + starts

    def _start(self, key: int, job: JobView, nodes: int) -> None:
        self._waiting -= 1
        self._idle -= nodes
        self._running[key] = one = _Holder(job, self._now_s)
        insort(self._held, (_rank(key, job), one))
        self._hold(one, nodes)

    def _hold(self, one: _Holder, nodes: int) -> None:
        """A job has that many nodes from now on."""
        job = one.part.job
        stand(
            job, state="running", nodes=nodes, remaining_s=None, requested_nodes=None,
            at_scheduling_point=True, expansions=0, mtct=None, mtct_previous=None, attained_node_s=0.0,
        )  # fmt: skip
        one.span = reach(job) if resizable(job) else None
        self._move_on([one])

    def _move_on(self, holders: list[_Holder]) -> None:
        """Bring their views and parts up to date."""
        now_s, params = self._now_s, self._params
        rank = ranking(params)
        for one in holders:
            part = one.part
            job = part.job
            nodes = job.nodes
            end_s = one.end_s if job.recorded_s is None else one.present_end_s(now_s)
            left_s = None if end_s is None else 0.0 if end_s <= now_s else end_s - now_s
            attained_node_s = one.nodes_s + nodes * (now_s - one.since_s)
            move_on(job, left_s, attained_node_s)
            part.level, part.weight = rank(attained_node_s)
            part.resizable = one.span is not None and not almost_over(job, params)
            one.low, one.high = one.span if part.resizable and one.span else (nodes, nodes)
            part.most = one.high


def _rank(key: int, job: JobRequest) -> _Rank:
    return place(job), key
