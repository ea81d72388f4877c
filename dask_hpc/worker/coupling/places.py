"""The parts of flows' blocks that come to a worker, and their steps that are not whole: what is known.

Rules of the file: data, and which steps are taken without asking; nothing is told to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.worker.coupling.blocks import Block


@dataclass
class Step:
    """A step that not all producers of a place have sent."""

    #: What becomes of it, by word of the scheduler.
    verdict: asyncio.Future[int | None]
    #: Of each producer, and where they lie: field, begin and shape of each.
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    layouts: dict[int, list[Any]] = field(default_factory=dict)
    #: Whether all of them lie in slots of rings: their producers have them still.
    held: bool = True
    #: Whether it is not to go to another worker.
    stays: bool = False


@dataclass
class Place:
    """The part of a flow's blocks that comes to this worker."""

    flow: str
    number: int
    #: Ranks of its producers.
    members: frozenset[int]
    #: This worker, as the scheduler calls it: by a resolved address, whatever the worker was told to say.
    worker: str
    steps: dict[int, Step] = field(default_factory=dict)
    #: Turn of its next step if that is known, and the turn from which on it has to ask for one.
    next: int | None = None
    room: int = 0
    #: Its flow is over: whoever sends has to ask, and is told why.
    over: bool = False
    #: A step that it has taken without asking, and its turn, until the scheduler knows of it.
    unasked: tuple[int, int] | None = None
    #: The last turn that was kept, and where its blocks lay.
    layout: tuple[int, list[Any]] | None = None
    #: Ranks that were here and are not any more.
    left: set[int] = field(default_factory=set)
    #: Steps that were left out, and to how many producers that is still to be told.
    out: dict[int, int] = field(default_factory=dict)
    #: Whether it is to go to another worker, by word of the scheduler; held while that is asked.
    moves: bool = False
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Held while the scheduler is told that a step is whole: one after the other.
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)

    #: Ranks that exchange data themselves, and what is set while there are none.
    holding: set[int] = field(default_factory=set)
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self, rank: int, held: bool) -> None:
        """Hold back what is told of steps for a rank, or no more."""
        (self.holding.add if held else self.holding.discard)(rank)
        if self.holding:
            self.going.clear()
        else:
            self.going.set()

    def took(self, number: int) -> int | None:
        """Take a step without asking, if that may be; its turn."""
        turn = self.next
        if self.over or self.unasked is not None or turn is None or turn >= self.room:
            return None
        self.unasked, self.next = (number, turn), turn + 1
        return turn

    def leave_out(self, number: int) -> None:
        """A producer is told that a step is left out; so is each of the others, however far behind it is."""
        left = self.out.pop(number, len(self.members)) - 1
        if left:
            self.out[number] = left

    def drop(self, last: int | None, rank: int, again: Container[int]) -> None:
        """Let go of steps that a producer has sent to a worker that is lost, and does not send again."""
        if last is not None:
            gone = [n for n, step in self.steps.items() if n <= last and rank not in step.blocks]
            for number in gone:
                if number not in again:
                    del self.steps[number]
