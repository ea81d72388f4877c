"""Helper cores: tokens of the nodes of a program, one of which an analysis in situ takes while it runs.

They are an abstract resource of the workers, so that these give them out without asking anybody. The tasks of
the program need none: threads that no analysis runs on are theirs.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Mapping

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.scheduler.internals import remote, writes
from dask_hpc.wire import HELPER_RESOURCE, HELPERS, ROLE_RESOURCE


class Helpers:
    """The helper cores of the workers of one scheduler."""

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self._scheduler, self._workers = engine.scheduler, workers
        #: By the worker that is being told; one thing at a time.
        self._telling: dict[str, asyncio.Task[None]] = {}

    def leave(self, addresses: Collection[str], own_threads: int) -> None:
        """Of each node of these workers, a program keeps so many threads; the others are helper cores.

        A worker with resources of its user's has none: a task that waits for one resource there keeps those
        that wait for another from running.
        """
        known = self._scheduler.resources.get(HELPER_RESOURCE, {})
        for address, count in shared(self._workers.by_node(addresses), own_threads).items():
            # values that wait there need one
            count = max(count, min(1, int(known.get(address, 0))))
            if known.get(address) != count and address not in self._telling and self._may_have(address):
                telling = asyncio.ensure_future(remote.tell(self._scheduler, [address], HELPERS, count=count))
                self._telling[address] = telling
                telling.add_done_callback(functools.partial(self._has_been_told, address))

    def _has_been_told(self, address: str, _: asyncio.Task[None]) -> None:
        del self._telling[address]

    def _may_have(self, address: str) -> bool:
        ws = self._scheduler.workers.get(address)
        return ws is not None and all(
            name == HELPER_RESOURCE or name.startswith(ROLE_RESOURCE) for name in ws.resources
        )

    def limit(self, addresses: Collection[str]) -> bool:
        """Whether analyses on these workers take helper cores: all have heard, and there are any."""
        known = self._scheduler.resources.get(HELPER_RESOURCE, {})
        return all(address in known for address in addresses) and any(
            known[address] > 0 for address in addresses
        )

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        for task in self._telling.values():
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
