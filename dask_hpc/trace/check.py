"""Whether what a trace says can be simulated: finite times that do not go back, sizes that can be.

Rules of the file: `files` checks the form of the lines, this their sense. An error names
the file, the line and the field.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import NoReturn

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import JobEvent, NodeEvent
from dask_hpc_policies.jobs.constraints import CONSTRAINTS
from dask_hpc_policies.model import ClusterSnapshot, JobView

#: Nodes that are there, and that a job may ask for (`dask_hpc_policies.jobs.jobspec`).
_MOST_NODES = 10_000_000
_MOST_ASKED_NODES = 1_000_000_000
#: Fields of a job that are durations; every other number with a decimal point has to be finite, too.
_DURATIONS = ("walltime_s", "remaining_s", "recorded_s", "restart_s", "deadline_s", "soft_deadline_s")


def check_events(trace: Trace) -> None:
    """Check the events of jobs and nodes.

    Raises
    ------
    TraceError
        For the first that cannot be.
    """
    last_s: dict[str, float] = {}
    for number, record in enumerate(trace.records):
        if isinstance(record, (JobEvent, NodeEvent)):
            if not math.isfinite(record.t_s):
                _fail(trace, number, "t_s", record.t_s, "a finite time")
            if isinstance(record, JobEvent):
                _size(trace, number, "nodes", record.nodes)
                if record.t_s < last_s.get(record.job, -math.inf):
                    before_s = last_s[record.job]
                    _fail(trace, number, "t_s", record.t_s, f"a time from {before_s:g} s on, as before")
                last_s[record.job] = record.t_s


def check_snapshot(trace: Trace, number: int, view: ClusterSnapshot) -> None:
    """Check the snapshot in record `number` (from 0).

    Raises
    ------
    TraceError
        For what cannot be.
    """
    if not math.isfinite(view.now_s):
        _fail(trace, number, "snapshot.now_s", view.now_s, "a finite time")
    _size(trace, number, "snapshot.idle_nodes", view.idle_nodes)
    ids = set()
    for job in view.jobs:
        if job.id in ids:
            _fail(trace, number, "snapshot.jobs.id", job.id, "one job of each id")
        ids.add(job.id)
        check_view(trace, number, job)


def check_view(trace: Trace, number: int, job: JobView) -> None:
    """Check one job of the snapshot in record `number` (from 0).

    Raises
    ------
    TraceError
        For what cannot be.
    """
    place = f"job {job.id!r}, "
    _size(trace, number, f"{place}nodes", job.nodes)
    _size(trace, number, f"{place}min_nodes", job.min_nodes, 0, _MOST_ASKED_NODES)
    _size(trace, number, f"{place}max_nodes", job.max_nodes, job.min_nodes, _MOST_ASKED_NODES)
    for name in ("start_nodes", "preferred_nodes"):
        if (nodes := getattr(job, name)) is not None:
            _size(trace, number, place + name, nodes, 1, _MOST_ASKED_NODES)
    if job.constraint not in CONSTRAINTS:
        _fail(trace, number, f"{place}constraint", job.constraint, f"one of {', '.join(CONSTRAINTS)}")
    for field in fields(job):
        value = getattr(job, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            what = "time" if field.name.endswith("_s") else "number"
            _fail(trace, number, place + field.name, value, f"a finite {what}")
    for name in _DURATIONS:
        if (getattr(job, name) or 0.0) < 0:
            _fail(trace, number, place + name, getattr(job, name), "a time of at least 0 s")


def _size(
    trace: Trace, number: int, field: str, nodes: int, lowest: int = 0, highest: int = _MOST_NODES
) -> None:
    if not lowest <= nodes <= highest:
        _fail(trace, number, field, nodes, f"a whole number from {lowest} to {highest}")


def _fail(trace: Trace, number: int, field: str, value: object, expected: str) -> NoReturn:
    text = str(value)
    short = text if len(text) <= 40 else text[:37] + "..."
    raise TraceError(f"{trace.source}, line {number + 2}, {field}: expected {expected}, got {short}")
