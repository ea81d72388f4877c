"""Switches counting of what a worker's tasks read and write on and off; off, nothing of it runs."""

from __future__ import annotations

import logging
from typing import Any

from distributed.core import Status

from dask_hpc.wire import COUNT_IO, HEARTBEAT

logger = logging.getLogger("distributed.dask_hpc.io")

#: Name of the section of the heartbeats.
SECTION = "io"


def start(worker: Any, *, on: bool = False) -> None:
    """Have a worker count when it is asked to, or at once (`on`)."""

    def count(on: bool) -> None:
        switch(worker, on=on)

    worker.handlers[COUNT_IO] = count
    switch(worker, on=on)


def switch(worker: Any, *, on: bool) -> None:
    """Have it count from now on, or not any more."""
    heartbeat = worker.metrics.get(HEARTBEAT)
    if heartbeat is None:
        return
    if not on:
        heartbeat.remove(SECTION)
    elif heartbeat.section(SECTION) is None:
        try:
            # the counters are Linux's
            from dask_hpc.worker.io.tasks import Counting

            heartbeat.add(SECTION, Counting)
        except (ImportError, OSError) as error:
            logger.warning("What tasks read and write past metered stores is not counted here: %s", error)


def stop(worker: Any) -> None:
    """Have it answer no more; the heartbeats end their sections themselves."""
    if worker.status != Status.closing:
        worker.handlers.pop(COUNT_IO, None)
