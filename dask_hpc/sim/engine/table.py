"""The job table: one row for each job that has ended, and what is counted on the way.

Rules of the file: rows are flat tuples while the run goes on; `runs` makes the records of
`dask_hpc_policies.metrics` from them, once, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_hpc.sim.model.job import Job
from dask_hpc_policies.metrics import JobRun


class Row(NamedTuple):
    """What became of one job."""

    key: int
    start_s: float | None
    end_s: float | None
    #: Size it had all the time, or its sizes over time.
    nodes: int | tuple[tuple[float, int], ...]
    state: str = "completed"
    expansions: int = 0
    shrinks: int = 0
    restarts: int = 0
    #: Seconds in which resizes held it up, in transfers, in checkpoints; number of checkpoints.
    resize_s: float = 0.0
    io_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoints: int = 0
    #: Node-seconds held without getting on: in resizes, and of work that was lost.
    wasted_node_s: float = 0.0


@dataclass(slots=True)
class Counts:
    """What the run did, for `--profile`."""

    #: Moments at which anything happened, and single events.
    moments: int = 0
    events: int = 0
    #: Calls of the policy, and how often the queue behind the head was looked through.
    policy_calls: int = 0
    queue_scans: int = 0
    #: The same when no job and no node had changed since the last call: 0, unless the engine is at fault.
    idle_policy_calls: int = 0
    idle_queue_scans: int = 0
    starts: int = 0
    expansions: int = 0
    shrinks: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An action of a decision that could not be carried out, or not all of it."""

    t_s: float
    kind: str
    job: str
    nodes: int | None
    reason: str


@dataclass(slots=True)
class Table:
    """Rows in the order in which jobs ended."""

    rows: list[Row] = field(default_factory=list)

    def runs(self, jobs: Sequence[Job]) -> list[JobRun]:
        """The rows as records of the metrics, in order of submission."""
        return [_run(jobs[row.key], row) for row in sorted(self.rows, key=lambda row: row.key)]


def _run(job: Job, row: Row) -> JobRun:
    if not isinstance(row.nodes, int):
        nodes = row.nodes
    elif row.start_s is None:
        nodes = ()
    else:
        nodes = ((row.start_s, row.nodes), *(() if row.end_s is None else ((row.end_s, 0),)))
    return JobRun(
        id=job.id,
        name=job.name,
        submit_s=job.submit_s,
        start_s=row.start_s,
        end_s=row.end_s,
        state=row.state,
        nodes=nodes,
        expansions=row.expansions,
        shrinks=row.shrinks,
        wasted_node_s=row.wasted_node_s,
    )
