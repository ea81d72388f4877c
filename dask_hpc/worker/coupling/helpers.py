"""Helper cores of a worker: the threads that analyses may take beside a program, an abstract resource."""

from __future__ import annotations

from typing import Any

from dask_hpc.wire import HELPER_RESOURCE, HELPERS


def start(worker: Any) -> None:
    """Have a worker take the word of how many helper cores it has."""

    async def give(count: int) -> None:
        await worker.set_resources(**{HELPER_RESOURCE: count})

    worker.handlers[HELPERS] = give


def stop(worker: Any) -> None:
    """Have it know of helper cores no more, unless a task still takes one."""
    worker.handlers.pop(HELPERS, None)
    state = worker.state
    if not any(HELPER_RESOURCE in (ts.resource_restrictions or {}) for ts in state.tasks.values()):
        for resources in (state.total_resources, state.available_resources):
            resources.pop(HELPER_RESOURCE, None)
