"""Waiting until nothing is left on nodes that are to leave the pool, and why they do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.wire import FOLLOWS_LOAD
from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.rules.giving_back import given_back
from dask_hpc_policies.wording import counted


def drain(
    engine: Engine, nodes: list[Node], reason: Reason, limit_s: float | None = None
) -> asyncio.Future[tuple[list[Node], str]]:
    """Have nothing but data left on nodes; gives them, or none, and why (`Rounds.withdraw`).

    It begins in this very call: nobody else gets hold of them.
    """
    future: asyncio.Future[tuple[list[Node], str]] = asyncio.get_running_loop().create_future()

    def taker(drained: list[Node], why: Reason) -> None:
        if not future.done():
            future.set_result((drained, why.text))

    if engine.leaving:
        # what begins now nobody would take back
        future.set_result(([], "dask_hpc was uninstalled"))
    elif (refusal := engine.rounds.withdraw(nodes, reason, taker, limit_s)) is not None:
        taker([], refusal)
    return future


async def finish(engine: Engine, addresses: Collection[str]) -> list[str]:
    """Have workers of nodes on which others stay get nothing new until what they execute, and shuffles, end.

    Gives those on which something has not by `hpc.shrink-deadline`.
    """
    scheduler, state = engine.scheduler, engine.state
    until_s = state.now_s() + state.settings.shrink_deadline_s
    while busy := [
        at for at in addresses if reads.keys_on(scheduler, at) or reads.shuffles_on(scheduler, at)
    ]:
        if state.now_s() >= until_s or engine.leaving:
            break
        # in every look: a worker that was paused may say that it takes tasks again
        data.give_no_more(scheduler, addresses, "hpc-release")
        await asyncio.sleep(state.settings.sweep_s)
    return busy


def why_retired(engine: Engine, nodes: list[Node], workers: int, cause: str = "") -> Reason:
    """Why nodes of one holder retire, among so many workers: as the holder is told.

    Parameters
    ----------
    cause
        What whoever asked for it said; `FOLLOWS_LOAD`: only then do nodes come again with the next tasks.
    """
    state = engine.state
    job = state.jobs.active.get(nodes[0].job or "")
    if job is not None and job.resting and cause == FOLLOWS_LOAD:
        return given_back(job.request, state.settings.lend_s)
    return Reason(ReasonCode.USER_REQUEST, f"{counted(workers, 'worker')} to be retired")
