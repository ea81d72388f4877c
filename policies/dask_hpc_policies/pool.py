"""How many nodes the pool should have: it grows at once, and keeps what it has for a while.

Rules of the file: the pool is as large as what is asked for now, and gives up nothing that was asked for
within the *hold*, or has come within it. The hold follows what a node costs to get, as whoever rents skis
buys them when the rent has come to the price: keeping an idle node for a small multiple of the time that it
takes to come back costs a small multiple of the best that one who knew the future could do (Karlin et al.,
Competitive Snoopy Caching, Algorithmica 3, 1988). `hold_s` sets it instead; but a node is never let go
sooner than nodes have taken to come: to let one go that takes ten minutes to come back pays only when nobody
needs it for ten minutes. From this one rule follow

* hysteresis by direction: growing waits for nothing, shrinking for the end of the hold;
* immunity of what is pending: a request that has not come yet is not withdrawn because demand dipped;
* residency: a node that has come stays for a hold at least, whatever has become of its request.

Nodes on their way out do not count, so others come for them while they still leave. Bounds are hard: a
maximum below the size takes effect at once. All numbers are nodes (workers, where a worker is a node).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.ranges import HOLD_MULTIPLE, MOST_HOLD_S
from dask_hpc_policies.wording import counted

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
    #: Ids of nodes that were asked for and have not come; None when that is not known.
    pending: frozenset[str] | None = frozenset()
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
        return len(self.there) + len(self.pending or ())

    def bounded(self, nodes: int) -> int:
        """`nodes` within the bounds; the minimum wins where they cross, as in Dask."""
        high = nodes if self.maximum_nodes is None else min(nodes, self.maximum_nodes)
        return max(self.minimum_nodes, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What is remembered from look to look; times are on the view's clock."""

    #: When pending nodes were asked for, by id: first seen, where somebody else has asked.
    asked_s: Mapping[str, float] = field(default_factory=dict)
    #: When the latest look was, if it asked for nodes; None: it did not.
    asking_s: float | None = None
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
    #: How long nodes have been kept that are superfluous now.
    hold_s: float
    reason: Reason


def within(view: PoolView, least: int, most: int, enough: int | None = None, again: int = 0) -> PoolView:
    """`view` with the bounds that somebody else leaves the pool; those that it has come first.

    Parameters
    ----------
    least, most
        Bounds, which take effect at once.
    enough
        More are not asked for; what is there or was asked for is held for its time. None: no limit.
    again
        So many are asked for at least, within the bounds.
    """
    most = max(view.minimum_nodes, most)
    maximum = most if view.maximum_nodes is None else min(view.maximum_nodes, most)
    minimum = min(max(view.minimum_nodes, least), max(view.minimum_nodes, maximum))
    demand = max(view.demand_nodes, again)
    if enough is not None:
        demand = min(demand, enough)
    return replace(view, demand_nodes=demand, minimum_nodes=minimum, maximum_nodes=maximum)


def decide(view: PoolView, state: PoolState, params: Mapping[str, Any]) -> tuple[PoolDecision, PoolState]:
    """The size for `view`, and what to remember. `params` holds the values of `PARAMETERS`."""
    state = _remember(view, state)
    hold_s, why = _hold(params["hold_s"], state)
    peaks = tuple((t_s, nodes) for t_s, nodes in state.peaks if view.now_s - t_s < hold_s)
    # an empty window, with a hold of 0, remembers nothing but now
    held = max(view.demand_nodes, peaks[0][1] if peaks else 0)
    young = frozenset(id for id in view.there if view.now_s - state.came_s[id] < hold_s)
    wanted = view.bounded(view.demand_nodes)
    nodes = wanted
    if wanted < view.nodes:
        # what was asked for a while ago is kept, but not asked for anew
        nodes = view.bounded(min(view.nodes, max(held, len(young))))
    stay = young if len(young) <= nodes else frozenset()
    # who does not tell what is pending cannot be seen to be heeded, either
    asking_s = view.now_s if nodes > view.nodes and view.pending is not None else None
    reason = _reason(view, nodes, wanted, hold_s, why)
    decision = PoolDecision(nodes=nodes, stay=stay, hold_s=hold_s, reason=reason)
    return decision, replace(state, peaks=peaks, asking_s=asking_s)


def _hold(given_s: float | None, state: PoolState) -> tuple[float, str]:
    """The hold in seconds, and where it comes from in words."""
    took_s = state.startup_s
    if given_s is not None:
        return max(given_s, took_s), "hpc.pool.hold"
    if not state.waits_s:
        return MOST_HOLD_S, "hpc.pool.hold: auto, and none has been seen to come"
    text = f"hpc.pool.hold: auto, and they have taken {round(took_s, 1):g} s to come"
    return max(took_s, min(HOLD_MULTIPLE * took_s, MOST_HOLD_S)), text


def _remember(view: PoolView, state: PoolState) -> PoolState:
    now_s = view.now_s
    known = state.came_s
    pending = view.pending or frozenset()
    asked = dict(state.asked_s)
    if state.asking_s is not None:
        # what is new is what the latest look asked for; it may have come already
        asked.update(dict.fromkeys((view.there | pending) - set(known) - set(asked), state.asking_s))
    waits = (*state.waits_s, *(now_s - asked[id] for id in sorted(view.there) if id in asked))
    # what is there at the first look was wanted by somebody
    seen = max(view.demand_nodes, 0 if state.peaks else view.nodes)
    return PoolState(
        asked_s={id: asked.get(id, now_s) for id in pending},
        came_s={id: known.get(id, now_s) for id in view.there | view.leaving},
        waits_s=waits[-_WAITS:],
        peaks=(*((t_s, nodes) for t_s, nodes in state.peaks if nodes > seen), (now_s, seen)),
    )


def _reason(view: PoolView, nodes: int, wanted: int, hold_s: float, why: str) -> Reason:
    data = {
        "demand_nodes": view.demand_nodes, "pool_nodes": view.nodes, "pending_nodes": len(view.pending or ()),
        "target_nodes": nodes, "hold_s": hold_s,
    }  # fmt: skip
    asked = f"{counted(view.demand_nodes, view.unit)} asked for"
    if view.demand_nodes != wanted:
        asked += f", {wanted} within the bounds"
    if nodes > view.nodes:
        return Reason(ReasonCode.DEMAND, f"{asked}, there are {view.nodes}", data)
    if nodes == view.nodes and wanted == nodes:
        return Reason(ReasonCode.DEMAND, f"{asked}, as many as there are", data)
    kept = f"kept for {round(hold_s, 1):g} s after they were needed or came ({why})"
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
