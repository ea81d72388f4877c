"""Coupled runs are split anew when what was measured has drifted and another split is worth it.

Rules of the file: a flow is planned when an analysis has no place yet, or a number that its plan depends on
has left what it was when it was judged last, by more than noise. It is split anew when its step is to be
shorter by more than a margin, or fewer staging nodes are enough, and its last change lies some steps back.
Going back to the split that was left last takes twice as many: a machine on which measurements depend on the
split is not to swing between two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from dask_hpc_policies.decision import Place, Reason, ReasonCode, Suppressed
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Float, Int
from dask_hpc_policies.placement.replan import (
    application_of,
    best_split,
    drift,
    is_quick,
    known,
    lean,
    outside_plan,
    phases,
)
from dask_hpc_policies.placement.view import FlowView, Split, seen
from dask_hpc_policies.rules.placing import misfit
from dask_hpc_policies.wording import counted

PARAMETERS = (
    Float("margin", 0.05, lo=0.0, hi=1.0, label="Margin",
          help="a flow is split anew when its step is to be shorter by more than this share"),
    Float("noise", 0.1, lo=0.0, hi=10.0, label="Noise",
          help="share by which a measured time or size may change without being looked at; of times at least "
          "twice the spread of their samples"),
    Int("cooldown_steps", 10, lo=0, hi=1_000_000, unit="steps", label="Steps between changes",
        help="steps of a flow from one change of its split to the next"),
)  # fmt: skip
#: Times that the wait is doubled at most.
_DOUBLED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is remembered of a flow."""

    #: The numbers with which it was judged last; see `replan.known`.
    judged: Mapping[str, float] = field(default_factory=dict)
    #: Steps that it had when it was split anew, and has to have then before the next time; None: it was not.
    changed: int | None = None
    next_change: int = 0
    #: The split that it left then.
    left: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What is remembered of the size of a flow's simulation; see `program_sizes`."""

    #: The numbers with which it was judged last; empty: it was not since its last resize.
    judged: Mapping[str, float] = field(default_factory=dict)
    #: As in `Past`.
    changed: int | None = None
    next_change: int = 0
    #: Steps of its simulation that were measured then.
    samples: int = 0
    #: Nodes that its job was given last, those that it had before, and those that it had before it grew.
    nodes: int | None = None
    left: int | None = None
    own: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementState:
    """What the policy remembers, by flow."""

    flows: Mapping[str, Past] = field(default_factory=dict)
    sizes: Mapping[str, Sized] = field(default_factory=dict)


@dataclass(slots=True)
class _Answer:
    """What is to be done about one flow."""

    past: Past
    places: tuple[Place, ...] = ()
    refused: tuple[Suppressed, ...] = ()


def placements(
    view: ClusterSnapshot, state: PlacementState, params: Mapping[str, Any]
) -> tuple[tuple[Place, ...], tuple[Suppressed, ...], PlacementState]:
    """Places for the analyses of all flows, what was considered and turned down, and the next state."""
    flows, places, refused = {}, list[Place](), list[Suppressed]()
    for name, flow in seen(view).items():
        past = state.flows.get(name, Past())
        if past.changed is not None and flow.steps < past.changed:
            past = Past()  # it has begun anew
        answer = _Answer(past)
        if not flow.changing and flow.analyses:
            answer = _judged(name, flow, past, params)
        flows[name] = answer.past
        places += answer.places
        refused += answer.refused
    return tuple(places), tuple(refused), replace(state, flows=flows)


def _judged(name: str, flow: FlowView, past: Past, params: Mapping[str, Any]) -> _Answer:
    first = any(one.where == "auto" for one in flow.analyses)
    now = known(flow)
    drifted = dict(drift(flow, past.judged, now, params["noise"]))
    application = application_of(flow)
    if application is None or not (first or drifted):
        return _Answer(past)
    if is_quick(application):
        best = best_split(application, flow)
    elif (plan := outside_plan(flow, params["noise"])) is not None:
        best = plan.split
    else:
        return _Answer(past)
    present, judged = flow.present, replace(past, judged=now)
    fits = not first and misfit(flow, present) is None
    if best is None:
        text = "no split fits the memory of the nodes, or what is said of where analyses run; take more nodes"
        reason = Reason(ReasonCode.NOT_ENOUGH_NODES, text)
        return _Answer(judged, refused=_turned_down(name, flow, present, reason))
    if best == present:
        return _Answer(judged)
    step_s = phases(application, flow, best).step_s(flow.mode)
    present_s = phases(application, flow, present).step_s(flow.mode) if fits else None
    data = _figures(flow, best, step_s, present_s, drifted)
    if first:
        text = f"a step is to take {step_s:.3g} s: {_shown(best)}"
        reason = Reason(ReasonCode.FIRST_PLACE, text, data)
        return _Answer(judged, places=_placed(name, flow, best, reason))
    gain = inf if present_s is None else 1 - step_s / present_s
    before = "does not fit any more" if present_s is None else f"takes {present_s:.3g} s"
    text = f"a step is to take {step_s:.3g} s ({_shown(best)}); with the present split it {before}"
    code = ReasonCode.SHORTER_STEP
    if gain <= params["margin"] and (fewer := lean(application, flow, present)) != present:
        best, code, data = fewer, ReasonCode.NO_DEMAND, _figures(flow, fewer, step_s, present_s, drifted)
        text = f"a step takes no longer than {present_s:.3g} s with fewer nodes: {_shown(best)}"
    elif gain <= params["margin"]:
        text = f"{text}: {gain:.1%} less is not above the margin, {params['margin']:.1%}"
        reason = Reason(ReasonCode.HYSTERESIS, text, data)
        return _Answer(judged, refused=_turned_down(name, flow, best, reason))
    if flow.steps < past.next_change:
        text = (
            f"{text}; the split was changed at step {past.changed}, not again before step {past.next_change}"
        )
        reason = Reason(ReasonCode.COOLDOWN, text, data)
        return _Answer(past, refused=_turned_down(name, flow, best, reason))
    changes = [f"{key} is {ratio:.3g} times what it was" for key, ratio in drifted.items() if ratio]
    reason = Reason(code, "; ".join([text, *changes]), data)
    after = replace(
        judged,
        changed=flow.steps,
        next_change=flow.steps + wait_steps(past, best == past.left, params["cooldown_steps"]),
        left=present,
    )
    return _Answer(after, places=_placed(name, flow, best, reason))


def wait_steps(past: Past | Sized, back: bool, cooldown: int) -> int:
    """Steps from a change until the next; going back to what was left last takes twice as many as before."""
    if not back or past.changed is None:
        return cooldown
    return min(2 * (past.next_change - past.changed), cooldown << _DOUBLED)


def _figures(
    flow: FlowView,
    best: Split,
    step_s: float,
    present_s: float | None,
    drifted: Mapping[str, float | None],
) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "present_step_s": present_s,
        "measured_step_s": None if flow.measured is None else flow.measured.step_s,
        "in_situ": list(best.in_situ),
        "nodes": best.nodes,
        "helper_cores": best.helper_cores,
        # as before there were any to give back
        **({} if best.staging_nodes is None else {"staging_nodes": best.staging_nodes}),
        "drifted": dict(drifted),
    }


def _shown(split: Split) -> str:
    inside, outside = (", ".join(names) or "nothing" for names in (split.in_situ, split.in_transit))
    on = f"{counted(split.nodes)}, {counted(split.helper_cores, 'helper core')}"
    if split.staging_nodes is not None:
        on += f", {counted(split.staging_nodes, 'staging node')}"
    return f"{inside} in situ, {outside} in transit, {on}"


def _placed(name: str, flow: FlowView, split: Split, reason: Reason) -> tuple[Place, ...]:
    """A place for every analysis of the flow that the split says something of."""
    inside = partial(Place, where="in-situ", nodes=split.nodes, cores=split.helper_cores)
    staging = split.staging(flow.platform.nodes)
    outside = partial(Place, where="in-transit", nodes=staging, cores=flow.platform.cores)
    return tuple(
        [
            (inside if one.name in split.in_situ else outside)(flow=name, analysis=one.name, reason=reason)
            for one in flow.analyses
            if one.name in (*split.in_situ, *split.in_transit)
        ]
    )


def _turned_down(name: str, flow: FlowView, split: Split, reason: Reason) -> tuple[Suppressed, ...]:
    return tuple([Suppressed(action=one, reason=reason) for one in _placed(name, flow, split, reason)])
