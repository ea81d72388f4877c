"""xarray objects back from a version: dimensions, attributes and indexes as the plan has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.dtypes import from_json
from dask_hpc.checkpoint.manifest import Manifest, check_array
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.values import form, from_bytes


def labelled_object(
    found: Manifest, dask_array: Callable[[int], Any], in_file: Callable[[str], bytearray]
) -> Any:
    """The Dataset or DataArray of a version.

    Parameters
    ----------
    dask_array, in_file
        Give the dask array at a place of the plan, and the values in a file that is no block.

    Raises
    ------
    ValueError, KeyError, TypeError
        When its plan cannot be that of such an object.
    """
    import xarray as xr
    from xarray.indexes import PandasMultiIndex

    extra = found.plan.extra
    places = {array.path: place for place, array in enumerate(found.plan.arrays)}
    variables = {}
    for told in extra["variables"]:
        path = told["path"]
        values = dask_array(places[path]) if path in places else _memory(in_file, told)
        variables[path] = xr.Variable(told["dims"], values, json.loads(told["attrs"]))
    names = set(extra["coordinates"])
    coordinates = xr.Coordinates({name: variables[name] for name in variables if name in names}, indexes={})
    dataset = xr.Dataset(
        {name: each for name, each in variables.items() if name not in names},
        coordinates,
        json.loads(extra["attrs"]),
    )
    for name in extra["indexes"]:
        dataset = dataset.set_xindex(name)
    for name, levels in extra["multi_indexes"].items():
        dataset = dataset.set_xindex(levels, PandasMultiIndex)
        dataset[name].attrs = json.loads(extra.get("multi_attrs", {}).get(name, "{}"))
    if found.plan.kind == "xarray.Dataset":
        return dataset
    return dataset[extra["variable"]].rename(extra["name"])


def _memory(in_file: Callable[[str], bytearray], told: Any) -> np.ndarray:
    """The values of a variable that was in memory."""
    how = told["memory"]
    shape = tuple(how["shape"])
    array = Array(told["path"], "apart", how["dtype"], shape, tuple((n,) for n in shape), how["encoding"])
    check_array(array)
    if 0 in shape:  # no values are in no file
        return np.empty(shape, from_json(array.dtype))
    content = in_file(metadata.chunk_path(array.path, len(shape)))
    value: np.ndarray = from_bytes(form(array, 0), np.frombuffer(content, np.uint8), None, False)
    if not (calendar := told.get("calendar")):
        return value
    import cftime

    times = np.empty(shape, object)
    times[...] = cftime.num2date(value, calendar["units"], calendar["calendar"])
    return times
