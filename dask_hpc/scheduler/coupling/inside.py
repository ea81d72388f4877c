"""Steps of programs on the cluster: where their values are computed, and what the steps take.

The program submits a step with all that is done with it, its values on the node of its first block. Once all
blocks of a step are there, its values are aimed where they are placed (`Splits.aim`); they still wait then.
So a split that has changed holds from the next step on, and no client is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.splits import Splits
from dask_hpc.scheduler.coupling.values import Values
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.wire import TAKEN


@dataclass(slots=True)
class _Step:
    """A step whose blocks are not all there."""

    flow: Flow
    turn: int
    #: On how many nodes it is computed.
    nodes: int
    #: Keys of the blocks that are missing, and what computing the others has taken in seconds.
    missing: set[str]
    taken_s: list[float] = field(default_factory=list)


class Inside:
    """The steps of programs on one scheduler."""

    def __init__(
        self, engine: Engine, watched: Watched, values: Values, workers: Workers, splits: Splits
    ) -> None:
        self._scheduler, self._watched, self._values = engine.scheduler, watched, values
        self._workers, self._splits = workers, splits
        #: By the key of each of its blocks.
        self._steps: dict[str, _Step] = {}

    def begin(self, flow: Flow, turn: int, step: int, nodes: Sequence[str], analyses: Sequence[str]) -> None:
        """A program begins a turn, that step of it, with a block on each of these nodes and values due.

        Raises
        ------
        CouplingError
            When sources outside have joined.
        """
        if flow.ranks:
            raise CouplingError(f"flow {flow.name!r} has sources outside; couple the program to another")
        for analysis in analyses:
            self._values.expect(flow, analysis, range(turn, turn + 1))
        flow.inside, flow.inside_over, flow.inside_failed, flow.own_turns = True, False, "", turn + 1
        flow.own_flight.add(turn)
        flow.steps.begun(turn, step, flow.queue)
        flow.places = self._workers.of_nodes(nodes)
        flow.own_threads = ceil(len(nodes) / len(set(nodes)))
        self._splits.share(flow)
        keys = [flow.key(turn, place) for place in range(len(nodes))]
        open_step = _Step(flow, turn, len(set(nodes)), set(keys))
        for key in keys:
            self._steps[key] = open_step
            self._watched.watch(key, self._moved)

    def end(self, flow: Flow, turns: int, reason: str) -> None:
        """A program has begun its last turn, of so many that it has handed over; why, if it has failed."""
        flow.inside_over, flow.inside_failed = True, reason
        # one that it has begun and could not hand over is none, and not in flight
        flow.own_turns = turns
        flow.own_flight = {turn for turn in flow.own_flight if turn < turns}

    def drop(self, flow: Flow) -> None:
        """A flow has ended."""
        self._splits.drop(flow)
        for key in [key for key, step in self._steps.items() if step.flow is flow]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        del self._steps[key]
        self._watched.unwatch(key, self._moved)

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """A block is there, or nobody wants it any more."""
        if finish == "forgotten":
            self._forget(key)
        elif finish == "memory" and key in (step := self._steps[key]).missing:
            ts = self._scheduler.tasks[key]
            step.missing.remove(key)
            step.flow.bytes += max(0, ts.nbytes)
            if (taken := (ts.metadata or {}).pop(TAKEN, None)) is not None:
                step.taken_s.append(taken)
            if not step.missing:
                self._whole(step)

    def _whole(self, step: _Step) -> None:
        flow = step.flow
        if step.taken_s:
            # no less than its longest block, nor than all of them on all threads that are the program's
            _, threads = self._workers.node_threads(flow.places)
            kept = max(1, step.nodes * min(threads, flow.kept_threads(threads)))
            seconds = max(*step.taken_s, sum(step.taken_s) / kept)
            flow.measured.simulated(seconds, step.nodes)
            flow.steps.simulated(step.turn, seconds)
        self._splits.aim(flow, step.turn)
        self._splits.whole(flow, step.turn)
