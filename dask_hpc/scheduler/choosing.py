"""Which nodes are given up most easily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dask_hpc.scheduler import dask_reads
from dask_hpc.scheduler.nodes import Node

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


def easiest(
    scheduler: Scheduler, nodes: Sequence[Node], count: int, keeps_state: Callable[[Node], bool]
) -> list[Node]:
    """The `count` nodes that hold no state, no shuffle, no actor, little work and little data.

    Parameters
    ----------
    keeps_state
        Whether a producer keeps state on the node.
    """
    up = [node for node in nodes if node.workers]
    if count >= len(up):
        return up

    def cost(node: Node) -> tuple[int, int, int, int, int]:
        workers = [scheduler.workers[a] for a in node.workers]
        return (
            keeps_state(node),
            sum(len(dask_reads.shuffles_on(scheduler, ws.address)) for ws in workers),
            sum(dask_reads.host_actors(ws) for ws in workers),
            sum(len(ws.processing) for ws in workers),
            sum(ws.nbytes for ws in workers),
        )

    # most often enough of them give up nothing, and then none has to be compared
    is_bare = partial(dask_reads.is_bare, scheduler)
    bare = (node for node in up if all(map(is_bare, node.workers)) and not keeps_state(node))
    costless = list(islice(bare, count))
    return costless if len(costless) == count else sorted(up, key=cost)[:count]
