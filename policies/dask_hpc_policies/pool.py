"""How many nodes the pool should have: it grows at once, and keeps what it has for a while.

Rules of the file: the pool is as large as what is asked for now, and gives up nothing that was asked for
within the *hold*, or has come within it. The hold is `hold_s`, or as long as nodes have taken to come when
that is longer: to let a node go that takes ten minutes to come back pays only when nobody needs it for ten
minutes. From this one rule follow

* hysteresis by direction: growing waits for nothing, shrinking for the end of the hold;
* immunity of what is pending: a request that has not come yet is not withdrawn because demand dipped;
* residency: a node that has come stays for a hold at least, whatever has become of its request.

Nodes on their way out do not count, so others come for them while they still leave. Bounds are hard: a
maximum below the size takes effect at once. All numbers are nodes (workers, where a worker is a node).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.params import Duration, Parameter
from dask_hpc_policies.wording import counted

#: How long nodes are kept; the one parameter.
HOLD = Duration("hold_s", 60.0, hi=86400.0, label="Hold",
                help="how long nodes are kept after they were last needed, or have come")  # fmt: skip
PARAMETERS: tuple[Parameter, ...] = (HOLD,)

#: So many of the latest waits for a node are remembered.
_WAITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """The pool at one moment. No node is in two of `there`, `pending` and `leaving`."""

    #: Seconds on a clock that never goes back.
    now_s: float
    #: Nodes that the work at hand asks for.
    demand_nodes: int
    #: Ids of nodes that are connected and stay.
    there: frozenset[str] = frozenset()
    #: Ids of nodes that were asked for and have not come.
    pending: frozenset[str] = frozenset()
    #: Ids of nodes on their way out.
    leaving: frozenset[str] = frozenset()
    minimum_nodes: int = 0
    #: None: no limit.
    maximum_nodes: int | None = None
    #: What is counted, for the reason.
    unit: str = "node"

    @property
    def nodes(self) -> int:
        """Nodes that there are or will be when nothing is done."""
        return len(self.there) + len(self.pending)

    def bounded(self, nodes: int) -> int:
        """`nodes` within the bounds; the minimum wins where they cross, as in Dask."""
        high = nodes if self.maximum_nodes is None else min(nodes, self.maximum_nodes)
        return max(self.minimum_nodes, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What is remembered from look to look; times are on the view's clock."""

    #: When pending nodes were first seen, by id.
    asked_s: Mapping[str, float] = field(default_factory=dict)
    #: When nodes that are there or leave had come, by id.
    came_s: Mapping[str, float] = field(default_factory=dict)
    #: How long the latest nodes have taken to come, oldest first.
    waits_s: tuple[float, ...] = ()
    #: Latest times and demands that later ones have not exceeded: demands fall from first to last.
    peaks: tuple[tuple[float, int], ...] = ()

    @property
    def startup_s(self) -> float:
        """How long a node takes to come: the median of the latest; 0 when none has been seen to come."""
        return sorted(self.waits_s)[(len(self.waits_s) - 1) // 2] if self.waits_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """The size that the pool should have, and why."""

    nodes: int
    #: Ids of nodes that have just come: others go first.
    stay: frozenset[str]
    reason: Reason


def decide(view: PoolView, state: PoolState, params: Mapping[str, Any]) -> tuple[PoolDecision, PoolState]:
    """The size for `view`, and what to remember. `params` holds the values of `PARAMETERS`."""
    state = _remember(view, state)
    hold_s = max(params["hold_s"], state.startup_s)
    peaks = tuple((t_s, nodes) for t_s, nodes in state.peaks if view.now_s - t_s < hold_s)
    state = PoolState(asked_s=state.asked_s, came_s=state.came_s, waits_s=state.waits_s, peaks=peaks)
    # an empty window, with a hold of 0, remembers nothing but now
    held = max(view.demand_nodes, peaks[0][1] if peaks else 0)
    young = frozenset(id for id in view.there if view.now_s - state.came_s[id] < hold_s)
    wanted = view.bounded(view.demand_nodes)
    nodes = wanted
    if wanted < view.nodes:
        # what was asked for a while ago is kept, but not asked for anew
        nodes = view.bounded(min(view.nodes, max(held, len(young))))
    stay = young if len(young) <= nodes else frozenset()
    return PoolDecision(nodes=nodes, stay=stay, reason=_reason(view, nodes, wanted, hold_s)), state


def _remember(view: PoolView, state: PoolState) -> PoolState:
    now_s = view.now_s
    known = state.came_s
    waits = (*state.waits_s, *(now_s - state.asked_s[id] for id in view.there if id in state.asked_s))
    # what is there at the first look was wanted by somebody
    seen = max(view.demand_nodes, 0 if state.peaks else view.nodes)
    return PoolState(
        asked_s={id: state.asked_s.get(id, now_s) for id in view.pending},
        came_s={id: known.get(id, now_s) for id in view.there | view.leaving},
        waits_s=waits[-_WAITS:],
        peaks=(*((t_s, nodes) for t_s, nodes in state.peaks if nodes > seen), (now_s, seen)),
    )


def _reason(view: PoolView, nodes: int, wanted: int, hold_s: float) -> Reason:
    data = {
        "demand_nodes": view.demand_nodes, "pool_nodes": view.nodes, "pending_nodes": len(view.pending),
        "target_nodes": nodes, "hold_s": hold_s,
    }  # fmt: skip
    asked = f"{counted(view.demand_nodes, view.unit)} asked for"
    if view.demand_nodes != wanted:
        asked += f", {wanted} within the bounds"
    if nodes > view.nodes:
        return Reason(ReasonCode.DEMAND, f"{asked}, there are {view.nodes}", data)
    if nodes == view.nodes and wanted == nodes:
        return Reason(ReasonCode.DEMAND, f"{asked}, as many as there are", data)
    kept = f"kept for {hold_s:g} s after they were needed or came (hpc.pool.hold)"
    if nodes == view.nodes:
        return Reason(ReasonCode.HYSTERESIS, f"{asked}; all {view.nodes} are {kept}", data)
    if nodes == view.maximum_nodes:
        text = f"from {counted(view.nodes, view.unit)} to the maximum of {nodes}"
        return Reason(ReasonCode.CLAMPED, text, data)
    text = f"{asked}; from {counted(view.nodes, view.unit)} to {nodes}: the others were {kept}"
    if view.pending:
        withdrawn = min(len(view.pending), view.nodes - nodes)
        text += f"; {counted(withdrawn, view.unit)} that had not come are not waited for any more"
    return Reason(ReasonCode.NO_DEMAND, text, data)
