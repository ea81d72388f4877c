"""What Slurm's commands tell, one row a job or a group of nodes.

Words of Slurm, such as states and reasons, are kept as they are: a newer release may have more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc.slurm.notation import JobId

#: States of a job that is over, whatever became of it.
OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED "
    "TIMEOUT".split()
)


def is_over(state: str) -> bool:
    """Is a job in this state over for good?"""
    return state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as `squeue` shows it."""

    id: JobId
    #: The number it has in its own environment as ``SLURM_JOB_ID``.
    number: int
    #: Several, divided by commas, while it waits for the first of them.
    partition: str
    user: str
    #: ``PENDING``, ``RUNNING``, ``COMPLETING``, ...
    state: str
    #: Nodes it has or asks for.
    nodes: int
    #: Hosts it has; none while it waits.
    hosts: tuple[str, ...]
    #: Infinity: no limit; None: not set.
    time_limit_s: float | None
    #: Until the limit when the command ran; None when it is not known, also when the limit has passed.
    time_left_s: float | None
    #: Points in time, in seconds since 1970; None: not known. Of a waiting job, start and end are what
    #: the scheduler expects; a job without limit has no end.
    submit_s: float | None
    start_s: float | None
    end_s: float | None
    #: Why it is in this state, in Slurm's words; empty: no reason.
    reason: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job, or a step of one, as `sacct` shows it; also long after it has ended."""

    id: JobId
    #: The same with plain numbers: of array tasks and components, and the step.
    plain_id: JobId
    #: Empty for a step; so is `user`.
    partition: str
    user: str
    state: str
    #: Number of the user who cancelled it.
    cancelled_by: int | None
    exit_code: int
    #: Signal that ended it; 0: none.
    exit_signal: int
    nodes: int
    hosts: tuple[str, ...]
    #: Infinity: no limit; None: not set, or that of the partition.
    time_limit_s: float | None
    elapsed_s: float
    submit_s: float | None
    start_s: float | None
    end_s: float | None
    reason: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one partition, as `sinfo` shows them."""

    partition: str
    #: Jobs that name no partition go there.
    is_default: bool
    nodes: int
