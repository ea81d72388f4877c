"""Calls what users want called at a step, one after the other."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dask_hpc.client.turns import is_cancelled

logger = logging.getLogger("dask_hpc")


async def call_all(
    callbacks: Sequence[Callable[[int, Any], Any]], step: int, dataset: Callable[[int], Any], flow: str
) -> str:
    """Call each with the step and a data set of its own; what one of them has raised, if any has.

    One that raises is logged; the others are called all the same.
    """
    failed = ""
    for callback in callbacks:
        try:
            if inspect.iscoroutinefunction(callback):
                await callback(step, dataset(step))
            else:
                await asyncio.to_thread(callback, step, dataset(step))
        except (Exception, asyncio.CancelledError) as error:  # whatever a user's function raises
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            # Dask says so, too, when a step is lost meanwhile
            failed = f"step {step}: {type(error).__name__}: {error}"
            # as text: a traceback that is kept would keep the step
            text = traceback.format_exc()
            logger.error("A callback of flow %r has failed at step %d: %s", flow, step, text)
    return failed


def call_soon(loop: Any, function: Callable[[], None]) -> None:
    """Have a loop call a function, from whatever thread; one that is closed does not."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
