"""What an object is made of: the plan of its checkpoint, and the keys of its blocks.

Nothing here touches a value of a collection, and nothing is made for each block but its key, so that a
collection of ten thousand blocks is described in milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dask_hpc.checkpoint import frames
from dask_hpc.checkpoint.arrays import array_files, array_keys, files, plan_array
from dask_hpc.checkpoint.dtypes import pickled
from dask_hpc.checkpoint.keys import as_json
from dask_hpc.checkpoint.names import checked_name
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.errors import CheckpointTypeError

Key = Any
#: Path of the array of an object that is no labelled one.
DATA = "data"
#: Kind of the plan of results by key.
RESULTS = "results"
#: Where the plan of a state says what program has written it, and at which step.
PROGRAM = "program"

_ALLOWED = (
    "allowed: a dask array, an xarray Dataset or DataArray with chunks, a dask dataframe or bag, or one "
    "value of these, a Delayed, a Future, a list or dict of futures"
)


def describe(obj: Any, name: str) -> tuple[Plan, list[Key]]:
    """The plan of a checkpoint of `obj`, and the keys whose values are its blocks.

    Parameters
    ----------
    obj
        A dask array, an xarray Dataset or DataArray with chunks, a dask dataframe or bag, or one value of
        these, a Delayed, a Future, a list or tuple of futures, or a dict of them.
    name
        Of the checkpoint.

    Returns
    -------
    tuple
        The plan, and keys in the order of its blocks: those of the first array in C order, then the next.

    Raises
    ------
    CheckpointTypeError
        For any other object.
    CheckpointValueError
        For a name that is not allowed, or an object with something in it that cannot be stored.
    """
    checked_name(name)
    from distributed import Future

    if isinstance(obj, Future):
        return _opaque(name, "future", [obj.key])
    if isinstance(obj, dict):
        return _opaque(name, "dict", _future_keys(obj, obj.values()), {"keys": _labels(obj)})
    if isinstance(obj, (list, tuple)):
        return _opaque(name, "futures", _future_keys(obj, obj))
    # by the module first, so that no library is loaded whose objects nobody has
    match type(obj).__module__.partition(".")[0]:
        case "xarray":
            from dask_hpc.checkpoint.labelled import describe_labelled

            found_plan = describe_labelled(obj, name)
            if found_plan is not None:
                return found_plan
        case "dask":
            return _of_dask(obj, name)
    raise CheckpointTypeError(f"an object of type {type(obj).__name__} cannot be in a checkpoint; {_ALLOWED}")


def describe_results(name: str, keys: list[Key], run: str) -> Plan:
    """The plan of a checkpoint of results of a job by their keys, which are its blocks.

    Parameters
    ----------
    keys
        Those that `keys.as_json` takes.
    run
        Of a run and those that go on from it.
    """
    return _opaque(name, RESULTS, keys, {"keys": [as_json(key) for key in keys], "run": run})[0]


def _future_keys(obj: Any, values: Collection[Any]) -> list[Key]:
    """Keys of the futures that `obj` holds, and nothing else."""
    from distributed import Future

    if not values or not all(isinstance(each, Future) for each in values):
        other = next((each for each in values if not isinstance(each, Future)), None)
        found = f"with one of type {type(other).__name__} in it" if values else "that is empty"
        raise CheckpointTypeError(f"a {type(obj).__name__} {found} cannot be in a checkpoint; {_ALLOWED}")
    return [each.key for each in values]


def _labels(obj: Mapping[Any, Any]) -> list[Any]:
    labels = {label: as_json(label) for label in obj}
    for label, found in labels.items():
        if found is None:
            raise CheckpointTypeError(
                f"a dict with the key {label!r:.80} cannot be in a checkpoint; allowed keys: text, numbers, "
                "and tuples of them"
            )
    return list(labels.values())


def _of_dask(obj: Any, name: str) -> tuple[Plan, list[Key]]:
    import dask.array
    from dask.delayed import Delayed

    if isinstance(obj, Delayed):
        return _opaque(name, "delayed", [obj.key])
    if isinstance(obj, dask.array.Array):
        array = plan_array(DATA, obj)
        extra = {} if array.dtype is not None else {"dtypes": {DATA: pickled(np.dtype(obj.dtype))}}
        return Plan(name, "dask.array", (array,), files(array_files(array)), extra), array_keys(obj)
    # neither is loaded by `dask.array`
    module = type(obj).__module__
    if module.startswith("dask.dataframe"):
        if frames.is_frame(obj):
            return _opaque(name, "dataframe", frames.result_keys(obj), {"meta": frames.meta_bytes(obj)})
        if frames.is_scalar(obj):
            return _opaque(name, "delayed", frames.result_keys(obj))
    if module.startswith("dask.bag"):
        from dask.bag import Bag, Item

        if isinstance(obj, (Bag, Item)):
            return _opaque(name, "bag" if isinstance(obj, Bag) else "delayed", obj.__dask_keys__())
    raise CheckpointTypeError(f"an object of type {type(obj).__name__} cannot be in a checkpoint; {_ALLOWED}")


def _opaque(
    name: str, kind: str, keys: list[Key], extra: Mapping[str, Any] | None = None
) -> tuple[Plan, list[Key]]:
    array = Array(DATA, "opaque", None, (len(keys),), ((1,) * len(keys),))
    return Plan(name, kind, (array,), files(array_files(array)), extra or {}), keys
