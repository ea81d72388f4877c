"""Results in checkpoints: what a worker writes of a version, and the task that brings a result back.

Both ends run on workers, beside the tasks: values are read where they are, and one thread a call writes.
What cannot be written or read is said to the scheduler, which knows what else to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import typename
from distributed import Reschedule, get_worker

from dask_hpc.checkpoint.blocks import read_block, write_blocks
from dask_hpc.checkpoint.plan import Array, Written

logger = logging.getLogger("distributed.dask_hpc")

#: Event topic in which a worker says why no copy of a result could be read.
TOPIC = "hpc-checkpoint"


@dataclass(frozen=True, slots=True)
class Copy:
    """Where one result is in a version of a checkpoint."""

    #: Folder of the version, and what of it.
    folder: str
    array: Array
    number: int
    written: Written

    @property
    def name(self) -> str:
        """Name of the block, among all there are."""
        return f"{self.folder}/{self.array.path}/{self.number}"


async def write(
    folder: str, array: Array, keys: Mapping[int, Any], dask_worker: Any
) -> dict[int, tuple[Written, str] | str | None]:
    """Write results of the worker that this runs on as blocks of an array; durable when it returns.

    Returns
    -------
    dict
        By number of the block what was written and the type of the value, or why there is nothing (a text),
        or None for what the worker has not got any more.
    """
    answers: dict[int, tuple[Written, str] | str | None] = dict.fromkeys(keys)
    values: dict[int, Any] = {}
    for number, key in keys.items():
        if key in dask_worker.data:
            try:
                values[number] = dask_worker.data[key]
            except (
                Exception
            ) as error:  # what was spilled may not be readable, and types of users raise anything
                answers[number] = f"{type(error).__name__}: {error}"
    numbers = list(values)
    done = await asyncio.to_thread(write_blocks, folder, array, numbers, [values[n] for n in numbers])
    for number, written in zip(numbers, done, strict=True):
        answers[number] = written if isinstance(written, str) else (written, typename(type(values[number])))
    return answers


def load(copies: Sequence[Copy]) -> Any:
    """The task that brings a result back, from the first copy that is what was written.

    It never fails: when there is no such copy it says so to the scheduler, which knows what else to do, and
    gives itself back.
    """
    problems = []
    for copy in copies:
        try:
            return read_block(copy.folder, copy.array, copy.number, copy.written, trusted=True)
        except Exception as error:
            problems.append(f"{copy.name}: {type(error).__name__}: {error}")
            logger.warning("A copy of a result is of no use: %s", problems[-1])
    get_worker().log_event(TOPIC, {"block": copies[0].name, "error": "; ".join(problems)})
    raise Reschedule
