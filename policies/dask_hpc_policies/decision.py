"""What a policy answers: typed actions, each with its reason.

Rules of the file: frozen dataclasses only. A decision holds what should be done (`actions`) and what
was considered and turned down (`suppressed`). Sizes are absolute targets, never differences. Every
action and every refusal carries a `Reason`; codes are a closed set that logs, metrics, reports and
tests share. Kinds of actions are an open table: `register` adds one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar


class ReasonCode(enum.Enum):
    """Why something was done or not done. Values are stable: traces and users script against them."""

    #: starts
    FITS = "fits"
    MOLDED_TO_FIT = "molded-to-fit"
    BACKFILLED = "backfilled"
    BELOW_MINIMUM = "below-minimum"
    #: expansions
    IDLE_NODES = "idle-nodes"
    EQUAL_SHARE = "equal-share"
    SCALES_WELL = "scales-well"
    RETURNED = "returned"
    #: starts, expansions and shrinks
    IO_BALANCE = "io-balance"
    #: shrinks
    HEAD_JOB_WAITS = "head-job-waits"
    POOL_SHARED = "pool-shared"
    FIXED_TARGET = "fixed-target"
    NODE_STOLEN = "node-stolen"
    #: starts, expansions, shrinks and holds
    CORRIDOR = "corridor"
    #: checkpoints
    CHECKPOINT_DUE = "checkpoint-due"
    #: placements
    SHORTER_STEP = "shorter-step"
    FIRST_PLACE = "first-place"
    #: pool
    DEMAND = "demand"
    NO_DEMAND = "no-demand"
    #: holds and refusals by a policy
    NOT_ENOUGH_NODES = "not-enough-nodes"
    BEHIND_HEAD = "behind-head"
    RESERVED = "reserved"
    WOULD_DELAY = "would-delay"
    NO_LEGAL_SIZE = "no-legal-size"
    TOO_COSTLY = "too-costly"
    ALMOST_DONE = "almost-done"
    EXPANSION_CAP = "expansion-cap"
    NO_PERFORMANCE_DATA = "no-performance-data"
    THRESHOLD = "threshold"
    LOCKED = "locked"
    COOLDOWN = "cooldown"
    HYSTERESIS = "hysteresis"
    CLAMPED = "clamped"
    CONFLICT = "conflict"
    #: refusals by the arbiter
    OUTSIDE_SUM = "outside-sum"
    INCOMPLETE = "incomplete"
    #: refusals by the enactor
    UNKNOWN_JOB = "unknown-job"
    UNKNOWN_FLOW = "unknown-flow"
    WRONG_STATE = "wrong-state"
    OUT_OF_BOUNDS = "out-of-bounds"
    STALE = "stale"
    RIGID_PHASE = "rigid-phase"
    NODES_GONE = "nodes-gone"
    DEADLINE = "deadline"
    POOL_NOT_MANAGED = "pool-not-managed"
    KEPT = "kept"
    UNSUPPORTED = "unsupported"
    POLICY_FAILED = "policy-failed"
    GUARD_FAILED = "guard-failed"
    #: outcomes and requests
    DONE = "done"
    ABORTED = "aborted"
    USER_REQUEST = "user-request"
    JOB_REQUEST = "job-request"
    WORKER_LOST = "worker-lost"
    NODE_RETURNED = "node-returned"
    CLIENT_GONE = "client-gone"
    TASK_FAILED = "task-failed"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for machines, a sentence for people, and the numbers behind both."""

    code: ReasonCode
    #: One plain sentence with the numbers in it.
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


#: The reason of a resize that nobody asks the reason of; see `ClusterSnapshot.brief`.
UNEXPLAINED = Reason(ReasonCode.POOL_SHARED, "")

#: Every kind of action by its tag; see `register`.
ACTIONS: dict[str, type[Action]] = {}


class Action:
    """What a decision asks for. A kind is a frozen dataclass below this class; `register` makes it known.

    A kind may have a field `job`, the id of the job it is about. One that changes how many nodes a job has is
    listed in `RESIZES`. All others allot nothing: they may stand beside a resize of the same job, and are
    carried out before it.
    """

    __slots__ = ()
    #: Name of the kind, in traces and logs.
    TAG: ClassVar[str]
    #: What `codec.decode` looks kinds up in.
    KINDS: ClassVar[Mapping[str, type[Action]]] = ACTIONS
    reason: Reason


A = TypeVar("A", bound=Action)


def register(kind: type[A]) -> type[A]:
    """Make a kind of action known to the codec, and so to traces and replay; use it as a decorator.

    Who carries it out is said where that is: `Controller.enactors` of a live scheduler.

    Raises
    ------
    TypeError
        When `kind` is no frozen dataclass below `Action` with a `TAG` and a field `reason`.
    ValueError
        When another kind has its tag.
    """
    tag = getattr(kind, "TAG", None)
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    named = isinstance(tag, str) and tag and "reason" in getattr(kind, "__dataclass_fields__", ())
    if not (issubclass(kind, Action) and frozen and named):
        raise TypeError(
            f"{kind!r} is no kind of action: it must be a frozen dataclass below Action, with TAG={tag!r} a "
            "text and a field 'reason'"
        )
    known = ACTIONS.setdefault(kind.TAG, kind)
    if known is not kind:
        raise ValueError(f"TAG {tag!r} of {kind!r} is taken by {known!r}; choose another one")
    return kind


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Action):
    """Start a pending job on `nodes` nodes."""

    TAG: ClassVar[str] = "start"
    job: str
    nodes: int
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Expand(Action):
    """Give a running job nodes until it holds `nodes` (a target, not a difference)."""

    TAG: ClassVar[str] = "expand"
    job: str
    nodes: int
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink(Action):
    """Take nodes from a running job until it holds `nodes` (a target, not a difference)."""

    TAG: ClassVar[str] = "shrink"
    job: str
    nodes: int
    reason: Reason


#: When a job is interrupted: at once, which loses what it did since its last checkpoint; at its next
#: checkpoint; or after a checkpoint that it takes now.
StealTiming = Literal["now", "next-checkpoint", "proactive-checkpoint"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Steal(Action):
    """Interrupt a running job because another one needs `stolen_nodes` of its nodes.

    The victim gives up all its nodes and is pending again, whole or from its last checkpoint
    (`JobView.interruption` is then ``theft``). With timing ``now`` the nodes may be handed out by the same
    decision; with another timing they are idle once the victim has its checkpoint. A malleable victim
    that can do with fewer nodes is not interrupted: that is a `Shrink`. On a live cluster results are kept
    and what executes is waited for, whatever the timing; a job that keeps state on its nodes goes on. What a
    checkpoint is waited for, and what happens where none comes: `rules.thefts`.
    """

    TAG: ClassVar[str] = "steal"
    #: The victim.
    job: str
    #: The job that the nodes are for. When it no longer waits for nodes, nobody is interrupted.
    thief: str
    stolen_nodes: int
    timing: StealTiming = "now"
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Action):
    """Leave a pending job waiting, and say why."""

    TAG: ClassVar[str] = "hold"
    job: str
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes(Action):
    """Ask the pool (the batch system) for nodes until it has `nodes`."""

    TAG: ClassVar[str] = "request-nodes"
    nodes: int
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseNodes(Action):
    """Give nodes back to the batch system until the pool has `nodes`."""

    TAG: ClassVar[str] = "release-nodes"
    nodes: int
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Action):
    """Have a running job write a version: of its results, or at its next step boundary of its state."""

    TAG: ClassVar[str] = "checkpoint"
    job: str
    #: Where it is kept at least: L1 memory of its host, L2 of another one, L3 the file system. None: where
    #: those of the job are.
    level: str | None = None
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SetRole(Action):
    """Have a node that no job holds play another role (`model.ROLES`) from now on.

    It is drained first; where nothing runs, that takes no time.
    """

    TAG: ClassVar[str] = "set-role"
    node: str
    role: str
    reason: Reason


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Action):
    """Have an analysis of a flow run there from the next step on that has not begun.

    A decision that changes how a flow is split says so of each of its analyses, moved or not: together they
    are the whole split (`rules.placing.split_of`). Steps that have begun end where they are; a node that
    becomes another's is drained first, and what it holds is moved.
    """

    TAG: ClassVar[str] = "place"
    flow: str
    analysis: str
    where: Literal["in-situ", "in-transit"]
    #: In situ: the nodes of the simulation, and the cores of each that its analyses have (0 in synchronous
    #: mode, in which they have all in turn). In transit: staging nodes, and all cores of each.
    nodes: int
    cores: int
    reason: Reason


#: What changes how many nodes a job has; a job appears in one of these at most in a decision.
RESIZES = (Start, Expand, Shrink, Steal)
Resize = Start | Expand | Shrink | Steal


def beneficiary(action: Action) -> str | None:
    """Id of the job that a shrink or a steal makes room for; None when it is no single one."""
    if isinstance(action, Steal):
        return action.thief
    data = action.reason.data if isinstance(action, Shrink) else {}
    found = data.get("head", data.get("thief"))
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """An action that was proposed and turned down."""

    action: Action
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything one call of a policy answers.

    What allots nothing is carried out first. Shrinks and steals are carried out, and have ended, before
    expansions and starts begin, whatever the order of `actions`. A job appears in at most one of Start,
    Expand, Shrink, Steal and Hold.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = ("actions", "suppressed")

    actions: tuple[Action, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    #: All of it or nothing: when a guard refuses a part, or cuts it, the rest is refused as well.
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one action of a decision (or of a user's request)."""

    action: Action
    #: ``done``, ``refused`` (nothing was changed) or ``aborted`` (begun, taken back).
    result: str
    reason: Reason
    #: Identity of the reconfiguration; 0 when none was begun.
    reconfig_id: int = 0
    #: Seconds from the decision to the end.
    latency_s: float = 0.0
