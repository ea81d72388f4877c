"""Values of blocks as the bytes that are stored, and back.

What is opaque is serialised as Dask does it, which means pickle for most types: it is made a value again
only for whoever trusts it. All else is bytes and text, of which nothing is ever executed.
"""

from __future__ import annotations

import io
import math
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from dask_hpc.checkpoint.direct import as_parts
from dask_hpc.checkpoint.dtypes import from_json, to_json
from dask_hpc.checkpoint.layout import chunk_shape
from dask_hpc.checkpoint.names import is_compressed, pack_place
from dask_hpc.checkpoint.plan import Array, Written

#: Most bytes of the header of an array in NumPy's format.
_HEADER_BYTES = 1 << 16
#: Held by who has Python parse one.
_parses = threading.RLock()


def to_bytes(array: Array, number: int, value: Any) -> tuple[list[memoryview], str | None]:
    """The bytes of a block in parts, and the digest when they are opaque.

    Those of a block at the edge of regular chunks have the length of a whole chunk.

    Raises
    ------
    ValueError
        When the value does not fit the plan.
    Exception
        Whatever serialising an opaque value raises.
    """
    if array.kind == "opaque":
        return _opaque(value)
    found = _checked(array, number, value)
    if array.kind in ("shard", "grid") and found.shape != (whole := chunk_shape(array.chunks)) and found.size:
        padded = np.zeros(whole, found.dtype)
        padded[tuple(map(slice, found.shape))] = found
        found = padded
    if array.encoding in ("text", "object"):
        text = _text(found)
        if text is not None:
            return [memoryview(text)], None
        if array.encoding == "object":
            return _opaque(found)
        raise ValueError(f"{_where(array, number)} holds missing values among its text; allowed: text alone")
    if array.encoding == "masked":
        fill = np.asarray(np.ma.asarray(found).fill_value, found.dtype)
        parts = [np.ma.getdata(found), np.ma.getmaskarray(found), fill]
        return [_flat(part) for part in parts], None
    return as_parts([_flat(found)]), None


@dataclass(frozen=True, slots=True)
class Form:
    """What the bytes of one block are: all that making a value of them needs."""

    #: For messages.
    where: str
    #: None: opaque.
    dtype: Any
    encoding: str | None
    shape: tuple[int, ...]
    #: Shape of what is stored: larger at the edge of regular chunks.
    stored_shape: tuple[int, ...]
    #: Whether they are compressed in the store, and what they are encrypted for there, if they are.
    compressed: bool = False
    place: str | None = None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the values; None when these decide."""
        if self.dtype is None or self.encoding in ("text", "object"):
            return None
        dtype, items = from_json(self.dtype), math.prod(self.stored_shape)
        if self.encoding != "masked":
            return items * dtype.itemsize
        return items * (dtype.itemsize + np.ma.make_mask_descr(dtype).itemsize) + dtype.itemsize


def form(array: Array, number: int, written: Written | None = None) -> Form:
    """What the bytes of a block are; raises ValueError when there is none of that number.

    Parameters
    ----------
    written
        Where it is in the store; None: in no pack.
    """
    shape = array.block_shape(number)
    whole = chunk_shape(array.chunks) if array.kind in ("shard", "grid") and 0 not in shape else shape
    compressed, place = array.compressed, array.place(number)
    if written is not None and written.pack is not None:
        compressed, place = is_compressed(written.pack), pack_place(written.pack, written.offset)
    return Form(_where(array, number), array.dtype, array.encoding, shape, whole, compressed, place)


def from_bytes(form: Form, content: np.ndarray, digest: str | None, trusted: bool) -> Any:
    """The value whose bytes `to_bytes` gave, in the same memory where that can be.

    Parameters
    ----------
    content
        Those bytes, checked.
    digest
        Given for what is opaque; checked here.
    trusted
        Whether opaque values may be made.

    Raises
    ------
    ValueError
        When the bytes are not those of such a block, or opaque and not trusted.
    """
    if form.dtype is None and digest is None:
        return _from_npy(form.where, content)
    if form.dtype is None or digest is not None:
        return _made(form.where, content, digest, trusted)
    dtype = from_json(form.dtype)
    if form.encoding in ("text", "object"):
        found = _from_text(form.where, content, form.stored_shape, dtype)
    elif form.encoding == "masked":
        return _from_masked(content, form.shape, dtype)
    else:
        found = content.view(dtype).reshape(form.stored_shape)
    return found if found.shape == form.shape else found[tuple(map(slice, form.shape))].copy()


def stored_bytes(array: Array, number: int) -> int | None:
    """Bytes that the values of a block have; None when these decide."""
    return form(array, number).nbytes


def _checked(array: Array, number: int, value: Any) -> np.ndarray:
    """The value as an array of the shape and dtype that the plan has."""
    where = _where(array, number)
    found = value
    if not isinstance(value, np.ndarray):
        # what reduces an array to nothing often gives a scalar
        if array.shape or not (np.isscalar(value) or array.encoding == "object"):
            raise ValueError(f"{where} is of type {type(value).__name__}; allowed: a NumPy array")
        found = np.empty((), object) if array.encoding == "object" else np.asarray(value)
        if array.encoding == "object":
            found[()] = value
    masked = isinstance(found, np.ma.MaskedArray)
    if masked != (array.encoding == "masked"):
        raise ValueError(
            f"{where} is {'a' if masked else 'no'} masked array, other than its collection says; "
            "give map_blocks a meta that is one"
        )
    if found.shape != (shape := array.block_shape(number)):
        raise ValueError(f"{where} has the shape {found.shape}; its collection says {shape}")
    dtype = from_json(array.dtype)
    if found.dtype != dtype:
        if found.dtype.newbyteorder() != dtype:
            raise ValueError(
                f"{where} has the dtype {found.dtype}; its collection says {dtype}: give the dtype to the "
                "function that makes it, such as map_blocks(..., dtype=...)"
            )
        found = found.astype(dtype)
    return found


def _where(array: Array, number: int) -> str:
    return f"block {number} of {array.path}"


def _flat(value: Any) -> memoryview:
    """The bytes of an array in C order, without a copy where they lie so."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _opaque(value: Any) -> tuple[list[memoryview], str | None]:
    if type(value) is np.ndarray and (header := _header(value)) is not None:
        return as_parts([header, _flat(value)]), None
    from distributed.protocol.serialize import serialize_bytelist

    parts = as_parts(serialize_bytelist(value, on_error="raise"))
    digest = blake2b()
    for part in parts:
        digest.update(part)
    return parts, digest.hexdigest()


def _header(value: np.ndarray) -> memoryview | None:
    """What NumPy's own format says of an array, of which nothing is executed; None when it cannot."""
    if to_json(value.dtype) is None or not value.dtype.itemsize or value.dtype.hasobject:
        return None
    descr = np.lib.format.dtype_to_descr(value.dtype)
    told = {"descr": descr, "fortran_order": False, "shape": value.shape}
    header = io.BytesIO()
    try:
        np.lib.format.write_array_header_2_0(header, told)
    except UnicodeEncodeError:  # names of fields
        return None
    # what `getbuffer` gives makes noise when it is found in a circle of what nobody needs
    return memoryview(header.getvalue()) if header.tell() <= _HEADER_BYTES else None


def _made(where: str, content: np.ndarray, digest: str | None, trusted: bool) -> Any:
    if not trusted:
        raise ValueError(
            f"{where} holds Python values, which can run any code when they are loaded; if you trust who "
            "wrote the checkpoint, open it with allow_pickle=True"
        )
    if blake2b(content.data).hexdigest() != digest:
        raise ValueError(f"{where} is not what was written: its digest differs")
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(content.data)


def _from_npy(where: str, content: np.ndarray) -> np.ndarray:
    """An array in NumPy's own format (version 2), in the memory of its bytes."""
    file = io.BytesIO(content[:_HEADER_BYTES].tobytes())
    try:
        if np.lib.format.read_magic(file) != (2, 0):
            raise ValueError("another version of the format")
        shape, fortran, dtype = _described(file)
        if fortran or dtype.hasobject:
            raise ValueError("another order, or Python values")
        values = content[file.tell() :]
        # an array without a length has no memory to lie in
        return values.view(dtype).reshape(shape) if values.size else np.empty(shape, dtype)
    except ValueError as error:
        raise ValueError(f"{where} is no array as it was written: {error}") from None


def _described(file: io.BytesIO) -> Any:
    """Shape, order and dtype of an array in NumPy's format, of which the magic has been read.

    NumPy has Python parse it, which in Python 3.11 fails now and then where two threads do at once: ours do
    not, and once more is enough where another one did.
    """
    parse = partial(np.lib.format.read_array_header_2_0, file, _HEADER_BYTES)
    with _parses:
        at = file.tell()
        try:
            return parse()
        except SystemError:
            file.seek(at)
            return parse()


def _text(value: np.ndarray) -> bytes | None:
    """Text as Zarr's codec vlen-utf8 has it; None when there is anything else among it."""
    items: Sequence[Any] = value.reshape(-1).tolist()
    if not all(type(item) is str for item in items):
        return None
    try:
        encoded = [item.encode() for item in items]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return b"".join([struct.pack("<I", len(items)), *(struct.pack("<I", len(e)) + e for e in encoded)])


def _from_text(where: str, content: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    data, at = content.tobytes(), 4
    count = int(np.prod(shape, dtype=object))
    if 4 + 4 * count > len(data):
        raise ValueError(f"{where} is no text as it was written: {count} texts in {len(data)} bytes")
    found = np.empty(count, dtype)
    try:
        (told,) = struct.unpack_from("<I", data)
        for place in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            at += 4 + length
            found[place] = data[at - length : at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"{where} is no text as it was written: {error}") from None
    if told != count or at != len(data):
        raise ValueError(f"{where} is no text as it was written: {told} texts in {len(data)} bytes")
    return found.reshape(shape)


def _from_masked(content: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    items = int(np.prod(shape, dtype=object))
    # of records each field has a mask of its own
    masked = np.ma.make_mask_descr(dtype)
    end, last = items * dtype.itemsize, items * (dtype.itemsize + masked.itemsize)
    data = content[:end].view(dtype).reshape(shape)
    mask = content[end:last].view(masked).reshape(shape)
    fill = content[last:].copy().view(dtype)[0]
    return np.ma.MaskedArray(data, mask, fill_value=fill)
