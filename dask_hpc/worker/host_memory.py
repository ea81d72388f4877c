"""A worker's part in checkpoints in the memory of its host: it has the manager started, and writes blocks.

The manager outlives the worker (`dask_hpc.worker.host_process`) and holds what was written.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from dask.utils import typename
from distributed.comm import get_address_host, parse_address
from distributed.system import MEMORY_LIMIT

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.segments import held_bytes, open_segment, write_segment
from dask_hpc.checkpoint.values import to_bytes
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker.fetching import ask, listens
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.left_behind import MANAGER, TARGET, LeftBehind, Owner, write_owner
from dask_hpc.worker.manager import LISTENS, SECURITY, WANTED
from dask_hpc.worker.node import node_settings
from dask_hpc.worker.pulling import Offers
from dask_hpc.worker.values import read_values

#: A manager listens by then, in seconds; how often one looks.
_STARTS_S, _LOOK_S = 30.0, 0.02
#: One that was started and does not run is started anew, in seconds.
_AGAIN_S = 3.0
#: A manager has read what it was offered by then, at least and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 30.0, 50e6
#: A block in parts, the digest of what is opaque, and the type of the value.
_Made = tuple[list[memoryview], str | None, str]
#: Threads that write what is asked for at once.
_WRITERS = 2
#: Section of the heartbeats.
SECTION = "manager"


class ManagerSection:
    """A worker's hold on the manager of its host; there is none before the first checkpoint.

    As section ``manager`` of the heartbeats it says where the manager listens.

    Raises
    ------
    ConfigError
        When the configuration of the node is not allowed.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        wanted = node_settings()
        self._host, self._domain = wanted.node_host, wanted.node_domain
        self._process: HostProcess | None = None
        self._address: str | None = None
        #: Managers of earlier clusters that this one has taken over.
        self._taken: list[HostProcess] = []
        self.left_behind = LeftBehind(worker, self.take)
        self.offers = Offers(worker)

    def __call__(self) -> Mapping[str, Any]:
        """What is known now: where the manager listens, what managers of this host hold and may hold."""
        folders = {str(process.folder) for process in [self._process, *self._taken] if process is not None}
        if not folders:
            return {}
        held, limits = 0, [0]
        for folder in folders:
            # it may end
            with suppress(OSError, ValueError):
                held += held_bytes(folder)
                limits.append(int(listening(Path(folder)).get("limit_bytes", 0)))
        told = {"host": self._host or socket.gethostname(), "held_bytes": held, "limit_bytes": max(limits)}
        return told if self._address is None else {"address": self._address, **told}

    def stop(self) -> None:
        """Be no worker of it any more."""
        self.left_behind.stop()
        self.offers.stop()
        for process in [self._process, *self._taken]:
            if process is not None:
                process.stop()

    async def home(self, cluster: str, scheduler: str, share: float, linger_s: float) -> Home:
        """The manager, which listens; started if need be.

        Parameters
        ----------
        cluster, scheduler
            Id of the scheduler, and its address: another one may come to listen where the last one did.
        share
            What checkpoints may have of the memory of the host.
        linger_s
            How long it stays with what it holds once no worker is there.

        Raises
        ------
        CheckpointError
            When none comes to listen.
        """
        if self._process is None:
            self._process = HostProcess(MANAGER, TARGET, cluster, self._host, linger_s)
            write_owner(self._process.folder, Owner(cluster, scheduler))
        return await self._home(self._process, share)

    async def take(self, process: HostProcess, share: float) -> Home:
        """The manager of an earlier cluster, which is ours from now on."""
        self._taken.append(process)
        return await self._home(process, share)

    async def _home(self, process: HostProcess, share: float) -> Home:
        deadline_s = time.monotonic() + _STARTS_S
        started_s = -_AGAIN_S
        while (address := listens_now(process)) is None:
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise CheckpointError(
                    f"no manager has come up within {_STARTS_S:g} s on the host of {self._worker.address}; "
                    f"see manager.log in {process.folder}"
                )
            if process.pid is None and now_s - started_s > _AGAIN_S:
                started_s = now_s
                self._write_wanted(process, share)
                await asyncio.to_thread(process.start)
            await asyncio.sleep(_LOOK_S)
        if process is self._process:
            self._address = address
        return Home(address, str(process.folder))

    @property
    def folder(self) -> Path | None:
        """Folder of the manager; None before the first checkpoint."""
        return None if self._process is None else self._process.folder

    @property
    def domain(self) -> str:
        """Who fails together with this host."""
        address = self._worker.address
        own = address if address.startswith("inproc") else get_address_host(address)
        return self._domain or self._host or own

    def _write_wanted(self, process: HostProcess, share: float) -> None:
        address, security = self._worker.address, self._worker.security
        scheme, _ = parse_address(address)
        inside = scheme == "inproc"
        fields = {name: getattr(security, name, None) for name in SECURITY}
        least = getattr(security, "tls_min_version", None)
        wanted = {
            "protocol": "tls" if scheme in ("tls", "wss") else "tcp",
            "host": "127.0.0.1" if inside else get_address_host(address),
            "limit_bytes": int(share * MEMORY_LIMIT),
            "security": {**fields, "tls_min_version": None if least is None else int(least)},
        }
        # several workers may do so at once
        path = process.folder / f"{WANTED}.{os.getpid()}-{id(self)}"
        path.touch(0o600)
        path.write_text(json.dumps(wanted))
        path.replace(process.folder / WANTED)


def listens_now(process: HostProcess) -> str | None:
    """Where the manager listens that runs now."""
    try:
        said = listening(process.folder)
    except (OSError, ValueError):
        return None
    return str(said["address"]) if said.get("pid") == process.pid else None


def listening(folder: Path) -> dict[str, Any]:
    """Address and process of the manager that was the last to listen.

    Raises
    ------
    OSError, ValueError
        When none has.
    """
    said: dict[str, Any] = json.loads((folder / LISTENS).read_text())
    return said


def manager_folder(worker: Any) -> Path | None:
    """Folder of the manager of a worker's host; None before the first checkpoint.

    Raises
    ------
    WorkerError
        When the worker does not carry this package.
    """
    return _manager(worker).folder


async def home(manager: Mapping[str, Any], dask_worker: Any) -> tuple[Home, str]:
    """The manager of the host of the worker that this runs on, and who fails together with that host.

    `manager` is what `ManagerSection.home` wants to know.
    """
    section = _manager(dask_worker)
    return await section.home(**manager), section.domain


async def looked(dask_worker: Any) -> bool:
    """Wait a while until the worker that this runs on has looked for what was left; whether it has."""
    return await _manager(dask_worker).left_behind.looked()


async def write(
    array: Array, keys: Mapping[int, Any], manager: Mapping[str, Any], transfer: str, dask_worker: Any
) -> dict[int, tuple[Written, str, Home] | str | None]:
    """Write results of the worker that this runs on to the memory of its host.

    Parameters
    ----------
    array, keys
        What they are of, and their keys by number in it.
    manager
        What `ManagerSection.home` wants to know.
    transfer
        ``push``: this worker writes; ``pull``: the manager reads. A worker inside its client's process, which
        nobody can connect to, writes itself.

    Returns
    -------
    dict
        As `dask_hpc.worker.saved.write`, with the manager; the pack of what was written is the segment that
        it is in.

    Raises
    ------
    CheckpointError
        When there is no manager, or no room.
    """
    answers: dict[int, tuple[Written, str, Home] | str | None] = dict.fromkeys(keys)
    values = read_values(dask_worker, keys, answers)
    blocks = await asyncio.to_thread(_made, array, values, answers)
    if not blocks:
        return answers
    lengths = {number: sum(map(len, parts)) for number, (parts, _, _) in blocks.items()}
    nbytes = sum(map(slot_bytes, lengths.values()))
    where, segment = await _reserved(dask_worker, manager, nbytes)
    offsets, at = {}, 0
    for number, length in lengths.items():
        offsets[number] = at
        at += slot_bytes(length)
    if transfer == "pull" and not dask_worker.address.startswith("inproc"):
        checksums = await _pulled(dask_worker, where, segment, blocks, offsets)
    else:
        checksums = await asyncio.to_thread(_write, where.folder, segment, blocks, offsets)
    await ask(dask_worker.rpc, where.address, "seal", segment=segment)
    for number, (_, digest, type_name) in blocks.items():
        written = Written(offsets[number], lengths[number], checksums[number], digest, segment)
        answers[number] = written, type_name, where
    return answers


async def _reserved(worker: Any, manager: Mapping[str, Any], nbytes: int) -> tuple[Home, str]:
    """Room for so many bytes: the manager that has it, and the name of the segment."""
    deadline_s = time.monotonic() + _STARTS_S
    while True:
        where = await _manager(worker).home(**manager)
        try:
            return where, (await ask(worker.rpc, where.address, "reserve", nbytes=nbytes))["segment"]
        except OSError:
            # one that was killed a moment ago seems to be there until it is gone
            if time.monotonic() > deadline_s:
                raise
            listens(where.address)
            await asyncio.sleep(_LOOK_S)


def _made(array: Array, values: Mapping[int, Any], answers: dict[int, Any]) -> dict[int, _Made]:
    """The bytes of blocks; of those that cannot be made any, why is noted among the answers."""
    found: dict[int, _Made] = {}
    for number, value in values.items():
        try:
            found[number] = (*to_bytes(array, number, value), typename(type(value)))
        except Exception as error:  # types of users may raise anything when they are serialised
            answers[number] = f"{type(error).__name__}: {error}"
    return found


def _write(
    folder: str, segment: str, blocks: Mapping[int, _Made], offsets: Mapping[int, int]
) -> dict[int, int]:
    """Write blocks; gives their checksums, which are taken of what was to be written."""
    descriptor = open_segment(folder, segment, os.O_WRONLY)

    def written(number: int) -> int:
        return write_segment(descriptor, offsets[number], blocks[number][0])

    try:
        with ThreadPoolExecutor(_WRITERS, "hpc-memory") as pool:
            return dict(zip(blocks, pool.map(written, blocks), strict=True))
    finally:
        os.close(descriptor)


async def _pulled(
    worker: Any, where: Home, segment: str, blocks: Mapping[int, _Made], offsets: Mapping[int, int]
) -> dict[int, int]:
    """Have the manager read blocks; gives their checksums, as `_write` does."""
    with _manager(worker).offers.of(
        segment, {offsets[number]: blocks[number][0] for number in blocks}
    ) as nbytes:
        within_s = _LEAST_S + nbytes / _SLOWEST
        reading = ask(
            worker.rpc, where.address, "pull", within_s, segment=segment, source=worker.address, nbytes=nbytes
        )
        checksums, _ = await asyncio.gather(asyncio.to_thread(_summed, blocks), reading)
    return checksums


def _summed(blocks: Mapping[int, _Made]) -> dict[int, int]:
    return {
        number: functools.reduce(lambda crc, part: crc32c(part, crc), parts, 0)
        for number, (parts, _, _) in blocks.items()
    }


def _manager(worker: Any) -> ManagerSection:
    heartbeat = worker.metrics.get(HEARTBEAT)
    section = None if heartbeat is None else heartbeat.section(SECTION)
    if not isinstance(section, ManagerSection):
        raise WorkerError(f"worker {worker.address} does not carry dask_hpc (yet)")
    return section
