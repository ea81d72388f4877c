"""Helper cores: tokens of the nodes of a program, one of which an analysis in situ takes while it runs.

They are an abstract resource of the workers, so that these give them out without asking anybody. The tasks of
the program need none: threads that no analysis runs on are theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.scheduler.internals import remote, writes
from dask_hpc.wire import HELPER_RESOURCE, HELPERS


class Helpers:
    """The helper cores of the workers of one scheduler."""

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self._scheduler, self._workers = engine.scheduler, workers
        #: What workers were told, by address.
        self._told: dict[str, int] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def leave(self, addresses: Collection[str], own_threads: int) -> None:
        """Of each node of these workers, a program keeps so many threads; the others are helper cores."""
        for address, count in shared(self._workers.by_node(addresses), own_threads).items():
            if self._told.get(address) != count:
                self._told[address] = count
                telling = asyncio.ensure_future(remote.tell(self._scheduler, [address], HELPERS, count=count))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

    def limit(self, addresses: Collection[str]) -> bool:
        """Whether analyses on these workers take helper cores: all have heard, and there are any."""
        known = self._scheduler.resources.get(HELPER_RESOURCE, {})
        return all(address in known for address in addresses) and any(
            known[address] > 0 for address in addresses
        )

    def left(self, address: str) -> None:
        """A worker has gone."""
        self._told.pop(address, None)

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        for task in self._telling:
            task.cancel()
        writes.drop_resource(self._scheduler, HELPER_RESOURCE)


def shared(threads: Mapping[str, Mapping[str, int]], own_threads: int) -> dict[str, int]:
    """Helper cores of each worker, by its address, when so many threads of each node are a program's.

    Parameters
    ----------
    threads
        Of the workers of each node, by address.
    """
    found = {}
    for workers in threads.values():
        left = max(0, sum(workers.values()) - own_threads)
        # the smallest first: what they cannot have the others get
        for at, address in enumerate(sorted(workers, key=lambda one: (workers[one], one))):
            # alike on all workers of the node, as the blocks are
            count = min(workers[address], -(-left // (len(workers) - at)))
            found[address] = count
            left -= count
    return found
