"""Checkpoints made without a cluster: the blocks of an object computed here, written and finished."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask

from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.checkpoint.services import served
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.versions import Version
from dask_hpc_policies.codec import decode, encode


def computed(plan: Plan, keys: list[Any], obj: Any) -> list[list[Any]]:
    """Values of the blocks of each array of a plan."""
    found = iter(dask.get(dict(obj.__dask_graph__()), keys))
    return [[next(found) for _ in range(array.count)] for array in plan.arrays]


def written(draft: Draft, values: list[list[Any]]) -> dict[int, Written]:
    """What is known of the blocks of a draft once they are all written."""
    found: dict[int, Written] = {}
    for array, blocks in zip(draft.plan.arrays, values, strict=True):
        answers = write_blocks(draft.path, array, range(array.count), blocks)
        for answer in answers:
            assert isinstance(answer, Written), answer
            found[len(found)] = answer
    return found


def save(obj: Any, folder: Path, name: str = "field", services: str = "plain") -> Version:
    """Write a version of a collection, its plan sent over a network on the way."""
    plan, keys = describe(obj, name)
    draft = Store(folder).begin(decode(Plan, encode(served(plan, services))))
    return draft.finish(written(draft, computed(plan, keys, obj)))


def save_values(store: Store, values: list[Any], services: str = "plain") -> str:
    """Folder of a version of values, as of futures."""
    array = Array("data", "opaque", None, (len(values),), ((1,) * len(values),))
    draft = store.begin(served(Plan("values", "futures", (array,), {}, {}), services))
    return draft.finish(written(draft, [values])).path


def write_key(path: Path, text: str | None = None) -> str:
    """Path of a file with a new key, or with `text`."""
    path.write_text(os.urandom(32).hex() + "\n" if text is None else text)
    path.chmod(0o600)
    return str(path)
