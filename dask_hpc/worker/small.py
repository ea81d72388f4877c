"""Small results of jobs: their bytes, which the scheduler holds, and the value made of them again.

Both ends run on workers; the scheduler passes the bytes on and makes nothing of them. What a result takes in
memory by Dask's word says little of what pickling it takes: a model has 48 bytes, and its weights. So a value
is looked through first, and what has a way of its own to be pickled is passed over.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import fractions
import struct
import sys
from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from distributed.core import Status
from distributed.protocol.pickle import dumps, loads

from dask_hpc.wire import TELL
from dask_hpc.worker.values import read_values

#: What no store and no version in memory is called.
SMALL = "small:"
#: How much larger a value may be with all that is in it: of an object Dask counts itself alone.
_WITHIN = 4
_ALONE = frozenset({NoneType, bool, int, float, complex, str, bytes})
_ALIKE = (np.generic, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction)
_SEVERAL = (list, tuple, set, frozenset)


class SmallCopy(NamedTuple):
    """One result, as bytes."""

    #: Number of the run of the task that has made it, among all runs there are.
    run: int
    content: bytes

    @property
    def folder(self) -> str:
        """No version is in a folder of this name."""
        return SMALL

    @property
    def name(self) -> str:
        """Name of the copy, among all there are."""
        return f"{SMALL}{self.run}"

    def read(self) -> Any:
        """The value; raises whatever making it of its bytes raises."""
        return loads(self.content)


def is_plain(value: Any, most_bytes: int) -> bool:
    """Whether a value and all in it is quickly pickled, and takes no more than so many bytes.

    That are numbers, texts, dates, arrays, collections of Python, and objects that say nothing of how they
    are pickled, as those of most classes.
    """
    left = [value]
    while left:
        one = left.pop()
        made_by: Any = type(one)
        # of a collection or an array: before anything in it is looked at; what is in a cycle ends here, too
        most_bytes -= sys.getsizeof(one)
        if most_bytes < 0:
            return False
        if made_by in _ALONE:
            continue
        if made_by in _SEVERAL:
            left.extend(one)
        elif made_by is dict:
            left.extend(one)
            left.extend(one.values())
        elif isinstance(one, (np.ndarray, np.generic)) and one.dtype.hasobject:
            return False
        elif made_by is np.ndarray:
            # a view says what it is, not what it is of
            most_bytes -= one.nbytes
        elif made_by.__module__ == "__main__":
            # pickled with the whole class, which takes long
            return False
        elif not isinstance(one, (*_ALIKE, enum.Enum)):
            if not (
                made_by.__reduce_ex__ is object.__reduce_ex__
                and made_by.__reduce__ is object.__reduce__
                and made_by.__getstate__ is object.__getstate__
            ):
                return False
            _, (_, *arguments), state, items, pairs = object.__reduce_ex__(one, 4)
            left.extend([*arguments, state, *(items or ()), *(pairs or ())])
    return most_bytes >= 0


def to_content(value: Any, limit_bytes: int) -> bytes | None:
    """The bytes of a value; None when it is none that is quickly pickled, or too large."""
    try:
        return dumps(value) if is_plain(value, _WITHIN * limit_bytes) else None
    except Exception:  # types of users may raise anything
        return None


async def tell(worker: Any, keys: Sequence[Any], limit_bytes: int) -> bytes:
    """The bytes of results of a worker, one behind the other; called on its event loop.

    Parameters
    ----------
    limit_bytes
        What is larger in memory, or much larger as bytes, is passed over.

    Returns
    -------
    bytes
        See `contents`.
    """
    values = read_values(worker, dict(enumerate(keys)), {})
    found = await asyncio.to_thread(
        lambda: {number: to_content(value, limit_bytes) for number, value in values.items()}
    )
    parts = [found.get(number) for number in range(len(keys))]
    lengths = [-1 if part is None else len(part) for part in parts]
    return b"".join([struct.pack(f"<{len(keys)}i", *lengths), *(part for part in parts if part is not None)])


def contents(answer: bytes, count: int) -> list[bytes | None]:
    """What `tell` has told of each of so many keys; None: nothing.

    Raises
    ------
    ValueError
        When it is no such answer.
    """
    found: list[bytes | None] = []
    at = 4 * count
    if at > len(answer):
        raise ValueError(f"{len(answer)} bytes tell nothing of {count} results")
    for length in struct.unpack_from(f"<{count}i", answer):
        found.append(None if length < 0 else answer[at : at + length])
        at += max(0, length)
    if at != len(answer):
        raise ValueError(f"{len(answer)} bytes in place of {at} for {count} results")
    return found


def start(worker: Any) -> None:
    """Have a worker tell its small results when it is asked."""

    async def told(keys: Sequence[Any], limit_bytes: int) -> bytes:
        return await tell(worker, keys, limit_bytes)

    worker.handlers[TELL] = told


def stop(worker: Any) -> None:
    """Have it tell nothing any more; one that closes still answers a question that is on its way."""
    if worker.status != Status.closing:
        worker.handlers.pop(TELL, None)
