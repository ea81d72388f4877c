"""How far steps may lead what jobs are said to draw, while what is drawn is itself outside the corridor.

Rules of the file: pure, and asked by all that start or resize: the program's question, the policy, the
guards over other policies. What is measured outside where jobs are said to be inside is somebody's of whom
not enough is known: nothing is moved for it, but nothing is added to it either.
"""

from __future__ import annotations

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.power.checks import slack_w
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.power.watts import node_w


def allowed_w(power: PowerView, margin_w: float, now_w: tuple[float, float]) -> tuple[float, float]:
    """Least and most watts that jobs may be said to draw after a step; within the bounds less the margin.

    While the draw is above the upper bound no step leads up, also not one that the lower bound asks for;
    while it is below the lower one what jobs are said to draw does not fall, but for what the upper one asks
    for: jobs that do nothing now draw more once they do.

    Parameters
    ----------
    margin_w
        What is kept of both bounds.
    now_w
        Least and most watts at the present sizes, by what is known of the jobs.
    """
    assert power.lower_w is not None
    assert power.upper_w is not None
    low_w, high_w = power.lower_w + margin_w, power.upper_w - margin_w
    if power.draw_w is None:
        return low_w, high_w
    if is_above(power, margin_w):
        return min(low_w, now_w[0]), min(high_w, now_w[1])
    if is_below(power, margin_w) and now_w[1] <= high_w:
        # else the upper one asks for less, and nothing between is as narrow as what jobs may draw
        return min(high_w, max(low_w, now_w[0])), high_w
    return low_w, high_w


def is_above(power: PowerView, margin_w: float) -> bool:
    """Whether the draw is above the upper bound less the margin: then nobody grows, whatever jobs say.

    Not even in place of another one: whose draw it is that is too much is not known.
    """
    if power.draw_w is None or power.upper_w is None:
        return False
    return power.draw_w > power.upper_w - margin_w + slack_w(power.lower_w or 0.0, power.upper_w)


def is_below(power: PowerView, margin_w: float) -> bool:
    """Whether the draw is below the lower bound plus the margin: on its way no step leaves the corridor then.

    What counts is what it leads to: a job that does nothing may give its nodes to one that will draw.
    """
    if power.draw_w is None or power.lower_w is None or power.upper_w is None:
        return False
    return power.draw_w < power.lower_w + margin_w - slack_w(power.lower_w, power.upper_w)


def why_narrower(power: PowerView, margin_w: float) -> str:
    """The bounds that are set, and why steps are held to others (`allowed_w`)."""
    least = "more" if is_above(power, margin_w) else "less"
    return (
        f"the corridor is {power.span}, and while the draw is {power.draw_w:g} W "
        f"no step may lead to {least}"
    )


def adds_watts(job: JobRequest, power: PowerView) -> bool:
    """Whether a node of the job draws more than an idle one, on any size: while `is_above` it is held."""
    # between the rows of a table no figure is above both
    sizes = [size for size, _ in job.power_by_nodes] or [job.min_nodes]
    return any(node_w(job, size, power.busy_w)[1] > power.idle_w for size in sizes)
