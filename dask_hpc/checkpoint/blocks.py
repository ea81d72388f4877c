"""Blocks on disk: what runs where the values are.

Data is durable when a function that writes returns. What is read is checked first: every byte of it was
summed when it was written, and the sum came by another way, in the manifest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.direct import Writer, as_parts, read_aligned
from dask_hpc.checkpoint.inside import open_inside, remedy, write_all
from dask_hpc.checkpoint.layout import ALIGNMENT, CHECKSUM, pack_checksum, slot_bytes
from dask_hpc.checkpoint.names import is_pack, pack_name, pack_place
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.sealing import read_key
from dask_hpc.checkpoint.services import can_have, most_bytes, slot, unwrapped, wrapped
from dask_hpc.checkpoint.values import form, from_bytes, to_bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """Instead of a value: its bytes (see `values.to_bytes`), and the digest when they are opaque."""

    content: np.ndarray
    digest: str | None


class NotTaken(str):
    """Why a file system has not taken blocks: not for their values, so another time it may."""

    __slots__ = ()


def write_block(folder: str, array: Array, number: int, value: Any) -> Written:
    """Write a block below the folder of a draft; it is durable afterwards.

    Raises
    ------
    OSError
        When it cannot be written.
    ValueError
        When the value does not fit the plan: shape, dtype.
    Exception
        Whatever serialising an opaque value raises.
    """
    found = _WRITES[array.kind](folder, array, [number], [value], _key(array))[0]
    if isinstance(found, Exception):
        raise found
    return found


def write_blocks(
    folder: str, array: Array, numbers: Sequence[int], values: Sequence[Any]
) -> list[Written | str]:
    """Write several blocks of an array; those of a shard, and what is opaque, are made durable together.

    Returns
    -------
    list
        For each block what is known of it, or why it was not written.
    """
    try:
        found = _WRITES[array.kind](folder, array, numbers, values, _key(array))
    except OSError as error:
        otherwise = remedy(error, "set hpc.checkpoint.store to another folder")
        why = f"{os.path.dirname(folder)}: {error.strerror or error}; {otherwise}"
        return [NotTaken(why)] * len(numbers)
    except Exception as error:
        # nothing of the call is known to be durable
        return [_why(error)] * len(numbers)
    return [_why(each) if isinstance(each, Exception) else each for each in found]


def stored_value(
    folder: str, array: Array, number: int, written: Written, *, trusted: bool = False
) -> Callable[[], Any]:
    """Read a block, which must be the very one that was written; gives what makes its value of it.

    A value may need the thread that it is made in: of a task it finds its worker. Arrays may be written to.

    Parameters
    ----------
    trusted
        Whether what is opaque may be made a value, which can run any code.

    Raises
    ------
    OSError
        When it cannot be read.
    ValueError
        When it is not what was written, or (making the value) is opaque and not trusted.
    """
    check_written(array, number, written)
    path, told = block_file(array, number, written), form(array, number, written)
    content = unwrapped(told, checked_bytes(folder, path, written), written.digest)
    return partial(from_bytes, told, content, written.digest, trusted)


def stored_payload(folder: str, array: Array, number: int, written: Written, key: bytes) -> Payload:
    """The bytes of a block, decrypted and checked, to be written elsewhere; raises as `stored_value`."""
    check_written(array, number, written)
    told = form(array, number, written)
    content = checked_bytes(folder, block_file(array, number, written), written)
    return Payload(unwrapped(told, content, written.digest, key), written.digest)


def block_file(array: Array, number: int, written: Written) -> str:
    """Path of the file that a block is in, below the folder of its version."""
    if array.kind == "shard":
        return metadata.shard_path(array)
    if written.pack is not None:
        return metadata.pack_path(array, written.pack)
    return metadata.block_path(array, number, written.digest)


def checked_bytes(folder: str, path: str, written: Written) -> np.ndarray:
    """The stored bytes of a block in a file; raises as `stored_value`."""
    if not written.nbytes:
        return np.empty(0, np.uint8)
    descriptor = open_inside(folder, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{folder}/{path} is not a file")
        if written.digest is not None and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
            raise ValueError(
                f"{folder}/{path} can be changed by others than you, and holds Python values, which can run "
                "any "
                "code when they are loaded; copy the checkpoint with: dask hpc checkpoint export"
            )
        if written.offset + written.nbytes + CHECKSUM > found.st_size:
            raise ValueError(f"{folder}/{path} is not what was written: it has only {found.st_size} bytes")
        stored = read_aligned(descriptor, written.offset, written.nbytes + CHECKSUM)
    finally:
        os.close(descriptor)
    content, trailer = stored[: written.nbytes], stored[written.nbytes :]
    if crc32c(content) != written.crc32c or trailer.tobytes() != pack_checksum(written.crc32c):
        raise ValueError(
            f"{folder}/{path} is not what was written: the checksum of {written.nbytes} bytes at "
            f"{written.offset} differs"
        )
    return content


def check_written(array: Array, number: int, written: Written) -> None:
    """Raise ValueError when a block of the plan cannot be what it is said to be."""
    if (written.pack is not None) != (array.kind == "opaque"):
        raise ValueError(f"block {number} of {array.path} cannot be {written}; it is not of this plan")
    if written.pack is not None:
        if not is_pack(written.pack) or written.offset % ALIGNMENT or not written.nbytes:
            raise ValueError(f"block {number} of {array.path} cannot be {written}; it is in no pack")
        return
    offset = number * slot(array) if array.kind == "shard" and most_bytes(array) else 0
    may_have_digest = array.encoding == "object"
    if (
        written.offset != offset
        or written.nbytes < 0
        or not can_have(array, number, written.nbytes)
        or not written.nbytes
        and written.crc32c
        or (written.digest is not None and not may_have_digest)
    ):
        raise ValueError(f"block {number} of {array.path} cannot be {written}; it is not of this plan")


def _key(array: Array) -> bytes | None:
    return None if array.sealed is None else read_key()


def _write_shard(
    folder: str, array: Array, numbers: Sequence[int], values: Sequence[Any], key: bytes | None
) -> list[Written | Exception]:
    found: dict[int, Written | Exception] = {}
    if not most_bytes(array):
        return [_caught(array, number, value) for number, value in zip(numbers, values, strict=True)]
    step = slot(array)
    descriptor = open_inside(folder, metadata.shard_path(array), os.O_WRONLY)
    try:
        writer = Writer(descriptor)
        # in the order of the file: what lies side by side goes in one write
        for number, value in sorted(zip(numbers, values, strict=True), key=lambda pair: pair[0]):
            try:
                payload, _ = _stored(array, number, value, array.place(number), key)
            except ValueError as error:
                found[number] = error
                continue
            # what is not needed of the slot of a compressed block is never written: a hole
            length, crc = writer.put(number * step, payload, None if array.compressed else step)
            found[number] = Written(number * step, length, crc)
        writer.flush()
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return [found[number] for number in numbers]


def _stored(
    array: Array, number: int, value: Any, place: str | None, key: bytes | None
) -> tuple[list[memoryview], str | None]:
    """The bytes of a block as they are in the store, and the digest of its values when they are opaque."""
    if isinstance(value, Payload):
        payload, digest = as_parts([value.content]), value.digest
    else:
        payload, digest = to_bytes(array, number, value)
    return wrapped(array, payload, digest, place, key), digest


def _caught(array: Array, number: int, value: Any) -> Written | Exception:
    """A block without bytes, which has no file."""
    try:
        if not isinstance(value, Payload):
            to_bytes(array, number, value)
        return Written(0, 0, 0)
    except ValueError as error:
        return error


def _write_apart(
    folder: str, array: Array, numbers: Sequence[int], values: Sequence[Any], key: bytes | None
) -> list[Written | Exception]:
    found: list[Written | Exception] = []
    with ExitStack() as opened:
        # all are written before the first is waited for: a journal then takes them together
        for place, (number, value) in enumerate(zip(numbers, values, strict=True), start=1):
            try:
                found.append(_write_own(folder, array, number, value, key, opened))
            except Exception as error:  # types of users may raise anything when they are serialised
                found.append(error)
            if place % _OPEN == 0:
                opened.close()
    return found


def _write_pack(
    folder: str, array: Array, numbers: Sequence[int], values: Sequence[Any], key: bytes | None
) -> list[Written | Exception]:
    """Write values one behind the other, to a file that nobody else writes."""
    found: list[Written | Exception] = []
    if not numbers:
        return found
    pack, end = pack_name(array.compressed, key is not None), 0
    with ExitStack() as opened:
        descriptor = _new(folder, metadata.pack_path(array, pack), opened)
        writer = Writer(descriptor)
        for number, value in zip(numbers, values, strict=True):
            try:
                payload, digest = _stored(array, number, value, pack_place(pack, end), key)
            except Exception as error:  # types of users may raise anything when they are serialised
                found.append(error)
                continue
            length, crc = writer.put(end, payload)
            found.append(Written(end, length, crc, digest, pack))
            end += slot_bytes(length)
        writer.flush()
        document = f"{metadata.pack_folder(array, pack)}/{metadata.DOCUMENT}"
        write_all(_new(folder, document, opened), metadata.pack(end))
    return found


#: Blocks whose files are open at once; a process may have a thousand files.
_OPEN = 64
#: Smaller files go through the page cache.
_LARGE = 2**20


def _write_own(
    folder: str, array: Array, number: int, value: Any, key: bytes | None, opened: ExitStack
) -> Written:
    """Write a block that has a file of its own; it is durable once `opened` was closed."""
    payload, digest = _stored(array, number, value, array.place(number), key)
    written = Written(0, 0, 0, digest)
    if length := sum(map(len, payload)):
        descriptor = _new(folder, metadata.block_path(array, number, digest), opened)
        writer = Writer(descriptor, direct=length >= _LARGE)
        length, crc = writer.put(0, payload)
        writer.flush()
        os.ftruncate(descriptor, length + CHECKSUM)
        written = replace(written, nbytes=length, crc32c=crc)
    if array.kind == "grid":
        return written
    document = f"{metadata.block_folder(array, number)}/{metadata.DOCUMENT}"
    write_all(_new(folder, document, opened), metadata.block(array, number, written))
    return written


#: What writes blocks of each kind of array.
_WRITES = {"shard": _write_shard, "opaque": _write_pack, "grid": _write_apart, "apart": _write_apart}


def _new(folder: str, path: str, opened: ExitStack) -> int:
    """A new file, which is made durable and closed with `opened`."""
    descriptor = open_inside(folder, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, make=True)
    opened.callback(os.close, descriptor)
    opened.callback(os.fsync, descriptor)
    return descriptor


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
