"""What a program gives, as it is taken: its scheduler, blocks of fields, its patience; whence it calls."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import dask
import numpy as np
from dask.utils import parse_timedelta
from distributed import Security

from dask_hpc.coupling.scheduler_file import address_in
from dask_hpc.errors import InstallError
from dask_hpc_policies.coupling.contract import Field
from dask_hpc_policies.params import shown

logger = logging.getLogger("dask_hpc")

#: A connection may take so many seconds however short the program waits.
_CONNECT_S = 1.0
#: How often one looks for a scheduler's file, and when it is said that it is waited for, in seconds.
_LOOK_S, _SAID_S = 0.05, 1.0
#: Letters of why one has failed.
_WHY = 500
#: Those that were made in this process, and are there.
_sources = weakref.WeakSet[Any]()


def address_of(scheduler: Any, timeout_s: float) -> str:
    """The address of the scheduler, which is given or stands in the file that is given.

    A scheduler may be started with its programs: one that has not written its file in full is waited for as
    long as one that does not answer, unless its folder is not there.

    Raises
    ------
    TypeError, ValueError
        For what is neither address nor path; for a file that is none of a scheduler's.
    RuntimeError
        Where a file has to be waited for inside of a running event loop.
    """
    text = os.fspath(scheduler) if isinstance(scheduler, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(
            f"scheduler is {shown(scheduler)}; needed: its address, such as 'tcp://login1:8786', or the path "
            "of its file"
        )
    if "://" in text or (":" in text and not os.path.exists(text)):
        return text
    began_s, most_s, said = time.monotonic(), min(timeout_s, connect_s(timeout_s)), False
    while True:
        try:
            return address_in(text)
        except ValueError as error:
            waited_s = time.monotonic() - began_s
            if waited_s >= most_s or not os.path.isdir(os.path.dirname(os.path.abspath(text))):
                raise
            if waited_s >= _SAID_S and not said:
                logger.warning("Waiting for a scheduler, up to %g s: %s", most_s, error)
                said = True
        _check_no_loop()
        time.sleep(_LOOK_S)


def _check_no_loop() -> None:
    """Raise `RuntimeError` inside of a running event loop."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("a Source blocks: call it outside of a running event loop, in a thread of its own")


def connection_of(security: Any) -> dict[str, Any]:
    """What connections of a client need; raises `TypeError` for what is no `distributed.Security`."""
    if not (security is None or isinstance(security, Security)):
        raise TypeError(
            f"security is {shown(security)}; needed: a distributed.Security, or None for Dask's configuration"
        )
    found: dict[str, Any] = (security or Security()).get_connection_args("client")
    return found


def connect_s(timeout_s: float) -> float:
    """How long a connection to the scheduler may take of one who waits so long: no longer than Dask says."""
    most_s = float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))
    return min(max(timeout_s, _CONNECT_S), most_s)


@contextmanager
def calling(loop: asyncio.AbstractEventLoop, lock: threading.Lock, process: int) -> Iterator[None]:
    """A call of a `Source`: it may block here and speak over its connection, and nobody else does meanwhile.

    Parameters
    ----------
    loop, lock, process
        Those of the `Source`.

    Raises
    ------
    RuntimeError
        Inside of a running event loop, in a forked process, and while another thread is in a call of it.
    """
    _check_no_loop()
    text = ""
    if process != os.getpid():
        text = f"this Source is that of process {process}, which has forked this one: make one here"
    elif loop.is_running() or not lock.acquire(blocking=False):
        text = "another thread is in a call of this Source: call it from one thread at a time"
    if text:
        raise RuntimeError(text)
    try:
        yield
    finally:
        lock.release()


def apart(function: Callable[[], Any]) -> None:
    """Call a function that blocks: in a thread of its own where an event loop runs here."""
    if asyncio._get_running_loop() is None:
        function()
        return
    thread = threading.Thread(target=function, name="dask-hpc-source")
    thread.start()
    thread.join()


def let_go_at_exit(source: Any) -> None:
    """Have a `Source` that is open when its process ends gone by then, not once MPI lets the process end.

    That waits for the other ranks, and these may wait for room in the queue of the flow: for ever.
    """
    if not _sources:
        atexit.unregister(_let_go)
        atexit.register(_let_go)  # what is registered last is called first: before the end of MPI
    _sources.add(source)


def _let_go() -> None:
    # without MPI it is gone soon, and what it has sent is more likely to be analysed by then
    for source in list(_sources) if "mpi4py.MPI" in sys.modules else ():
        if source._process == os.getpid():
            source._abort()


def _forked() -> None:
    """In a child: let go of its copies, by which a program is there, and its ring, as long as a child."""
    for source in list(_sources):
        source._ring = None
        source._kept.leave(())
        for comm in (source._comm, source._known):
            with suppress(Exception):  # it has none, or is of another kind than TCP and TLS
                os.close(comm.stream.socket.detach())


os.register_at_fork(after_in_child=_forked)


def installed(answer: Any, where: str) -> Any:
    """An answer of a scheduler or worker; raises `InstallError` when nobody there could give one."""
    if answer is None:
        raise InstallError(f"{where} has no dask_hpc, or another version of it: install the same one there")
    return answer


def why_of(error: BaseException) -> str:
    """What has ended a program, as messages can tell it: in short, in letters that UTF-8 has."""
    return f"{type(error).__name__}: {error}"[:_WHY].encode(errors="replace").decode()


def blocks_of(
    fields: Mapping[str, Field], blocks: Mapping[str, Any], at: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """What a worker is told of the blocks of a step, and these; raises `ValueError` for what cannot be."""
    for what, given, kind in (("blocks", blocks, "arrays by field"), ("at", at, "numbers by dimension")):
        if not isinstance(given, Mapping):
            raise ValueError(f"{what} is of type {type(given).__name__}; needed: a dict, {kind}")
    if blocks.keys() != fields.keys():
        raise ValueError(
            f"blocks are of {', '.join(map(repr, blocks)) or 'nothing'}; needed: one of each of "
            f"{', '.join(map(repr, fields))}"
        )
    dims = {dim for one in fields.values() for dim in one.dims}
    if unknown := at.keys() - dims:
        first, allowed = min(map(repr, unknown)), ", ".join(map(repr, sorted(dims)))
        raise ValueError(f"at has {first}; allowed: {allowed}")
    told, arrays = [], []
    for name, block in blocks.items():
        array = array_of(fields[name], block)
        begin, shape = fields[name].placed(at, array.shape, array.dtype.name)
        told.append({"field": name, "at": begin, "shape": shape, "dtype": array.dtype.name})
        arrays.append(array)
    return told, arrays


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
