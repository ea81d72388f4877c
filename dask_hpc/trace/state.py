"""The state of a cluster at a time within its recorded trace, as the snapshot that a policy would have had.

Rules of the file: pure. The last snapshot before that time is brought forward by what the trace says happened
since: jobs that started, were resized, were interrupted or ended, and nodes that came or went.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dask_hpc.errors import TraceError
from dask_hpc.trace.check import check_events, check_snapshot
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Header, JobEvent, Other, Pass, Record
from dask_hpc.trace.runs import pool_steps
from dask_hpc_policies.model import ClusterSnapshot, JobState, JobView, NodeView
from dask_hpc_policies.rules.reservation import expected_s

_ENDED = frozenset({"completed", "failed", "cancelled"})


def snapshot_at(trace: Trace, t_s: float) -> ClusterSnapshot:
    """The state `t_s` seconds into `trace`, on its clock; what happened at that very time has happened.

    Raises
    ------
    TraceError
        When `t_s` is before the first call of a policy or after the end, or the trace says what cannot be.
    """
    check_events(trace)
    times = [_time(record) for record in trace.records]
    first = next((record.snapshot.now_s for record in trace.records if isinstance(record, Pass)), None)
    if first is None:
        raise TraceError(f"{trace.source}: no policy was called in this trace")
    last = max(times)
    if not first <= t_s <= last:
        raise TraceError(
            f"{trace.source}: nothing is known of {t_s:g} s; the trace tells of {first:g} to {last:g} s"
        )
    until = next((i for i, time in enumerate(times) if time > t_s), len(times))
    at = max((i for i in range(until) if isinstance(trace.records[i], Pass)), default=None)
    if at is None:
        raise TraceError(
            f"{trace.source}, line {until + 2}: times go back: what comes before the first call of a policy "
            f"is later than {t_s:g} s"
        )
    seen = trace.records[at]
    assert isinstance(seen, Pass)
    view = seen.snapshot
    check_snapshot(trace, at, view)
    jobs = {job.id: _later(job, t_s - view.now_s) for job in view.jobs}
    for record in trace.records[at + 1 : until]:
        if not isinstance(record, JobEvent) or record.job not in jobs or jobs[record.job].is_default:
            continue
        if record.state in _ENDED:
            del jobs[record.job]
        else:
            jobs[record.job] = _moved(jobs[record.job], record, t_s)
    grown = _pool(trace, until) - _pool(trace, at + 1)
    total = max(0, view.idle_nodes) + _held(view.jobs) + grown
    return replace(
        view,
        now_s=t_s,
        trigger="settings",
        nodes=tuple(_aged(node, t_s - view.now_s) for node in view.nodes),
        jobs=tuple(jobs.values()),
        idle_nodes=max(0, total - _held(jobs.values())),
        returns_s=tuple(time for time in view.returns_s if time > t_s),
    )


def _time(record: Record) -> float:
    if isinstance(record, Pass):
        return record.snapshot.now_s
    return -math.inf if isinstance(record, Header | Other) else record.t_s


def _pool(trace: Trace, until: int) -> int:
    steps = pool_steps(trace.records[:until])
    return steps[-1][1] if steps else 0


def _held(jobs: Iterable[JobView]) -> int:
    return sum(job.nodes for job in jobs if not job.is_default)


def _later(job: JobView, seconds: float) -> JobView:
    """The job when it has run on for so long."""
    if job.nodes == 0:
        return job
    left_s = None if job.remaining_s is None else max(0.0, job.remaining_s - seconds)
    return replace(job, remaining_s=left_s, attained_node_s=job.attained_node_s + job.nodes * seconds)


def _aged(node: NodeView, seconds: float) -> NodeView:
    """The node so much later."""
    left_s = node.walltime_left_s
    return node if left_s is None else replace(node, walltime_left_s=max(0.0, left_s - seconds))


def _moved(job: JobView, event: JobEvent, t_s: float) -> JobView:
    """The job after an event of it, as it is at `t_s`."""
    starts, stops = job.nodes == 0 < event.nodes, job.nodes > 0 == event.nodes
    state: JobState = "pending" if event.nodes == 0 else "running"
    more_node_s = (event.nodes - job.nodes) * (t_s - event.t_s)
    attained_node_s = job.attained_node_s + more_node_s
    moved = replace(job, state=state, nodes=event.nodes, attained_node_s=attained_node_s)
    if starts:
        left_s = expected_s(job) - (t_s - event.t_s)
        known = left_s if math.isfinite(left_s) else None
        return replace(moved, start_s=event.t_s, remaining_s=None if known is None else max(0.0, known))
    if stops:
        return replace(moved, remaining_s=job.restart_s, restart_s=None, interrupted_s=event.t_s)
    return moved
