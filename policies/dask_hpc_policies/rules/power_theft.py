"""A waiting job takes the nodes of a malleable one where no sizes are inside the corridor (lever ``steal``).

John (2024, section 5.2) resizes alone: a job never has fewer nodes than its minimum. Where the draw stays
outside for that reason, a job that runs is set aside for one that waits and with which the draw is inside.

Rules of the file: pure, the same live and simulated. It is done only if it leads inside, so that two jobs do
not take turns: by what is known of the jobs, and while the draw is above the upper bound by the draw itself,
too, for no other start leads above it either. Under a policy that keeps the corridor by itself a victim that
writes checkpoints has one first; under others the waiting job starts with the theft: they might never have it
overtake.
"""

from __future__ import annotations

from dask_hpc_policies.decision import Reason, ReasonCode, Start, Steal, Suppressed
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.power.allowed import adds_watts, is_above
from dask_hpc_policies.power.question import drawn_w, tried
from dask_hpc_policies.power.view import PowerView, fits
from dask_hpc_policies.power.watts import node_w
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.wording import counted


def theft(
    view: ClusterSnapshot, power: PowerView
) -> tuple[tuple[Steal] | tuple[Steal, Start] | tuple[()], tuple[Suppressed, ...]]:
    """The theft that leads inside, if the plan for the present sizes is to do nothing and stays outside.

    Of several the one whose victim has the fewest nodes; of waiting jobs the first one of those `tried`.
    Where there is none, the first one that is refused for the draw alone, with the reason.
    """
    plan = power.plan
    if not (power.acts and power.bounded and power.may("steal")) or view.adapting:
        return (), ()
    if plan is None or not plan.violation_w or plan.start or not fits(view, power):
        return (), ()
    if plan.status == "time-limit":
        # that no sizes are inside was not shown
        return (), ()
    if any(plan.nodes.get(job.id, job.nodes) != job.nodes for job in view.running):
        return (), ()
    victims = sorted((job for job in view.running if job.kind == "malleable"), key=lambda job: job.nodes)
    refused: tuple[Suppressed, ...] = ()
    now_w = drawn_w(view, power)
    most = view.idle_nodes + max([job.nodes for job in victims], default=0)
    needs = {job.id: needed_nodes(job) or 0 for job in view.pending if not job.is_default}
    thieves = [job for job in view.pending if view.idle_nodes < needs.get(job.id, 0) <= most]
    for thief in tried(thieves, bool(victims)):
        need = needs[thief.id]
        for victim in victims:
            if need > view.idle_nodes + victim.nodes:
                continue
            if (range_w := _after(power, now_w, victim, thief, need)) is None:
                continue
            found = _steal(power, victim, thief, need - view.idle_nodes, range_w)
            if (why := _still_above(power, victim, thief, need)) is not None:
                refused = refused or (Suppressed(action=found, reason=why),)
                continue
            if power.mode == "policy":
                return (found,), ()
            return (found, Start(job=thief.id, nodes=need, reason=found.reason)), ()
    return (), refused


def _after(
    power: PowerView, now_w: tuple[float, float], victim: JobView, thief: JobView, need: int
) -> tuple[float, float] | None:
    """Least and most watts with the thief in place of the victim, of `now_w`; None: they are outside."""
    assert power.lower_w is not None
    assert power.upper_w is not None
    loses, gets = (
        node_w(victim, victim.nodes, power.busy_w),
        node_w(thief, need, power.busy_w),
    )
    low_w, high_w = (
        watts - victim.nodes * (old_w - power.idle_w) + need * (new_w - power.idle_w)
        for watts, old_w, new_w in zip(now_w, loses, gets, strict=True)
    )
    return (low_w, high_w) if power.lower_w <= low_w and high_w <= power.upper_w else None


def _still_above(power: PowerView, victim: JobView, thief: JobView, need: int) -> Reason | None:
    """Why nothing starts in place of another one while the draw is above the upper bound; None: it may.

    What the draw has beyond what is known of the jobs stays, and the victim takes along the least that it is
    known to draw.
    """
    if not is_above(power, 0.0) or not adds_watts(thief, power):
        return None
    assert power.draw_w is not None
    assert power.upper_w is not None
    goes_w = victim.nodes * (node_w(victim, victim.nodes, power.busy_w)[0] - power.idle_w)
    comes_w = need * (node_w(thief, need, power.busy_w)[1] - power.idle_w)
    left_w = power.draw_w - goes_w + comes_w
    if left_w <= power.upper_w:
        return None
    text = (
        f"the draw is {power.draw_w:g} W, and would be {left_w:g} W with {thief.id} in place of {victim.id}; "
        f"allowed are {power.span}"
    )
    data = {"draw_w": power.draw_w, "left_w": left_w, "lower_w": power.lower_w, "upper_w": power.upper_w}
    return Reason(ReasonCode.CORRIDOR, text, data)


def _steal(
    power: PowerView, victim: JobView, thief: JobView, lacking: int, range_w: tuple[float, float]
) -> Steal:
    assert power.plan is not None
    text = (
        f"{thief.id} lacks {counted(lacking)}: with it in place of {victim.id} the draw is {range_w[0]:g} to "
        f"{range_w[1]:g} W, allowed are {power.span}; no sizes of those that run "
        f"are nearer than {power.plan.violation_w:g} W"
    )
    data = {
        "thief": thief.id, "stolen_nodes": lacking, "min_w": range_w[0], "max_w": range_w[1],
        "lower_w": power.lower_w, "upper_w": power.upper_w,
    }  # fmt: skip
    return Steal(
        job=victim.id,
        thief=thief.id,
        stolen_nodes=lacking,
        timing="proactive-checkpoint" if power.mode == "policy" else "now",
        reason=Reason(ReasonCode.CORRIDOR, text, data),
    )
