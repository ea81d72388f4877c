"""Has a worker take part in flows; what takes blocks is loaded when the first producer comes."""

from __future__ import annotations

from typing import Any

from distributed.core import Status

from dask_hpc.wire import COUPLE, FLOW_OVER
from dask_hpc.worker.coupling import helpers


def start(worker: Any) -> None:
    """Have a worker take blocks of producers."""

    async def serve(comm: Any, **told: Any) -> Any:
        """The first producer has come: it and those after it are served by the receiver itself."""
        from dask_hpc.worker.coupling.receiver import Receiver

        receiver = Receiver(worker)
        worker.handlers |= {COUPLE: receiver.serve, FLOW_OVER: receiver.over}
        return await receiver.serve(comm, **told)

    async def over(flow: str) -> None:
        """It has had no producer yet."""

    worker.handlers |= {COUPLE: serve, FLOW_OVER: over}
    helpers.start(worker)


def stop(worker: Any) -> None:
    """Have it take none of new producers any more; one that is closing tells each of them so."""
    if worker.status in (Status.running, Status.paused, Status.closing_gracefully):
        for name in (COUPLE, FLOW_OVER):
            worker.handlers.pop(name, None)
    helpers.stop(worker)
