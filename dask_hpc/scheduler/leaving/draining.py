"""Waiting until nothing is left on nodes that are to leave the pool."""

from __future__ import annotations

import asyncio

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.decision import Reason


async def drain(
    engine: Engine, nodes: list[Node], reason: Reason, limit_s: float | None = None
) -> tuple[list[Node], str]:
    """Wait until nothing is left on nodes but data; gives them, or none, and why (`Rounds.withdraw`)."""
    if engine.leaving:
        # what begins now nobody would take back
        return [], "dask_hpc was uninstalled"
    future: asyncio.Future[tuple[list[Node], Reason]] = asyncio.get_running_loop().create_future()

    def taker(drained: list[Node], why: Reason) -> None:
        if not future.done():
            future.set_result((drained, why))

    refusal = engine.rounds.withdraw(nodes, reason, taker, limit_s)
    if refusal is not None:
        return [], refusal.text
    drained, why = await future
    return drained, why.text
