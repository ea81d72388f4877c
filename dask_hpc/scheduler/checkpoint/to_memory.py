"""A version on its way to the memories of hosts: what writes its blocks there, and where they are then."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.describe import describe_results
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.checkpoint.services import closed, served, services_of
from dask_hpc.scheduler.checkpoint.writing import Block
from dask_hpc.worker import host_memory
from dask_hpc.worker.saved import MemoryCopy

#: A copy of a result, and the name of its type.
Kept = tuple[MemoryCopy, str]


@dataclass(frozen=True, slots=True)
class InMemory:
    """A version that is being written to the memories of hosts."""

    #: Failure domain of each host, by its manager.
    domains: Mapping[Home, str]
    #: What `host_memory.home` wants to know.
    manager: Mapping[str, Any]
    #: Who moves what is written: see `host_memory.write`.
    transfer: str
    #: Versions of which managers may have what nobody has heard of, and nobody needs.
    ended: tuple[str, ...] = ()
    version: str = field(default_factory=lambda: uuid.uuid4().hex)

    def call(self, address: str, array: Array, keys: Mapping[int, Any]) -> tuple[Any, dict[str, Any]]:
        """What writes results on a worker, and its arguments."""
        return host_memory.write, {
            "array": array,
            "keys": keys,
            "manager": self.manager,
            "transfer": self.transfer,
            "version": self.version,
            "ended": self.ended,
        }


def copies_in(version: str, blocks: Mapping[Any, Block], of: str, draft: str = "") -> dict[Any, Kept]:
    """Copies of results in a version of `of` in memory (its name as long as it is not whole: `draft`)."""
    made: dict[Any, Kept] = {}
    for key, block in blocks.items():
        assert block.home is not None
        copy = MemoryCopy(version, block.array, block.number, block.written, block.home, draft=draft, of=of)
        made[key] = copy, block.type_name
    return made


def by_place(plan: Plan, keys: Sequence[Any], copies: Mapping[Any, MemoryCopy]) -> dict[tuple[str, int], Any]:
    """The results that are read from a version, by array and number in it, in the order of its plan.

    Of several at one place it is the one that was written, of `keys`, if that is among them.
    """
    places = [(array.path, number) for array in plan.arrays for number in range(array.count)]
    found = {place: key for place, key in zip(places, keys, strict=True) if key in copies}
    for key, copy in copies.items():
        found.setdefault((copy.array.path, copy.number), key)
    return {place: found[place] for place in places if place in found}


def made_again(plan: Plan, at: Mapping[tuple[str, int], Any]) -> tuple[Plan, list[Any]]:
    """Plan and keys of a version once more, or of those of its results that somebody still wants."""
    keys = list(at.values())
    if len(keys) == plan.count:
        return plan, keys
    # what is left of a collection is none
    keys = list(dict.fromkeys(keys))
    left = describe_results(plan.name, keys, plan.extra.get("run", ""))
    return closed(served(left, services_of(plan))), keys
