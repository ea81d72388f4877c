"""Switches the sampling of a worker's power on and off; while it is off, nothing of it is loaded or runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable
from typing import Any

from distributed.core import Status

from dask_hpc.errors import WorkerError
from dask_hpc.wire import CAP, HEARTBEAT, POWER
from dask_hpc.worker.node import node_settings

logger = logging.getLogger("distributed.dask_hpc.power")

#: Name of the section of the heartbeats.
SECTION = "power"


def start(worker: Any) -> None:
    """Have a worker sample when it is asked to, or at once where that is set."""

    def power(on: bool) -> dict[str, Any]:
        return switch(worker, on=on)

    async def cap(watts: float | None, look: bool = False) -> dict[str, Any]:
        # what writes to devices comes when it is needed
        from dask_hpc.worker.power.caps import asked

        return await asked.cap(worker, watts, look)

    worker.handlers.update({POWER: power, CAP: cap})
    try:
        always = node_settings().power_measure == "always"
    except ValueError:
        # what is wrong with the configuration is said by the section `node`
        always = False
    if always:
        switch(worker, on=True)


def switch(worker: Any, *, on: bool) -> dict[str, Any]:
    """Have the heartbeats of a worker carry its power, or not any more; what they carry then.

    Where ``hpc.power.measure`` is always they carry it in any case.
    """
    heartbeat = worker.metrics.get(HEARTBEAT)
    if heartbeat is None:
        return {}
    if on:
        section = heartbeat.section(SECTION)
        if section is None:
            try:
                # what reads sensors comes when it is needed
                from dask_hpc.worker.power.section import PowerSection

                section = heartbeat.add(SECTION, PowerSection)
            except (WorkerError, OSError, ValueError) as error:
                logger.warning("The power of this host is not sampled: %s", error)
                return {"error": str(error)}
        return dict(section())
    if node_settings().power_measure != "always":
        heartbeat.remove(SECTION)
    return {}


def stop(worker: Any) -> Awaitable[None] | None:
    """Have it answer no more, and cap nothing; the heartbeats end their sections themselves.

    Devices may take their time to have their old values back: where there are caps that is to be awaited.
    """
    if worker.status != Status.closing:
        for name in (POWER, CAP):
            worker.handlers.pop(name, None)
    asked = sys.modules.get(f"{__package__}.caps.asked")
    return None if asked is None else asked.stop(worker)
