"""A worker's part in checkpoints in the memory of its host: it has the manager started, and writes blocks.

The manager outlives the worker (`dask_hpc.worker.host_process`) and holds what was written.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from dask.utils import typename
from distributed.comm import get_address_host, parse_address

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.record import records
from dask_hpc.checkpoint.segments import (
    disk_bytes,
    held_bytes,
    opened,
    segment_names,
    write_segment,
)
from dask_hpc.checkpoint.services import most_added
from dask_hpc.checkpoint.values import to_bytes
from dask_hpc.errors import CheckpointError, ConfigError, WorkerError
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker.fetching import Patience, ask, be_patient, silent
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.left_behind import MANAGER, TARGET, LeftBehind, Owner, write_owner
from dask_hpc.worker.managers import in_turn, listening, reserved, started, wanted
from dask_hpc.worker.node import node_settings
from dask_hpc.worker.pulling import Offers
from dask_hpc.worker.serving import served
from dask_hpc.worker.values import Answers, Refused, read_values

logger = logging.getLogger("distributed.dask_hpc")

#: A manager has read what it was offered by then, at least and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 30.0, 50e6
#: One that was killed is started anew after that, in seconds; when it does not come up, see `in_turn`.
_DOWN_S = 1.0
#: A block in parts, the digest of what is opaque, and the type of the value.
_Made = tuple[list[memoryview], str | None, str]
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
        #: What managers may have of the memory of the host, as they were told last.
        self._share = 0.0
        #: Since when managers that hold something are not there, and those of them on their way back.
        self._down_s: dict[HostProcess, float] = {}
        self._reviving: dict[HostProcess, asyncio.Task[None]] = {}
        #: Managers of earlier clusters that this one has taken over.
        self._taken: list[HostProcess] = []
        self.left_behind = LeftBehind(worker, self.take)
        self.offers = Offers(worker)

    def __call__(self) -> Mapping[str, Any]:
        """What is known now: where the manager listens, what managers of this host hold and may hold, and
        which managers of any host hang.
        """
        folders = {str(process.folder) for process in [self._process, *self._taken] if process is not None}
        if not folders:
            return {}
        self._revive()
        held, on_disk, limits = 0, 0, [0]
        for folder in folders:
            # it may end
            with suppress(OSError, ValueError, KeyError):
                held += held_bytes(folder)
                on_disk += disk_bytes(folder)
                said = listening(Path(folder))
                limits.append(int(said.get("limit_bytes", 0)))
                if self._address is not None and folder == str(self.folder):
                    self._address = str(said["address"])  # another worker may have had it started anew
        told: dict[str, Any] = {"host": self._host or socket.gethostname()}
        told |= {"held_bytes": held, "disk_bytes": on_disk, "limit_bytes": max(limits)}
        if hang := silent():
            told["silent"] = hang
        return told if self._address is None else {"address": self._address, **told}

    def stop(self) -> None:
        """Be no worker of it any more."""
        self.left_behind.stop()
        self.offers.stop()
        for reviving in self._reviving.values():
            reviving.cancel()
        for process in [self._process, *self._taken]:
            if process is not None:
                process.stop()

    async def home(
        self, cluster: str, scheduler: str, share: float, linger_s: float, patience: tuple[float, float]
    ) -> Home:
        """The manager, which listens; started if need be.

        Parameters
        ----------
        cluster, scheduler
            Id of the scheduler, and its address: another one may come to listen where the last one did.
        share
            What checkpoints may have of the memory of the host.
        linger_s
            How long it stays with what it holds once no worker is there.
        patience
            How this worker waits for managers from now on: the fields of `Patience`.

        Raises
        ------
        CheckpointError
            When none comes to listen.
        """
        be_patient(Patience(*patience))
        if self._process is None:
            process = HostProcess(MANAGER, TARGET, cluster, self._host, linger_s)
            try:
                write_owner(process.folder, Owner(cluster, scheduler))
            except BaseException:
                # whose it is must be known to who comes after its scheduler
                process.stop()
                raise
            self._process = process
        return await self._home(self._process, share)

    async def take(self, process: HostProcess, share: float) -> Home:
        """The manager of an earlier cluster, which is ours from now on."""
        self._taken.append(process)
        return await self._home(process, share)

    async def _home(self, process: HostProcess, share: float) -> Home:
        self._share = share
        address = await started(process, self._wanted(share), self._worker.address)
        if process is self._process:
            self._address = address
        return Home(address, str(process.folder))

    def _revive(self) -> None:
        """Have a manager that was killed started anew while it holds something: other hosts may come to need
        that before the next version is written.
        """
        now_s = time.monotonic()
        down = [each for each in [self._process, *self._taken] if each is not None and _is_down(each)]
        self._down_s = {each: self._down_s.get(each, now_s) for each in down}
        for process, since_s in self._down_s.items():
            # whoever ends one for good removes its folder a moment later
            under_way = self._reviving.get(process)
            if now_s - since_s >= _DOWN_S and (under_way is None or under_way.done()):
                self._reviving[process] = asyncio.ensure_future(self._revived(process))

    async def _revived(self, process: HostProcess) -> None:
        try:
            with in_turn(process.folder) as mine:
                if mine:
                    await self._home(process, self._share)
                    logger.info("The manager of %s was gone, and is there again", process.folder)
        except (CheckpointError, OSError) as error:
            logger.warning("The manager of %s is gone, with what it holds: %s", process.folder, error)

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

    def _wanted(self, share: float) -> dict[str, Any]:
        address = self._worker.address
        scheme, _ = parse_address(address)
        host = "127.0.0.1" if scheme == "inproc" else get_address_host(address)
        return wanted(scheme in ("tls", "wss"), host, share, self._worker.security, self._host)


def _is_down(process: HostProcess) -> bool:
    """Whether no manager runs that holds a version, or has left something of one."""
    folder = str(process.folder)
    try:
        return process.pid is None and bool(records(folder) or segment_names(folder))
    except OSError:
        return False  # it has ended, with all that it held


def manager_folder(worker: Any) -> Path | None:
    """Folder of the manager of a worker's host; None before the first checkpoint.

    Raises
    ------
    WorkerError
        When the worker does not carry this package.
    """
    return _manager(worker).folder


async def home(manager: Mapping[str, Any], dask_worker: Any) -> tuple[Home, str] | Refused:
    """The manager of the host of the worker that this runs on, and who fails together with that host.

    `manager` is what `ManagerSection.home` wants to know. `Refused` when none comes to listen, or the worker
    is closing and has left it.
    """
    try:
        section = _manager(dask_worker)
        return await section.home(**manager), section.domain
    except (CheckpointError, WorkerError, OSError) as error:
        return Refused(f"{type(error).__name__}: {error}")


async def looked(dask_worker: Any) -> bool:
    """Wait a while until the worker that this runs on has looked for what was left; whether it has."""
    return await _manager(dask_worker).left_behind.looked()


async def write(
    array: Array,
    keys: Mapping[int, Any],
    manager: Mapping[str, Any],
    transfer: str,
    version: str,
    ended: Sequence[str],
    dask_worker: Any,
) -> dict[int, tuple[Written, str, Home] | str | None] | Refused:
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
    version, ended
        What they are written for, and versions of which nothing is to stay that no record names.

    Returns
    -------
    dict
        As `dask_hpc.worker.saved.write`, with the manager; the pack of what was written is the segment that
        it is in. `Refused` when there is no manager, it hangs, or there is no room.
    """
    answers: dict[int, tuple[Written, str, Home] | str | None] = Answers.fromkeys(keys)
    try:
        values = read_values(dask_worker, keys, answers)
        blocks = await asyncio.to_thread(_made, array, values, answers)
        if not blocks:
            return answers
        section = _manager(dask_worker)
        more = most_added(array)
        nbytes, home = slots_bytes(blocks, more), lambda: section.home(**manager)
        where, segment = await reserved(dask_worker.rpc, home, nbytes, version, ended)
        if transfer == "pull" and not dask_worker.address.startswith("inproc"):
            places = await _pulled(dask_worker, where, segment, blocks, more)
        else:
            places = await asyncio.to_thread(fill, where.folder, segment, blocks, more)
        digests = {number: digest for number, (_, digest, _) in blocks.items()}
        of = {number: (0, number) for number in blocks}
        places = await served(dask_worker.rpc, where, segment, [array], of, places, digests)
        await ask(dask_worker.rpc, where.address, "seal", segment=segment)
    except (CheckpointError, OSError) as error:
        return Refused(str(error) or repr(error))
    for number, (_, digest, type_name) in blocks.items():
        answers[number] = Written(*places[number], digest, segment), type_name, where
    return answers


def _made(array: Array, values: Mapping[int, Any], answers: dict[int, Any]) -> dict[int, _Made]:
    """The bytes of blocks; of those that cannot be made any, why is noted among the answers."""
    found: dict[int, _Made] = {}
    for number, value in values.items():
        try:
            found[number] = (*to_bytes(array, number, value), typename(type(value)))
        except Exception as error:  # types of users may raise anything when they are serialised
            answers[number] = f"{type(error).__name__}: {error}"
    return found


def slots_bytes(blocks: Mapping[int, _Made], more: int = 0) -> int:
    """Bytes of a segment that blocks need, with room for so many more behind each."""
    return sum(slot_bytes(sum(map(len, parts)) + more) for parts, *_ in blocks.values())


def fill(
    folder: str, segment: str, blocks: Mapping[int, _Made], more: int = 0
) -> dict[int, tuple[int, int, int]]:
    """Write blocks one behind the other to a segment, with room for so many `more` bytes behind each.

    In one thread: a worker is asked for several segments at once.

    Returns
    -------
    dict
        Offset, length and checksum of each, which is taken of what was to be written.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    offsets, lengths = _places(blocks, more)
    with opened(folder, segment) as window:
        return {
            number: (offset, lengths[number], write_segment(window, offset, blocks[number][0]))
            for number, offset in offsets.items()
        }


def _places(blocks: Mapping[int, _Made], more: int) -> tuple[dict[int, int], dict[int, int]]:
    """Offsets and lengths of blocks that lie one behind the other."""
    lengths = {number: sum(map(len, parts)) for number, (parts, *_) in blocks.items()}
    slots = (slot_bytes(length + more) for length in lengths.values())
    return dict(zip(lengths, accumulate(slots, initial=0), strict=False)), lengths


async def _pulled(
    worker: Any, where: Home, segment: str, blocks: Mapping[int, _Made], more: int
) -> dict[int, tuple[int, int, int]]:
    """Have the manager read blocks; gives what `fill` does."""
    offsets, lengths = _places(blocks, more)
    offered = {offsets[number]: parts for number, (parts, *_) in blocks.items()}
    with _manager(worker).offers.of(segment, offered) as nbytes:
        within_s = _LEAST_S + nbytes / _SLOWEST
        what = {"segment": segment, "source": worker.address, "nbytes": nbytes}
        reading = ask(worker.rpc, where.address, "pull", within_s, **what)
        checksums, _ = await asyncio.gather(asyncio.to_thread(_summed, blocks), reading)
    return {number: (offsets[number], lengths[number], checksums[number]) for number in blocks}


def _summed(blocks: Mapping[int, _Made]) -> dict[int, int]:
    return {
        number: functools.reduce(lambda crc, part: crc32c(part, crc), parts, 0)
        for number, (parts, *_) in blocks.items()
    }


def look(worker: Any) -> None:
    """Have a worker look for what earlier clusters have left on its host.

    Raises
    ------
    WorkerError
        As `manager_folder`.
    """
    _manager(worker).left_behind.start()


def _manager(worker: Any) -> ManagerSection:
    heartbeat = worker.metrics.get(HEARTBEAT)
    if heartbeat is None:
        raise WorkerError(f"worker {worker.address} does not carry dask_hpc (yet)")
    section = heartbeat.section(SECTION)
    if section is None:
        try:
            section = heartbeat.add(SECTION, ManagerSection)
        except ConfigError as error:
            raise WorkerError(f"the configuration of worker {worker.address} is wrong: {error}") from error
    assert isinstance(section, ManagerSection)
    return section
