"""Checkpoints in the memory of hosts: time of a commit beside a copy in memory and a transfer to another.

Two workers on hosts of their own by their labels, on one machine: what goes from one to the other goes over
its loopback. The data is on one of them. In each round new data is written to the memory of its host (L1),
the same with a copy on the other (L2, ``partner``), copied within memory by one thread, and fetched by the
other worker as Dask does it, in turns. A commit ends when all checksums are known, and takes memory that
versions before it had: `trends` has what the first one takes (T4). Two threads that write as much to files in
memory, without checksums, say what the system's own copy takes, which L1 does without where it can.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from distributed import Client, Future, wait
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc

#: The most of the time of L1 over a copy's, and of L1 with L2 over that of L1 and a transfer.
BARS = {"L1": 2.0, "L2": 1.0}
HOSTS = ("one", "other")
BLOCKS_MIB = (64, 1)
#: Bytes of a write to a file.
PIECE = 1 << 18


def copied(nbytes: int) -> float:
    """Seconds that one thread takes to copy so much into memory that is there already."""
    # zeros() would give memory that is not there yet
    source, target = np.full(nbytes, 1, np.uint8), np.full(nbytes, 2, np.uint8)
    began_s = time.perf_counter()
    target[:] = source
    return time.perf_counter() - began_s


def written(nbytes: int, folder: str) -> float:
    """Seconds that two threads take to write so much to files in memory whose bytes are there already.

    A file each: the kernel has those that write one file wait for each other.
    """
    source = np.full(nbytes // 2, 1, np.uint8).data

    def write(file: IO[bytes]) -> None:
        for at in range(0, len(source), PIECE):
            os.pwrite(file.fileno(), source[at : at + PIECE], at)

    with ExitStack() as opened, ThreadPoolExecutor(2) as pool:
        files = [opened.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(2)]
        list(pool.map(write, files))
        began_s = time.perf_counter()
        list(pool.map(write, files))
        return time.perf_counter() - began_s


def block(nbytes: int, number: int) -> np.ndarray:
    """Values of a block."""
    return np.full(nbytes, number % 251, np.uint8)


def total(*blocks: np.ndarray) -> int:
    """Bytes of what has been fetched."""
    return sum(each.nbytes for each in blocks)


class Cell:
    """The cluster, and what is timed on it."""

    def __init__(self, client: Client, runtime: Any, nbytes: int, mib: int) -> None:
        self.client, self.runtime = client, runtime
        self.nbytes = nbytes
        self.block_bytes = min(nbytes, mib * 2**20)
        self.here, self.there = self._addresses()

    def _addresses(self) -> tuple[str, str]:
        told = self.client.run(_host)
        return tuple(sorted(told, key=lambda address: HOSTS.index(told[address])))  # type: ignore[return-value]

    def data(self) -> list[Future]:
        """New blocks on one worker."""
        numbers = range(self.nbytes // self.block_bytes)
        made = self.client.map(
            block, [self.block_bytes] * len(numbers), numbers, workers=[self.here], pure=False
        )
        wait(made)
        return list(made)

    def commit(self, *levels: str) -> float:
        """Seconds of a commit."""
        data = self.data()
        began_s = time.perf_counter()
        commit = self.runtime.checkpoint(data, "blocks", levels=levels)
        took_s = time.perf_counter() - began_s
        assert commit.status()["levels"] == list(levels), commit.status()["reason"]
        return took_s

    def copy(self) -> float:
        """Seconds of a copy within memory."""
        found: dict[str, float] = self.client.run(copied, self.nbytes, workers=[self.here])
        return found[self.here]

    def file(self) -> float:
        """Seconds of a write to a file in memory."""
        found: dict[str, float] = self.client.run(written, self.nbytes, "/dev/shm", workers=[self.here])
        return found[self.here]

    def transfer(self) -> float:
        """Seconds until the other worker has all blocks."""
        data = self.data()
        began_s = time.perf_counter()
        assert self.client.submit(total, *data, workers=[self.there], pure=False).result() == self.nbytes
        return time.perf_counter() - began_s


def _host() -> str:
    return os.environ["DASK_HPC__NODE__HOST"]


def run(options: Options) -> list[Row]:
    nbytes = options.pick(2**30, 2**28, 2**22)
    rounds, chance, rows = options.pick(7, 5, 1), random.Random(SEED), []
    first, second = ({"DASK_HPC__NODE__HOST": host} for host in HOSTS)
    with (
        dask_hpc.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            env=first,
            pools={"second": {"n_workers": 1, "env": second}},
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        runtime = dask_hpc.install(client, policy="fcfs")
        for mib in BLOCKS_MIB:
            cell = Cell(client, runtime, nbytes, mib)
            ways = {
                "L1": lambda cell=cell: cell.commit("L1"),
                "L2": lambda cell=cell: cell.commit("L1", "L2"),
                "copy": cell.copy,
                "file": cell.file,
                "transfer": cell.transfer,
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            # the first ones make what later ones use again
            for _ in range(2):
                for way in ways.values():
                    way()
            for _ in range(rounds):
                for way in chance.sample(sorted(ways), len(ways)):
                    times[way].append(ways[way]())
            rows += found(f"{nbytes / 2**20:g} MiB in blocks of {cell.block_bytes / 2**20:g}", nbytes, times)
    return rows


def found(what: str, nbytes: int, times: dict[str, list[float]]) -> list[Row]:
    """The rows of one size of blocks."""
    over_copy = [ours / copy for ours, copy in zip(times["L1"], times["copy"], strict=True)]
    rounds = zip(times["L2"], times["L1"], times["transfer"], strict=True)
    over_transfer = [both / (alone + raw) for both, alone, raw in rounds]
    speeds = [
        row(f"{what}: {way}", [nbytes / one / 1e9 for one in times[way]], "GB/s")
        for way in ("L1", "L2", "copy", "file", "transfer")
    ]
    return [
        row(f"{what}: L1 over a copy, ratio", over_copy, "", bar=BARS["L1"]),
        row(f"{what}: L1 and L2 over L1 and a transfer, ratio", over_transfer, "", bar=BARS["L2"]),
        *speeds,
    ]


if __name__ == "__main__":
    main("host_memory", __doc__.splitlines()[0], run)
