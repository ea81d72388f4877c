"""Roles of nodes: a decision may have a node that no job holds play another one.

Rules of the file: a role changes at once, for nothing of others runs on such a node; whether it may is what
`dask_hpc_policies.rules.roles` says, as on a live cluster. Which node is which must be followed for that, so
a machine says that its nodes have roles (`Machine.roles`, which may be empty).
"""

from __future__ import annotations

from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.decision import Outcome, Reason, ReasonCode, SetRole
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.rules.roles import Standing, refusal


class Roles:
    """Gives nodes their roles, in one run."""

    def __init__(self, world: World, nodes: NodePool) -> None:
        self._world = world
        self._nodes = nodes

    def set(self, action: SetRole) -> Outcome:
        """Carry out what a policy says of a node."""
        if self._world.machine.roles is None:
            text = "the machine's nodes have no roles: say which at its start (roles), none of them by {}"
            return _refused(action, Reason(ReasonCode.UNSUPPORTED, text))
        node = self._number(action.node)
        standing = None if node is None else self._standing(node)
        why = refusal(action, standing, self._nodes.computing)
        if why is not None or node is None or standing is None:
            return _refused(action, why or Reason(ReasonCode.NODES_GONE, f"there is no node {action.node!r}"))
        if standing.role != action.role:
            self._nodes.play(node, action.role)
            # what jobs may get has changed
            self._world.news.changed("node-added" if action.role == COMPUTE else "node-lost")
        text = f"node {action.node} is for {action.role} now"
        return Outcome(action=action, result="done", reason=Reason(ReasonCode.DONE, text))

    def _number(self, id: str) -> int | None:
        """The node that is called so in snapshots; None when no node is."""
        digits = id[1:]
        if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(self._nodes.total)):
            return None
        return int(digits) if f"n{int(digits)}" == id and int(digits) < self._nodes.total else None

    def _standing(self, node: int) -> Standing:
        nodes, holder = self._nodes, self._nodes.holder[node]
        role = nodes.roles.get(node, COMPUTE)
        return Standing(
            id=f"n{node}",
            role=role,
            up=nodes.state(node) in ("idle", "busy"),
            job=None if holder is None else holder.job.id,
            # rounds set numbers of nodes aside, not certain ones: the last idle ones are theirs
            reserved=role == COMPUTE and holder is None and nodes.idle < 1,
        )


def _refused(action: SetRole, why: Reason) -> Outcome:
    return Outcome(action=action, result="refused", reason=why)
