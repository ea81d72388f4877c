"""Whether a node may play another role now: the one answer of a live cluster and of the simulator.

Rules of the file: pure; facts come as values, and neither body is known. A role changes on a node that no job
holds, and the last compute node stays one: without it, what waits would wait for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_hpc_policies.decision import Reason, ReasonCode, SetRole
from dask_hpc_policies.model import COMPUTE, ROLES


class Standing(NamedTuple):
    """What an answer depends on, of one node and now."""

    id: str
    role: str = COMPUTE
    up: bool = True
    #: Id of the job that holds it.
    job: str | None = None
    #: A round under way has promised it to somebody.
    reserved: bool = False


def refusal(action: SetRole, node: Standing | None, computing: int) -> Reason | None:
    """Why `action` cannot be carried out; None when it can.

    Parameters
    ----------
    node
        The node that the action is about; None when there is none of that name.
    computing
        Number of compute nodes that are up.
    """
    if action.role not in ROLES or node is None or not node.up:
        return Reason(ReasonCode.NODES_GONE, f"there is no node {action.node!r} for the role {action.role!r}")
    if node.job is not None:
        return Reason(ReasonCode.WRONG_STATE, f"{node.job} holds node {node.id}; shrink it first")
    if (kept := last_one(action, node.id, node.role, computing)) is not None:
        return kept
    if node.reserved:
        return Reason(ReasonCode.LOCKED, f"node {node.id} is changing hands; ask again")
    return None


def last_one(action: SetRole, node: str, role: str, computing: int) -> Reason | None:
    """Why a node that plays `role` has to go on with it: it is the last that computes; None: it need not.

    Asked when an action comes, and again when its node has been drained.
    """
    if action.role == COMPUTE or role != COMPUTE or computing > 1:
        return None
    return Reason(ReasonCode.KEPT, f"node {node} is the last one for computing")
