"""Dask arrays as arrays of a checkpoint, and the metadata that goes with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.dtypes import stored, to_json
from dask_hpc.checkpoint.layout import is_regular
from dask_hpc.checkpoint.plan import Array, Kind


def plan_array(path: str, array: Any) -> Array:
    """How a dask array is stored at `path`."""
    chunks = tuple(tuple(-1 if math.isnan(n) else int(n) for n in lengths) for lengths in array.chunks)
    shape = tuple(-1 if -1 in lengths else sum(lengths) for lengths in chunks)
    dtype = np.dtype(array.dtype)
    masked = isinstance(array._meta, np.ma.MaskedArray)
    known = type(array._meta) is np.ndarray or masked and dtype.kind not in "OT"
    # of records with Python values among their fields nothing but pickling gives those back
    known = known and (dtype.kind in "OT" or not dtype.hasobject)
    told = to_json(dtype) if known and -1 not in shape and (dtype.itemsize or dtype.kind == "T") else None
    if told is None:
        return Array(path, "opaque", None, shape, chunks)
    how = stored(dtype)
    encoding = "masked" if masked else how.encoding
    if encoding not in (None, "int64", "text") or not is_regular(chunks):
        return Array(path, "apart", told, shape, chunks, encoding)
    # Zarr's reader cannot take text of any length or fields out of a shard
    kind: Kind = "grid" if encoding == "text" or dtype.fields else "shard"
    return Array(path, kind, told, shape, chunks, encoding)


def array_keys(array: Any) -> list[Any]:
    """Keys of a dask array's blocks in C order."""
    return [(array.name, *index) for index in itertools.product(*map(range, array.numblocks))]


def array_files(
    array: Array, attributes: Mapping[str, Any] | None = None, dims: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Metadata of an array by path: of a Zarr array, or of the group with one a block."""
    if array.kind in ("shard", "grid"):
        return {array.path: metadata.regular(array, attributes or {}, dims)}
    return {array.path: metadata.group({})}


def files(documents: dict[str, Any]) -> dict[str, bytes]:
    """The metadata of a version as files: that of its group, which has all, and of its members."""
    top = {"": metadata.group(documents.pop("", {}), documents)}
    return {
        "/".join(filter(None, (path, metadata.DOCUMENT))): metadata.dump(document)
        for path, document in (top | documents).items()
    }
