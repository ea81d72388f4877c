"""Calling functions of the user's in a program: what they submit is their job's."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import Any

import dask

from dask_hpc.channel import OnChannel
from dask_hpc.program.producer import IN_PROGRAM
from dask_hpc.wire import ANNOTATION


async def called(job: OnChannel, function: Callable[..., Any], *args: Any) -> Any:
    """Call the user's function: in a thread of its own when the client of its job is an ordinary one."""
    client = job.channel.client
    inside = IN_PROGRAM.set(job.require_id())
    try:
        with dask.annotate(**{ANNOTATION: job.id}):
            if client._asynchronous:
                answer = function(*args)
                return await answer if inspect.isawaitable(answer) else answer
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, lambda: context.run(function, *args))
    finally:
        IN_PROGRAM.reset(inside)
