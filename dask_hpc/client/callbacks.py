"""Calls what users want called at a step, one after the other."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from dask_hpc.client.turns import is_cancelled

logger = logging.getLogger("dask_hpc")


def own_thread(flow: str) -> Executor | None:
    """The thread of a flow's callbacks: it begins with the first of them, and ends with the last reference.

    They may take as long as they like. On a thread of the loop's own others would wait for it, those of a
    `LocalCluster`'s scheduler too, and whoever closes the loop.
    """
    return ThreadPoolExecutor(1, f"dask-hpc-{flow}")


async def call_all(
    callbacks: Sequence[Callable[[int, Any], Any]],
    step: int,
    dataset: Callable[[int], Any],
    flow: str,
    thread: Executor | None,
) -> str:
    """Call each with the step and a data set of it, of its own; what one of them has raised, if any has.

    One that raises is logged; the others are called all the same. Those that are no coroutine functions are
    called on `thread`.
    """
    failed, loop = "", asyncio.get_running_loop()
    for callback in callbacks:
        why: tuple[str, str] | None = None
        try:
            if inspect.iscoroutinefunction(callback):
                found = callback(step, dataset(step))
            else:
                call = contextvars.copy_context().run
                found, why = await loop.run_in_executor(thread, call, _called, callback, step, dataset(step))
            # also of what was not seen to be a coroutine function; a future of the cluster is a result
            if inspect.iscoroutine(found):
                await found
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # whatever a user's function raises
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            # Dask says so, too, when a step is lost meanwhile
            why = _told(error)
        found = None
        if why is not None:
            failed = f"step {step}: {why[0]}"
            logger.error("A callback of flow %r has failed at step %d: %s", flow, step, why[1])
    return failed


def _called(
    callback: Callable[[int, Any], Any], step: int, dataset: Any
) -> tuple[Any, tuple[str, str] | None]:
    """What it has returned, or what is told of what it has raised.

    Some of that would never come out of its thread (`StopIteration`), or end the loop (`SystemExit`).
    """
    try:
        return callback(step, dataset), None
    except BaseException as error:
        return None, _told(error)


def _told(error: BaseException) -> tuple[str, str]:
    """What is raised, in one line and in full: as text, as a traceback that is kept would keep the step.

    Dask keeps what a task has raised with the future of that, which lies in the traceback.
    """
    told = f"{type(error).__name__}: {error}", traceback.format_exc()
    each: BaseException | None = error
    # what is raised may be its own cause
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__context__ or each.__cause__
    return told


def call_soon(loop: Any, function: Callable[[], None]) -> None:
    """Have a loop call a function, from whatever thread; one that is closed does not."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
