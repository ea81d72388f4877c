"""Copies of the blocks of a program on other nodes: one node that dies loses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dask_hpc.program import block_tasks
from dask_hpc.program.block_tasks import Graph
from dask_hpc_policies.layout import Layout

if TYPE_CHECKING:
    from distributed import Future


class Copies:
    """The blocks of an earlier step, each on its own node and on the next one."""

    def __init__(self) -> None:
        #: The copies, then the blocks made from them.
        self.futures: list[Future] = []
        self._made = 0
        #: The step they are of.
        self.step = 0

    def due(self, keep: int | None, layout: Layout, step: int, changed: bool = False) -> bool:
        """Whether the blocks are to be copied: it is time, they lie elsewhere, or a copy has gone.

        A copy may go without a change of the layout, when a node is lost and back at once. One node has
        no other that could hold its copy.
        """
        if keep is None or len(layout.nodes) < 2:
            return False
        late = step - self.step >= keep
        return changed or late or any(copy.cancelled() for copy in self.futures)

    async def make(
        self,
        graph: Graph,
        layout: Layout,
        blocks: list[Future],
        step: int,
        made: Callable[[list[Future]], Awaitable[None]],
        ask: Callable[..., Awaitable[Any]],
    ) -> list[Future]:
        """Copy every block to the next node, and let the scheduler forget how the copies were made.

        Returns the blocks that a program goes on from: they are made from the copies, so what was lost with a
        node comes from there. When a copy has gone already those are `blocks`: the copies before are kept,
        and the next step tries again.

        Parameters
        ----------
        made
            Waits for futures.
        ask
            Asks the scheduler side something about the job.
        """
        found = block_tasks.copied(graph, layout, blocks, self._made)
        self._made += 1
        futures = graph.submit([*found[0], *found[1]])
        copies, kept = futures[: len(found[0])], futures[len(found[0]) :]
        await made(futures)
        nodes = block_tasks.next_nodes(layout)
        places = [(copy.key, node) for copy, node in zip(copies, nodes, strict=True)]
        if not await ask("keep_copies", copies=places):
            return blocks
        # both are held on to: neighbours go back together, and one of them has lost its copy
        self.futures, self.step = futures, step
        return kept

    def drop(self, step: int) -> None:
        """There are none any more; the state is that of another step."""
        self.futures, self.step = [], step
