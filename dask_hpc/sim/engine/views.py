"""What policies and their rules see of a job of the simulator: the same as of a live one.

Rules of the file: pure functions of one job and the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.checkpoints import saved_share
from dask_hpc.sim.model.job import Compute, Job, Stage
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.feasible import Facts
from dask_hpc_policies.views import job_view, move_on, stand


def present_view(active: ActiveJob, now_s: float) -> JobView:
    """What a policy sees of a job now: the view of before where neither the job nor the time has changed.

    A policy is asked several times at one moment, until it has no more to say.
    """
    view = active.view
    if (
        view is not None
        and view.state == active.state
        and (view.state == "pending" or (active.viewed_s == now_s and _still(view, active)))
    ):
        return view
    made = pending_view(active) if active.state == "pending" else running_view(active, now_s)
    active.view, active.viewed_s = made, now_s
    return made


def lent_views(order: Iterable[tuple[Any, Any, Any, ActiveJob]], now_s: float) -> list[JobView]:
    """What a policy sees of these jobs in a brief snapshot: views that are brought up to date in place.

    They must not be shown otherwise: they change with the next snapshot. Jobs that a round is about to start
    are left out.
    """
    views: list[JobView] = []
    show = views.append
    for _, _, _, active in order:
        view, clock = active.view, active.clock
        if view is not None and clock is not None:
            if active.viewed_s != now_s:
                # it holds nodes, and nothing about it has changed but the time
                end_s, held_node_s, since_s, nodes = clock
                left_s = None if end_s is None else 0.0 if end_s <= now_s else end_s - now_s
                move_on(view, left_s, held_node_s + nodes * (now_s - since_s))
                active.viewed_s = now_s
            show(view)
        elif active.state == "pending":
            if active.round is None:
                # what waits looks the same until it starts
                show(view or present_view(active, now_s))
        elif view is None or view.state == "pending":
            show(present_view(active, now_s))
        else:
            active.view = view = running_view(active, now_s, view)
            active.viewed_s = now_s
            show(view)
    return views


def _still(view: JobView, active: ActiveJob) -> bool:
    """Whether a view that was made at this moment still holds."""
    return (
        # a checkpoint may have come meanwhile
        active.saving is None
        and view.nodes == active.nodes
        and view.expansions == active.expansions
        and view.requested_nodes == active.requested_nodes
        and view.at_scheduling_point == _at_point(active)
    )


def pending_view(active: ActiveJob) -> JobView:
    """What a policy sees of a job that waits."""
    job = active.job
    again = active.interruption != "none"
    return job_view(
        job,
        id=job.id,
        # What it did before it was interrupted, and has kept, need not be done again.
        remaining_s=_expected_end_s(active, 0.0, expected_s(active), 0.0) if again else None,
        at_scheduling_point=job.program is None or job.program.resize == "anytime",
        interruption=active.interruption,
        interrupted_s=active.interrupted_s,
        # it holds nothing now, so that no time passes
        attained_node_s=active.attained_node_s(0.0),
    )


def running_view(active: ActiveJob, now_s: float, lent: JobView | None = None) -> JobView:
    """What a policy sees of a job that holds nodes, in the view `lent` of before where it can be."""
    job, start_s, program, nodes = active.job, active.start_s, active.job.program, active.nodes
    assert start_s is not None
    walltime_s, limit_s = job.walltime_s, expected_s(active)
    end_s = _expected_end_s(active, start_s, limit_s, now_s)
    left_s = None if end_s is None else max(0.0, end_s - now_s)
    held_node_s, since_s = active.attained()
    # what else changes with time alone, and not by a clock
    saves = job.checkpoint_interval_s is not None or active.saving is not None
    if saves or (job.recorded_s is not None and not active.expansions and not active.shrinks):
        lent = active.clock = None
    else:
        active.clock = end_s, held_node_s, since_s, nodes
    share, previous = present_mtct(active), active.mtct_previous
    if lent is not None:
        stand(
            lent,
            state=active.state,
            nodes=nodes,
            remaining_s=left_s,
            requested_nodes=active.requested_nodes,
            at_scheduling_point=program is None or _at_point(active),
            expansions=active.expansions,
            mtct=share,
            mtct_previous=share if previous is None else previous,
            attained_node_s=held_node_s + nodes * (now_s - since_s),
        )
        return lent
    # without checkpoints it would begin again where it began
    restart_s = limit_s
    if walltime_s is not None and saves and program is None:
        restart_s = max(0.0, walltime_s - saved_share(active, now_s) * job.runtime_s)
    return job_view(
        job,
        id=job.id,
        state=active.state,
        nodes=nodes,
        start_s=start_s,
        remaining_s=left_s,
        restart_s=restart_s,
        requested_nodes=active.requested_nodes,
        at_scheduling_point=_at_point(active),
        interrupted_s=active.interrupted_s,
        expansions=active.expansions,
        mtct=share,
        mtct_previous=share if previous is None else previous,
        attained_node_s=held_node_s + nodes * (now_s - since_s),
    )


def _at_point(active: ActiveJob) -> bool:
    program = active.job.program
    return program is None or program.resize == "anytime" or active.at_point


def facts(active: ActiveJob) -> Facts:
    """What the rules for carrying out actions ask about a job."""
    job = active.job
    reconfiguring = active.target is not None or active.round is not None
    # by place: twice as fast as by name
    return Facts(job.id, job, active.state, active.nodes, reconfiguring, active.interruption != "none")


def expected_s(active: ActiveJob) -> float | None:
    """Walltime, less what need not be done again after an interruption; None without a walltime."""
    job = active.job
    if job.walltime_s is None or not isinstance(active.kept, float):
        return job.walltime_s
    return max(0.0, job.walltime_s - active.kept * job.runtime_s)


def _expected_end_s(active: ActiveJob, start_s: float, limit_s: float | None, now_s: float) -> float | None:
    """When a running job is expected to end, by the rule of `dask_hpc_policies.jobs.estimates.remaining_s`.

    That is what a live scheduler says, and policies must see the same: to the end of the recorded time while
    the job has neither outlasted it nor been resized (what is recorded is about one size), else of the
    walltime. The walltime is a limit of wall-clock time at any size: after a resize it stays, although the
    job will be faster or slower, because a live scheduler does not know the speed-up either.
    """
    job = active.job
    recorded_s = None if active.expansions or active.shrinks else job.recorded_s
    if recorded_s is not None and isinstance(active.kept, float):
        recorded_s = max(0.0, recorded_s - active.kept * job.runtime_s)
    if recorded_s is not None and (limit_s is None or now_s - start_s < recorded_s):
        return start_s + (recorded_s if limit_s is None else min(recorded_s, limit_s))
    return None if limit_s is None else start_s + limit_s


def present_mtct(active: ActiveJob) -> float | None:
    """`mtct` of a job at its present size, told once for each size."""
    if active.measured is not None:
        return active.measured[0]
    known = active.mtct
    if known is None or known[0] != active.nodes:
        known = active.mtct = active.nodes, mtct(active.job, active.nodes)
    return known[1]


def mtct(job: Job, nodes: int) -> float | None:
    """Time lost in communication over time in computation that the speed-up model implies.

    A job that computed without loss on n nodes would be n times as fast as on one; what it takes longer is
    taken for communication: n * speed(1) / speed(n) - 1. None when nothing of the job computes.
    """
    speed = job.speed
    if job.program is not None:
        stage = _first_compute(job.program.stages)
        if stage is None:
            return None
        speed = stage.speed
    if speed.kind == "linear":
        return 0.0
    return max(0.0, nodes * speed(1) / speed(nodes) - 1.0)


def _first_compute(stages: tuple[Stage, ...]) -> Compute | None:
    for stage in stages:
        if isinstance(stage, Compute):
            return stage
        found = _first_compute(getattr(stage, "stages", ()))
        if found is not None:
            return found
    return None
