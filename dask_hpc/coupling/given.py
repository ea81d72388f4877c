"""What a program gives, as it is taken: the block of a field, its patience, and from where it calls."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import dask
import numpy as np
from dask.utils import parse_timedelta

from dask_hpc_policies.coupling.contract import Field

#: A connection may take so many seconds however short the program waits.
_CONNECT_S = 1.0


def connect_s(timeout_s: float) -> float:
    """How long a connection to the scheduler may take of one who waits so long: no longer than Dask says."""
    most_s = float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))
    return min(max(timeout_s, _CONNECT_S), most_s)


def check_caller(loop: asyncio.AbstractEventLoop, process: int) -> None:
    """See that a call of a `Source` may block here, and speak over its connection.

    Parameters
    ----------
    loop, process
        Those of the `Source`.

    Raises
    ------
    RuntimeError
        Inside of a running event loop, in a forked process, and while another thread is in a call of it.
    """
    text = ""
    if asyncio._get_running_loop() is not None:
        text = "a Source blocks: call it outside of a running event loop, in a thread of its own"
    elif process != os.getpid():
        text = f"this Source is that of process {process}, which has forked this one: make one here"
    elif loop.is_running():
        text = "another thread is in a call of this Source: call it from one thread at a time"
    if text:
        raise RuntimeError(text)


def array_of(field: Field, block: Any) -> np.ndarray:
    """The block as a plain array, in the byte order of this machine, which is what its type is told as.

    Raises
    ------
    ValueError
        For what a plain array would say otherwise: a masked array, and one whose dims have another order or
        other names.
    """
    if np.ma.is_masked(block):
        raise ValueError(f"block of {field.name!r} has masked values; needed: all of them, as by .filled()")
    # of what is labelled, as xarray's are; others have something else by that name
    dims = getattr(block, "dims", None)
    if isinstance(dims, tuple) and dims != field.dims:
        raise ValueError(f"block of {field.name!r} has dims {dims}; needed: {field.dims}, in this order")
    array = np.asarray(block)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
