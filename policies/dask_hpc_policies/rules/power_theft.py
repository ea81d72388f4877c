"""A waiting job takes the nodes of a malleable one where no sizes are inside the corridor (lever ``steal``).

John (2024, section 5.2) resizes alone: a job never has fewer nodes than its minimum. Where the draw stays
outside for that reason, a job that runs is set aside for one that waits and with which the draw is inside.

Rules of the file: pure, the same live and simulated. It is done only if it leads inside, so that two jobs do
not take turns. Under a policy that keeps the corridor by itself a victim that writes checkpoints has one
first; under others the waiting job starts with the theft: they might never have it overtake.
"""

from __future__ import annotations

from dask_hpc_policies.decision import Reason, ReasonCode, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.power.question import drawn_w
from dask_hpc_policies.power.view import PowerView, fits
from dask_hpc_policies.power.watts import node_w
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.wording import counted


def theft(view: ClusterSnapshot, power: PowerView) -> tuple[Steal] | tuple[Steal, Start] | tuple[()]:
    """The theft that leads inside, if the plan for the present sizes is to do nothing and stays outside.

    Of several the one whose victim has the fewest nodes; of waiting jobs the first one.
    """
    plan = power.plan
    if not (power.acts and power.bounded and power.may("steal")) or view.adapting:
        return ()
    if plan is None or not plan.violation_w or plan.start or not fits(view, power):
        return ()
    if any(plan.nodes.get(job.id, job.nodes) != job.nodes for job in view.running):
        return ()
    victims = sorted((job for job in view.running if job.kind == "malleable"), key=lambda job: job.nodes)
    for thief in (job for job in view.pending if not job.is_default):
        need = needed_nodes(thief)
        for victim in victims:
            if need is None or not view.idle_nodes < need <= view.idle_nodes + victim.nodes:
                continue
            if (range_w := _after(view, power, victim, thief, need)) is not None:
                found = _steal(power, victim, thief, need - view.idle_nodes, range_w)
                if power.mode == "policy":
                    return (found,)
                return found, Start(job=thief.id, nodes=need, reason=found.reason)
    return ()


def _after(
    view: ClusterSnapshot, power: PowerView, victim: JobView, thief: JobView, need: int
) -> tuple[float, float] | None:
    """Least and most watts with the thief in place of the victim; None: they are outside."""
    assert power.lower_w is not None
    assert power.upper_w is not None
    loses, gets = (
        node_w(victim, victim.nodes, power.busy_w),
        node_w(thief, need, power.busy_w),
    )
    low_w, high_w = (
        now_w - victim.nodes * (old_w - power.idle_w) + need * (new_w - power.idle_w)
        for now_w, old_w, new_w in zip(drawn_w(view, power), loses, gets, strict=True)
    )
    return (low_w, high_w) if power.lower_w <= low_w and high_w <= power.upper_w else None


def _steal(
    power: PowerView, victim: JobView, thief: JobView, lacking: int, range_w: tuple[float, float]
) -> Steal:
    assert power.plan is not None
    text = (
        f"{thief.id} lacks {counted(lacking)}: with it in place of {victim.id} the draw is {range_w[0]:g} to "
        f"{range_w[1]:g} W, allowed are {power.lower_w:g} to {power.upper_w:g} W; no sizes of those that run "
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
