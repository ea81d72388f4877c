"""xarray objects: variables in blocks, variables in memory, dimensions, attributes and indexes.

The group of a version reads as xarray's own: dimension names, CF attributes of times, the list of
coordinates. What xarray would lose on that way (big-endian numbers, attributes that CF gives a meaning,
indexes, names) is in the plan, and given back from there.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dask_hpc.checkpoint import branch, manifest, metadata
from dask_hpc.checkpoint.arrays import array_files, array_keys, files, plan_array
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.dtypes import TEXT, from_json, pickled, stored, to_json
from dask_hpc.checkpoint.layout import pack_checksum
from dask_hpc.checkpoint.names import checked_variable
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.checkpoint.values import to_bytes
from dask_hpc.errors import CheckpointValueError

#: What xarray calls the variable of an array without a name.
UNNAMED = "__xarray_dataarray_variable__"
#: Most bytes of variables that are in memory: they go through the scheduler.
MOST_IN_MEMORY = 2**28
#: Names that the group of a version needs for itself.
TAKEN = {metadata.DOCUMENT, manifest.FILE, f".{manifest.FILE}", branch.FILE}


def describe_labelled(obj: Any, name: str) -> tuple[Plan, list[Any]] | None:
    """Plan and keys of a Dataset or DataArray; None for another object.

    Raises
    ------
    CheckpointValueError
        For one without chunks, a variable whose name cannot be a folder's, an attribute that JSON cannot
        hold, or values in memory that Zarr cannot.
    """
    import xarray as xr

    extra: dict[str, Any] = {}
    if isinstance(obj, xr.Dataset):
        kind, dataset = "xarray.Dataset", obj
    elif isinstance(obj, xr.DataArray):
        kind, (dataset, own) = "xarray.DataArray", as_dataset(obj)
        extra = {"name": obj.name, "variable": own}
    else:
        return None
    arrays: list[Array] = []
    keys: list[Any] = []
    documents: dict[str, Any] = {}
    contents: dict[str, bytes] = {}
    variables: list[dict[str, Any]] = []
    dtypes: dict[str, Any] = {}
    multiple = _multi_indexes(dataset)
    # before anything is read that is in a file; of text only its own length says
    here = [each for path, each in dataset.variables.items() if each.chunks is None and path not in multiple]
    _check_size(obj, sum(each.nbytes for each in here if each.dtype.kind not in "OT"))
    for path, variable in dataset.variables.items():
        if path in multiple:
            continue
        path = checked_variable(path, TAKEN)
        attributes = _attributes(path, variable.attrs)
        told: dict[str, Any] = {
            "path": path,
            "dims": _dimensions(path, variable.dims),
            "attrs": json.dumps(attributes),
        }
        if variable.chunks is not None:
            array = plan_array(path, variable.data)
            documents |= array_files(array, _readable(attributes, array), variable.dims)
            if array.dtype is None:
                dtypes[path] = pickled(np.dtype(variable.dtype))
            arrays.append(array)
            keys += array_keys(variable.data)
        else:
            variable, calendar = _with_numbers(variable)
            array, content = _memory(path, variable)
            how = TEXT if array.encoding == "text" else stored(from_json(array.dtype))
            readable = _readable(attributes, array) | calendar
            documents[path] = metadata.single(array.shape, how, readable, variable.dims)
            if content:
                contents[metadata.chunk_path(path, len(array.shape))] = content
            told["memory"] = {"dtype": array.dtype, "shape": list(array.shape), "encoding": array.encoding}
            told["calendar"] = calendar
        variables.append(told)
    if not arrays:
        raise CheckpointValueError(
            f"no variable of this {type(obj).__name__} has chunks: it is not on the cluster; give it some "
            "with chunk() and persist it"
        )
    _check_size(obj, sum(map(len, contents.values())))
    levels = {*multiple, *(level for each in multiple.values() for level in each)}
    extra |= {
        "variables": variables,
        "coordinates": [str(name) for name in dataset.coords if name not in multiple],
        "indexes": [str(name) for name in dataset.coords if name in dataset.xindexes and name not in levels],
        "multi_indexes": multiple,
        # their levels say all else
        "multi_attrs": {
            path: json.dumps(_attributes(path, more))
            for path in multiple
            if (more := dataset.variables[path].attrs)
        },
        "dtypes": dtypes,
        "attrs": json.dumps(attributes := _attributes("the dataset", dataset.attrs)),
    }
    top: dict[str, Any] = dict(attributes)
    # readers take the list apart where there are spaces: others of its parts may be the names of variables
    if others := [one for one in extra["coordinates"] if one not in dataset.dims and one.split() == [one]]:
        top.setdefault("coordinates", " ".join(others))
    documents[""] = top
    return Plan(name, kind, tuple(arrays), files(documents) | contents, extra), keys


def _check_size(obj: Any, in_memory: int) -> None:
    if in_memory > MOST_IN_MEMORY:
        raise CheckpointValueError(
            f"{in_memory} bytes of this {type(obj).__name__} are in this process, or in files that it reads; "
            f"at most {MOST_IN_MEMORY} may be: give large variables chunks with chunk() and persist them"
        )


def as_dataset(obj: Any) -> tuple[Any, str]:
    """A DataArray as a Dataset, and the name of its variable in it."""
    # a variable that is called as a dimension is a coordinate
    taken = obj.name is None or obj.name in obj.coords or obj.name in obj.dims
    own = UNNAMED if taken else obj.name
    return obj.to_dataset(name=own), own


def _attributes(where: str, attributes: Mapping[Any, Any]) -> dict[str, Any]:
    found = {}
    for key, value in attributes.items():
        try:
            if not isinstance(key, str):
                raise TypeError("named by no text")
            found[metadata.plain(key)] = metadata.plain(value)
        except TypeError as error:
            raise CheckpointValueError(
                f"the attribute {key!r} of {where} is {error}, which JSON cannot hold; allowed: numbers, "
                "text, lists and dicts of them. Convert or delete it"
            ) from None
    return found


def _dimensions(path: str, dims: Sequence[Any]) -> list[str]:
    for dim in dims:
        # as text it would be another one
        if not metadata.is_text(dim):
            raise CheckpointValueError(
                f"{dim!r:.80} is a dimension of the variable {path!r}; allowed: text. Give it another name "
                "with rename"
            )
    return list(dims)


def _readable(attributes: dict[str, Any], array: Array) -> dict[str, Any]:
    """Attributes as xarray's reader of Zarr takes them: it has a form of its own for the value of gaps, by
    the type of the numbers, and opens nothing of a group with another one.
    """
    found = dict(attributes)
    value = found.pop("_FillValue", None)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = "" if array.dtype is None else from_json(array.dtype).kind
    if number and kind == "f":
        found["_FillValue"] = base64.b64encode(struct.pack("<d", value)).decode()
    elif number and (kind in "iu" or array.encoding == "int64") and value == value // 1:
        found["_FillValue"] = int(value)
    return found


def _multi_indexes(dataset: Any) -> dict[str, list[str]]:
    """Names of levels by the dimension of their index."""
    import pandas as pd
    from xarray.indexes import PandasIndex, PandasMultiIndex

    found = {}
    for name, own in dataset.xindexes.items():
        # others may give one of pandas, too, in which labels are looked up in another way
        if type(own) not in (PandasIndex, PandasMultiIndex):
            raise CheckpointValueError(
                f"the coordinate {name!r:.80} has an index of type {type(own).__name__}; allowed: those that "
                "pandas has. Remove it with drop_indexes, and set it again after restore"
            )
        index = own.to_pandas_index()
        if isinstance(index, pd.MultiIndex) and name in dataset.sizes:
            _check_levels(name, index)
            found[str(name)] = [str(level) for level in index.names]
    return found


def _check_levels(name: Any, index: Any) -> None:
    """Refuse gaps for which the dtype of a level has no value: xarray has any number there."""
    for level, values, codes in zip(index.names, index.levels, index.codes, strict=True):
        if getattr(values.dtype, "kind", "O") in "iub" and (codes < 0).any():
            raise CheckpointValueError(
                f"the level {level!r:.80} of the index {name!r:.80} lacks values, and {values.dtype} has "
                "none for that; allowed: levels of numbers with a fraction, or of times. Convert it, such as "
                "with set_levels"
            )


def _with_numbers(variable: Any) -> tuple[Any, dict[str, str]]:
    """A variable of times in a calendar that NumPy has not, as numbers, and what xarray decodes these with;
    nothing of another one.
    """
    values = np.asarray(variable.values) if variable.dtype == object else np.empty(0)
    first: Any = values.flat[0] if values.size else None
    if not type(first).__module__.startswith("cftime"):
        return variable, {}
    import cftime

    told = {"units": "microseconds since 2000-01-01", "calendar": str(first.calendar)}
    with suppress(AttributeError, LookupError, TypeError, ValueError):  # not all are times of this calendar
        numbers = cftime.date2num(values, **told)
        if np.array_equal(cftime.num2date(numbers, **told), values):
            return variable.copy(data=numbers), told
    return variable, {}


def _memory(path: str, variable: Any) -> tuple[Array, bytes]:
    """How a variable in memory is stored, and its file, empty when it has no values."""
    values = np.asarray(variable.values)
    dtype = np.dtype("T") if values.dtype.kind == "O" else values.dtype
    if values.dtype.kind == "U" and not values.dtype.itemsize:
        values, dtype = values.astype("U1"), np.dtype("U1")
    how = stored(dtype)
    # of pandas: as an array of NumPy it would be another one
    other = None if isinstance(variable.dtype, np.dtype) else variable.dtype
    if other is not None or to_json(dtype) is None or how.encoding == "raw":
        # xarray gives no chunks to what is of pandas
        otherwise = "(str) or the like" if other is not None else ", or give it chunks with chunk()"
        raise CheckpointValueError(
            f"the variable {path!r} is in memory and of the dtype {other or dtype}, which Zarr does not "
            f"have; convert it with astype{otherwise}"
        )
    shape = tuple(values.shape)
    told = to_json(values.dtype)
    array = Array(path, "apart", told, shape, tuple((n,) for n in shape), how.encoding)
    if not values.size:
        return array, b""
    try:
        parts, _ = to_bytes(array, 0, values)
    except ValueError:
        raise CheckpointValueError(
            f"the variable {path!r} is in memory and holds Python objects other than text; allowed: numbers, "
            "times and text. Convert it, such as with astype(str)"
        ) from None
    content = b"".join(parts)
    return array, content + pack_checksum(crc32c(content))
