"""One rank of the program of `coupling`: sends a step each time it is told to, and says when it did.

Run by ``mpiexec`` it takes its rank from MPI, else from its arguments. For deisa-dask it is a Bridge, for
ADIOS2 a stream, for us a `Source`; what is timed around `send` is the same.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

#: Said back after each step: when `send` was called, and when it returned.
TIMES = struct.Struct("dd")
#: What is told to a rank: send a step; a new flow begins; it is over.
STEP, NEXT, END = b"s", b"n", b"e"

Send = Callable[[int, np.ndarray], Any]


def ours(told: dict[str, Any], rank: int, size: int) -> Any:
    """A function that begins each flow, and gives what sends a step of it and what ends it."""
    import dask_hpc

    def begin(name: str) -> tuple[Send, Callable[[], Any]]:
        source = dask_hpc.Source(name, told["scheduler"], rank=rank, size=size)
        at = {"y": rank * told["rows"]}
        return lambda step, block: source.send(step, {"T": block}, at=at), source.close

    return begin


def deisa(told: dict[str, Any], rank: int, size: int, comm: Any) -> Any:
    """The same of deisa-dask; its Bridge serves all flows."""
    os.environ["DEISA_DASK_SCHEDULER_ADDRESS"] = told["scheduler"]
    from deisa.dask import Bridge

    shape = (told["rows"], told["columns"])
    lies = {"global_shape": (size * shape[0], shape[1]), "chunk_shape": shape, "chunk_position": (rank, 0)}
    bridge = Bridge(comm, {"T": lies})

    def begin(name: str) -> tuple[Send, Callable[[], Any]]:
        return lambda step, block: bridge.send("T", block, step), lambda: None

    return begin


def adios2(told: dict[str, Any], rank: int, size: int) -> Any:
    """The same of ADIOS2's SST, a stream for each flow; its one reader has to be there before a step."""
    from adios2 import Adios, Stream

    adios, shape = Adios(), (told["rows"], told["columns"])

    def begin(name: str) -> tuple[Send, Callable[[], Any]]:
        io = adios.declare_io(name)
        io.set_engine("SST")
        stream = Stream(io, f"{told['scheduler']}-{name}", "w")

        def send(step: int, block: np.ndarray) -> None:
            stream.begin_step()
            stream.write("T", block, [size * shape[0], shape[1]], [rank * shape[0], 0], list(shape))
            stream.end_step()

        return send, stream.close

    return begin


def main() -> None:
    """Do as one is told."""
    told = json.loads(sys.argv[1])
    if told["mpi"]:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
    else:
        comm, (rank, size) = None, told["rank"]
    way = socket.create_connection((told["host"], told["port"]))
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if told["way"] == "deisa":
        begin = deisa(told, rank, size, comm)
    else:
        begin = (ours if told["way"] == "ours" else adios2)(told, rank, size)
    block = np.full((told["rows"], told["columns"]), float(rank))
    step = 0
    for name in told["flows"]:
        send, end = begin(name)
        way.sendall(STEP)
        while (said := way.recv(1)) == STEP:
            block[0, 0] = step
            began_s = time.monotonic()
            send(step, block)
            way.sendall(TIMES.pack(began_s, time.monotonic()))
            step += 1
        end()
        if said != NEXT:
            break
    # deisa-dask's way to its end waits for others that may have gone
    way.close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
