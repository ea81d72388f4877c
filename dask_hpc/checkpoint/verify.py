"""Whether a version is what was written, to the last byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dask_hpc.checkpoint import branch, layout, metadata
from dask_hpc.checkpoint.blocks import block_file, check_written, checked_bytes
from dask_hpc.checkpoint.inside import open_inside, read_inside
from dask_hpc.checkpoint.locks import kept
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.opening import file_problem
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.sealing import is_signed, unseal
from dask_hpc.checkpoint.services import most_bytes, slot
from dask_hpc.checkpoint.values import form
from dask_hpc.checkpoint.versions import Version
from dask_hpc.errors import CheckpointError

#: Bytes between blocks that are looked at at once.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    #: Relative to the folder of the version.
    path: str
    text: str


def verify(
    version: Version, show: Callable[[int, int], None] | None = None, *, key: bytes | None = None
) -> list[Problem]:
    """What is not as it was written: blocks, their padding, indexes and metadata. Empty: nothing.

    Parameters
    ----------
    show
        Called with the number of checked blocks and that of all.
    key
        Of an encrypted version: also whether it was written with this key, and nothing exchanged. None: the
        checksums alone are compared.
    """
    with kept(version.path):
        return _problems(version, show, key)


def _problems(
    version: Version, show: Callable[[int, int], None] | None, key: bytes | None
) -> list[Problem]:
    try:
        found = version.manifest()
    except CheckpointError as error:
        return [Problem("manifest.json", str(error))]
    problems = []
    if (
        key is not None
        and found.plan.sealed is not None
        and not is_signed(found.digest, found.signature, key)
    ):
        problems.append(Problem("manifest.json", "it was written with another key, or by somebody else"))
    problems += [
        Problem(path, text)
        for path in found.files
        if (text := file_problem(version.path, found, path, key)) is not None
    ]
    problems += _beside(version.path, found)
    first = 0
    for array in found.plan.arrays:
        packs = set()
        for number in range(array.count):
            written = found.written(first + number)
            if written.pack is not None and written.pack not in packs:
                packs.add(written.pack)
                problems += _pack(version.path, array, written.pack)
            problems += _block(version.path, array, number, written, key)
            if show is not None:
                show(first + number + 1, found.plan.count)
        lengths = [nbytes for _, nbytes, _ in found.blocks[first : first + array.count]]
        first += array.count
        problems += _index(version.path, array, lengths)
    return problems


def _beside(folder: str, found: Manifest) -> Iterator[Problem]:
    """What is before the version, where that is beside the manifest, too."""
    try:
        if (expected := branch.beside(found)) and read_inside(folder, branch.FILE, len(expected)) != expected:
            yield Problem(branch.FILE, "its content differs")
    except FileNotFoundError:
        pass  # it was written by an earlier release
    except OSError as error:
        yield Problem(branch.FILE, error.strerror or str(error))


def _block(folder: str, array: Array, number: int, written: Written, key: bytes | None) -> Iterator[Problem]:
    path = block_file(array, number, written)
    try:
        check_written(array, number, written)
        content, place = checked_bytes(folder, path, written), form(array, number, written).place
        if key is not None and place is not None and written.nbytes:
            unseal(path, content, place, key)
        if array.kind in ("shard", "opaque"):
            if written.nbytes:
                end = written.offset + layout.slot_bytes(written.nbytes)
                _padding(folder, path, written, end if array.kind == "opaque" else (number + 1) * slot(array))
        elif array.kind == "apart":
            path = f"{metadata.block_folder(array, number)}/{metadata.DOCUMENT}"
            expected = metadata.block(array, number, written)
            if read_inside(folder, path, len(expected)) != expected:
                yield Problem(path, "its content differs")
    except (OSError, ValueError) as error:
        yield Problem(path, f"block {number}: {getattr(error, 'strerror', None) or error}")


def _pack(folder: str, array: Array, pack: str) -> Iterator[Problem]:
    path = f"{metadata.pack_folder(array, pack)}/{metadata.DOCUMENT}"
    try:
        descriptor = open_inside(folder, metadata.pack_path(array, pack), os.O_RDONLY | os.O_NONBLOCK)
        try:
            expected = metadata.pack(os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        if read_inside(folder, path, len(expected)) != expected:
            yield Problem(path, "its content differs, or its pack was cut")
    except (OSError, ValueError) as error:
        yield Problem(path, getattr(error, "strerror", None) or str(error))


def _padding(folder: str, path: str, written: Written, end: int) -> None:
    for begin in range(written.offset + written.nbytes + layout.CHECKSUM, end, _PIECE):
        if np.frombuffer(_read(folder, path, begin, min(_PIECE, end - begin)), np.uint8).any():
            raise ValueError("there is something between it and the next one")


def _index(folder: str, array: Array, lengths: Sequence[int]) -> Iterator[Problem]:
    if array.kind != "shard" or not most_bytes(array):
        return
    path = metadata.shard_path(array)
    expected = layout.index(slot(array), lengths)
    try:
        # one byte more: nothing may follow it
        found = _read(folder, path, array.count * slot(array), len(expected) + 1)
        if found != expected:
            yield Problem(path, "its index differs")
    except OSError as error:
        yield Problem(path, f"its index cannot be read: {error.strerror or error}")


def _read(folder: str, path: str, offset: int, length: int) -> bytes:
    descriptor = open_inside(folder, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)
