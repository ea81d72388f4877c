"""Dask dataframes: a row of opaque blocks, the divisions, and an empty frame that says the columns."""

from __future__ import annotations

import base64
from typing import Any

from dask_hpc.checkpoint.plan import Plan


def meta_bytes(obj: Any) -> str:
    """The empty frame of a dask dataframe, as Dask serialises it, in base64."""
    from distributed.protocol.serialize import serialize_bytes

    return base64.b64encode(serialize_bytes((obj._meta, obj.divisions), on_error="raise")).decode()


def is_frame(obj: Any) -> bool:
    """Whether an object is a dask dataframe, series or index."""
    import dask.dataframe as dd

    return isinstance(obj, (dd.DataFrame, dd.Series, dd.Index))


def is_scalar(obj: Any) -> bool:
    """Whether an object is one value of a dask dataframe, as a sum is."""
    from dask.dataframe.dask_expr import Scalar

    return isinstance(obj, Scalar)


def result_keys(obj: Any) -> list[Any]:
    """Keys of the partitions, in order; a persisted frame has other names for the results on a cluster."""
    from dask._task_spec import Alias

    graph = obj.__dask_graph__()
    found = []
    for key in obj.__dask_keys__():
        while isinstance(task := graph.get(key), Alias) and task.target != key:
            key = task.target
        found.append(key)
    return found


def frame_of(plan: Plan, tasks: dict[Any, Any]) -> Any:
    """The dask dataframe whose partitions `tasks` load; what the plan holds is unpickled."""
    import dask.dataframe as dd
    from distributed.protocol.serialize import deserialize_bytes

    meta, divisions = deserialize_bytes(base64.b64decode(plan.extra["meta"]))
    # not `from_delayed`: it makes text of columns of Python values, and no index
    return dd.from_graph(tasks, meta, tuple(divisions), list(tasks), f"restored-{plan.name}")
