"""The corridor over a policy that knows nothing of it: what of its decision may be, and what is done instead.

Rules of the file: pure, the same live and simulated. Inside the corridor the arbiter cuts or refuses steps
that lead outside: the sum of watts is bounded on both sides (`guards`), with what the forecast expects
beyond them. For a forecast alone nothing is moved: it trembles, and the policy would move it back. Outside,
nothing of the policy's steps counts, for two that pull different ways would resize for ever: the program's
plan for its present sizes, which comes in the picture, is carried out, the nearest to them of those that
leave the corridor least (`enforced`); while the program fails to answer, steps that lead no further outside
are let through. What the levers do that no policy knows of comes on top (`amended`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dask_hpc_policies.combine.limits import SumGuard, VetoGuard
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Suppressed,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.power.allowed import adds_watts, allowed_w, is_above, is_below, why_narrower
from dask_hpc_policies.power.question import Terms, drawn_w, expected_w, outside_w, question
from dask_hpc_policies.power.unexplained import unexplained
from dask_hpc_policies.power.view import PowerPlan, PowerView, fits, seen
from dask_hpc_policies.power.watts import node_w
from dask_hpc_policies.rules.power_theft import theft

#: Names of the guards.
LOWER, UPPER, ABOVE = "corridor, lower bound", "corridor, upper bound", "corridor, draw above the upper bound"
_TERMS = Terms()


def guards(view: ClusterSnapshot) -> tuple[SumGuard | VetoGuard, ...]:
    """Guards that keep a decision about `view` inside; none where the corridor is not enforced, or left."""
    return guards_of(view, seen(view))


def guards_of(view: ClusterSnapshot, power: PowerView | None) -> tuple[SumGuard | VetoGuard, ...]:
    """The same, where what `view` says of power has been read."""
    if power is None or power.mode != "enforce" or not power.bounded:
        return ()
    if outside_w(power, _TERMS) > 0 and not power.unsolved:
        return ()
    held = sum([job.nodes for job in view.jobs if not job.is_default])
    base_w = power.base_w + (view.idle_nodes + held) * power.idle_w
    known_w = drawn_w(view, power)
    least_w, most_w = _foreseen_w(view, power, known_w)
    lower_w, upper_w = allowed_w(power, 0.0, (least_w, most_w))
    note = why_narrower(power, 0.0) if (lower_w, upper_w) != (power.lower_w, power.upper_w) else ""
    if (least_w, most_w) != known_w:
        note += f"{'; ' * bool(note)}with what is forecast beyond what is known"

    def more_w(which: int) -> Any:
        def cost(job: JobView, nodes: int) -> float:
            if job.is_default:
                # what plain work draws on idle nodes is in the base
                return 0.0
            if job.state == "pending" and not power.may("hold"):
                # nobody is refused a start: what leads outside is mended afterwards
                return 0.0
            return nodes * (node_w(job, nodes, power.busy_w)[which] - power.idle_w)

        return cost

    low_w, high_w = (
        base_w + steady_w + reach_w - now_w
        for steady_w, reach_w, now_w in zip(power.unexplained_w, (least_w, most_w), known_w, strict=True)
    )
    fixed: dict[str, Any] = {"rank": "corridor", "unit": "W", "note": note}
    sums = (
        SumGuard(name=LOWER, cost=more_w(0), base=low_w, lower=lower_w, in_end=is_below(power, 0.0), **fixed),
        SumGuard(name=UPPER, cost=more_w(1), base=high_w, upper=upper_w, **fixed),
    )
    return (*sums, _nothing_more(power)) if is_above(power, 0.0) else sums


def _foreseen_w(
    view: ClusterSnapshot, power: PowerView, known_w: tuple[float, float]
) -> tuple[float, float]:
    """Least and most watts at the present sizes, with the forecast as `power-aware` has it.

    It reaches whole fiftieths beyond what is known: it trembles, and each reason that differs is told.
    """
    if power.forecast_w is None:
        return known_w
    least_w, most_w = power.forecast_w
    foreseen_w = expected_w(view, replace(power, min_w=least_w, max_w=most_w), _TERMS)
    step_w = known_w[1] / 50 or 1.0
    low_w, high_w = (
        known + step_w * int((reach - known) / step_w)
        for known, reach in zip(known_w, foreseen_w, strict=True)
    )
    return low_w, high_w


def _nothing_more(power: PowerView) -> VetoGuard:
    """Nobody grows, and nobody starts who draws more than idle nodes, also not in place of another one."""

    def refuses(view: ClusterSnapshot, action: Action, sizes: Mapping[str, int]) -> Reason | None:
        if isinstance(action, Start):
            job = next((job for job in view.jobs if job.id == action.job), None)
            if job is None or not power.may("hold") or not adds_watts(job, power):
                return None
        elif not isinstance(action, Expand):
            return None
        text = f"the draw is {power.draw_w:g} W, allowed are {power.span}: "
        data = {"draw_w": power.draw_w, "lower_w": power.lower_w, "upper_w": power.upper_w}
        return Reason(ReasonCode.CORRIDOR, text + "until it has fallen nothing is added to it", data)

    return VetoGuard(name=ABOVE, rank="corridor", refuses=refuses)


def amended(view: ClusterSnapshot, decision: Decision, power: PowerView | None = None) -> Decision:
    """`enforced`, and the theft that leads inside where the decision resizes nobody (lever ``steal``).

    Parameters
    ----------
    power
        What `view` says of power, where that has been read.
    """
    power = seen(view) if power is None else power
    if power is None:
        return decision
    decision = enforced(view, decision, power)
    if any(isinstance(action, RESIZES) for action in decision.actions):
        return decision
    found, refused = theft(view, power)
    starting = {action.job for action in found}
    kept = [one for one in decision.actions if not (isinstance(one, Hold) and one.job in starting)]
    return replace(decision, actions=(*kept, *found), suppressed=(*decision.suppressed, *refused))


def enforced(view: ClusterSnapshot, decision: Decision, power: PowerView | None = None) -> Decision:
    """`decision`, or, where the draw is outside, the steps of the plan in place of its resizes."""
    power = seen(view) if power is None else power
    if power is None or power.mode != "enforce" or not outside_w(power, _TERMS):
        return decision
    if power.unsolved:
        # guards hold it to what leads no further outside
        return decision
    plan = power.plan if fits(view, power) else None
    steps = {} if plan is None else {step.job: step for step in _steps(view, power, plan)}
    why = _why(power, plan, plan is None and not view.adapting and question(view, power, _TERMS) is None)
    kept: list[Action] = []
    suppressed = list(decision.suppressed)
    for action in decision.actions:
        if isinstance(action, RESIZES):
            if steps.get(action.job) == action:
                continue
            if not power.may("hold" if isinstance(action, Start) else "resize"):
                kept.append(action)
                continue
            suppressed.append(Suppressed(action=action, reason=why))
            if isinstance(action, Start) and action.job not in steps:
                kept.append(Hold(job=action.job, reason=why))
        elif not isinstance(action, Hold) or action.job not in steps:
            kept.append(action)
    return replace(decision, actions=(*kept, *steps.values()), suppressed=tuple(suppressed))


def _steps(view: ClusterSnapshot, power: PowerView, plan: PowerPlan) -> list[Start | Expand | Shrink]:
    """What leads from the present sizes to those of the plan."""
    found: list[Start | Expand | Shrink] = []
    for job in view.running:
        size = plan.nodes.get(job.id, job.nodes)
        if size != job.nodes:
            kind = Expand if size > job.nodes else Shrink
            found.append(kind(job=job.id, nodes=size, reason=_why(power, plan)))
    found += [Start(job=id, nodes=plan.nodes[id], reason=_why(power, plan)) for id in plan.start]
    return found


def _why(power: PowerView, plan: PowerPlan | None, unasked: bool = False) -> Reason:
    """The watts, and what could be done about them; `unasked`: there is nothing to plan."""
    draw = "not measured" if power.draw_w is None else f"{power.draw_w:g} W{unexplained(power)}"
    text = f"the draw is {draw}, allowed are {power.span}: "
    if unasked:
        text += "no job that runs can be resized, and until the draw has fallen nothing is added to it"
    elif plan is None:
        text += "nothing is resized or started before there is a plan for the present sizes"
    else:
        text += plan.reason or "the nearest sizes that are inside"
    data = {"draw_w": power.draw_w, "lower_w": power.lower_w, "upper_w": power.upper_w}
    return Reason(ReasonCode.CORRIDOR, text, data)
