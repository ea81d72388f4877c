"""What stock Dask knows of a node: the work and data on it, and plugins that keep it."""

from __future__ import annotations

from collections.abc import Mapping

from dask_hpc.scheduler.internals import actor_homes, demand, reads
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Action, Reason, ReasonCode
from dask_hpc_policies.model import Demand

_NOTHING = (0, 0, 0, 0)


class StockWork:
    """Nodes with a shuffle, actors, tasks or data cost something to give up; users' plugins may keep them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._scheduler = state.scheduler

    def cost(self, node: Node) -> tuple[int, ...]:
        """Shuffles, actors, tasks (cancelled ones that still execute, too) and bytes on the node."""
        scheduler = self._scheduler
        workers = [scheduler.workers[address] for address in node.workers]
        lingering = sum(map(self._state.lingering.threads, workers))
        if not lingering and all(reads.is_bare(scheduler, address) for address in node.workers):
            return _NOTHING
        return (
            sum(len(reads.shuffles_on(scheduler, ws.address)) for ws in workers),
            sum(len(actor_homes.living(ws)) for ws in workers),
            sum(len(ws.processing) for ws in workers) + lingering,
            sum(ws.nbytes for ws in workers),
        )

    def section(self) -> Mapping[str, Demand]:
        """What Dask's own scaling would look at."""
        return {"demand": demand.demand(self._scheduler, bool(self._state.awaited))}

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """Why a node must stay: a plugin that is not ours says so."""
        if not isinstance(subject, Node):
            return None
        workers = [self._scheduler.workers[address] for address in subject.workers]
        by = reads.vetoed_by(self._scheduler, workers)
        text = f"plugin {by!r} keeps it (valid_workers_downscaling)"
        return None if by is None else Reason(ReasonCode.KEPT, text)
