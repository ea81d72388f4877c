"""What a simulated job is, and what it does with its nodes.

Rules of the file: frozen dataclasses without behaviour beyond arithmetic; nothing here knows a clock or a
file. Units are in the names. A job that is one stretch of computing (a job of a trace) has no `program`:
`runtime_s` at its reference size is all the engine needs, and the record stays one flat object.

A job with an application model has a `Program`: stages in order, walked one after the other.

=====================  ============================================================================
`Compute`              work, done at the speed that the speed-up model gives for the present size
`Transfer`             bytes read from or written to the shared file system, by all nodes of the job
`Delay`                time that passes whatever the size
`SchedulingPoint`      a moment at which the job can be resized, and at which the policy is asked
`Request`              the application asks for another size (evolving job)
`Repeat`               stages over again
`Coupled`              steps that are handed over to analyses; a job is resized between two of them
=====================  ============================================================================

An amount is a number or a function of the job's present number of nodes. Functions come from the reader
of a workload, which compiles formulas itself; they must be pure and give finite numbers of at least 0.
An amount is asked for when its stage begins, with the size at that moment. When a job is resized in the
middle of a `Compute` stage, the share that is done stays done, and the rest takes its share of the time
that the whole stage would take at the new size; the rest of a `Transfer` is the bytes that are left.

Classes of jobs after Feitelson and Rudolph (1996). Stages after the application models of Özden et al.
(ElastiSim, 2022).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dask_hpc.sim.model.checkpoints import Checkpoints, Path
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.machine import AdaptationCost
from dask_hpc_policies.model import JobKind, JobRequest

#: A number, or a function of the number of nodes.
Amount = float | Callable[[int], float]


def amount(value: Amount, nodes: int) -> float:
    """The number that `value` is on `nodes` nodes."""
    return float(value(nodes)) if callable(value) else value


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How fast a job computes on `nodes` nodes: units of work per second.

    Make it with `linear`, `amdahl`, `power_law` or `speed_table`, which check their arguments. Only ratios
    matter for a job that gives its run time at a reference size; a `Compute` stage takes work / speed.
    """

    kind: Literal["linear", "amdahl", "power-law", "table", "constant"] = "linear"
    #: Serial fraction (amdahl) or exponent (power law).
    parameter: float = 0.0
    #: (nodes, speed), ascending; straight lines between, the nearest outside (table).
    table: tuple[tuple[int, float], ...] = ()

    def __call__(self, nodes: int) -> float:
        """Speed on `nodes` nodes (at least 1)."""
        if self.kind == "linear":
            return float(nodes)
        if self.kind == "amdahl":
            return 1.0 / (self.parameter + (1.0 - self.parameter) / nodes)
        if self.kind == "power-law":
            return float(nodes**self.parameter)
        if self.kind == "constant":
            return 1.0
        return _interpolated(self.table, nodes)


def _interpolated(table: tuple[tuple[int, float], ...], nodes: int) -> float:
    i = bisect_left(table, (nodes, float("-inf")))
    if i == len(table):
        return table[-1][1]
    if i == 0 or table[i][0] == nodes:
        return table[i][1]
    (low, slow), (high, fast) = table[i - 1], table[i]
    return slow + (fast - slow) * (nodes - low) / (high - low)


#: Speed equals size: no loss.
LINEAR = SpeedUp()
#: The same speed whatever the size: for amounts that are functions of the size themselves.
CONSTANT = SpeedUp("constant")


def amdahl(serial_fraction: float) -> SpeedUp:
    """Speed 1 / (f + (1 - f) / n) for the serial fraction f from 0 to 1 (Amdahl 1967).

    Raises
    ------
    ValueError
        When `serial_fraction` is outside.
    """
    if not 0 <= serial_fraction <= 1:
        raise ValueError(f"serial_fraction={serial_fraction!r} must be from 0 to 1")
    return SpeedUp("amdahl", float(serial_fraction))


def power_law(exponent: float) -> SpeedUp:
    """Speed n ** exponent, exponent from 0 (no gain) to 1 (linear).

    Raises
    ------
    ValueError
        When `exponent` is outside.
    """
    if not 0 <= exponent <= 1:
        raise ValueError(f"exponent={exponent!r} must be from 0 to 1")
    return SpeedUp("power-law", float(exponent))


def speed_table(runtime_s: Mapping[int, float]) -> SpeedUp:
    """Speeds from run times by size: 1 / run time, straight lines between the sizes given.

    Raises
    ------
    ValueError
        When the table is empty or holds a size below 1 or a run time that is not above 0.
    """
    if not runtime_s:
        raise ValueError("a speed table needs at least one size")
    for nodes, seconds in runtime_s.items():
        if nodes < 1 or not 0 < seconds < float("inf"):
            raise ValueError(f"run time {seconds!r} s on {nodes!r} nodes: both must be above 0 and finite")
    return SpeedUp("table", table=tuple((n, 1.0 / runtime_s[n]) for n in sorted(runtime_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work that takes `work` / `speed(nodes)` seconds."""

    #: Units of work; with a speed-up of 1 at one node, seconds on one node.
    work: Amount
    speed: SpeedUp = LINEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes to or from the shared file system, moved by all nodes of the job together."""

    #: Bytes of the whole job.
    size_bytes: Amount
    direction: Literal["read", "write"] = "write"
    #: How many of its nodes take part, at most its size; None: all.
    participants: Amount | None = None
    #: What it is for, in outputs: ``checkpoint`` counts as checkpoint time.
    purpose: str = ""
    #: Over what it goes while the program goes on with its next stages, which end when it has ended too;
    #: None: the program waits for it. A checkpoint is the state at its begin, and nobody waits for it.
    beside: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Time that passes at any size, with the nodes held."""

    seconds: Amount


@dataclass(frozen=True, slots=True)
class SchedulingPoint:
    """The policy is asked (trigger ``scheduling-point``), and a resize of this job can take place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The application asks for `nodes` nodes and goes on; the policy is asked (trigger ``request``).

    The request stands, as `JobView.requested_nodes`, until the job has that size or asks again.
    """

    nodes: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """`stages` one after the other, `times` times (an amount, rounded; asked for when it begins)."""

    stages: tuple[Stage, ...]
    times: Amount


Stage = Compute | Transfer | Delay | SchedulingPoint | Request | Repeat | Coupled


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What an application does, from start to end."""

    stages: tuple[Stage, ...]
    #: ``anytime``: a resize takes place at once, also in the middle of a stage. ``points``: only at a
    #: `SchedulingPoint`; until it comes, the job is adapting and goes on at its old size.
    resize: Literal["anytime", "points"] = "anytime"
    #: What is done after each resize, without scheduling points, by a job that is resized at points: by all
    #: nodes, and before that, after an expansion, by those that joined (whose number amounts then get).
    on_reconfiguration: tuple[Stage, ...] = ()
    on_expansion: tuple[Stage, ...] = ()


def on_nodes(stages: tuple[Stage, ...], nodes: int) -> tuple[Stage, ...]:
    """`stages` as `nodes` nodes do them, whatever the size of the job: all amounts become numbers.

    Scheduling points and requests are left out.
    """
    done: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Compute):
            done.append(Delay(seconds=amount(stage.work, nodes) / stage.speed(nodes)))
        elif isinstance(stage, Delay):
            done.append(Delay(seconds=amount(stage.seconds, nodes)))
        elif isinstance(stage, Transfer):
            doing = nodes if stage.participants is None else amount(stage.participants, nodes)
            size_bytes = amount(stage.size_bytes, nodes)
            done.append(replace(stage, size_bytes=size_bytes, participants=float(doing)))
        elif isinstance(stage, Repeat):
            times = amount(stage.times, nodes)
            done.append(Repeat(stages=on_nodes(stage.stages, nodes), times=times))
    return tuple(done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobRequest):
    """One job of a workload. Sizes are checked against the machine when a simulation begins.

    A rigid job has `start_nodes` and both bounds equal; `start_nodes` None is a moldable start, at the
    largest legal size that fits.
    """

    #: Unique in the workload.
    id: str
    submit_s: float
    start_nodes: int | None
    min_nodes: int
    max_nodes: int
    kind: JobKind = "rigid"
    #: Without a `program`: run time at `reference_nodes`, and how it changes with the size.
    runtime_s: float = 0.0
    speed: SpeedUp = LINEAR
    #: Size that `runtime_s` belongs to; 0 for `start_nodes`, or `max_nodes` when that is None.
    reference_nodes: int = 0
    program: Program | None = None
    #: Label for people and for per-application estimates, beside its name.
    application: str = ""
    #: Data that a resize redistributes.
    data_bytes: float = 0.0
    #: What its resizes cost; None: what the machine says.
    adaptation: AdaptationCost | None = None
    #: The job saves its progress each time it has computed for so long; None: never. A job that fails
    #: begins again there, else from nothing.
    checkpoint_interval_s: float | None = None
    #: The same with what it costs and what it survives; None: it costs nothing and survives everything.
    checkpoints: Checkpoints | None = None

    @property
    def nodes(self) -> int | None:
        """The size it starts at: `start_nodes`."""
        return self.start_nodes

    def __deepcopy__(self, _: object) -> Job:
        return self


def computing_s(job: Job, nodes: int) -> float:
    """Seconds that a job without a program takes on `nodes` nodes from start to end."""
    reference = job.reference_nodes or job.start_nodes or job.max_nodes
    if nodes == reference:
        return job.runtime_s
    return job.runtime_s * job.speed(reference) / job.speed(nodes)
