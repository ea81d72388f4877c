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
    """Have helper cores limit nothing any more: a task that takes one may still be on its way."""
    worker.handlers.pop(HELPERS, None)
    state = worker.state
    if HELPER_RESOURCE in state.total_resources:
        more = state.nthreads - state.total_resources[HELPER_RESOURCE]
        state.total_resources[HELPER_RESOURCE] += more
        state.available_resources[HELPER_RESOURCE] += more
