"""Data that somebody awaits: how a worker provides it, and what its task does when it is run after all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dask.utils import typename
from distributed import get_worker
from distributed.sizeof import sizeof
from distributed.worker_state_machine import FreeKeysEvent

from dask_hpc.errors import InstallError, NotProvided

#: How often a worker that is paused is tried again, in seconds.
_AGAIN_S = 0.1
_STIMULUS = "hpc-provide"


def source(name: str) -> Any:
    """What a task that waits for data runs when nobody holds it any more: it says so.

    Raises
    ------
    NotProvided
        Always.
    """
    raise NotProvided(f"nobody has provided the data of {name!r}, and dask_hpc was uninstalled meanwhile")


def provide(data: Mapping[str, Any], *, timeout_s: float = 60.0) -> Any:
    """Provide data that `Runtime.expect` awaits, from a task or another thread on a worker; no copy is made.

    From then on the data is a result like others: what depends on it runs, and when it is lost it is awaited
    again. In a coroutine on the worker's loop it is to be awaited.

    Parameters
    ----------
    data
        By the names it is expected under.
    timeout_s
        How long to wait while the worker is paused.

    Raises
    ------
    ValueError
        For names that nobody awaits (any more), or that were provided already; the others are there then.
    TimeoutError
        When the worker has been paused for so long.
    """
    worker: Any = get_worker()
    work = _provide(worker, data, timeout_s)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run_coroutine_threadsafe(work, worker.loop.asyncio_loop).result()
    return work


async def _provide(worker: Any, data: Mapping[str, Any], timeout_s: float) -> None:
    # what is there already must not be replaced
    refused = [name for name in data if name in worker.state.tasks and name in worker.data]
    left = {name: value for name, value in data.items() if name not in refused}
    worker.update_data(left, stimulus_id=_STIMULUS)
    unused: list[str] = []
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    try:
        while left:
            told = {name: (sizeof(value), typename(type(value))) for name, value in left.items()}
            arguments = {"worker": worker.address, "data": told}
            answer = await worker.scheduler.hpc(method="provide", arguments=arguments)
            if answer is None:
                raise InstallError("the scheduler has no dask_hpc; nobody awaits data there")
            unused += answer["result"]["refused"]
            left = {name: left[name] for name in answer["result"]["later"]}
            if not left:
                break
            if asyncio.get_running_loop().time() > deadline_s:
                text = f"worker {worker.address} has been paused for {timeout_s:g} s: it cannot provide"
                raise TimeoutError(f"{text} {', '.join(map(repr, left))}; give it more memory or more time")
            await asyncio.sleep(_AGAIN_S)
    finally:
        if unused or left:
            worker.handle_stimulus(FreeKeysEvent(keys=[*unused, *left], stimulus_id=_STIMULUS))
    if refused := [*refused, *unused]:
        raise ValueError(
            f"nobody awaits {', '.join(map(repr, refused))}: names come from rt.expect, each once"
        )
