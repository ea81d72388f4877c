"""Values of analyses, of which a client hears as soon as they are there, and what small ones are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.wire import TAKEN, VALUE
from dask_hpc_policies.coupling.contract import is_due, value_key
from dask_hpc_policies.placement.application import Where

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class Values:
    """The values that flows of one scheduler wait for."""

    def __init__(self, scheduler: Scheduler, watched: Watched) -> None:
        self._scheduler, self._watched = scheduler, watched
        #: Flow, turn and analysis of each, by its key.
        self._awaited: dict[Any, tuple[Flow, int, str]] = {}
        #: The place among tasks of its graph that stock has given each of those that have another now.
        self._stock_places: dict[Any, float | None] = {}

    def expect(self, flow: Flow, analysis: str, turns: range) -> None:
        """The values of an analysis at these turns will come."""
        said = flow.analyses[analysis]
        for turn in turns:
            if is_due(turn, said["first"], said["window"], said["every"]):
                key = value_key(flow.id, turn, analysis)
                self._awaited[key] = flow, turn, analysis
                self._watched.watch(key, self._moved)
                self._in_turn(key)

    def drop(self, flow: Flow) -> None:
        """A flow has ended: those that somebody else wants are computed in stock's order."""
        for key in [key for key, (its, *_) in self._awaited.items() if its is flow]:
            ts, place = self._scheduler.tasks.get(key), self._stock_places.get(key)
            if ts is not None and place is not None:
                writes.order(ts, place)
            self._forget(key)

    def due(self, flow: Flow, turn: int) -> list[str]:
        """Keys of the values that are due at a turn."""
        return [
            value_key(flow.id, turn, analysis)
            for analysis, said in flow.analyses.items()
            if is_due(turn, said["first"], said["window"], said["every"])
        ]

    def begun(self, turns: Iterable[tuple[int, Sequence[Any]]]) -> set[int]:
        """Turns, of those with keys of their values in order, of which a value is being computed, or there.

        No worker is asked: it runs what it has in order, on as many threads as it has.
        """
        found, ahead = set(), Counter[str]()
        for turn, keys in turns:
            for key in keys:
                ts = self._scheduler.tasks.get(key)
                if ts is None:
                    continue
                if (ws := ts.processing_on) is not None:
                    ahead[ws.address] += 1
                if ts.state in ("memory", "erred") or ws is not None and ahead[ws.address] <= ws.nthreads:
                    found.add(turn)
        return found

    def begun_of(self, flow: Flow) -> set[int]:
        """Turns of a flow of which an analysis has begun, where that matters."""
        if flow.turns is None or flow.when_full != "drop-oldest":
            return set()
        return self.begun((turn, self.due(flow, turn)) for turn in flow.turns.flight)

    def _in_turn(self, key: Any) -> None:
        """What is there of earlier steps is analysed first: many steps are one graph, in any order."""
        ts = self._scheduler.tasks.get(key)
        if ts is not None and ts.state == "waiting":
            self._stock_places.setdefault(key, writes.order(ts, in_turn(self._awaited[key][1])))

    def _forget(self, key: Any) -> None:
        self._awaited.pop(key, None)
        self._stock_places.pop(key, None)
        self._watched.unwatch(key, self._moved)

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """It is there, or nobody wants it any more."""
        if finish == "forgotten":
            self._forget(key)
        elif finish == "waiting":
            self._in_turn(key)
        elif finish == "memory":
            flow, turn, analysis = self._awaited[key]
            ts = self._scheduler.tasks[key]
            # made again later, it runs wherever there is a worker
            writes.take_helper(self._scheduler, key, False)
            metadata = ts.metadata or {}
            if (taken := metadata.pop(TAKEN, None)) is not None:
                inside = any(ws.address in flow.places for ws in ts.who_has or ())
                where: Where = "in-situ" if inside else "in-transit"
                nbytes = max(0, ts.nbytes)
                flow.measured.value(analysis, turn, where, tuple(taken), nbytes)
                flow.steps.value(analysis, turn, where, taken, nbytes)
            flow.say("value", turn=turn, analysis=analysis, content=metadata.pop(VALUE, None))


def in_turn(turn: int) -> float:
    """The place of a step's values among tasks of one graph: from 0 to 1, rising."""
    return turn / (turn + 1)
