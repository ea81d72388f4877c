"""Whether a version is what was written, to the last byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dask_hpc.checkpoint import layout, metadata
from dask_hpc.checkpoint.blocks import block_file, check_written, checked_bytes
from dask_hpc.checkpoint.inside import open_inside, read_inside
from dask_hpc.checkpoint.opening import file_problem
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.values import stored_bytes
from dask_hpc.checkpoint.versions import Version
from dask_hpc.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    #: Relative to the folder of the version.
    path: str
    text: str


def verify(version: Version, show: Callable[[int, int], None] | None = None) -> list[Problem]:
    """What is not as it was written: blocks, their padding, indexes and metadata. Empty: nothing.

    Parameters
    ----------
    show
        Called with the number of checked blocks and that of all.
    """
    try:
        found = version.manifest()
    except CheckpointError as error:
        return [Problem("manifest.json", str(error))]
    problems = [
        Problem(path, text)
        for path in found.files
        if (text := file_problem(version.path, found, path)) is not None
    ]
    first = 0
    for array in found.plan.arrays:
        packs = set()
        for number in range(array.count):
            written = found.written(first + number)
            if written.pack is not None and written.pack not in packs:
                packs.add(written.pack)
                problems += _pack(version.path, array, written.pack)
            problems += _block(version.path, array, number, written)
            if show is not None:
                show(first + number + 1, found.plan.count)
        first += array.count
        problems += _index(version.path, array)
    return problems


def _block(folder: str, array: Array, number: int, written: Written) -> Iterator[Problem]:
    path = block_file(array, number, written)
    try:
        check_written(array, number, written)
        checked_bytes(folder, path, written)
        if array.kind in ("shard", "opaque"):
            if written.nbytes:
                _padding(folder, path, written)
        elif array.kind == "apart":
            path = f"{metadata.block_folder(array, number)}/{metadata.DOCUMENT}"
            expected = metadata.block(array, number, written)
            if read_inside(folder, path, len(expected)) != expected:
                yield Problem(path, "its content differs")
    except (OSError, ValueError) as error:
        yield Problem(path, f"block {number}: {error}")


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
        yield Problem(path, str(error))


def _padding(folder: str, path: str, written: Written) -> None:
    begin = written.offset + written.nbytes + layout.CHECKSUM
    end = written.offset + layout.slot_bytes(written.nbytes)
    if any(_read(folder, path, begin, end - begin)):
        raise ValueError("there is something between it and the next one")


def _index(folder: str, array: Array) -> Iterator[Problem]:
    size = stored_bytes(array, 0) if array.kind == "shard" else 0
    if not size:
        return
    path = metadata.shard_path(array)
    expected = layout.index(array.count, size)
    try:
        # one byte more: nothing may follow it
        found = _read(folder, path, array.count * layout.slot_bytes(size), len(expected) + 1)
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
