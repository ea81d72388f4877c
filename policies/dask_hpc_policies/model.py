"""What a policy sees: one immutable picture of the cluster, the same live and simulated.

Rules of the file: frozen dataclasses only; every quantity carries its unit in its name (``_s``
seconds, ``_w`` watts, ``_bytes``, ``_nodes``); None means unknown or unlimited; fields are only ever
added, with defaults, so that recorded traces load for ever. ``now_s`` is the only time there is.

Vocabulary after Feitelson and Rudolph (1996): a *rigid* job keeps the size it asked for, a *moldable*
one gets its size at start, a *malleable* one is resized while it runs, an *evolving* one asks for other
sizes while it runs. A *node* is the unit of allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Why a policy was called.
Trigger = Literal[
    "tick", "submit", "finish", "scheduling-point", "node-added", "node-lost", "request", "settings"
]
#: Names of the job states; `dask_hpc_policies.states` holds the table of legal changes.
JobState = Literal["pending", "running", "adapting", "completing", "completed", "failed", "cancelled"]
#: How a job's size may change.
JobKind = Literal["rigid", "moldable", "malleable", "evolving"]
#: ``job``: a job that is reconfiguring gets no new decision. ``system``: no job does while any is.
Lock = Literal["job", "system"]
#: Why a job that has run is not running at its size: a node of it was lost (``failure``), or it was
#: interrupted because another job needed its nodes (``theft``).
Interruption = Literal["none", "failure", "theft"]
#: ``up``: usable. ``draining``: leaving its job. ``lost``: gone, expected back under its name.
NodeState = Literal["up", "draining", "lost"]

#: Name of the job that all plain (undeclared) work belongs to while a named job is active.
DEFAULT_JOB = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: the unit of allocation (one or more workers that come and go together)."""

    #: Stable name: worker name, host or batch job id; never an address.
    id: str
    #: Id of the job that holds the node; None when no named job does.
    job: str | None = None
    state: NodeState = "up"
    #: Worker processes on the node and their threads together.
    workers: int = 1
    nthreads: int = 1
    #: Memory limit of all its workers; 0 when not limited.
    memory_bytes: int = 0
    #: Seconds until the node's allocation ends; None when it has no end.
    walltime_left_s: float | None = None
    #: Failure domain (host, rack, switch); None when unknown.
    domain: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job that is pending, running or adapting."""

    id: str
    #: The user's name for it; several jobs over time may share one.
    name: str = ""
    state: JobState = "pending"
    kind: JobKind = "malleable"
    #: Nodes it holds now; 0 while pending. Lost nodes do not count.
    nodes: int = 0
    #: Exact start size asked for; None for a moldable start (largest legal size that fits).
    start_nodes: int | None = None
    min_nodes: int = 1
    max_nodes: int = 1
    #: Size that a moldable start aims at: it gets no more, and fewer when they do not fit; None: as many
    #: as fit.
    preferred_nodes: int | None = None
    #: Name of a node-count constraint (any, even, odd, pof2, square, cube).
    constraint: str = "any"
    submit_s: float = 0.0
    start_s: float | None = None
    #: Walltime the user asked for.
    walltime_s: float | None = None
    #: Expected time to completion: from the walltime, else an estimate; None (infinite) without either.
    remaining_s: float | None = None
    #: How long the application ran when it was recorded, at its preferred size; None without a record.
    recorded_s: float | None = None
    #: Expected runtime were it interrupted now and started again: from its last checkpoint, else from
    #: scratch. None when not known.
    restart_s: float | None = None
    #: Larger is served first; equal priorities are served in order of submission.
    priority: int = 0
    #: Power per node the user expects.
    min_power_w: float | None = None
    max_power_w: float | None = None
    #: Share of time in file-system I/O, 0 to 1.
    io_intensity: float | None = None
    #: The same at other sizes, as (nodes, share of time), sizes ascending.
    io_by_nodes: tuple[tuple[int, float], ...] = ()
    #: Size that the application of an evolving job asks for; None when it is content.
    requested_nodes: int | None = None
    #: Whether it may be resized at this moment. Task graphs always may; an application with scheduling
    #: points only while it is at one.
    at_scheduling_point: bool = True
    interruption: Interruption = "none"
    #: When it was interrupted the last time.
    interrupted_s: float | None = None
    #: Expansions it has had so far.
    expansions: int = 0
    #: Time in transfers over time in computation (MTCT), latest sample and the one before.
    mtct: float | None = None
    mtct_previous: float | None = None
    #: Tasks that are not finished, and those on workers now.
    unfinished_tasks: int = 0
    processing_tasks: int = 0
    #: True for the job of plain work. It is allotted whatever no named job holds; a policy neither
    #: resizes it nor starts it above `min_nodes`.
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster at one moment, as handed to a policy."""

    #: Seconds on a clock that never goes back; only differences mean anything.
    now_s: float
    trigger: Trigger = "tick"
    #: Nodes in a stable order (order of arrival).
    nodes: tuple[NodeView, ...] = ()
    #: Jobs in order of service: priority (descending), then submission.
    jobs: tuple[JobView, ...] = ()
    #: Nodes a decision may hand out: up, held by no named job, not reserved by a round under way,
    #: and beyond what a running default job must keep.
    idle_nodes: int = 0
    #: When lost nodes are expected back, ascending; only those whose return is known.
    returns_s: tuple[float, ...] = ()
    lock: Lock = "job"
    #: Occupancy that Dask's own scaling looks at; see `DaskDefault`.
    demand: Demand | None = None

    @property
    def pool_nodes(self) -> int:
        """Number of nodes that are up or draining."""
        return sum(node.state != "lost" for node in self.nodes)

    @property
    def pending(self) -> tuple[JobView, ...]:
        """Jobs that wait for nodes, first to be served first."""
        return tuple(job for job in self.jobs if job.state == "pending")

    @property
    def running(self) -> tuple[JobView, ...]:
        """Named jobs that hold nodes and are not reconfiguring, in order of service."""
        return tuple(job for job in self.jobs if job.state == "running" and not job.is_default)

    @property
    def adapting(self) -> tuple[JobView, ...]:
        """Named jobs that are reconfiguring."""
        return tuple(job for job in self.jobs if job.state == "adapting" and not job.is_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What Dask's own adaptive scaling computes its target from (`Scheduler.adaptive_target`)."""

    #: Expected seconds of work on workers and waiting for one.
    occupancy_s: float = 0.0
    #: Tasks ready to run that no worker has, and tasks on workers.
    ready_tasks: int = 0
    processing_tasks: int = 0
    #: Bytes of results held, and the limit of all workers (0 when not limited).
    used_bytes: int = 0
    limit_bytes: int = 0
    #: Nodes that `Scheduler.workers_to_close` would give up; None when not known.
    closable_nodes: int | None = None
