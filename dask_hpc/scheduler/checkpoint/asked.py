"""Where the managers of hosts are: every worker is asked once before a version, and is to have one started.

Its answer tells that it is not silent, too. Only who takes longer is asked again whether it is there at all
(`scheduler.checkpoint.silent`): a manager that comes up takes its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.scheduler.internals import remote
from dask_hpc.worker import host_memory
from dask_hpc.worker.values import Refused

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: A manager has come up by then, in seconds.
_COMES_UP_S = 40.0


async def managers_of(
    scheduler: Scheduler, manager: Mapping[str, Any], writing: Writing | None
) -> dict[Home, str]:
    """The manager of every host, and the failure domain of that.

    Parameters
    ----------
    manager
        What `host_memory.home` wants to know.
    writing
        Of a version; those that it avoids, or finds silent, are done without. None: all are asked.

    Raises
    ------
    CheckpointError
        When there is not one, or somebody is silent that the version needs.
    """
    avoided = set() if writing is None else writing.avoided
    asked = {
        address: asyncio.ensure_future(_home(scheduler, address, manager))
        for address in scheduler.workers
        if address not in avoided
    }
    every = list(asked.values())
    try:
        if asked and writing is not None and writing.late is not None:
            await _leave_out(asked, *writing.late)
        answers = await asyncio.gather(*asked.values())
    finally:
        for each in every:
            each.cancel()
    domains = dict(answer for answer in answers if not isinstance(answer, str))
    if not domains:
        why = next(iter(answers), "there is no worker")
        raise CheckpointError(f"no host holds checkpoints in memory: {why}")
    return domains


async def _leave_out(
    asked: dict[str, asyncio.Task[Any]],
    within_s: float,
    late: Callable[[Collection[str]], Awaitable[set[str]]],
) -> None:
    """Wait no longer for those that have not answered by then and are silent."""
    await asyncio.wait(asked.values(), timeout=within_s)
    if unheard := [address for address, each in asked.items() if not each.done()]:
        for address in await late(unheard):
            asked.pop(address).cancel()


async def _home(scheduler: Scheduler, address: str, manager: Mapping[str, Any]) -> tuple[Home, str] | str:
    try:
        found: tuple[Home, str] | Refused = await remote.run(
            scheduler, address, host_memory.home, {"manager": manager}, _COMES_UP_S
        )
    except (OSError, WorkerError) as error:
        found = Refused(f"{type(error).__name__}: {error}")
    if isinstance(found, Refused):
        # one that is about to leave, or another worker of its host has a manager
        logger.info("Worker %s has no manager: %s", address, found.why)
        return found.why
    return found
