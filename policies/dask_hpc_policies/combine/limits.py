"""What a whole decision has to keep to: guards that veto an action, bound a job or bound a sum over jobs.

Rules of the file: values alone; `arbitrate` applies them. Whoever has something to protect makes a guard for
each decision, from what is known then. A guard never proposes anything.

A guard has a rank, and so may an action have: see `cause`. A guard has no say in an action of higher rank;
what that leads to is given, and the rest is judged from there. Ranks, highest first:

==============  ==================================================================================
``deadline``    nodes that leave at a time that nobody here can change
``protection``  what would be lost or broken: a checkpoint being taken, state that cannot move
``corridor``    what the whole cluster has to keep to: power, bandwidth
``jobs``        everything else; the rank of all actions of the builtin policies
==============  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from dask_hpc_policies.decision import Action, Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot, JobView

#: Whose concern a guard or an action is, highest first.
Rank = Literal["deadline", "protection", "corridor", "jobs"]
RANKS: tuple[Rank, ...] = get_args(Rank)
#: Rank of actions by the code of their reason; `jobs` for all others. Whoever adds a code may add its rank.
CAUSES: dict[ReasonCode, Rank] = {ReasonCode.DEADLINE: "deadline"}


def cause(action: Action) -> Rank:
    """Whose concern `action` is."""
    return CAUSES.get(action.reason.code, "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Sizes that a guard allows a job, in nodes, and why."""

    lo: int
    hi: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class VetoGuard:
    """Refuses single actions, of whatever kind."""

    #: Unique among the guards of a decision.
    name: str
    rank: Rank = "jobs"
    #: Why an action must not be; None when it may. Gets the sizes that the decision leads to, by job.
    refuses: Callable[[ClusterSnapshot, Action, Mapping[str, int]], Reason | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGuard:
    """Bounds the sizes of single jobs. A job that is outside may come nearer."""

    name: str
    rank: Rank = "jobs"
    #: Sizes it allows a job; None when it does not mind.
    limit: Callable[[ClusterSnapshot, JobView], Limit | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumGuard:
    """Bounds a sum over all jobs: watts, tokens, bytes, nodes.

    Raises
    ------
    ValueError
        Without a bound, with bounds that are not finite or in the wrong order, or without a unit.
    """

    name: str
    rank: Rank = "jobs"
    #: Of the amounts, for messages.
    unit: str
    #: Amount of a job on so many nodes, at least 1; more nodes must not take less. The job of plain work has
    #: the nodes that are left.
    cost: Callable[[JobView, int], float]
    #: Amount that no job of the snapshot accounts for: idle nodes, rounds under way.
    base: float = 0.0
    #: What is allowed, both included; None for no bound.
    lower: float | None = None
    upper: float | None = None
    #: Where these come from, for messages.
    note: str = ""
    #: Whether what a decision leads to in the end counts alone, and not what the sum is on the way there.
    in_end: bool = False
    #: Amount of an action that allots nothing, such as the token of a checkpoint; None: nothing.
    action_cost: Callable[[Action], float] | None = None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.lower, self.upper) if bound is not None]
        if not self.unit:
            raise ValueError(f"guard {self.name!r} needs the unit of its amounts, got {self.unit!r}")
        if not bounds or not all(map(isfinite, (*bounds, self.base))) or bounds != sorted(bounds):
            raise ValueError(
                f"guard {self.name!r}: lower={self.lower!r}, upper={self.upper!r}, base={self.base!r} must "
                "be finite, with at least one bound, and lower not above upper"
            )

    @property
    def allowed(self) -> str:
        """The bounds in words."""
        if self.lower is None:
            return f"at most {self.upper:g} {self.unit}"
        if self.upper is None:
            return f"at least {self.lower:g} {self.unit}"
        return f"{self.lower:g} to {self.upper:g} {self.unit}"

    def outside(self, amount: float) -> float:
        """How far `amount` is outside: above 0 over the upper bound, below 0 under the lower one, else 0."""
        if self.upper is not None and amount > self.upper:
            return amount - self.upper
        if self.lower is not None and amount < self.lower:
            return amount - self.lower
        return 0.0


AnyGuard = VetoGuard | BoundGuard | SumGuard


def in_order(guards: Sequence[AnyGuard]) -> tuple[AnyGuard, ...]:
    """`guards` by rank, bounds before vetoes, and name: the order in which they are given never matters.

    Raises
    ------
    ValueError
        For an unknown rank, and when two have one name.
    """
    names = [guard.name for guard in guards]
    for guard in guards:
        if guard.rank not in RANKS:
            raise ValueError(f"guard {guard.name!r}: rank={guard.rank!r} must be one of {', '.join(RANKS)}")
        if names.count(guard.name) > 1:
            raise ValueError(f"{names.count(guard.name)} guards are called {guard.name!r}; names are unique")
    return tuple(
        sorted(guards, key=lambda guard: (RANKS.index(guard.rank), isinstance(guard, VetoGuard), guard.name))
    )
