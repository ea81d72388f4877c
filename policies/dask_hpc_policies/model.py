"""What a policy sees: one immutable picture of the cluster, the same live and simulated.

Rules of the file: frozen dataclasses only; every quantity carries its unit in its name (``_s``
seconds, ``_w`` watts, ``_bytes``, ``_nodes``); None means unknown or unlimited; fields are only ever
added, with defaults, so that recorded traces load for ever. ``now_s`` is the only time there is. ``WRITTEN``
names the fields that are in every trace, in their order; see `codec`.

Vocabulary after Feitelson and Rudolph (1996): a *rigid* job keeps the size it asked for, a *moldable*
one gets its size at start, a *malleable* one is resized while it runs, an *evolving* one asks for other
sizes while it runs. A *node* is the unit of allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

#: Why a policy was called.
Trigger = Literal[
    "tick",
    "submit",
    "finish",
    "scheduling-point",
    "node-added",
    "node-lost",
    "request",
    "settings",
    "answer",
    "corridor",
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

#: Role of a node that jobs and plain work get.
COMPUTE = "compute"
#: All roles: nodes that analyses in transit run on, and nodes that are kept for what may come.
ROLES = (COMPUTE, "staging", "reserve")
#: Name of the job that all plain (undeclared) work belongs to while a named job is active.
DEFAULT_JOB = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node is, whoever holds it."""

    #: Worker processes on the node and their threads together.
    workers: int = 1
    nthreads: int = 1
    #: Memory limit of all its workers; 0 when not limited.
    memory_bytes: int = 0
    #: Who fails together (host, rack, switch); None when unknown.
    domain: str | None = None
    #: What the node is for; see `ClusterSnapshot.of_role`.
    role: str = COMPUTE
    #: Who shares its memory and their bandwidth (a machine, or a label); None when unknown.
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView(NodeFacts):
    """One node: the unit of allocation (one or more workers that come and go together).

    `views.node_view` makes the same at less cost.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "id", "job", "state", "workers", "nthreads", "memory_bytes", "walltime_left_s", "domain",
    )  # fmt: skip

    #: Stable name: worker name, host or batch job id; never an address.
    id: str
    #: Id of the job that holds the node; None when no named job does.
    job: str | None = None
    state: NodeState = "up"
    #: Seconds until the node's allocation ends; None when it has no end.
    walltime_left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What a user says of a job beside its sizes: the same wherever the job is described."""

    #: The user's name for it; several jobs over time may share one.
    name: str = ""
    #: Name of a node-count constraint (any, even, odd, pof2, square, cube).
    constraint: str = "any"
    #: Walltime the user asked for.
    walltime_s: float | None = None
    #: Larger is served first; equal priorities are served in order of submission.
    priority: int = 0
    #: Power per node the user expects.
    min_power_w: float | None = None
    max_power_w: float | None = None
    #: Share of time in file-system I/O, 0 to 1.
    io_intensity: float | None = None
    #: Seconds after its submission: when its result is of no use any more, and when it begins to lose value.
    deadline_s: float | None = None
    soft_deadline_s: float | None = None
    #: What its result is worth, in a unit that all jobs share; None: not said.
    value: float | None = None
    #: Whether the state that it keeps on its nodes is protected against loss, or under which name.
    protect: bool | str = False
    #: Name of the protocol by which it survives failures; empty: not said.
    resilience: str = ""
    #: Whether its nodes are its alone: nothing of others runs there, and its tasks run nowhere else.
    exclusive: bool = False
    #: Whose job it is: what several jobs of one user get is counted together. Empty: not known; such jobs are
    #: taken for one user's.
    user: str = ""
    #: How much its user is to get beside others, in proportion; see `rules.fair`.
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest(JobFacts):
    """What is asked for a job on a pool of known size: what is known of it before it runs.

    The one place of such a fact: `JobView`, the records of a live scheduler and the jobs of a simulation have
    it from here. A fact that the user declares belongs to `JobFacts`.
    """

    submit_s: float = 0.0
    kind: JobKind = "malleable"
    #: Exact start size asked for; None for a moldable start (largest legal size that fits).
    start_nodes: int | None = None
    #: Bounds of its size; legal sizes.
    min_nodes: int = 1
    max_nodes: int = 1
    #: Size that a moldable start aims at: it gets no more, and fewer when they do not fit; None: as many
    #: as fit.
    preferred_nodes: int | None = None
    #: How long the application ran when it was recorded, at its preferred size; None without a record.
    recorded_s: float | None = None
    #: Share of time in file-system I/O by size, as (nodes, share of time), sizes ascending.
    io_by_nodes: tuple[tuple[int, float], ...] = ()
    #: What one of its nodes draws by size, as (nodes, watts), sizes ascending.
    power_by_nodes: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView(JobRequest):
    """One job that is pending, running or adapting: what was asked for it, and how it stands.

    `views.job_view` makes the same at less cost.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "id", "name", "state", "kind", "nodes", "start_nodes", "min_nodes", "max_nodes", "preferred_nodes",
        "constraint", "submit_s", "start_s", "walltime_s", "remaining_s", "recorded_s", "restart_s",
        "priority", "min_power_w", "max_power_w", "io_intensity", "io_by_nodes", "requested_nodes",
        "at_scheduling_point", "interruption", "interrupted_s", "expansions", "mtct", "mtct_previous",
        "unfinished_tasks", "processing_tasks", "is_default",
    )  # fmt: skip

    id: str
    state: JobState = "pending"
    #: Nodes it holds now; 0 while pending. Lost nodes do not count.
    nodes: int = 0
    start_s: float | None = None
    #: Expected time to completion: from the walltime, else an estimate; None (infinite) without either.
    remaining_s: float | None = None
    #: Expected runtime were it interrupted now and started again: from its last checkpoint, else from
    #: scratch. None when not known.
    restart_s: float | None = None
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
    #: Attained service: node-seconds it has held so far.
    attained_node_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster at one moment, as handed to a policy."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "now_s", "trigger", "nodes", "jobs", "idle_nodes", "returns_s", "lock", "demand",
    )  # fmt: skip

    #: Seconds on a clock that never goes back; only differences mean anything.
    now_s: float
    trigger: Trigger = "tick"
    #: Nodes in a stable order (order of arrival).
    nodes: tuple[NodeView, ...] = ()
    #: Jobs in order of service; see `jobs.queue_orders`.
    jobs: tuple[JobView, ...] = ()
    #: Compute nodes a decision may hand out: up, held by no named job, not reserved by a round under way,
    #: and beyond what a running default job must keep.
    idle_nodes: int = 0
    #: When lost nodes are expected back, ascending; only those whose return is known.
    returns_s: tuple[float, ...] = ()
    lock: Lock = "job"
    #: Occupancy that Dask's own scaling looks at; see `DaskDefault`.
    demand: Demand | None = None
    #: What capabilities know besides, by their names, as plain JSON data: measurements, answers of solvers
    #: with the sizes they were found for.
    sections: Mapping[str, Any] = field(default_factory=dict)
    #: Nobody reads why: reasons may be empty, and what is held or suppressed may be left out. Views of jobs
    #: then hold during this call alone. Only policies that say so (`protocol.Policy`) are shown this.
    brief: bool = False

    def of_role(self, role: str = COMPUTE) -> int:
        """Idle nodes of `role` that a decision may hand out: the one number that most policies need.

        `idle_nodes` for compute nodes, which are all that jobs get unless they name another role; of another
        role those that are up and that nobody holds.
        """
        if role == COMPUTE:
            return self.idle_nodes
        return sum(node.role == role and node.state == "up" and node.job is None for node in self.nodes)

    @property
    def pool_nodes(self) -> int:
        """Number of compute nodes that are up or draining."""
        return sum([node.state != "lost" and node.role == COMPUTE for node in self.nodes])

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
