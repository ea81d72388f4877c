"""The manager: one process a host that holds checkpoints in the host's memory, whatever becomes of workers.

It reserves segments, which workers write to, gives others what they ask for and makes parities of what others
hold. Of each version that it has something of it keeps the record, too, so that a version is known when the
scheduler is not there any more. It listens as a worker of its cluster does, with the same TLS. All it holds
lies in files, so one that is started anew goes on where the last one was.

Rules of the file: names of segments are checked. Who may talk to it may talk to a worker of the cluster, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Security
from distributed.core import Server
from distributed.protocol import to_serialize

from dask_hpc.checkpoint.blobs import Group, Home, Range
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.record import parse, read_records, record_path, records, write_record
from dask_hpc.checkpoint.redundancy import encode
from dask_hpc.checkpoint.segments import Segments, held_bytes, read_segment, write_piece
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import CHUNK, Patience, be_patient, fetch, in_pieces, remake
from dask_hpc.worker.host_process import LINGER_S, folders, occupied, seen
from dask_hpc.worker.pulling import pull
from dask_hpc.worker.reservations import Reservations
from dask_hpc.worker.serving import serve
from dask_hpc_policies.codec import decode
from dask_hpc_policies.resilience.redundancy_sets import parity_bytes

logger = logging.getLogger("distributed.dask_hpc.manager")

#: What it is told when it is started, and what it says when it listens: files in its folder.
WANTED, LISTENS = "manager.json", "manager.listens"
#: How often it looks whether somebody needs it, in seconds.
_LOOK_S = 1.0
#: Pieces of hosts that it fetches at once for a parity; at least two of each.
_PIECES = 4
#: Fields of a `Security` that a worker's side needs.
SECURITY = ("require_encryption", "tls_ca_file", "tls_ciphers", "tls_worker_cert", "tls_worker_key")


class Manager(Server):
    """Serves the segments of one folder."""

    def __init__(
        self, folder: str, limit_bytes: int, security: Security, host: str = "", **disk: Any
    ) -> None:
        self.folder = folder
        self.segments = Segments(folder, limit_bytes, lambda: _held_by_others(folder, host), **disk)
        self._security = security
        self._reservations = Reservations(self.segments)
        self.segments.drop(self._reservations.take_up())
        handlers: dict[str, Callable[..., Awaitable[Any]]] = {
            "reserve": self.reserve,
            "pull": self.pull,
            "serve": self.serve,
            "seal": self.seal,
            "read": self.read,
            "protect": self.protect,
            "adopt": self.adopt,
            "verify": self.verify,
            "keep": self.keep,
            "drop": self.drop,
            "used": self.used,
            "records": self.records,
            "tidy": self.tidy,
        }
        super().__init__(
            handlers={name: _refusing(handler) for name, handler in handlers.items()},
            connection_args=security.get_connection_args("worker"),
            local_directory=folder,
            needs_workdir=False,
        )

    async def start_at(self, protocol: str, host: str, port: int) -> None:
        """Listen, at that port if it is free."""
        arguments = self._security.get_listen_args("worker")
        try:
            await self.listen(f"{protocol}://{host}:{port}", **arguments)
        except OSError:
            await self.listen(f"{protocol}://{host}:0", **arguments)
        self.start_periodic_callbacks()

    # ------------------------------------------------------------------ what others ask for

    async def reserve(self, nbytes: int, version: str = "", ended: Sequence[str] = ()) -> dict[str, Any]:
        """Room for so many bytes of a version: the name of a segment, and what somebody should hear of
        (``note``). Of versions that have `ended` nobody needs what no record names.
        """
        self._reservations.give_up_late()
        if unneeded := self._reservations.over(ended):
            await asyncio.to_thread(self.segments.drop, unneeded)
        segment = await asyncio.to_thread(self.segments.reserve, nbytes)
        self._reservations.add(segment, version, nbytes)
        note, self.segments.note = self.segments.note, ""
        return {"segment": segment, "note": note}

    async def pull(self, segment: str, source: str, nbytes: int) -> dict[str, Any]:
        """Read what a worker offers into a segment that it has reserved."""
        await pull(self.rpc, source, self.folder, segment, nbytes)
        return {}

    async def serve(
        self,
        segment: str,
        arrays: Sequence[Any],
        blocks: Sequence[Sequence[Any]],
        key_file: str | None = None,
    ) -> dict[str, Any]:
        """Have services done to the blocks that were written to a segment (see `serving.serve`)."""
        told = [decode(Array, array) for array in arrays]
        try:
            places = await asyncio.to_thread(serve, self.folder, segment, told, blocks, key_file)
        except BaseException:
            self._reservations.give_up([segment])
            raise
        self.segments.shrink(segment, sum(slot_bytes(nbytes) for _, nbytes, _ in places))
        return {"places": places}

    async def seal(self, segment: str) -> dict[str, Any]:
        """All was written to a segment that is to be (see `Reservations.seal`)."""
        self._reservations.seal(segment)
        return {}

    async def read(self, segment: str, offset: int, nbytes: int) -> dict[str, Any]:
        """Bytes of a segment, at most `CHUNK`."""
        if not 0 <= nbytes <= CHUNK or offset < 0:
            raise ValueError(f"{nbytes} bytes at {offset} were asked for; allowed: at most {CHUNK}")
        found = np.empty(nbytes, np.uint8)
        await asyncio.to_thread(read_segment, self.folder, segment, offset, found)
        return {"data": to_serialize(found)}

    async def protect(
        self, parts: Sequence[Mapping[str, Any]], parities: int, number: int, version: str = ""
    ) -> dict[str, Any]:
        """Make one of the parities of parts that hosts hold of a version; gives the segment that it is.

        Parameters
        ----------
        parts
            For each its home (address, folder) and its ranges (segment, offset, bytes).
        parities
            How many there are, and which of them this is.
        """
        sources = [(Home(**part["home"]), tuple(Range(*each) for each in part["ranges"])) for part in parts]
        lengths = [sum(one.nbytes for one in ranges) for _, ranges in sources]

        async def piece(start: int, stop: int) -> None:
            found = await asyncio.gather(
                *(fetch(self.rpc, home, within(ranges, start, stop)) for home, ranges in sources)
            )
            await asyncio.to_thread(_write_parity, self.folder, segment, start, found, parities, number)

        async with self._new(parity_bytes(lengths, parities), version) as segment:
            await in_pieces(max(lengths), piece, max(2, _PIECES // len(sources)))
        return {"segment": segment}

    async def adopt(self, group: Any, blob: int) -> dict[str, Any]:
        """Make again what a lost host held, of what others of its group hold; gives its segment."""
        found = decode(Group, group)
        nbytes = found.blobs[blob].nbytes

        async def piece(start: int, stop: int) -> None:
            made = await remake(self.rpc, found, blob, start, stop)
            await asyncio.to_thread(write_piece, self.folder, segment, start, made)

        async with self._new(nbytes) as segment:
            await in_pieces(nbytes, piece, 2)
        return {"segment": segment}

    async def verify(self, segment: str, blocks: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """Hold blocks of a segment against their checksums.

        Parameters
        ----------
        blocks
            Offset, length and CRC-32C of each.

        Raises
        ------
        CheckpointError
            When one is not what was written.
        """
        await asyncio.to_thread(_verify, self.folder, segment, blocks)
        return {}

    async def keep(self, version: str, record: str, segments: Sequence[str]) -> dict[str, Any]:
        """Have the record of a whole version, as long as it is not dropped.

        Parameters
        ----------
        segments
            Those that it has here: of what was reserved for it nothing else is needed.

        Raises
        ------
        CheckpointError
            When one of them is not there (any more).
        """
        self._reservations.check(segments)
        await asyncio.to_thread(write_record, self.folder, version, record)
        await asyncio.to_thread(self.segments.drop, self._reservations.whole(version, segments))
        return {}

    async def records(self) -> dict[str, Any]:
        """The records of all versions that it has something of."""
        return {"records": await asyncio.to_thread(read_records, self.folder)}

    async def used(self, version: str) -> dict[str, Any]:
        """Somebody has had use of a version that was left: it is left anew should that one be lost, too."""
        os.utime(record_path(self.folder, version))
        return {}

    async def drop(self, segments: Sequence[str], version: str) -> dict[str, Any]:
        """Nobody needs this version any more, which has these segments here, and those reserved for it."""
        # first: a version whose record is there is whole
        Path(record_path(self.folder, version)).unlink(missing_ok=True)
        await asyncio.to_thread(self.segments.drop, self._reservations.end(version, segments))
        return {}

    async def tidy(self) -> dict[str, Any]:
        """Drop what no record names; whoever asks knows that nobody is writing a version.

        Raises
        ------
        CheckpointError
            When a record is not what was written: nobody knows what it names.
        """
        named: set[str] = set()
        for text in await asyncio.to_thread(read_records, self.folder):
            named = named.union(*parse(text).segments().values())
        unneeded = [name for name in self.segments.names() if name not in named]
        self.segments.drop(self._reservations.unneeded(unneeded))
        return {}

    # ------------------------------------------------------------------ how

    def give_up_late(self) -> None:
        """Have room again that those had reserved who were lost since then."""
        self._reservations.give_up_late()

    @asynccontextmanager
    async def _new(self, nbytes: int, version: str = "") -> AsyncIterator[str]:
        """A segment that this process writes; given up when that comes to nothing."""
        segment = await asyncio.to_thread(self.segments.reserve, nbytes)
        self._reservations.add(segment, version, None)
        try:
            yield segment
            self._reservations.seal(segment)
        except BaseException:
            self._reservations.give_up([segment])
            raise


def _write_parity(
    folder: str, segment: str, offset: int, pieces: Sequence[np.ndarray], parities: int, number: int
) -> None:
    # the parity of one part is the part
    made = pieces[0] if len(pieces) == 1 else encode(pieces, parities)[number]
    write_piece(folder, segment, offset, made)


def within(ranges: Sequence[Range], start: int, stop: int) -> tuple[Range, ...]:
    """What there is of bytes `start` to `stop` of ranges one behind the other."""
    found, at = [], 0
    for one in ranges:
        first, last = max(start, at), min(stop, at + one.nbytes)
        if first < last:
            found.append(Range(one.segment, one.offset + first - at, last - first))
        at += one.nbytes
    return tuple(found)


def _verify(folder: str, segment: str, blocks: Sequence[tuple[int, int, int]]) -> None:
    piece = np.empty(CHUNK, np.uint8)
    for offset, nbytes, expected in blocks:
        crc = 0
        for start in range(0, nbytes, CHUNK):
            part = piece[: min(CHUNK, nbytes - start)]
            read_segment(folder, segment, offset + start, part)
            crc = crc32c(part, crc)
        if crc != expected:
            raise CheckpointError(
                f"{nbytes} bytes at {offset} of segment {segment} have the checksum {crc:08x}, and were "
                f"written with {expected:08x}"
            )


def _held_by_others(folder: str, host: str) -> int:
    """Bytes that checkpoints of other sessions and clusters of this user hold in the memory of a host."""
    found = 0
    for other in folders():
        # managers of several hosts may be on one machine
        with suppress(OSError, ValueError):
            if str(other) != folder and json.loads((other / LISTENS).read_text()).get("host", "") == host:
                found += held_bytes(str(other))
    return found


def _refusing(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Have refusals be answers: whoever asks cannot be made to unpickle an error."""

    async def answer(**arguments: Any) -> Any:
        try:
            return await handler(**arguments)
        except (CheckpointError, OSError, ValueError, TypeError) as error:
            return {"error": str(error) or repr(error)}

    return answer


def run(folder: Path, stop: threading.Event) -> None:
    """What the process runs (see `HostProcess`)."""
    logging.basicConfig(format="%(asctime)s - %(name)s - %(levelname)s - %(message)s", level=logging.INFO)
    asyncio.run(_serve(folder, stop))


async def _serve(folder: Path, stop: threading.Event) -> None:
    path = folder / WANTED
    wanted = json.loads(path.read_text())
    host = str(wanted.get("label", ""))
    be_patient(Patience(**wanted.get("patience", {})))
    disk = {name: wanted[name] for name in ("base", "spare_bytes") if name in wanted}
    manager = Manager(str(folder), wanted["limit_bytes"], _security(wanted["security"]), host, **disk)
    last = 0
    with suppress(OSError, ValueError, KeyError):
        # who knows where the last one listened finds this one there
        last = json.loads((folder / LISTENS).read_text())["port"]
    await manager.start_at(wanted["protocol"], wanted["host"], last)
    written = folder / f"{LISTENS}.new"
    told = {"address": manager.address, "port": manager.port, "pid": os.getpid(), "host": host}
    told["mark"] = wanted.get("mark", "")
    written.write_text(json.dumps({**told, "limit_bytes": wanted["limit_bytes"]}))
    written.replace(folder / LISTENS)
    path.unlink(missing_ok=True)  # it may hold a key, which nobody needs any more
    logger.info("Manager at %s holds up to %d bytes", manager.address, wanted["limit_bytes"])
    waiting = asyncio.ensure_future(asyncio.to_thread(stop.wait))
    since_s = time.monotonic()
    while not (await asyncio.wait([waiting], timeout=_LOOK_S))[0]:
        manager.give_up_late()
        try:
            since_s = _unneeded_since_s(folder, since_s)
        except FileNotFoundError:
            break
        if (idle_s := time.monotonic() - since_s) >= _LOOK_S:
            await asyncio.to_thread(manager.segments.free)
        if idle_s >= LINGER_S:
            break
    stop.set()
    await manager.close()


def _unneeded_since_s(folder: Path, since_s: float) -> float:
    """Since when no worker has been there and no version held; now, when that is not so."""
    if occupied(folder):
        seen(folder)
        return time.monotonic()
    return time.monotonic() if records(str(folder)) else since_s


def _security(fields: Mapping[str, Any]) -> Security:
    known = {name: fields[name] for name in SECURITY if fields.get(name) is not None}
    if (least := fields.get("tls_min_version")) is not None:
        known["tls_min_version"] = ssl.TLSVersion(least)
    return Security(**known)
