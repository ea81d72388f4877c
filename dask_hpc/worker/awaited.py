"""Data that somebody awaits: how a worker provides it, and what its task does when it is run after all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from dask.utils import typename
from distributed import get_worker
from distributed.sizeof import sizeof
from distributed.worker_state_machine import FreeKeysEvent

from dask_hpc.errors import NotProvided
from dask_hpc.worker.answers import answered
from dask_hpc_policies.coupling.contract import checked_seconds
from dask_hpc_policies.params import shown

#: How often it is tried again where the data cannot be taken yet, in seconds.
_AGAIN_S = 0.1
#: States of a task that this worker runs, or is about to.
_RUNS = frozenset({"waiting", "ready", "constrained", "executing", "long-running", "resumed", "cancelled"})
_STIMULUS = "hpc-provide"


def source(name: str) -> Any:
    """What a task that waits for data runs when nobody holds it any more: it says so.

    Raises
    ------
    NotProvided
        Always.
    """
    raise NotProvided(
        f"nobody has provided the data of {name!r}, and its provider was lost or dask_hpc uninstalled"
    )


def provide(data: Mapping[str, Any], *, timeout_s: float = 60.0) -> Any:
    """Provide data that `Runtime.expect` awaits, from a task or another thread on a worker; no copy is made.

    From then on the data is a result like others: what depends on it runs, and when it is lost it is awaited
    again. In a coroutine on the worker's loop it is to be awaited.

    Parameters
    ----------
    data
        By the names it is expected under.
    timeout_s
        How long to wait while the worker is paused, or the names are announced and not submitted yet.

    Raises
    ------
    TypeError, ValueError
        For what is no dict, no number of seconds, or given where no worker is; for names that nobody awaits
        (any more), or that were provided already: the others are there then.
    TimeoutError
        When it has waited for so long.
    DaskHPCError
        When the scheduler has no runtime.
    """
    try:
        worker: Any = get_worker()
    except ValueError:
        raise ValueError("provide was called where no worker is; call it in a task, or on a worker") from None
    if not isinstance(data, Mapping):
        raise TypeError(f"data is {shown(data)}; needed: a dict of data by the names it is expected under")
    work = _provide(worker, data, checked_seconds("timeout_s", timeout_s))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run_coroutine_threadsafe(work, worker.loop.asyncio_loop).result()
    return work


def runs(worker: Any, key: Any) -> bool:
    """Whether a worker runs a task, or is about to: it ends when data is put in the place of its result."""
    ts = worker.state.tasks.get(key)
    return ts is not None and ts.state in _RUNS


async def landed(worker: Any, keys: Iterable[Any]) -> None:
    """Wait for transfers of data that nobody needs any more, which may be from a host that hangs.

    They would take with them what is put in its place meanwhile.
    """
    for key in keys:
        while (ts := worker.state.tasks.get(key)) and (ts.state, ts.previous) == ("cancelled", "flight"):
            await asyncio.sleep(_AGAIN_S)


async def _provide(worker: Any, data: Mapping[str, Any], timeout_s: float) -> None:
    await landed(worker, data)
    # what is there already, or is being made, must not be replaced
    refused = [name for name in data if name in worker.data or runs(worker, name)]
    left = {name: value for name, value in data.items() if name not in refused}
    worker.update_data(left, stimulus_id=_STIMULUS)
    unused: list[str] = []
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    try:
        while left:
            told = {name: (sizeof(value), typename(type(value))) for name, value in left.items()}
            arguments = {"worker": worker.address, "data": told}
            answer = answered(await worker.scheduler.hpc(method="provide", arguments=arguments))
            unused += answer["refused"]
            left = {name: left[name] for name in answer["later"]}
            if not left:
                break
            if asyncio.get_running_loop().time() > deadline_s:
                text = f"worker {worker.address} could not provide {', '.join(map(repr, left))} for"
                text += f" {timeout_s:g} s: it is paused (give it more memory), or nobody has submitted them"
                raise TimeoutError(text)
            await asyncio.sleep(_AGAIN_S)
    finally:
        if unused or left:
            worker.handle_stimulus(FreeKeysEvent(keys=[*unused, *left], stimulus_id=_STIMULUS))
    if refused := [*refused, *unused]:
        raise ValueError(
            f"nobody awaits {', '.join(map(repr, refused))}: names come from rt.expect, each once"
        )
