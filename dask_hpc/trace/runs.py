"""What the jobs and the pool did, out of the events of a trace.

Rules of the file: pure; events are taken in the order they were written. A trace that lost its
beginning (only the latest records are kept in memory) gives what can still be known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dask_hpc.trace.records import JobEvent, NodeEvent, Record, Result
from dask_hpc_policies.decision import Expand, Shrink
from dask_hpc_policies.metrics import JobRun

#: States that a job does not leave.
_ENDED = frozenset({"completed", "failed", "cancelled"})
#: States in which a job has started.
_STARTED = frozenset({"running", "adapting"})


def job_runs(records: Iterable[Record]) -> list[JobRun]:
    """One run per job, in order of submission.

    A job is submitted at its first event and started when it first held nodes or ran; resizes are
    those that were carried out (outcome ``done``), so a lost worker is not counted as a shrink.
    """
    events: dict[str, list[JobEvent]] = {}
    expansions: Counter[str] = Counter()
    shrinks: Counter[str] = Counter()
    for record in records:
        if isinstance(record, JobEvent):
            events.setdefault(record.job, []).append(record)
        elif isinstance(record, Result) and record.outcome.result == "done":
            action = record.outcome.action
            if isinstance(action, Expand):
                expansions[action.job] += 1
            elif isinstance(action, Shrink):
                shrinks[action.job] += 1
    return [_run(job, found, expansions[job], shrinks[job]) for job, found in events.items()]


def pool_steps(records: Iterable[Record]) -> tuple[tuple[float, int], ...]:
    """Number of nodes in the pool (up or draining) over time, as steps of (t_s, nodes)."""
    present: set[str] = set()
    steps: list[tuple[float, int]] = []
    for record in records:
        if isinstance(record, NodeEvent):
            if record.state in ("up", "draining"):
                present.update(record.nodes)
            else:
                present.difference_update(record.nodes)
            _step(steps, record.t_s, len(present))
    return tuple(steps)


def _run(job: str, events: list[JobEvent], expansions: int, shrinks: int) -> JobRun:
    steps: list[tuple[float, int]] = []
    for event in events:
        _step(steps, event.t_s, 0 if event.state in _ENDED else event.nodes)
    last = events[-1]
    return JobRun(
        id=job,
        name=next((event.name for event in events if event.name), job),
        submit_s=events[0].t_s,
        start_s=next((event.t_s for event in events if event.nodes or event.state in _STARTED), None),
        end_s=last.t_s if last.state in _ENDED else None,
        state=last.state,
        nodes=tuple(steps),
        expansions=expansions,
        shrinks=shrinks,
    )


def _step(steps: list[tuple[float, int]], t_s: float, n: int) -> None:
    """Note that the size is `n` from `t_s` on."""
    if steps and steps[-1][0] == t_s:
        steps.pop()
    if (steps[-1][1] if steps else 0) != n:
        steps.append((t_s, n))
