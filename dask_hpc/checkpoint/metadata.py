"""Zarr's metadata, version 3: what makes a version readable for everybody."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_hpc.checkpoint import layout
from dask_hpc.checkpoint.dtypes import BYTES, TEXT, Stored, from_json, item_bytes, stored
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc_policies.codec import half_of_pair

#: Name of the metadata of a group or array.
DOCUMENT = "zarr.json"
#: The codec of what is encrypted, and a member of the group: other readers say that they do not know it.
SEALED = "dask_hpc.aes-256-gcm (dask_hpc.open_checkpoint opens it with the key)"
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
    """Metadata of an array whose chunks are one shard, or a grid of files.

    Without `dims`, these are ``dim_0`` and so on, as xarray calls them: it reads no array that has none.
    """
    dims = [f"dim_{axis}" for axis in range(len(array.shape))] if dims is None else dims
    shape = (layout.chunk_shape if array.kind == "grid" else layout.shard_shape)(array.chunks)
    return _array(array.shape, shape, stored(from_json(array.dtype)), codecs(array), attributes, dims)


def codecs(array: Array) -> list[Document]:
    """What Zarr does to the values of an array whose chunks are one shard, or a grid of files."""
    inner = _codecs(stored(from_json(array.dtype)), _between(array))
    if array.kind == "grid":
        return inner
    shard = {
        "chunk_shape": list(layout.chunk_shape(array.chunks)),
        "codecs": inner,
        "index_codecs": [_bytes_codec("little"), _CRC],
        "index_location": "end",
    }
    return [{"name": "sharding_indexed", "configuration": shard}]


def coded(files: Mapping[str, bytes], arrays: Sequence[Array]) -> dict[str, bytes]:
    """Files of a version whose regular arrays have other codecs than when they were described."""
    found = dict(files)
    if DOCUMENT in files:
        top = json.loads(files[DOCUMENT])
        regular = {array.path: array for array in arrays if array.kind in ("shard", "grid")}
        sealed = any(array.sealed is not None for array in arrays)
        for path, document in top["consolidated_metadata"]["metadata"].items():
            if path in regular:
                document["codecs"] = codecs(regular[path])
            elif document["node_type"] == "array":
                document["codecs"] = [each for each in document["codecs"] if each != _SEALED]
                if sealed:
                    document["codecs"].insert(-1, _SEALED)
            found[f"{path}/{DOCUMENT}"] = dump(document)
        top.pop(SEALED, None)
        if sealed:
            # no reader of Zarr may go on when it does not know such a name
            top[SEALED] = {"must_understand": True}
        found[DOCUMENT] = dump(top)
    return found


def single(
    shape: tuple[int, ...],
    how: Stored,
    attributes: Mapping[str, Any] | None = None,
    dims: Sequence[Any] | None = None,
    *,
    between: Sequence[Document] = (),
    flat: bool = False,
) -> Document:
    """Metadata of an array of one chunk.

    Parameters
    ----------
    between
        Codecs between the values and the checksum.
    flat
        It lies beside them and not in folders.
    """
    chunk = tuple(max(1, length) for length in shape)
    return _array(shape, chunk, how, _codecs(how, between), attributes or {}, dims, flat=flat)


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
    return dump(single(shape, how, between=() if how is BYTES else _between(array), flat=True))


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
_SEALED: Document = {"name": SEALED}


def _codecs(how: Stored, between: Sequence[Document]) -> list[Document]:
    first = {"name": "vlen-utf8"} if how.data_type == "string" else _bytes_codec(how.endian)
    return [first, *between, _CRC]


def _between(array: Array) -> list[Document]:
    """The codecs of `dask_hpc.checkpoint.services` for values that are no bytes to Zarr."""
    found: list[Document] = []
    if array.compressed:
        size = item_bytes(from_json(array.dtype), array.encoding)
        how = {"typesize": size, "cname": "lz4", "clevel": 5, "blocksize": 0}
        how["shuffle"] = "shuffle" if size > 1 else "noshuffle"
        found.append({"name": "blosc", "configuration": how})
    return [*found, *([_SEALED] if array.sealed is not None else [])]


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


def is_text(value: Any) -> bool:
    """Whether a value is text that a file of JSON can hold: halves of surrogate pairs are none."""
    return isinstance(value, str) and half_of_pair(value) is None


def plain(value: Any) -> Any:
    """An attribute as JSON has it: numbers and arrays of NumPy as numbers and lists.

    Raises
    ------
    TypeError
        When JSON has nothing like it.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        # of nanoseconds NumPy makes numbers without a unit, and of a long double itself
        if value.dtype.kind in "mM" or value.dtype.char in "gG":
            raise TypeError(f"of type {value.dtype}")
        return plain(value.tolist())
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"of type {type(value).__name__} with the key {other[0]!r:.80}")
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str) and not is_text(value):
        raise TypeError("text with half of a surrogate pair")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"of type {type(value).__name__}")
