"""Whether an action can be carried out now, and if not, why: checked before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    pass


def refusal(state: State, action: Start | Expand | Shrink | Steal, reconfiguring: bool) -> Reason | None:
    """Why `action` is refused; None when it is not.

    Parameters
    ----------
    reconfiguring
        Whether any round is under way (it matters with ``hpc.lock: system``).
    """
    job = state.jobs.active.get(action.job)
    if job is None:
        return Reason(ReasonCode.UNKNOWN_JOB, f"no active job has the id {action.job!r}")
    if job.reconfig_id:
        return Reason(ReasonCode.LOCKED, f"{job.id} is reconfiguring (id {job.reconfig_id})")
    if isinstance(action, Start):
        if job.state != "pending" and not state.starving(job):
            return Reason(ReasonCode.WRONG_STATE, f"{job.id} is {job.state}, only a pending job can start")
        if job.is_default:
            return None
    elif job.state != "running" or job.is_default:
        text = f"{job.id} is {job.state}, only a running named job can be resized"
        return Reason(ReasonCode.WRONG_STATE, text)
    elif state.settings.lock == "system" and reconfiguring:
        return Reason(ReasonCode.LOCKED, "another job is reconfiguring and hpc.lock is 'system'")
    elif isinstance(action, (Shrink, Steal)) and state.now_s() < job.no_shrink_before_s:
        left_s = job.no_shrink_before_s - state.now_s()
        return Reason(
            ReasonCode.COOLDOWN, f"a shrink of {job.id} was taken back; not again for {left_s:.0f} s"
        )
    elif (
        isinstance(action, Expand)
        and action.reason.code not in (ReasonCode.USER_REQUEST, ReasonCode.JOB_REQUEST)
        and state.now_s() < job.no_grow_before_s
    ):
        left_s = job.no_grow_before_s - state.now_s()
        return Reason(ReasonCode.COOLDOWN, f"nodes could not join {job.id}; not again for {left_s:.0f} s")
    return _theft(state, action) if isinstance(action, Steal) else _size(state, action, job)


def _theft(state: State, action: Steal) -> Reason | None:
    thief = state.jobs.active.get(action.thief)
    lacks = thief is not None and (
        thief.state == "pending" or state.nodes_up(thief) < thief.request.min_nodes
    )
    if lacks:
        return None
    return Reason(ReasonCode.STALE, f"{action.thief} does not wait for nodes any more")


def _size(state: State, action: Start | Expand | Shrink, job: JobRecord) -> Reason | None:
    now, target = state.nodes_up(job), action.nodes
    low, high = job.request.min_nodes, job.request.max_nodes
    grows, shrinks = isinstance(action, Expand), isinstance(action, Shrink)
    if (grows and target <= now) or (shrinks and target >= now):
        return Reason(ReasonCode.STALE, f"{job.id} has {counted(now)} already, asked for {target}")
    if grows and now < low and target <= high:
        return None  # it gets back what it lost, in steps if need be
    if not isinstance(action, Start) and job.request.kind != "malleable":
        return Reason(ReasonCode.OUT_OF_BOUNDS, f"{job.id} is {job.request.kind}: it is never resized")
    if not low <= target <= high:
        text = f"{counted(target)}: outside {low} to {high}, the bounds of {job.id} (min_nodes, max_nodes)"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    if not is_legal(job.request.constraint, target):
        text = f"{counted(target)}: against the constraint {job.request.constraint!r} of {job.id}"
        return Reason(ReasonCode.NO_LEGAL_SIZE, text)
    return None


def easiest(nodes: Sequence[Node], count: int, cost: Callable[[Node], tuple[float, ...]]) -> list[Node]:
    """The `count` nodes that are up whose giving up costs least; equal ones in the given order."""
    up = [node for node in nodes if node.workers]
    if count >= len(up):
        return up
    # most often enough of them cost nothing, and then none has to be compared
    costless = list(islice((node for node in up if not any(cost(node))), count))
    return costless if len(costless) == count else sorted(up, key=cost)[:count]
