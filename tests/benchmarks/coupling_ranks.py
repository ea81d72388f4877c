"""The ranks of `coupling`: started, told step by step what to do, and asked what it took."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coupling_rank import STEP, TIMES

HERE = Path(__file__).resolve().parent
#: What a step is timed to.
FLOWS = ("callback", "value")
PATIENCE_S = 60.0


class Case(NamedTuple):
    """A program, and the most of deisa-dask's time: to the callback, to the value, held by `send`."""

    name: str
    ranks: int
    #: Rows and columns of 8 bytes that each rank has.
    rows: int
    columns: int
    bars: tuple[float, float, float]
    #: Milliseconds to the callback that hold on a quiet machine.
    quiet_ms: float | None
    #: Whether ADIOS2's SST does the same: the most of its time is once.
    sst: bool = False


def installed(*modules: str) -> list[str]:
    """Those of them that are not there."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def mpiexec() -> str | None:
    """The launcher that belongs to this environment's MPI."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


class Ranks:
    """The ranks of a program, told step by step what to do."""

    def __init__(self, way: str, scheduler: str, case: Case) -> None:
        self._listens = socket.create_server(("127.0.0.1", 0))
        host, port = self._listens.getsockname()
        told = {
            "way": way, "scheduler": scheduler, "host": host, "port": port, "rows": case.rows,
            "columns": case.columns, "flows": FLOWS, "mpi": bool(mpiexec() and not installed("mpi4py")),
        }  # fmt: skip
        script = [sys.executable, str(HERE / "coupling_rank.py")]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        if told["mpi"]:
            commands = [[str(mpiexec()), "-n", str(case.ranks), *script, json.dumps(told)]]
        else:
            commands = [
                [*script, json.dumps({**told, "rank": (rank, case.ranks)})] for rank in range(case.ranks)
            ]
        self._processes = [subprocess.Popen(command, env=env) for command in commands]
        self._listens.settimeout(PATIENCE_S)
        self._ways = [self._listens.accept()[0] for _ in range(case.ranks)]

    def ready(self) -> None:
        """Wait until all of them can send."""
        for way in self._ways:
            way.settimeout(PATIENCE_S)
            assert way.recv(1) == STEP

    def step(self) -> None:
        """Have all of them send a step."""
        for way in self._ways:
            way.sendall(STEP)

    def times(self) -> tuple[float, float]:
        """When the first one called `send` for it, and the mean of the seconds that it took."""
        found = [TIMES.unpack(way.recv(TIMES.size, socket.MSG_WAITALL)) for way in self._ways]
        return min(began_s for began_s, _ in found), statistics.mean(ended - began for began, ended in found)

    def say(self, what: bytes) -> None:
        """Tell all of them something else."""
        for way in self._ways:
            way.sendall(what)

    def end(self) -> None:
        """Wait for their end; those that do not come to one are killed."""
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for way in (*self._ways, self._listens):
            way.close()


Took = dict[str, list[float]]


def closed_loop(ranks: Ranks, steps: int, arrived: Callable[[], float], took: Took, name: str) -> None:
    """Send steps one by one; the seconds of each until it has arrived, and that `send` held the ranks."""
    ranks.ready()
    for number in range(steps + steps // 4 + 1):
        ranks.step()
        at_s = arrived()
        began_s, held_s = ranks.times()
        # the first ones make connections and rings
        if number > steps // 4:
            took[name].append(at_s - began_s)
            if name == "callback":
                took["held"].append(held_s)
