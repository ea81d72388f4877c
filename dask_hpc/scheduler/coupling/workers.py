"""Workers for flows: those that blocks come to, and those that analyses run on."""

from __future__ import annotations

from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc_policies.model import COMPUTE

#: Role of nodes for analyses in transit.
STAGING = "staging"


class Workers:
    """The running workers of one scheduler, by the role of their nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of_role(self, role: str) -> list[str]:
        """Addresses of those whose nodes have a role."""
        engine = self._engine
        return [ws.address for ws in engine.scheduler.running if engine.state.role_of(ws) == role]

    def hosts(self) -> dict[str, list[str]]:
        """The host of each that blocks may go to; `CouplingError` when there is none."""
        workers = self._engine.scheduler.workers
        found = {address: [workers[address].host] for address in self.of_role(COMPUTE)}
        if not found:
            raise CouplingError("no worker is there that blocks could go to; add workers")
        return found

    def by_where(self, flow: Flow) -> dict[str, list[str]]:
        """Addresses of those that analyses run on, by where; those with none are left out."""
        found = {"in-situ": list(flow.places), "in-transit": self.of_role(STAGING)}
        return {where: addresses for where, addresses in found.items() if addresses}

    def check(self, analysis: str, where: str) -> None:
        """Raise `CouplingError` when an analysis cannot run where it is said to."""
        if where == "in-transit" and not self.of_role(STAGING):
            raise CouplingError(
                f"where of {analysis!r} is {where!r}; no node has the role {STAGING!r}, give it to one"
            )
