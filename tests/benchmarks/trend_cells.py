"""Clusters that the trends of checkpoints are measured on, and what is compared there.

Hosts are workers with labels, on one machine: what goes from one to another stays in its memory.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, Future, wait
from distributed.system import MEMORY_LIMIT
from machine import SEED

import dask_hpc
from dask_hpc.checkpoint.segments import held_bytes
from dask_hpc.worker.host_memory import manager_folder
from dask_hpc.worker.left_behind import MANAGER
from dask_hpc.worker.managers import listening

HOSTS = ("one", "two", "three", "four")
#: Checkpoints may have at least so much of a host's memory.
LEAST_BYTES = 0.001 * MEMORY_LIMIT
MEMORY, DISK = ("L1", "L2"), ("L3",)
_HOST = "DASK_HPC__NODE__HOST"
#: What is to come has come by then, in seconds.
PATIENCE_S = 120.0
#: How far times may be from what an equation says, over the time of a commit.
TOLERANCE = 0.2


@contextmanager
def cell(hosts: int, host_memory_bytes: float = MEMORY_LIMIT / 4) -> Iterator[Cell]:
    """A worker on each of so many hosts; checkpoints may have so much memory of each."""
    # what other clusters have of this machine's memory counts for hosts of their own
    cluster = uuid.uuid4().hex
    first, *others = ({_HOST: f"{name}-{cluster}"} for name in HOSTS[:hosts])
    # not /tmp: that may be memory
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        settings = {
            "hpc.checkpoint.store": folder,
            "hpc.checkpoint.host-memory": min(0.9, max(LEAST_BYTES, host_memory_bytes) / MEMORY_LIMIT),
            # managers stay while workers come back
            "hpc.checkpoint.linger": "30 s",
            # a worker that takes longer to come back would be given up
            "distributed.deploy.lost-worker-timeout": "1 hour",
        }
        with (
            dask.config.set(settings),
            dask_hpc.LocalCluster(
                n_workers=1,
                threads_per_worker=1,
                dashboard_address=":0",
                env=first,
                pools={env[_HOST]: {"n_workers": 1, "env": env} for env in others},
            ) as made,
            Client(made) as client,
        ):
            client.wait_for_workers(hosts)
            yield Cell(client, dask_hpc.install(client, policy="fcfs"), hosts)


class Cell:
    """A cluster, and what is done on it."""

    def __init__(self, client: Client, runtime: Any, hosts: int) -> None:
        self.client, self.runtime, self.hosts = client, runtime, hosts

    def workers(self) -> list[str]:
        """Their addresses, in the order of hosts, once all are there."""
        deadline_s = time.monotonic() + PATIENCE_S
        while len(told := self.client.run(_host, on_error="ignore")) < self.hosts:
            assert time.monotonic() < deadline_s, f"only {sorted(told.values())} are there"
            time.sleep(0.05)
        return sorted(told, key=lambda address: HOSTS.index(told[address].partition("-")[0]))

    def data(
        self, nbytes: int, blocks: int, hosts: int, make: Callable[..., Any] | None = None
    ) -> list[Future]:
        """New blocks of so many bytes together, evenly on the first hosts."""
        places = self.workers()[:hosts]
        made = [
            self.client.submit(
                make or noise, nbytes // blocks, number, workers=[places[number % hosts]], pure=False
            )
            for number in range(blocks)
        ]
        wait(made)
        return made

    def each(self, function: Callable[..., Any], data: Sequence[Future], **arguments: Any) -> list[Any]:
        """What a function finds of each block."""
        return list(self.client.gather(self.client.map(function, data, pure=False, **arguments)))

    def commit(
        self, data: Any, levels: Sequence[str], reached: Sequence[str] | None = None, name: str = "trend"
    ) -> float:
        """Seconds of a commit, which must have got to these levels."""
        began_s = time.perf_counter()
        commit = self.runtime.checkpoint(data, name, levels=levels)
        took_s = time.perf_counter() - began_s
        told = commit.status()
        assert told["levels"] == list(reached or levels), told["reason"]
        return took_s

    def managers(self) -> list[Path]:
        """Their folders."""
        return [Path(each) for each in self.client.run(_folder).values() if each is not None]

    def let_go(self, data: Sequence[Future], name: str = "trend") -> None:
        """Nobody wants this any more, nor a version of it in the memory of any host.

        What no store has stays for a while otherwise: a version of next to nothing takes its place.
        """
        before = {folder: held_bytes(str(folder)) for folder in self.managers()}
        self.client.cancel(data)
        self.commit(self.data(1, 1, 1), ["L1"], name=name)
        self.until(
            lambda: all(held_bytes(str(folder)) < nbytes / 2 for folder, nbytes in before.items() if nbytes),
            f"the version of {name} is dropped",
        )

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not so():
            assert time.monotonic() < deadline_s, f"not after {PATIENCE_S:g} s: {what}"
            time.sleep(0.05)

    def kill(self, folder: Path) -> None:
        """SIGKILL of the manager of a folder, which the next checkpoint starts anew, until it is gone."""
        os.kill(listening(folder)["pid"], signal.SIGKILL)
        # its main thread may be a zombie while others hold its files: who starts the next one sees the lock
        self.until(lambda: _is_free(folder / f"{MANAGER}.lock"), "a manager is gone")

    def kill_managers(self, held: float) -> None:
        """The same of all of them, once none holds more bytes than that: nothing is being dropped then."""
        folders = self.managers()
        self.until(lambda: all(held_bytes(str(folder)) <= held for folder in folders), "a version is dropped")
        for folder in folders:
            self.kill(folder)

    def lose(self, memory: bool) -> None:
        """SIGKILL of all workers; and of what holds the memory of their hosts, which goes too."""
        folders, pids = self.managers(), self.client.run(os.getpid)
        for folder in folders if memory else ():
            self.kill(folder)
            shutil.rmtree(folder)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        there = partial(self.client.scheduler_info, -1)
        self.until(lambda: not pids.keys() & there()["workers"].keys(), "killed workers are gone")


def _host() -> str:
    return os.environ[_HOST]


def _folder(dask_worker: Any) -> str | None:
    found = manager_folder(dask_worker)
    return None if found is None else str(found)


def _is_free(lock: Path) -> bool:
    """Whether nobody holds a lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def noise(nbytes: int, number: int) -> np.ndarray:
    """Bytes that nothing makes smaller."""
    return np.random.default_rng([SEED, number]).integers(0, 256, nbytes, np.uint8)


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """A figure of each way a round, in a drawn order; a round before the first is dropped."""
    chance = random.Random(SEED)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in chance.sample(sorted(ways), len(ways)):
            figure = ways[name]()
            if number:
                found[name].append(figure)
    return found


def over(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Ratios of rounds."""
    return [this / that for this, that in zip(these, those, strict=True)]
