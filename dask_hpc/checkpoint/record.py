"""The record of a version in the memories of hosts: its manifest, and who holds what of it.

The managers that hold something of a version keep its record beside it, as a file. So a version outlives the
scheduler that had it written: who finds a manager finds the names of all it holds, and all who hold more.

Rules of the file: as those of the manifest. What a record names is read from files of segments and managers
alone, whose names and addresses are checked, and what is there is held against the checksums of the record.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dask_hpc.checkpoint.blobs import Group, Home
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.inside import no_memory
from dask_hpc.checkpoint.manifest import MOST_BYTES, Manifest, of_plain, plain, seal, unseal
from dask_hpc.checkpoint.names import is_pack
from dask_hpc.checkpoint.plan import Plan, Written
from dask_hpc.clock import epoch_s
from dask_hpc.errors import CheckpointError
from dask_hpc_policies.codec import decode, encode

#: Layout of what a record says.
SCHEMA = 1
_SUFFIX = ".version"


@dataclass(frozen=True, slots=True)
class Record:
    """A version in the memories of hosts."""

    #: Of the version, among all there are: 32 hexadecimal digits.
    id: str
    #: The packs of all its blocks are segments.
    manifest: Manifest
    #: Contents of its files by path.
    files: Mapping[str, bytes]
    #: The hosts that hold its blocks, and which of them has each, by the order of the plan.
    homes: tuple[Home, ...]
    places: tuple[int, ...]
    #: The hosts that hold parities of each other; none: there is level L1 alone.
    groups: tuple[Group, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self.manifest.plan.name

    @property
    def all_homes(self) -> set[Home]:
        """All hosts that have something of it."""
        found = set(self.homes)
        for group in self.groups:
            found |= {home for stripe in group.stripes for home, _ in stripe.parities}
        return found

    def segments(self) -> dict[Home, set[str]]:
        """Segments of it by whose they are."""
        found: dict[Home, set[str]] = {}
        for number, place in enumerate(self.places):
            found.setdefault(self.homes[place], set()).add(str(self.manifest.packs[str(number)]))
        for group in self.groups:
            for stripe in group.stripes:
                for home, segment in stripe.parities:
                    found.setdefault(home, set()).add(segment)
        return found

    def readable(self, there: Collection[Home]) -> bool:
        """Whether all of it can be read from these hosts."""
        gone = set(self.homes) - set(there)
        of_gone = {
            blob.home: group.recoverable(number, there)
            for group in self.groups
            for number, blob in enumerate(group.blobs)
            if blob.home in gone
        }
        return all(of_gone.get(home, False) for home in gone)

    @property
    def losses_survived(self) -> int:
        """Hosts that may be lost at once, whichever they are."""
        blobs = {blob.home for group in self.groups for blob in group.blobs}
        if not blobs.issuperset(self.homes):
            return 0
        # of no bytes there are no parities, and nothing is lost with them
        stripes = [each for group in self.groups for each in group.stripes if each.nbytes]
        return min((len(each.parities) for each in stripes), default=0)

    @property
    def storage_ratio(self) -> float:
        """Bytes that hosts hold, parities included, a byte of what they have of its blocks."""
        parities = sum(each.nbytes * len(each.parities) for group in self.groups for each in group.stripes)
        held = sum(blob.nbytes for group in self.groups for blob in group.blobs)
        return 1.0 + parities / held if held else 1.0

    def at(self, now: Mapping[Home, Home]) -> Record:
        """The same, with some managers listening elsewhere."""
        groups = [
            Group(
                tuple(replace(blob, home=now.get(blob.home, blob.home)) for blob in group.blobs),
                tuple(
                    replace(each, parities=tuple((now.get(home, home), name) for home, name in each.parities))
                    for each in group.stripes
                ),
            )
            for group in self.groups
        ]
        return replace(self, homes=tuple(now.get(home, home) for home in self.homes), groups=tuple(groups))

    def token(self, trusted: bool, key_file: str | None = None) -> str:
        """The same for the same bytes that are read in the same way, another one for others."""
        return blake2b(f"{self.id} {trusted} {key_file}".encode(), digest_size=12).hexdigest()


def made(
    id: str,
    plan: Plan,
    number: int,
    written: Sequence[Written],
    home_of: Mapping[str, Home],
    groups: tuple[Group, ...],
    created_s: float | None = None,
) -> Record:
    """The record of a version that was written.

    Parameters
    ----------
    number
        Which version of its name it is.
    written
        Its blocks in the order of the plan; their packs are segments.
    home_of
        The host of each segment.
    created_s
        When it was first written, of one that is made again: that is no newer for it. None: now.
    """
    homes = {home: place for place, home in enumerate(dict.fromkeys(home_of.values()))}
    packs = {str(at): str(each.pack) for at, each in enumerate(written)}
    manifest = Manifest(
        plan=plan,
        version=number,
        created_s=epoch_s() if created_s is None else created_s,
        levels=("L1",),
        files={path: (len(content), crc32c(content)) for path, content in plan.files.items()},
        blocks=tuple((each.offset, each.nbytes, each.crc32c) for each in written),
        digests={str(at): each.digest for at, each in enumerate(written) if each.digest is not None},
        packs=packs,
        bytes=sum(each.nbytes for each in written),
    )
    places = tuple(homes[home_of[pack]] for pack in packs.values())
    return Record(id, manifest, plan.files, tuple(homes), places, groups)


def dump(record: Record) -> str:
    """A record as its file."""
    told = encode([list(record.homes), list(record.places), list(record.groups)])
    files = {path: base64.b64encode(content).decode() for path, content in record.files.items()}
    names = ("homes", "places", "groups")
    content = {"id": record.id, "manifest": plain(record.manifest), "files": files}
    return seal(SCHEMA, {**content, **dict(zip(names, told, strict=True))}).decode()


def parse(text: str) -> Record:
    """The record that `dump` gave.

    Raises
    ------
    CheckpointError
        When it is not what was written, or names what no manager holds.
    """
    try:
        return _parsed(text)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, CheckpointError) as error:
        raise CheckpointError(f"this is no record of a version in memory: {error}") from None


def _parsed(text: str) -> Record:
    content = unseal(text.encode(), SCHEMA)["content"]
    files = {path: _content(each) for path, each in content["files"].items()}
    record = Record(
        _named(content["id"]),
        of_plain(content["manifest"]),
        files,
        tuple(decode(Home, each) for each in content["homes"]),
        tuple(content["places"]),
        tuple(decode(Group, each) for each in content["groups"]),
    )
    _check(record)
    return record


def _check(record: Record) -> None:
    """Raise ValueError for what no scheduler can have meant."""
    manifest = record.manifest
    told = {path: (len(content), crc32c(content)) for path, content in record.files.items()}
    if told != {path: tuple(each) for path, each in manifest.files.items()}:
        raise ValueError("its files are not those of its manifest")
    if len(record.places) != len(manifest.blocks):
        raise ValueError(f"it says where {len(record.places)} of {len(manifest.blocks)} blocks are")
    known = range(len(record.homes))
    if any(type(place) is not int or place not in known for place in record.places):
        raise ValueError("a block is with no host of it")
    if manifest.packs.keys() != {str(number) for number in range(len(manifest.blocks))}:
        raise ValueError("not all of its blocks are in a segment")
    for home in record.all_homes | {blob.home for group in record.groups for blob in group.blobs}:
        check_home(home)
    for group in record.groups:
        for blob in group.blobs:
            for segment, length in blob.segments:
                _named(segment)
                if length < 0:
                    raise ValueError(f"segment {segment} cannot have {length} bytes")
        for stripe in group.stripes:
            for _, segment in stripe.parities:
                _named(segment)
            for part in stripe.parts:
                if not 0 <= part.blob < len(group.blobs) or not 0 <= part.start <= part.stop:
                    raise ValueError("a part of a stripe is of no blob")
    for number, place in enumerate(record.places):
        for group in record.groups:
            for blob in group.blobs:
                if blob.home == record.homes[place]:
                    blob.start(manifest.packs[str(number)])


def check_home(home: Home) -> None:
    """Raise ValueError for what no manager can be."""
    told = urlsplit(home.address)
    if told.scheme not in ("tcp", "tls") or not told.hostname or told.port is None:
        raise ValueError(f"{home.address!r:.80} is no address of a manager")
    if not _is_home(home.folder):
        raise ValueError(f"{home.folder!r:.80} is no folder of a manager")


def _is_home(folder: str) -> bool:
    name = os.path.basename(folder).split("-")
    plain_path = os.path.isabs(folder) and os.path.normpath(folder) == folder and folder.isprintable()
    return plain_path and len(name) == 4 and name[:2] == ["dask", "hpc"] and name[2].isdigit()


def _content(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a file of it is not what was written: {error}") from None


def _named(name: Any) -> str:
    if not isinstance(name, str) or not is_pack(name):
        raise ValueError(f"{name!r:.80} is no name; allowed: 32 hexadecimal digits")
    return name


# ---------------------------------------------------------------------- files of managers


def record_path(folder: str, version: str) -> str:
    """The file of a record.

    Raises
    ------
    CheckpointError
        For a name that no version has.
    """
    if not isinstance(version, str) or not is_pack(version):
        raise CheckpointError(f"{version!r:.80} is no version in memory; allowed: 32 hexadecimal digits")
    return os.path.join(folder, version + _SUFFIX)


def write_record(folder: str, version: str, text: str) -> None:
    """Have a record in a folder, whole or not at all."""
    path = record_path(folder, version)
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
        os.replace(f"{path}.new", path)
    except BaseException as error:
        # a part of it would take room where there is none
        Path(f"{path}.new").unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CheckpointError(no_memory(folder, error)) from None
        raise


def remove_unfinished(folder: str) -> None:
    """Remove parts of records that somebody was writing who was killed; nobody may be writing one now."""
    for path in Path(folder).glob(f"*{_SUFFIX}.new"):
        path.unlink(missing_ok=True)


def records(folder: str) -> list[str]:
    """Files of the records in a folder."""
    return [str(path) for path in sorted(Path(folder).glob(f"*{_SUFFIX}"))]


def read_records(folder: str) -> list[str]:
    """The records in a folder as they are; `parse` checks them."""
    return list(records_by_file(folder).values())


def records_by_file(folder: str) -> dict[str, str]:
    """The same by their files."""
    found = {}
    for path in records(folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            continue  # it was dropped a moment ago
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            found[path] = file.read(MOST_BYTES)
    return found
