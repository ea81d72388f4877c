"""Zarr's metadata, version 3: what makes a version readable for everybody."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_hpc.checkpoint import layout
from dask_hpc.checkpoint.dtypes import BYTES, TEXT, Stored, from_json, stored
from dask_hpc.checkpoint.plan import Array, Written

#: Name of the metadata of a group or array.
DOCUMENT = "zarr.json"
Document = dict[str, Any]


def group(attributes: Mapping[str, Any], members: Mapping[str, Document] | None = None) -> Document:
    """Metadata of a group; with `members`, those of what is in it, so that readers need no listing."""
    found: Document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if members is not None:
        found["consolidated_metadata"] = {
            "kind": "inline",
            "must_understand": False,
            "metadata": dict(members),
        }
    return found


def regular(array: Array, attributes: Mapping[str, Any], dims: Sequence[Any] | None) -> Document:
    """Metadata of an array whose chunks are one shard, or a grid of files."""
    how = stored(from_json(array.dtype))
    if array.kind == "grid":
        whole = layout.chunk_shape(array.chunks)
        return _array(array.shape, whole, how, _codecs(how), attributes, dims)
    codec = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(layout.chunk_shape(array.chunks)),
            "codecs": _codecs(how),
            "index_codecs": [_bytes_codec("little"), _CRC],
            "index_location": "end",
        },
    }
    shape = layout.shard_shape(array.chunks)
    return _array(array.shape, shape, how, [codec], attributes, dims)


def single(
    shape: tuple[int, ...],
    how: Stored,
    attributes: Mapping[str, Any] | None = None,
    dims: Sequence[Any] | None = None,
    *,
    flat: bool = False,
) -> Document:
    """Metadata of an array of one chunk; `flat`: which lies beside them and not in folders."""
    chunk = tuple(max(1, length) for length in shape)
    return _array(shape, chunk, how, _codecs(how), attributes or {}, dims, flat=flat)


def shard_path(array: Array) -> str:
    """Path of the one file of a shard."""
    return chunk_path(array.path, len(array.shape))


def chunk_path(path: str, ndim: int) -> str:
    """Path of the first chunk of an array."""
    return "/".join([path, "c", *["0"] * ndim])


def block_folder(array: Array, number: int) -> str:
    """Path of the Zarr array that is one block."""
    return f"{array.path}/{number}"


def block_path(array: Array, number: int, digest: str | None) -> str:
    """Path of the file of a block that has one of its own."""
    if array.kind == "grid":
        return "/".join([array.path, "c", *map(str, array.block_index(number))])
    ndim = len(_block(array, number, 0, digest)[0])
    return f"{block_folder(array, number)}/{'.'.join('0' * ndim) or '0'}"


def block(array: Array, number: int, written: Written) -> bytes:
    """Metadata of a block that is a Zarr array of its own."""
    shape, how = _block(array, number, written.nbytes, written.digest)
    return dump(single(shape, how, flat=True))


def pack_folder(array: Array, pack: str) -> str:
    """Path of the Zarr array of bytes that has many blocks."""
    return f"{array.path}/{pack}"


def pack_path(array: Array, pack: str) -> str:
    """Path of the file of a pack."""
    return f"{pack_folder(array, pack)}/0"


def pack(nbytes: int) -> bytes:
    """Metadata of a pack of so many bytes, which have checksums of their own among them."""
    return dump(_array((nbytes,), (max(1, nbytes),), BYTES, [_bytes_codec(None)], {}, None, flat=True))


def dump(document: Any) -> bytes:
    """A document as its file."""
    return json.dumps(document, ensure_ascii=False, indent=1).encode()


def _block(array: Array, number: int, nbytes: int, digest: str | None) -> tuple[tuple[int, ...], Stored]:
    """Shape and type of the Zarr array of a block."""
    if digest is not None or array.encoding in ("masked", "raw"):
        return (nbytes,), BYTES
    how = TEXT if array.encoding in ("text", "object") else stored(from_json(array.dtype))
    return array.block_shape(number), how


_CRC: Document = {"name": "crc32c"}


def _codecs(how: Stored) -> list[Document]:
    if how.data_type == "string":
        return [{"name": "vlen-utf8"}, _CRC]
    return [_bytes_codec(how.endian), _CRC]


def _bytes_codec(endian: str | None) -> Document:
    return {"name": "bytes", **({"configuration": {"endian": endian}} if endian else {})}


def _array(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    how: Stored,
    codecs: list[Document],
    attributes: Mapping[str, Any],
    dims: Sequence[Any] | None,
    *,
    flat: bool = False,
) -> Document:
    keys = {"name": "v2", "configuration": {"separator": "."}}
    found: Document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": how.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": keys if flat else {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": how.fill_value,
        "codecs": codecs,
        "attributes": {**attributes, **how.attributes},
        "storage_transformers": [],
    }
    if dims is not None:
        found["dimension_names"] = [str(name) for name in dims]
    return found


def plain(value: Any) -> Any:
    """An attribute as JSON has it: numbers and arrays of NumPy as numbers and lists.

    Raises
    ------
    TypeError
        When JSON has nothing like it.
    """
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__}")
