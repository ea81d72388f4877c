"""Tasks that make, advance, move and copy the blocks of a program, each on the node it belongs on.

Nothing is computed here. What is submitted together is one graph: a step of sixteen nodes costs the
scheduler one message, not forty-six.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dask
from dask._task_spec import Task, TaskRef, parse_input
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, wait

from dask_hpc.program import blocks, outlines
from dask_hpc.program.found import Found
from dask_hpc.wire import ANNOTATION, NODE_ANNOTATION
from dask_hpc_policies.layout import Layout, Plan

#: A block that is there, or is being computed, or is to be made by a graph that is not submitted yet.
Block = Future | TaskRef


class Graph:
    """Tasks that are submitted together.

    Parameters
    ----------
    client, job
        Who submits them, and the id of the job they belong to.
    name
        Part of every key; keys of graphs of one name must differ in what they were added as.
    """

    def __init__(self, client: Client, job: str | None, name: str) -> None:
        self._client = client
        self._job = job
        self._name = name
        self._layers: dict[str, dict[Any, Task]] = {}

    def add(
        self, node: str, what: str, number: int | str, which: Any, function: Callable[..., Any], *args: Any
    ) -> TaskRef:
        """Add ``function(*args)`` on a node; blocks among the arguments become what they hold.

        The key is what the task is, the number of the step or window, and which of them it is.
        """
        # one name for all steps: the scheduler keeps statistics by name for ever
        return self.put(node, (f"{what}-{self._name}", number, which), function, *args)

    def put(self, node: str, key: Any, function: Callable[..., Any], *args: Any) -> TaskRef:
        """The same under a key that is chosen elsewhere."""
        self._layers.setdefault(node, {})[key] = Task(key, function, *map(parse_input, args))
        return TaskRef(key)

    def annotated(self) -> AbstractContextManager[Any]:
        """What is submitted inside of it, or by what is begun there, is the job's as well."""
        annotated: AbstractContextManager[Any] = dask.annotate(**{ANNOTATION: self._job})
        return annotated

    def submit(self, wanted: Sequence[Block]) -> list[Future]:
        """Submit what was added; gives a future for each of `wanted`."""
        layers = {
            node: MaterializedLayer(tasks, annotations={NODE_ANNOTATION: node})
            for node, tasks in self._layers.items()
        }
        made = [block.key for block in wanted if not isinstance(block, Future)]
        if not made:
            return [block for block in wanted if isinstance(block, Future)]
        with self.annotated():
            futures = self._client.get(
                HighLevelGraph(layers, {node: set() for node in layers}),
                made,
                sync=False,
                fifo_timeout="100 ms",
            )
        by_key = dict(zip(made, futures, strict=True))
        return [block if isinstance(block, Future) else by_key[block.key] for block in wanted]


def advanced(
    graph: Graph,
    layout: Layout,
    now: list[Future],
    dim: str,
    function: Callable[..., Any],
    halo: int,
    number: int,
) -> list[Block]:
    """The blocks one step later; with a halo, neighbours exchange edges of that width first."""
    parts = list(enumerate(layout.parts))
    if not halo:
        return [
            graph.add(part.node, "step", number, i, blocks.advance, function, dim, part, 0, now[i])
            for i, part in parts
        ]
    heads = {
        i: graph.add(part.node, "first", number, i, blocks.cut, now[i], dim, 0, halo) for i, part in parts[1:]
    }
    tails = {
        i: graph.add(part.node, "last", number, i, blocks.cut, now[i], dim, part.size - halo, part.size)
        for i, part in parts[:-1]
    }
    step = blocks.advance, function, dim
    return [
        graph.add(part.node, "step", number, i, *step, part, halo, now[i], tails.get(i - 1), heads.get(i + 1))
        for i, part in parts
    ]


def laid_out(
    graph: Graph, old: Layout, new: Layout, plan: Plan, now: list[Future], dim: str, number: int
) -> list[Block]:
    """The blocks of a new layout, put together from pieces that are cut where they lie."""
    made: list[Block] = []
    for i, (part, pieces) in enumerate(zip(new.parts, plan, strict=True)):
        found: list[Block] = []
        for j, piece in enumerate(pieces):
            source = old.parts[piece.source]
            block: Block = now[piece.source]
            if (piece.start, piece.stop) != (source.start, source.stop):
                bounds = piece.start - source.start, piece.stop - source.start
                block = graph.add(source.node, "cut", number, f"{i}-{j}", blocks.cut, block, dim, *bounds)
            found.append(block)
        unchanged = found == [now[pieces[0].source]] and old.parts[pieces[0].source].node == part.node
        if unchanged:
            made += found
        else:
            made.append(graph.add(part.node, "lay", number, i, blocks.put_together, found, dim, part))
    return made


def copied(graph: Graph, layout: Layout, now: list[Future], number: int) -> tuple[list[Block], list[Block]]:
    """A copy of each block on the next node (`next_nodes`), and the blocks made from these copies."""
    copies: list[Block] = [
        graph.add(node, "copy", number, i, blocks.same, block)
        for i, (node, block) in enumerate(zip(next_nodes(layout), now, strict=True))
    ]
    kept: list[Block] = [
        graph.add(part.node, "kept", number, i, blocks.same, copy)
        for i, (part, copy) in enumerate(zip(layout.parts, copies, strict=True))
    ]
    return copies, kept


def read(graph: Graph, layout: Layout, found: Found, dim: str) -> list[Block]:
    """The blocks of a layout, read from a version of the whole state."""
    where: str | TaskRef = found.path
    function: Callable[..., Any] = outlines.read
    if found.record is not None:
        # one for all of them: it may be large
        where = graph.add(layout.parts[0].node, "record", found.version, 0, str, found.record)
        function = outlines.read_held
    return [
        graph.add(part.node, "read", found.version, i, function, where, dim, part)
        for i, part in enumerate(layout.parts)
    ]


def next_nodes(layout: Layout) -> list[str]:
    """For each part, the node after its own."""
    nodes = layout.nodes
    after = dict(zip(nodes, (*nodes[1:], nodes[0]), strict=True))
    return [after[part.node] for part in layout.parts]


async def gathered(futures: list[Future]) -> list[Any]:
    """What all of them are, once they are; raises the error of the first that failed.

    Who gathers what is not there yet, and is cancelled, leaves tasks behind that nobody looks at: each logs
    an error when its result is lost.
    """
    await all_right(futures)
    return list(await futures[0].client.gather(futures)) if futures else []


async def all_right(futures: list[Future]) -> None:
    """Wait until all are computed; raise the error of the first that failed."""
    if not futures:
        return
    # else it would ask the default client, which may be another one
    with futures[0].client.as_current():
        await wait(futures)
    for future in futures:
        if future.status != "finished":
            await future.result()
