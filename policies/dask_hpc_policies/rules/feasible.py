"""Whether an action can be carried out on a job now: the one answer of a live cluster and of the simulator.

Rules of the file: pure, and cheap, for it is asked once for each action; facts come as values, and neither
body is known. Not asked here are what one body alone can tell (an application that keeps state is in a rigid
phase) and whether there are nodes enough, which depends on the other actions of the decision.

=========  ==========================================================================================
Start      of a job that waits, within its bounds and legal; one that asked for an exact size starts at
           exactly that size, unless it has run before and was interrupted: then at any legal size
Expand     of a running job to a larger legal size; one below its minimum gets nodes back in any steps
Shrink     of a running job to a smaller legal size
Steal      of a running job, for one that waits for nodes and is not about to get any
=========  ==========================================================================================

A rigid or moldable job is never resized, but may be interrupted. A job that is reconfiguring gets no new
decision. While the lock is ``system`` and any job is, nobody is resized; starts and thefts go on.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.model import JobRequest, JobState
from dask_hpc_policies.wording import counted

#: Reasons of an expansion that somebody has asked for: it waits for no cooldown.
_ASKED_FOR = (ReasonCode.USER_REQUEST, ReasonCode.JOB_REQUEST)


class Facts(NamedTuple):
    """What an answer depends on, of one job and now."""

    id: str
    request: JobRequest
    state: JobState
    #: Nodes that it holds and that are up.
    nodes: int
    #: A round that it takes part in has not ended.
    reconfiguring: bool = False
    #: It has run before, and waits again.
    interrupted: bool = False
    is_default: bool = False
    #: Seconds for which it is neither shrunk nor interrupted, and not expanded, because that had to be taken
    #: back; at most 0: it may be.
    no_shrink_s: float = 0.0
    no_grow_s: float = 0.0


def refusal(
    action: Start | Expand | Shrink | Steal, job: Facts | None, thief: Facts | None = None, *, locked: bool
) -> Reason | None:
    """Why `action` cannot be carried out; None when it can.

    Parameters
    ----------
    job
        The job that the action is about; None when no job that waits or runs has its id.
    thief
        Of a theft: the job that the nodes are for, or None alike.
    locked
        Whether the lock is ``system`` and any job is reconfiguring.
    """
    if job is None:
        return Reason(ReasonCode.UNKNOWN_JOB, f"no job that waits or runs has the id {action.job!r}")
    if job.reconfiguring:
        return Reason(ReasonCode.LOCKED, f"{job.id} is reconfiguring")
    if isinstance(action, Start):
        if job.state != "pending":
            return Reason(ReasonCode.WRONG_STATE, f"{job.id} is {job.state}, only a pending job can start")
        return None if job.is_default else _wrong_start(job, action.nodes)
    if job.state != "running" or job.is_default:
        text = f"{job.id} is {job.state}, only a running named job can be resized"
        return Reason(ReasonCode.WRONG_STATE, text)
    grows = isinstance(action, Expand)
    if not grows and job.no_shrink_s > 0:
        text = f"a shrink of {job.id} was taken back; not again for {job.no_shrink_s:.0f} s"
        return Reason(ReasonCode.COOLDOWN, text)
    if isinstance(action, Steal):
        return _no_thief(action.thief, thief)
    if locked:
        text = "another job is reconfiguring and the lock (hpc.lock) is 'system'"
        return Reason(ReasonCode.LOCKED, text)
    if (
        grows
        and job.no_grow_s > 0
        and job.nodes >= job.request.min_nodes
        and action.reason.code not in _ASKED_FOR
    ):
        text = f"nodes could not join {job.id}; not again for {job.no_grow_s:.0f} s"
        return Reason(ReasonCode.COOLDOWN, text)
    return _wrong_resize(job, action.nodes, grows)


def _no_thief(id: str, thief: Facts | None) -> Reason | None:
    if thief is not None and (thief.state == "pending" or thief.nodes < thief.request.min_nodes):
        if thief.reconfiguring:
            return Reason(ReasonCode.STALE, f"{id} is being given nodes already")
        return None
    return Reason(ReasonCode.STALE, f"{id} does not wait for nodes any more")


def _wrong_start(job: Facts, target: int) -> Reason | None:
    exact = job.request.start_nodes
    if exact is not None and target != exact and not job.interrupted:
        text = f"{counted(target)}: {job.id} starts on exactly the {exact} that it asked for (nodes)"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    return _wrong_size(job, target)


def _wrong_resize(job: Facts, target: int, grows: bool) -> Reason | None:
    if target == job.nodes or (target > job.nodes) is not grows:
        text = f"{job.id} has {counted(job.nodes)} already, asked for {target}"
        return Reason(ReasonCode.STALE, text)
    request = job.request
    if grows and job.nodes < request.min_nodes and target <= request.max_nodes:
        return None  # it gets back what it lost, in steps if need be
    if request.kind in ("rigid", "moldable"):
        return Reason(ReasonCode.OUT_OF_BOUNDS, f"{job.id} is {request.kind}: it is never resized")
    return _wrong_size(job, target)


def _wrong_size(job: Facts, target: int) -> Reason | None:
    low, high = job.request.min_nodes, job.request.max_nodes
    if not low <= target <= high:
        text = f"{counted(target)}: outside {low} to {high}, the bounds of {job.id} (min_nodes, max_nodes)"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    if not is_legal(job.request.constraint, target):
        text = f"{counted(target)}: against the constraint {job.request.constraint!r} of {job.id}"
        return Reason(ReasonCode.NO_LEGAL_SIZE, text)
    return None
