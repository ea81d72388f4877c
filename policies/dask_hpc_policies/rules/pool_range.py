"""How many nodes the pool may have, and must have, for the draw to stay between two bounds (lever ``pool``).

An idle node draws its idle watts, one that has gone back or is off draws next to none, one that starts draws
what that takes. Nodes that jobs hold stay; sizes of jobs come first: the pool moves for what no sizes of the
present nodes mend, and where the program would rather have idle nodes off: the watts that they draw are then
those of nodes that compute. Nodes that start count as what they will be: asked for again, or not to come.

Rules of the file: pure, the same live and simulated. The range is that of now: it is found anew with each
picture, so nodes that went may come back as soon as there are watts for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor

from dask_hpc_policies.decision import Reason, ReasonCode, ReleaseNodes, RequestNodes
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.question import drawn_w
from dask_hpc_policies.power.view import PowerView, fits
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRange:
    """Compute nodes that there may be."""

    least: int
    most: int
    reason: Reason
    #: More are not asked for: idle ones beyond it go once nobody has needed them for a while; None: no limit.
    enough: int | None = None
    #: So many are asked for at least: jobs that run would have those again that went for the corridor.
    again: int = 0
    #: Nodes that there were, and of those that were before so many had gone for the corridor.
    pool: int = 0
    gone: int = 0

    def bounded(self, nodes: int) -> int:
        """`nodes`, or those that went, within it, and no more than are enough."""
        nodes = max(nodes, self.again)
        if self.enough is not None:
            nodes = min(nodes, self.enough)
        return max(self.least, min(nodes, self.most))


def pool_range(view: ClusterSnapshot, power: PowerView, last: PoolRange | None = None) -> PoolRange | None:
    """The range of `view.pool_nodes`; None: the corridor says nothing of the pool.

    Parameters
    ----------
    last
        What was said before: that holds while sizes change, but for nodes that jobs have got since; and from
        it is known which nodes have gone for the corridor.

    Raises
    ------
    ValueError
        When the picture says of the pool what is no number.
    """
    node_w = power.idle_w - power.off_w
    if not (power.acts and power.bounded and power.may("pool")) or node_w <= 0:
        return None
    pool, gone = view.pool_nodes, _gone(view, last)
    if view.adapting:
        held = max(1, pool - view.idle_nodes)
        return None if last is None else replace(_kept(last, held), again=0, pool=pool, gone=gone)
    assert power.lower_w is not None
    assert power.upper_w is not None
    come_w = max(node_w, power.boot_w - power.off_w)
    begun_w = power.boot_nodes * (power.boot_w - power.off_w)
    low_w, high_w = (watts - begun_w for watts in drawn_w(view, power))
    kept = max(1, pool - view.idle_nodes)
    over_w = _beyond(view, power, high_w - power.upper_w)
    if fits(view, power):
        # no node comes for watts that the sizes which come next draw
        over_w = max(over_w, _planned_w(view, power) - begun_w - power.upper_w)
    under_w = _beyond(view, power, power.lower_w - low_w)
    most = max(kept, pool - _steps(over_w / (node_w if over_w > 0 else come_w)))
    gain_w = power.busy_w - power.off_w if under_w > 0 and _wanted(view) else node_w
    least = max(0, pool + _steps(under_w / gain_w))
    if under_w <= 0:
        least = min(pool, max(least, kept)) if power.lower_w > 0 else 0
    # a lower bound holds at the present sizes, too: others come once the nodes are off
    off = min(power.off_nodes or 0, pool - max(kept, min(least, pool)))
    # a wish and no bound: a node that took long to come is not let go for it at once
    enough = pool - off if off > 0 else None
    if power.off_nodes is None:
        # it is being asked: until then the pool stays as it is, and so does what is on its way
        least, most, enough = pool, max(most, pool), pool
    least = min(least, most)
    text = (
        f"the jobs and {counted(view.idle_nodes)} idle draw {low_w:g} to {high_w:g} W, allowed are "
        f"{power.span}; an idle node draws {node_w:g} W more than one that is off"
        f"{f', one that starts {come_w:g} W' if come_w > node_w else ''}"
        f"{f'; with {counted(off)} off jobs may have more of the others' if off > 0 else ''}"
    )
    data = {"min_w": low_w, "max_w": high_w, "lower_w": power.lower_w, "upper_w": power.upper_w}
    reason = Reason(ReasonCode.CORRIDOR, text, data)
    again = pool + gone if gone and not view.idle_nodes and _grows(view) else 0
    return PoolRange(least=least, most=most, enough=enough, reason=reason, again=again, pool=pool, gone=gone)


def pool_step(view: ClusterSnapshot, allowed: PoolRange) -> RequestNodes | ReleaseNodes | None:
    """What is asked of a pool that follows nobody else: what the range says, within it what jobs wait for."""
    target = allowed.bounded(wished_nodes(view))
    if target == view.pool_nodes:
        return None
    kind = RequestNodes if target > view.pool_nodes else ReleaseNodes
    text = f"the pool of {counted(view.pool_nodes)} is to have {target}: {allowed.reason.text}"
    data = {**allowed.reason.data, "pool_nodes": view.pool_nodes, "target_nodes": target}
    return kind(nodes=target, reason=Reason(ReasonCode.CORRIDOR, text, data))


def wished_nodes(view: ClusterSnapshot) -> int:
    """Nodes that there would be for jobs alone: those that are there, and what the next one lacks."""
    needs = [need - view.idle_nodes for job in view.pending if (need := needed_nodes(job)) is not None]
    return view.pool_nodes + max(0, min(needs, default=0))


def _gone(view: ClusterSnapshot, last: PoolRange | None) -> int:
    """Nodes that have gone for the corridor and not come back; those that went by themselves are not."""
    if last is None:
        return 0
    fewer = last.pool - view.pool_nodes
    let_go = last.bounded(last.pool) < last.pool
    return max(0, last.gone + fewer) if fewer < 0 or let_go else last.gone


def _kept(last: PoolRange, held: int) -> PoolRange:
    """`last` for jobs that hold so many nodes."""
    enough = None if last.enough is None else max(last.enough, held)
    return replace(last, most=max(last.most, held), enough=enough)


def _planned_w(view: ClusterSnapshot, power: PowerView) -> float:
    """Most watts at the sizes of the plan."""
    assert power.plan is not None
    sizes = power.plan.nodes
    jobs = tuple(replace(job, nodes=sizes.get(job.id, job.nodes)) for job in view.jobs)
    used = sum(job.nodes for job in jobs) - sum(job.nodes for job in view.jobs)
    return drawn_w(replace(view, jobs=jobs, idle_nodes=view.idle_nodes - used), power)[1]


def _beyond(view: ClusterSnapshot, power: PowerView, beyond_w: float) -> float:
    """Watts beyond a bound that no sizes of the jobs mend; below 0: what is left inside."""
    if beyond_w > 0 and power.plan is not None and fits(view, power):
        return min(beyond_w, power.plan.violation_w or 0.0)
    return beyond_w


def _steps(nodes: float) -> int:
    """Whole nodes: as many as are needed, or as there are watts for."""
    return ceil(nodes - 1e-9) if nodes > 0 else -floor(-nodes + 1e-9)


def _wanted(view: ClusterSnapshot) -> bool:
    """Whether a job would have more nodes than there are."""
    return _grows(view) or any(not job.is_default for job in view.pending)


def _grows(view: ClusterSnapshot) -> bool:
    """Whether a job that runs would have more nodes."""
    return any(job.kind == "malleable" and job.nodes < job.max_nodes for job in view.running)
