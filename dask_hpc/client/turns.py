"""One step of a flow on its consumer's end, and what is computed of it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from dask_hpc.client.readers import Reader
from dask_hpc.errors import CouplingError


@dataclass(slots=True)
class Analysis:
    """What is computed of the last steps."""

    name: str
    function: Callable[..., Any]
    window: int
    every: int
    #: The turn its first window begins with.
    first: int
    readers: weakref.WeakSet[Reader] = field(default_factory=weakref.WeakSet)


@dataclass(slots=True)
class Turn:
    """One step, from the moment its tasks are submitted."""

    sources: list[Future]
    #: What producers number it; None: it has not begun.
    step: int | None = None
    #: Set once all its blocks are there, or it is clear that they will never be.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    #: Why it will never be whole.
    lost: str = ""
    #: Whether it had to make room.
    ousted: bool = False
    #: What is computed of it, by analysis.
    values: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    futures: list[Future] = field(default_factory=list)

    def release(self) -> None:
        """Let go of it on the cluster, whatever still refers to it here."""
        for task in self.values.values():
            task.cancel()
        for future in (*self.sources, *self.futures):
            future.release()


async def value_of(future: Future) -> tuple[Any, BaseException | None]:
    """The value, or what was raised; its traceback is that of the worker and refers to nothing here."""
    # Dask fetches several results with one request: whoever gives up one of them would give up all
    return await asyncio.shield(_asked_for(future))


async def _asked_for(future: Future) -> tuple[Any, BaseException | None]:
    while True:
        try:
            error: BaseException | None = await future.exception()
            if error is None:
                return await future, None
            return None, error.with_traceback(await future.traceback())
        except CancelledError as lost:  # the cluster has let go of it
            return None, CouplingError(str(lost))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # somebody else has given up what was fetched with it


def is_cancelled() -> bool:
    """Whether the task that this runs in is being cancelled: Dask raises the same for what it lets go of."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
