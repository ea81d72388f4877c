"""What is done to the bytes of blocks that leave the worker that has them: services, one after the other.

Workers do it on the way to the store, managers to what workers have written to the memory of their host.

The checksum is the last one always, over what is on disk. Compression comes first, by Zarr's own codec Blosc:
LZ4, after the bytes of numbers were put together by their significance. What Zarr has a type for every reader
of Zarr makes out by itself. What is bytes to Zarr is compressed where that makes it shorter, and the last
byte says whether it was. Encryption comes between the two (`sealing`): no other reader opens such a version.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.dtypes import from_json, item_bytes
from dask_hpc.checkpoint.layout import CHECKSUM, pack_checksum, slot_bytes
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.checkpoint.sealing import ADDED, check_installed, read_key, seal, unseal
from dask_hpc.checkpoint.values import Form, stored_bytes
from dask_hpc.errors import CheckpointError, CheckpointValueError
from dask_hpc.wire import SERVICES

#: What Blosc adds at most, its header, and the most that it takes.
_HEADER = 16
_MOST = 2**31 - 1 - _HEADER
#: Behind what is bytes to Zarr.
_AS_IT_IS, _COMPRESSED = b"\0", b"\1"


def checked_services(services: str) -> str:
    """The services that a user names.

    Raises
    ------
    CheckpointValueError
        When there are none of that name.
    CheckpointError
        When a package is not installed that they need.
    """
    if services not in SERVICES:
        raise CheckpointValueError(f"services is {services!r:.80}; allowed: {', '.join(SERVICES)}")
    if "compress" in services:
        _library()
    if "encrypt" in services:
        check_installed()
        read_key()
    return services


def chosen_services(named: str | None, configured: str) -> str:
    """The services that a user names, or else those that are configured.

    Raises
    ------
    CheckpointValueError, CheckpointError
        See `checked_services`; of what is configured it says so.
    """
    if named is not None:
        return checked_services(named)
    try:
        return checked_services(configured)
    except CheckpointError as error:
        raise CheckpointError(f"hpc.checkpoint.services is {configured!r}: {error}") from None


def served(plan: Plan, services: str, drawn: str | None = None) -> Plan:
    """The plan of a version whose blocks have services, with the metadata that says so to all readers.

    Parameters
    ----------
    drawn
        What tells the version from all others, as `uuid` draws it; None: it is drawn here.
    """
    if services == "plain":
        return plan
    compress, sealed = "compress" in services, None
    if "encrypt" in services:
        sealed = f"{plan.name}/{drawn or uuid.uuid4().hex}"
    arrays = tuple(
        # Blosc takes no chunk that is larger: such arrays stay as they are
        replace(each, compressed=compress and (stored_bytes(each, 0) or 0) <= _MOST, sealed=sealed)
        for each in plan.arrays
    )
    return replace(plan, arrays=arrays, files=metadata.coded(plan.files, arrays))


def services_of(plan: Plan) -> str:
    """The services that a plan was `served` with."""
    compressed = any(array.compressed for array in plan.arrays)
    found = ["compress"] * compressed + ["encrypt"] * (plan.sealed is not None)
    return "+".join(found) or "plain"


def unserved(plan: Plan) -> Plan:
    """The plan of a version in memory as it was before it was `served`.

    Raises
    ------
    CheckpointError
        When it is encrypted and this process has no key.
    ValueError
        When the key is another one.
    """
    if plan.sealed is not None:
        plan = unsealed(plan, plan.files, read_key())
    arrays = tuple(replace(array, compressed=False) for array in plan.arrays)
    return replace(plan, arrays=arrays, files=metadata.coded(plan.files, arrays))


def closed(plan: Plan) -> Plan:
    """The plan of a version in memory with its `sealed_files`, when it is encrypted.

    Raises
    ------
    CheckpointError
        When it is, and this process has no key.
    """
    return plan if plan.sealed is None else sealed_files(plan, read_key())


def sealed_files(plan: Plan, key: bytes) -> Plan:
    """The plan with what is in no blocks and is no metadata encrypted, too: the variables in memory."""
    found = {}
    for path, content in plan.files.items():
        if not path.endswith(metadata.DOCUMENT):
            content = seal([content[:-CHECKSUM]], f"{plan.sealed}/{path}", key)
            content += pack_checksum(crc32c(content))
        found[path] = content
    return replace(plan, files=found)


def opened_file(plan: Plan, path: str, content: bytes, key: bytes | None) -> bytearray:
    """The values in a file of `sealed_files`, or of a plan that is not encrypted; without their checksum.

    Raises
    ------
    ValueError
        When they cannot be decrypted.
    """
    values = bytearray(content)[:-CHECKSUM]
    if plan.sealed is None or key is None:
        return values
    return bytearray(unseal(path, values, f"{plan.sealed}/{path}", key))


def unsealed(plan: Plan, contents: Mapping[str, bytes], key: bytes) -> Plan:
    """The plan of an encrypted version as it is without that.

    Parameters
    ----------
    contents
        Of all files of the version that are no blocks, by path.

    Raises
    ------
    ValueError
        When they cannot be decrypted.
    """
    arrays = tuple(replace(array, sealed=None) for array in plan.arrays)
    if plan.sealed is None:
        return replace(plan, arrays=arrays, files=contents)
    files = dict(contents)
    for path, content in contents.items():
        if not path.endswith(metadata.DOCUMENT):
            values = bytes(opened_file(plan, path, content, key))
            files[path] = values + pack_checksum(crc32c(values))
    return replace(plan, arrays=arrays, files=metadata.coded(files, arrays))


def most_bytes(array: Array) -> int:
    """Bytes that a block of a shard takes at most; 0: its chunks are without values."""
    size = stored_bytes(array, 0) or 0
    return size and size + _HEADER * array.compressed + ADDED * (array.sealed is not None)


def most_added(array: Array) -> int:
    """Bytes that services add to a block at most, whatever is in it; 0: there are none."""
    return (_HEADER + 1) * array.compressed + ADDED * (array.sealed is not None)


def can_have(array: Array, number: int, nbytes: int) -> bool:
    """Whether a block that is in no pack may take so many bytes in the store."""
    expected, added = stored_bytes(array, number), ADDED * (array.sealed is not None)
    if not expected:
        return expected is None or not nbytes
    return added < nbytes <= expected + _HEADER + added if array.compressed else nbytes == expected + added


def slot(array: Array) -> int:
    """Bytes from the beginning of one block of a shard to that of the next."""
    return slot_bytes(most_bytes(array))


def wrapped(
    array: Array,
    payload: list[memoryview],
    digest: str | None,
    place: str | None = None,
    key: bytes | None = None,
) -> list[memoryview]:
    """The bytes of a block as they are stored, in parts (see `values.to_bytes`), without the checksum.

    Parameters
    ----------
    place
        What it is encrypted for, with `key`; None: it is not.

    Raises
    ------
    ValueError
        When it is longer than what can be compressed or encrypted.
    """
    if array.compressed:
        payload = _packed(array, payload, digest)
    if place is None or key is None or not payload:
        return payload
    return [memoryview(seal(payload, place, key))]


def _packed(array: Array, payload: list[memoryview], digest: str | None) -> list[memoryview]:
    if not (length := sum(map(len, payload))):
        return payload
    if _is_bytes(array.dtype, array.encoding, digest):
        made = b"" if length > _MOST else _compressed(payload, 1)
        if made and len(made) < length:
            return [memoryview(made), memoryview(_COMPRESSED)]
        return [*payload, memoryview(_AS_IT_IS)]
    if length > _MOST:
        raise ValueError(f"it has {length} bytes; allowed with compression: {_MOST}, make chunks smaller")
    return [memoryview(_compressed(payload, item_bytes(from_json(array.dtype), array.encoding)))]


def unwrapped(
    form: Form, content: np.ndarray, digest: str | None, key: bytes | str | None = None
) -> np.ndarray:
    """The bytes that `wrapped` was given.

    Parameters
    ----------
    key
        Of what is encrypted, or the file that it is in; None: the file that this process is configured with.

    Raises
    ------
    ValueError
        When it has given others, or the key is another one.
    CheckpointError
        When there is no key.
    """
    if form.place is not None and content.size:
        known = key if isinstance(key, bytes) else read_key(key)
        content = unseal(form.where, content, form.place, known)
    if not form.compressed or form.nbytes == 0:
        return content
    if not _is_bytes(form.dtype, form.encoding, digest):
        return _decompressed(form.where, content, form.nbytes)
    content, last = content[:-1], content[-1:].tobytes()
    if last == _COMPRESSED:
        return _decompressed(form.where, content, form.nbytes if digest is None else None)
    if last != _AS_IT_IS:
        raise ValueError(f"{form.where} is not what was written: nothing compresses so")
    return content


def _is_bytes(dtype: Any, encoding: str | None, digest: str | None) -> bool:
    """Whether Zarr has no type for the values of a block."""
    return dtype is None or digest is not None or encoding in ("masked", "raw")


def _compressed(payload: Sequence[memoryview], size: int) -> bytes:
    whole = payload[0] if len(payload) == 1 else b"".join(payload)
    items, shuffled = np.frombuffer(whole, f"V{size}"), int(size > 1)
    made: bytes = _library().compress(items, b"lz4", 5, shuffled)
    return made


def _decompressed(where: str, content: np.ndarray, expected: int | None) -> np.ndarray:
    """Bytes in memory that may be written to; `expected`: so many, None: as many as there are."""
    if content.size >= _HEADER:
        nbytes, _, told = struct.unpack_from("<III", content.data, 4)
        # the library believes the header: it must not be asked to read behind the end
        if told == content.size and expected in (None, nbytes) and nbytes:
            found = np.empty(nbytes, np.uint8)
            try:
                _library().decompress(content, found)
                return found
            except RuntimeError:
                pass
    raise ValueError(f"{where} is not what was written: it cannot be decompressed")


def _library() -> Any:
    try:
        from numcodecs import blosc
    except ImportError:
        raise CheckpointError(
            "compression of checkpoints needs the package numcodecs; get it with: "
            "pip install 'dask-hpc[checkpoint]'"
        ) from None
    return blosc
