"""Steps that a producer can send again: their blocks lie in slots of a ring that are not known to be free.

A worker that is killed takes its end of the ring with it, not the memory, which the producer has as well. So
nothing is copied for it, and no more is held than the slots of the ring. Of blocks that went over the
connection, or lie in a ring that a larger one has replaced, there are copies where the program wants that: of
the latest steps, as nobody tells when those are needed no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_hpc.worker.coupling.ring import RingEnd


@dataclass(frozen=True, slots=True)
class _Step:
    #: None: they are copies.
    ring: RingEnd | None
    slot: int
    told: list[dict[str, Any]]
    #: Over the slot, if so: they keep the memory of its ring.
    arrays: list[np.ndarray]


class Kept:
    """Those of one producer, by number."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self._in: dict[tuple[RingEnd, int], int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def add(
        self, step: int, ring: RingEnd, slot: int, told: Iterable[Mapping[str, Any]], arrays: list[np.ndarray]
    ) -> None:
        """Blocks of a step were copied into a slot; `told` is what a worker is told of them."""
        self.drop(step)
        self._steps[step] = _Step(ring, slot, [dict(one) for one in told], arrays)
        self._in[ring, slot] = step

    def copy(
        self, step: int, told: Iterable[Mapping[str, Any]], arrays: Iterable[np.ndarray], most: int
    ) -> None:
        """Blocks of a step go over the connection: hold copies, and those of so many steps at most."""
        self.drop(step)
        self._steps[step] = _Step(None, -1, [dict(one) for one in told], [np.array(one) for one in arrays])
        for old in sorted(step for step, its in self._steps.items() if its.ring is None)[:-most]:
            self.drop(old)

    def replace(self, ring: RingEnd, most: int) -> None:
        """Nobody tells any more which slots of a ring are free: hold copies, or nothing for 0, as `copy`."""
        for step in [step for (its, _), step in self._in.items() if its is ring]:
            told, arrays = self.blocks(step)
            self.drop(step)
            if most:
                self.copy(step, told, arrays, most)

    def blocks(self, step: int) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
        """What a worker is told of the blocks of a step, and these."""
        found = self._steps[step]
        return found.told, found.arrays

    def freed(self, ring: RingEnd, slots: Iterable[int]) -> None:
        """Nothing refers to these slots any more: something else will lie there."""
        for slot in slots:
            if (step := self._in.get((ring, slot))) is not None:
                self.drop(step)

    def leave(self, steps: Collection[int]) -> None:
        """Let go of all but these."""
        for step in [step for step in self._steps if step not in steps]:
            self.drop(step)

    def drop(self, step: int) -> None:
        """Let go of one, if it is there."""
        if (found := self._steps.pop(step, None)) is not None and found.ring is not None:
            del self._in[found.ring, found.slot]
