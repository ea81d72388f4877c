"""Staging nodes: no more than plans need; the others compute meanwhile, and come back when a plan needs them.

Only nodes that were given for staging are lent, and only by what policies say of flows: while one is going
of whose staging nodes nobody has said anything, all of them stage. One that is lent gets no more values, ends
what it has, and changes its role then; one that comes back is drained first, as any that gets another role
is (`leaving.roles`). When no flow is left all of them stage again.
"""

from __future__ import annotations

from collections.abc import Collection

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.workers import STAGING, Workers
from dask_hpc_policies.decision import Reason, ReasonCode, SetRole
from dask_hpc_policies.model import COMPUTE


class Staging:
    """The staging nodes of one scheduler."""

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self._engine, self._workers = engine, workers
        #: Whether there are as many as are wanted.
        self.settled = True

    def settle(self, flows: Collection[Flow]) -> None:
        """Lend what no flow needs, and take back what one does, as far as that can be done now."""
        engine, workers = self._engine, self._workers
        nodes = engine.state.nodes.nodes
        for id in workers.lent - nodes.keys():
            # it has gone, or nobody counts nodes while nothing is managed: it stages when it is there again
            engine.state.roles[id] = STAGING
        workers.lent &= nodes.keys()
        staging = sorted(id for id, node in nodes.items() if node.role == STAGING)
        lent = sorted(id for id in workers.lent if nodes[id].role != STAGING)
        wants = [flow.staging for flow in flows]
        wanted = max((len(nodes) if one is None else one for one in wants), default=len(nodes))
        workers.leaving = set(staging[wanted:])
        workers.look()
        known = len(staging) + len(lent)
        text = f"{min(wanted, known)} of {known} staging nodes are needed"
        reason = Reason(ReasonCode.NO_DEMAND, text)
        for id in staging[wanted:]:
            if not self._runs(id):
                workers.lent.add(id)
                engine.controller.act([SetRole(node=id, role=COMPUTE, reason=reason)], "request")
        reason = Reason(ReasonCode.DEMAND, text)
        for id in lent[: max(0, wanted - len(staging))]:
            # whoever holds it keeps it
            if nodes[id].up and nodes[id].job is None and not nodes[id].reserved:
                engine.controller.act([SetRole(node=id, role=STAGING, reason=reason)], "request")
        workers.lent = {id for id in workers.lent if nodes[id].role != STAGING}
        workers.leaving = {id for id in workers.leaving if nodes[id].role == STAGING}
        workers.look()
        more = wanted > len(staging) and bool(workers.lent)
        self.settled = not (workers.leaving or more)

    def _runs(self, id: str) -> bool:
        workers = self._engine.scheduler.workers
        there = self._workers.of_nodes([id])
        return any(workers[address].processing for address in there if address in workers)
