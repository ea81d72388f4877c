"""Programs that hand over their state step by step: what is done with it rides in the step's own graph."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dask_hpc.program.block_tasks import Block, Graph
from dask_hpc.worker.coupling.inside import analysed_inside, bundled
from dask_hpc_policies.coupling.contract import Field, block_key, value_key
from dask_hpc_policies.layout import Layout, Part

if TYPE_CHECKING:
    from distributed import Future


class Due(NamedTuple):
    """A value that is due at a step: its analysis, and the earlier steps of its window."""

    analysis: str
    function: Any
    earlier: Sequence[Future]


class Takes(Protocol):
    """What steps are handed over to."""

    #: Part of the keys of all that it is handed.
    id: str
    fields: Sequence[Field]

    async def begin(self, program: object, step: int, nodes: Sequence[str]) -> int | None:
        """Wait for room; the turn of a step, None when it is left out or was handed over before.

        It is one of this program, and has a block on each of these nodes.
        """
        ...

    def due(self) -> Sequence[Due]:
        """The values that are due at the turn that has begun."""
        ...

    def handed(
        self,
        turn: int,
        step: int,
        layout: Sequence[Any],
        sources: Sequence[Future],
        values: Mapping[str, Future],
    ) -> None:
        """The tasks of a turn are submitted."""
        ...

    def full(self, step: int) -> bool:
        """Whether a step has to wait until there is room for it in the queue."""
        ...

    async def room(self, step: int) -> None:
        """Wait until there is, or the flow is over."""
        ...

    async def end(self, program: object, reason: str, again: bool) -> None:
        """No step comes any more of a program; why, if that was not to be, and whether it may run again."""
        ...


class Coupled:
    """The way of one program's steps into a flow.

    Parameters
    ----------
    couple
        The flow's end for programs, and names of its fields, which are those of the program's Dataset; a
        DataArray is the one field there is.
    size, dim
        Of the program.
    program
        The program itself.

    Raises
    ------
    ValueError
        When the fields are not all of the flow's, or one lacks the program's dimension.
    """

    def __init__(self, couple: tuple[Takes, tuple[str, ...]], size: int, dim: str, program: object) -> None:
        self.takes, names = couple
        self._dim, self._program = dim, program
        there = [field.name for field in self.takes.fields]
        if sorted(names) != sorted(there):
            raise ValueError(
                f"couple names {', '.join(map(repr, names)) or 'no field'}; allowed: all fields of the flow, "
                f"{', '.join(map(repr, there))}"
            )
        for field in self.takes.fields:
            length = dict(zip(field.dims, field.shape, strict=True)).get(dim)
            if length != size:
                raise ValueError(
                    f"field {field.name!r} has {'no dimension' if length is None else length} along {dim!r}; "
                    f"allowed: {size} indices, as the program has"
                )
        self._turn: int | None = None
        self._layout: list[Any] = []
        self._values: list[str] = []
        self._step = 0

    async def begin(self, step: int, layout: Layout) -> None:
        """A step is about to be submitted; waits for room in the flow's queue."""
        self._step = step
        self._turn = await self.takes.begin(self._program, step, [part.node for part in layout.parts])

    async def end(self, reason: str, again: bool) -> None:
        """No step comes any more; why not, if that was not to be, and whether the program may run again."""
        await self.takes.end(self._program, reason, again)

    def add(self, graph: Graph, layout: Layout, blocks: Sequence[Block]) -> list[Block]:
        """Add what the flow wants of the step; gives what is to be submitted with it."""
        turn = self._turn
        if turn is None:
            return []
        id, fields, step = self.takes.id, tuple(self.takes.fields), self._step
        bundles: list[Block] = [
            graph.put(part.node, block_key(id, turn, i), bundled, fields, self._dim, part.start, step, block)
            for i, (part, block) in enumerate(zip(layout.parts, blocks, strict=True))
        ]
        self._layout = [[(one.name, *self._lies(one, part)) for one in fields] for part in layout.parts]
        due = self.takes.due()
        self._values = [one.analysis for one in due]
        # on the node of the first block, unless the scheduler has another place for it
        node = layout.parts[0].node
        values = []
        for one in due:
            key, given = value_key(id, turn, one.analysis), (*one.earlier, *bundles)
            values.append(graph.put(node, key, analysed_inside, one.function, fields, *given))
        return bundles + values

    def _lies(self, field: Field, part: Part) -> tuple[list[int], list[int]]:
        mine = [dim == self._dim for dim in field.dims]
        begin = [part.start if it else 0 for it in mine]
        return begin, [part.size if it else whole for it, whole in zip(mine, field.shape, strict=True)]

    def submitted(self, futures: Sequence[Future]) -> None:
        """What `add` gave has been submitted."""
        if self._turn is not None:
            count = len(self._layout)
            values = dict(zip(self._values, futures[count:], strict=True))
            self.takes.handed(self._turn, self._step, self._layout, futures[:count], values)
            self._turn = None


async def submit_step(
    graph: Graph, layout: Layout, blocks: Sequence[Block], step: int, coupled: Coupled | None
) -> list[Future]:
    """Submit the blocks of a step, and with them what a flow wants of it; gives the blocks.

    Waits first for room in the flow's queue.
    """
    if coupled is None:
        return graph.submit(blocks)
    await coupled.begin(step, layout)
    futures = graph.submit([*blocks, *coupled.add(graph, layout, blocks)])
    # callbacks, too: who waits for them holds the job's nodes
    with graph.annotated():
        coupled.submitted(futures[len(blocks) :])
    return futures[: len(blocks)]


async def has_room(coupled: Coupled | None, step: int, called: asyncio.Event) -> bool:
    """Wait until a flow has room for a step; False when its program was `called` before that."""
    if coupled is None or not coupled.takes.full(step):
        return True
    waiting = [asyncio.ensure_future(coupled.takes.room(step)), asyncio.ensure_future(called.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return waiting[0].done()
    finally:
        for each in waiting:
            each.cancel()


async def uncouple(all_coupled: Iterable[Coupled | None], again: bool) -> None:
    """Tell flows that no step comes any more, and why when an error is being handled.

    Parameters
    ----------
    again
        Whether the program may be run again.
    """
    error = sys.exception()
    reason = "" if error is None else f"its program has ended: {type(error).__name__}: {error}"
    for coupled in all_coupled:
        if coupled is not None:
            await coupled.end(reason, again)
