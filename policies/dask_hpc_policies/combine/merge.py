"""Policies made of several: a chain and an arbiter.

Rules of the file: whatever the members answer, a job ends up in at most one Start, Expand, Shrink, Steal
or Hold, and starts and expansions never take more nodes than are idle or freed. What loses is recorded as
suppressed. Actions that allot nothing pass, once each. Wrappers of a single policy are in `guards`, limits of
a whole decision in `arbitrate`.

* A *chain* asks its members one after the other; each sees the nodes and jobs its predecessors left. A
  member that is for something else than which jobs run (`protocol.Policy`) starts none that they hold.
* An *arbiter* asks all members about the same picture; the earlier a member stands, the higher its rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any

from dask_hpc_policies.combine.guards import Clamp, Cooldown, Hysteresis, MtctFilter
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    Resize,
    Shrink,
    Start,
    Steal,
    Suppressed,
    beneficiary,
)
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Parameter, ParameterError
from dask_hpc_policies.protocol import Policy, state_type
from dask_hpc_policies.wording import Shown

__all__ = ["Arbiter", "Chain", "Clamp", "Combined", "Cooldown", "Hysteresis", "MtctFilter"]


@dataclass(frozen=True, slots=True, repr=False)
class Combined(Shown):
    """Several policies as one. Make it with `Chain` or `Arbiter`."""

    #: ``chain`` or ``arbiter``.
    name: str
    policies: tuple[Policy, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of all members; those that share a name are set together."""
        found = {p.name: p for policy in reversed(self.policies) for p in getattr(policy, "parameters", ())}
        return tuple(found.values())

    @property
    def in_turn(self) -> bool:
        """Whether one of the policies has jobs take turns."""
        return any(getattr(policy, "in_turn", False) for policy in self.policies)

    @property
    def keeps_corridor(self) -> bool:
        """Whether one of the policies keeps the power corridor by itself."""
        return any(getattr(policy, "keeps_corridor", False) for policy in self.policies)

    @property
    def places(self) -> bool:
        """Whether one of the policies may place analyses."""
        return any(getattr(policy, "places", True) for policy in self.policies)

    @property
    def params(self) -> Mapping[str, Any]:
        """Values of all `parameters`; of members that share a name the first one's."""
        found: dict[str, Any] = {}
        for policy in reversed(self.policies):
            found.update(getattr(policy, "params", {}))
        return found

    @property
    def state_type(self) -> type:
        """Class of the state: one state for each member."""
        return _member_states(tuple(state_type(policy) or NoneType for policy in self.policies))

    def initial_state(self) -> Any:
        """State before the first call."""
        return self.state_type(members=tuple(policy.initial_state() for policy in self.policies))

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        """The members' common decision, and the next state."""
        merged = _Merge(view)
        states = []
        for policy, before in zip(self.policies, state.members, strict=True):
            decision, after = policy.decide(merged.left() if self.name == "chain" else view, before)
            states.append(after)
            merged.add(merged.heeded(decision) if getattr(policy, "beside", False) else decision)
        return merged.decision(), replace(state, members=tuple(states))


def Chain(*policies: Policy) -> Combined:
    """Ask `policies` in order, each about the nodes and jobs that those before it left alone.

    Nodes that shrinks free, and jobs that were acted on, are out of the picture for the rest of the pass.
    """
    return _combined("chain", policies)


def Arbiter(*policies: Policy) -> Combined:
    """Ask all `policies` about the same picture; where they disagree the earlier one wins."""
    return _combined("arbiter", policies)


def _combined(name: str, policies: Sequence[Policy]) -> Combined:
    if not policies:
        raise ParameterError(f"{name} needs at least one policy; give it in 'policies'")
    return Combined(name, tuple(policies))


@cache
def _member_states(kinds: tuple[type, ...]) -> type:
    return make_dataclass("MemberStates", [("members", tuple[kinds])], frozen=True, slots=True, kw_only=True)  # type: ignore[valid-type]


class _Merge:
    """Decisions of members, highest rank first, becoming one."""

    def __init__(self, view: ClusterSnapshot) -> None:
        self.view = view
        self.acts: dict[str, Resize] = {}
        self.holds: dict[str, Hold] = {}
        self.pool: RequestNodes | ReleaseNodes | None = None
        #: Actions that allot nothing.
        self.others: list[Action] = []
        self.suppressed: list[Suppressed] = []
        self.whole = False
        #: Idle nodes less what was given out; freed nodes are counted apart.
        self.idle_nodes = view.of_role()
        self.size = {job.id: job.nodes for job in view.jobs}

    def left(self) -> ClusterSnapshot:
        """The picture without the jobs that were acted on and the nodes that were given out."""
        jobs = tuple(job for job in self.view.jobs if job.id not in self.acts)
        return replace(self.view, jobs=jobs, idle_nodes=max(0, self.idle_nodes))

    def heeded(self, decision: Decision) -> Decision:
        """`decision` without starts of jobs that are held already, unless it makes room for them itself.

        Nor does anybody grow into what those are left.
        """
        served = {beneficiary(action) for action in decision.actions}
        lost: list[Action] = [
            action
            for action in decision.actions
            if isinstance(action, Start) and action.job in self.holds and action.job not in served
        ]
        if lost:
            lost += [action for action in decision.actions if isinstance(action, Expand)]
        kept = tuple([action for action in decision.actions if action not in lost])
        suppressed = tuple([Suppressed(action=action, reason=_CONFLICT) for action in lost])
        return replace(decision, actions=kept, suppressed=(*decision.suppressed, *suppressed))

    def add(self, decision: Decision) -> None:
        self.suppressed += decision.suppressed
        self.whole = self.whole or decision.whole
        kept: dict[str, Resize] = {}
        lost: list[tuple[Action, Reason]] = []
        for action in decision.actions:
            if isinstance(action, Hold):
                self.holds.setdefault(action.job, action)
            elif isinstance(action, (RequestNodes, ReleaseNodes)):
                if self.pool is None:
                    self.pool = action
                elif self.pool != action:
                    lost.append((action, _CONFLICT))
            elif not isinstance(action, RESIZES):
                if action not in self.others:
                    self.others.append(action)
            elif action.job not in self.acts:
                kept[action.job] = action
            elif self.acts[action.job] != action:
                lost.append((action, _CONFLICT))
        self._fit(kept, lost)
        if decision.whole and lost:
            lost += [(action, _CONFLICT) for action in kept.values()]
            kept = {}
        self.acts.update(kept)
        self.suppressed += [Suppressed(action=action, reason=reason) for action, reason in lost]
        for action, reason in lost:
            if isinstance(action, Start) and action.job not in self.acts:
                self.holds.setdefault(action.job, Hold(job=action.job, reason=reason))

    def _fit(self, kept: dict[str, Resize], lost: list[tuple[Action, Reason]]) -> None:
        """Drop grants of one member that its own shrinks and the idle nodes do not cover."""
        while True:
            freed = sum(self._freed(action) for action in kept.values())
            grants = [action for action in kept.values() if isinstance(action, (Start, Expand))]
            left = self.idle_nodes + freed - sum(a.nodes - self.size[a.job] for a in grants)
            if left >= 0 or not grants:
                break
            drop = grants[-1]
            del kept[drop.job]
            lost.append((drop, Reason(ReasonCode.CONFLICT, "the nodes went to a policy of higher rank")))
            # Shrinks and steals that were to make room for it alone have lost their purpose.
            for action in list(kept.values()):
                if beneficiary(action) == drop.job:
                    del kept[action.job]
                    lost.append((action, Reason(ReasonCode.CONFLICT, f"{drop.job} does not start after all")))
        # In a chain freed nodes are out of the picture; in an arbiter they may not feed another member.
        self.idle_nodes = min(self.idle_nodes, left)

    def _freed(self, action: Resize) -> int:
        """Nodes that the rest of the decision may use."""
        if isinstance(action, Shrink):
            return self.size[action.job] - action.nodes
        return self.size[action.job] if isinstance(action, Steal) and action.timing == "now" else 0

    def decision(self) -> Decision:
        acts: list[Action] = [*self.others, *self.acts.values()]
        acts += [hold for job, hold in self.holds.items() if job not in self.acts]
        if self.pool is not None:
            acts.append(self.pool)
        return Decision(actions=tuple(acts), suppressed=tuple(self.suppressed), whole=self.whole)


_CONFLICT = Reason(ReasonCode.CONFLICT, "a policy of higher rank decided otherwise")
