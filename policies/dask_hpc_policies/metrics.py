"""Metrics of a set of jobs, the same for a live run and a simulated one.

Definitions (Chadha 2019, section 7.2; John 2024, section 9.1; bounded slowdown: Feitelson et al. 1997):

* wait = start - submit; turnaround = end - submit; runtime = end - start;
* bounded slowdown = max(1, turnaround / max(runtime, 10 s));
* makespan = last end - first submit;
* utilization, as allocated = node-seconds held by jobs / node-seconds of the pool over the makespan;
  as useful = the same without those in which the job did not get on: adapting, or doing what was lost;
* idle node time = node-seconds of the pool over the makespan that no job held;
* flow = turnaround; its maximum, and its mean weighted by the job's first size: ADMIRE (2023, D3.3,
  section 3.1).

A job counts in a mean when it has the times that the mean needs; a mean over no job is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

#: Runtimes below this do not inflate the slowdown.
SLOWDOWN_TAU_S = 10.0

#: A number of nodes over time: (time in seconds, nodes from then on), times ascending.
Steps = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """What happened to one job."""

    id: str
    name: str = ""
    submit_s: float
    #: None when it never started, or has not ended.
    start_s: float | None = None
    end_s: float | None = None
    state: str = "completed"
    #: Nodes held: (time, nodes from then on).
    nodes: tuple[tuple[float, int], ...] = ()
    expansions: int = 0
    shrinks: int = 0
    #: Node-seconds held without getting on.
    wasted_node_s: float = 0.0

    @property
    def wait_s(self) -> float | None:
        """Time from submission to start; None when it has not started."""
        return None if self.start_s is None else self.start_s - self.submit_s

    @property
    def turnaround_s(self) -> float | None:
        """Time from submission to end; None when it did not start and end."""
        return None if self.start_s is None or self.end_s is None else self.end_s - self.submit_s

    @property
    def bounded_slowdown(self) -> float | None:
        """Turnaround over runtime, at least 1, runtimes below 10 s counted as 10 s; None as turnaround."""
        turnaround_s = self.turnaround_s
        if turnaround_s is None or self.start_s is None or self.end_s is None:
            return None
        return max(1.0, turnaround_s / max(self.end_s - self.start_s, SLOWDOWN_TAU_S))


def makespan_s(runs: Iterable[JobRun]) -> float | None:
    """Last end less first submission; None when no job that started has ended."""
    window = _window(list(runs))
    return None if window is None else window[1] - window[0]


def mean_wait_s(runs: Iterable[JobRun]) -> float | None:
    """Mean wait of the jobs that started."""
    return _mean(runs, lambda run: run.wait_s)


def mean_turnaround_s(runs: Iterable[JobRun]) -> float | None:
    """Mean turnaround of the jobs that started and ended."""
    return _mean(runs, lambda run: run.turnaround_s)


def p95_turnaround_s(runs: Iterable[JobRun]) -> float | None:
    """The shortest turnaround that 95 % of the jobs which started and ended did not exceed (nearest rank)."""
    found = sorted(run.turnaround_s for run in runs if run.turnaround_s is not None)
    return found[ceil(0.95 * len(found)) - 1] if found else None


def mean_bounded_slowdown(runs: Iterable[JobRun]) -> float | None:
    """Mean bounded slowdown (tau 10 s) of the jobs that started and ended."""
    return _mean(runs, lambda run: run.bounded_slowdown)


def throughput_per_h(runs: Iterable[JobRun]) -> float | None:
    """Completed jobs per hour of makespan; None without a makespan."""
    every = list(runs)
    span_s = makespan_s(every)
    return sum(run.state == "completed" for run in every) / span_s * 3600 if span_s else None


def unended(runs: Iterable[JobRun]) -> int:
    """Jobs that have not ended: where they are more, the others may well end sooner, and that is no gain."""
    return sum(run.end_s is None for run in runs)


def ended_in_all(several: Iterable[Iterable[JobRun]]) -> tuple[tuple[JobRun, ...], ...]:
    """Of each of several runs of one workload the jobs that started and ended in all of them, in its order.

    Two runs that leave other jobs unended have means over other sets, however many these are: what is
    compared are the means over these.
    """
    each = [{run.id: run for run in runs if run.turnaround_s is not None} for runs in several]
    return tuple(tuple(run for id, run in one.items() if all(id in other for other in each)) for one in each)


def max_flow_s(runs: Iterable[JobRun]) -> float | None:
    """Longest turnaround of the jobs that started and ended."""
    return max((run.turnaround_s for run in runs if run.turnaround_s is not None), default=None)


def weighted_mean_flow_s(runs: Iterable[JobRun]) -> float | None:
    """Mean turnaround, each job counted as often as it has nodes at its first start."""
    weight, total = 0, 0.0
    for run in runs:
        flow_s = run.turnaround_s
        if flow_s is not None and run.nodes:
            weight += run.nodes[0][1]
            total += run.nodes[0][1] * flow_s
    return total / weight if weight else None


def utilization(runs: Iterable[JobRun], pool: int | Steps) -> float | None:
    """Share of the pool's node-seconds over the makespan that jobs held; None without a makespan.

    Parameters
    ----------
    pool
        Size of the pool in nodes, or its size over time.
    """
    times = node_time(runs, pool)
    return None if times is None else times.held_node_s / times.pool_node_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Node-seconds over the makespan."""

    pool_node_s: float
    held_node_s: float
    useful_node_s: float


def node_time(runs: Iterable[JobRun], pool: int | Steps) -> NodeTime | None:
    """Node-seconds of the pool, held by jobs and useful, over the makespan; None without a makespan.

    Parameters
    ----------
    pool
        As for `utilization`.
    """
    every = list(runs)
    window = _window(every)
    if window is None:
        return None
    first_s, last_s = window
    pool_node_s = pool * (last_s - first_s) if isinstance(pool, int) else node_seconds(pool, first_s, last_s)
    held_node_s = wasted_node_s = 0.0
    for run in every:
        if run.start_s is not None:
            until_s = last_s if run.end_s is None else min(last_s, run.end_s)
            held_node_s += node_seconds(run.nodes, max(first_s, run.start_s), until_s)
            wasted_node_s += run.wasted_node_s
    if pool_node_s <= 0:
        return None
    return NodeTime(
        pool_node_s=pool_node_s, held_node_s=held_node_s, useful_node_s=held_node_s - wasted_node_s
    )


def node_seconds(steps: Steps, first_s: float, last_s: float) -> float:
    """Integral of `steps` from `first_s` to `last_s`; nothing is held before the first step."""
    total = 0.0
    for i, (t_s, nodes) in enumerate(steps):
        until_s = steps[i + 1][0] if i + 1 < len(steps) else last_s
        total += nodes * max(0.0, min(until_s, last_s) - max(t_s, first_s))
    return total


def summarize(runs: Iterable[JobRun], pool: int | Steps, jobs: bool = True) -> dict[str, Any]:
    """All metrics as plain JSON data. What is not measured, such as energy, is absent, never 0.

    Parameters
    ----------
    pool
        Size of the pool in nodes, or its size over time as (time in seconds, nodes) steps.
    jobs
        With one entry per job, under ``jobs``.
    """
    every = list(runs)
    times = node_time(every, pool)
    return {
        "makespan_s": makespan_s(every),
        "mean_wait_s": mean_wait_s(every),
        "mean_turnaround_s": mean_turnaround_s(every),
        "p95_turnaround_s": p95_turnaround_s(every),
        "mean_bounded_slowdown": mean_bounded_slowdown(every),
        "max_flow_s": max_flow_s(every),
        "weighted_mean_flow_s": weighted_mean_flow_s(every),
        "utilization": None if times is None else times.held_node_s / times.pool_node_s,
        "useful_utilization": None if times is None else times.useful_node_s / times.pool_node_s,
        "idle_node_s": None if times is None else times.pool_node_s - times.held_node_s,
        "throughput_per_h": throughput_per_h(every),
        "expansions": sum(run.expansions for run in every),
        "shrinks": sum(run.shrinks for run in every),
        "completed": sum(run.state == "completed" for run in every),
        "failed": sum(run.state == "failed" for run in every),
        "cancelled": sum(run.state == "cancelled" for run in every),
        **({"jobs": [_job(run) for run in every]} if jobs else {}),
    }


def _job(run: JobRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "submit_s": run.submit_s,
        "start_s": run.start_s,
        "end_s": run.end_s,
        "nodes": [[t_s, n] for t_s, n in run.nodes],
        "expansions": run.expansions,
        "shrinks": run.shrinks,
    }


def _window(runs: list[JobRun]) -> tuple[float, float] | None:
    ends = [run.end_s for run in runs if run.end_s is not None and run.start_s is not None]
    return (min(run.submit_s for run in runs), max(ends)) if ends else None


def _mean(runs: Iterable[JobRun], value: Callable[[JobRun], float | None]) -> float | None:
    values = [v for v in map(value, runs) if v is not None]
    # rounded once: `sum` rounds otherwise from Python 3.12 on
    return math.fsum(values) / len(values) if values else None
