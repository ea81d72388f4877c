"""What cluster classes and agents can ask: nodes that leave, stay, are wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.scheduler.leaving.departures import Departures
from dask_hpc.scheduler.leaving.pool_target import PoolTarget
from dask_hpc.scheduler.leaving.releases import Releases
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc_policies.jobs.jobspec import check_nodes
from dask_hpc_policies.pool import PoolDecision


class PoolMethods:
    """The size of the pool, and the nodes that leave it."""

    def __init__(self, releases: Releases, target: PoolTarget, departures: Departures) -> None:
        self._releases = releases
        self._target = target
        self._departures = departures

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "release": self.release,
            "recall": self.recall,
            "pin": self.pin,
            "pool": self.pool,
            "depart": self.depart,
            "closing": self.closing,
        }

    async def release(
        self, count: int, dry_run: bool = False, among: Sequence[Any] | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Let `count` nodes go without losing anything; see `Releases.release` and `Choosing.choose`."""
        check_nodes("release", "count", count)
        if dry_run:
            return await self._releases.plan(count, among)
        return await self._releases.release(count, among, force)

    async def recall(self, going: int, among: Sequence[Any] | None = None) -> list[Any]:
        """Have no more than `going` nodes leave; gives the names of workers kept; see `Releases.recall`."""
        return self._releases.recall(going, among)

    async def pin(self, workers: Sequence[Any], keep: bool) -> list[str]:
        """Have nodes with these workers (by name) stay, or no longer; gives the names of all that stay."""
        self._releases.pin(map(str, workers), keep)
        return sorted(self._releases.pins.names)

    async def pool(self, **view: Any) -> dict[str, Any]:
        """Workers that there should be, which of them stay, how long, and why; see `PoolTarget.decide`."""
        decision = self._target.decide(**view)
        return {
            "nodes": decision.nodes,
            "stay": sorted(self._stay(decision, frozenset(map(str, view["there"])))),
            "hold_s": decision.hold_s,
            "reason": decision.reason.text,
        }

    def _stay(self, decision: PoolDecision, there: frozenset[str]) -> frozenset[str]:
        """Names of the workers that stay: while jobs are active, all but those whose leaving costs least.

        Who asks knows of no job, and would take the nodes of one while others are idle.
        """
        engine = self._releases.engine
        going = len(there) - decision.nodes
        if going <= 0 or not engine.awake:
            return decision.stay
        nodes, workers = engine.state.nodes.nodes.values(), engine.scheduler.workers
        if engine.state.nodes.by != "host":  # there, workers are counted
            going = math.ceil(going / (max((len(node.workers) for node in nodes), default=1) or 1))
        choice = self._releases.choose(going, there - decision.stay)
        return there - {str(workers[address].name) for node in choice.nodes for address in node.workers}

    async def depart(self, worker: str, within_s: float, reason: str) -> dict[str, Any]:
        """A worker (by address) will be gone soon, whatever is left on it; see `Departures`."""
        return await self._departures.depart(worker, within_s, reason)

    async def closing(self) -> None:
        """The whole cluster is going away: workers that leave now have nothing to move."""
        self._departures.closing = True
