"""To which other sizes an action can be cut: nearer to the present size than what it asks for, and legal.

Rules of the file: arithmetic over one move; what is allowed is said by the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from dask_hpc_policies.combine.limits import Limit
from dask_hpc_policies.combine.outlook import Move
from dask_hpc_policies.decision import Expand, ReasonCode, Shrink, Start
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least

#: Who asked for exactly that size: they get it or nothing.
_ASKED = (ReasonCode.USER_REQUEST, ReasonCode.JOB_REQUEST)


def divisible(move: Move) -> bool:
    """Whether the action can do with another size than it asks for."""
    action, job = move.action, move.job
    if job is None or action.reason.code in _ASKED:
        return False
    if isinstance(action, Start):
        return job.start_nodes is None and not job.is_default
    return isinstance(action, (Expand, Shrink))


def within(move: Move, limit: Limit) -> bool:
    """Whether the size that a move leads to is within `limit`; that of a running job may come nearer."""
    assert move.job is not None
    if isinstance(move.action, Start):
        return limit.lo <= move.size <= limit.hi
    return min(limit.lo, move.job.nodes) <= move.size <= max(limit.hi, move.job.nodes)


def bounded(move: Move, limit: Limit) -> int | None:
    """The legal size within `limit` that is nearest to what a move asks for; None when there is none."""
    assert move.job is not None
    shrinks = move.size < move.job.nodes
    size = _legal(move, max(move.size, limit.lo) if shrinks else min(move.size, limit.hi))
    return size if size is not None and limit.lo <= size <= limit.hi else None


def at_most(move: Move, nodes: int) -> int | None:
    """The largest legal size up to `nodes` for a move that takes nodes; None when there is none."""
    return _legal(move, nodes)


def nearest(move: Move, allowed: Callable[[int], bool]) -> int | None:
    """The legal size that is allowed and nearest to what a move asks for; None when there is none.

    The size asked for is taken as not allowed, and what is nearer to the present size as allowed when what is
    further from it is.
    """
    assert move.job is not None
    bad, good = move.size, move.job.nodes
    if not allowed(good):
        return None
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if allowed(middle):
            good = middle
        else:
            bad = middle
    size = _legal(move, good)
    return size if size is not None and allowed(size) else None


def _legal(move: Move, nodes: int) -> int | None:
    """The legal size from `nodes` towards the present size; None when nothing is left of the move."""
    job = move.job
    assert job is not None
    if move.size < job.nodes:
        return smallest_at_least(job.constraint, max(nodes, job.min_nodes), job.nodes - 1)
    if job.nodes < nodes < job.min_nodes and job.state != "pending":
        return nodes  # it gets back what it lost, in steps if need be
    return largest_at_most(job.constraint, nodes, max(job.nodes + 1, job.min_nodes))
