"""What the heartbeats of workers say of power, read once each, and kept as columns: workers are many.

Rules of the file: what cannot be is not known. The section is
``{"watts", "label", "at_s", "host", "fresh_s", "governed_w", "load", "energy_j", "counted_s"}``, the watts
the worker's own share of what its host draws, the mean since it was heard of last where it has counted
(`counted`); it holds for ``fresh_s`` after ``at_s`` has changed, whatever the clocks of two machines
say. A load, of a host that does not measure and has no other worker, holds for as long after its heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import isfinite
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.power.counted import Counted, counted
from dask_hpc_policies.power.checks import MOST_NODE_W
from dask_hpc_policies.power.view import SECTION

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: A measured figure holds for so long without a newer one where its worker says nothing of it; and at most.
FRESH_S, _MOST_FRESH_S = 30.0, 300.0


@dataclass(slots=True)
class Heard:
    """What a worker has said last."""

    ws: WorkerState
    #: What it came in: while these are the same ones there is nothing new to read.
    metrics: Any = None
    silent: bool = True
    #: When it measured by its clock, when that was heard of, and until when it holds.
    at_s: float | None = None
    heard_s: float = 0.0
    until_s: float = 0.0
    #: Which of its workers share a sensor.
    host: str = ""
    #: None: it does not measure.
    watts: float | None = None
    #: Share of the CPU time of its host that is used; None: it measures, shares its host, or does not say.
    load: float | None = None
    #: What the part of its host draws that caps are for; None: it does not say.
    governed_w: float | None = None
    #: Whether data came or went as it said so.
    transfers: bool = False
    #: What it has counted; None: it did not measure, or does not count.
    counted: Counted | None = None

    def hear(self, now_s: float) -> None:
        """Read what it says anew."""
        # most say what they should, in floats: it is read from each worker at each of its heartbeats
        ws = self.ws
        self.metrics, self.watts, self.governed_w, self.load = ws.metrics, None, None, None
        self.transfers = remote.transfers(ws)
        before, self.counted = self.counted, None
        section = remote.sections_of(ws).get(SECTION)
        self.silent = section is None
        if not isinstance(section, dict):
            return
        said = section.get
        if said("label") != "measured":
            load = _number(said("load"))
            if load is not None and 0 <= load <= 1:
                self.load, self.until_s = load, now_s + _fresh_s(said("fresh_s"))
            return
        watts, at_s, governed_w, fresh_s = said("watts"), said("at_s"), said("governed_w"), said("fresh_s")
        if type(watts) is not float:
            watts = _number(watts)
        if type(at_s) is not float or not isfinite(at_s):
            at_s = _number(at_s)
        if watts is None or at_s is None or not 0 < watts <= MOST_NODE_W:
            return
        if at_s != self.at_s:
            self.at_s, self.heard_s = at_s, now_s
        counted_s, energy_j = said("counted_s"), said("energy_j")
        if type(counted_s) is float and type(energy_j) is float:
            self.counted = counted(before, counted_s, energy_j, watts)
            watts = self.counted[2]
        host = said("host")
        self.watts, self.host = watts, host if isinstance(host, str) else ""
        if governed_w is not None:
            self.governed_w = _number(governed_w)
        self.until_s = self.heard_s + _fresh_s(fresh_s)


_metrics, _processing = attrgetter("metrics"), attrgetter("processing")


class Workers:
    """The workers of nodes, and what they have said.

    Parameters
    ----------
    of_nodes
        Of each node its workers; none is without any.
    """

    def __init__(self, of_nodes: Sequence[Sequence[Heard]]) -> None:
        self.heard = [heard for its in of_nodes for heard in its]
        self._places = [heard.ws for heard in self.heard]
        #: What the columns were read from.
        self._metrics = [heard.metrics for heard in self.heard]
        #: Where the workers of each node begin.
        self._first = np.cumsum([0, *(len(its) for its in of_nodes)])[:-1]
        self._single = len(self.heard) == len(of_nodes)
        self._threads = np.array([ws.nthreads for ws in self._places], dtype=np.int64)
        # a worker that has just come may not know yet of the others on its host
        count = Counter(ws.host for ws in self._places)
        self._shared = np.array([count[ws.host] > 1 for ws in self._places], dtype=bool)
        #: Threads of each node.
        self.threads = self._by_node(np.add, self._threads)
        self._watts = np.array([_column_w(heard) for heard in self.heard])
        self._loads = np.array([_column_load(heard) for heard in self.heard])
        self._until_s = np.array([heard.until_s for heard in self.heard])
        self._transfers = np.array([heard.transfers for heard in self.heard], dtype=bool)

    def listen(self, now_s: float) -> list[Heard]:
        """Read what is new, of these workers."""
        metrics = list(map(_metrics, self._places))
        new = list(compress(range(len(metrics)), map(is_not, metrics, self._metrics)))
        self._metrics = metrics
        found = [self.heard[i] for i in new]
        if found:
            for heard in found:
                heard.hear(now_s)
            self._watts[new] = [_column_w(heard) for heard in found]
            self._loads[new] = [_column_load(heard) for heard in found]
            self._until_s[new] = [heard.until_s for heard in found]
            self._transfers[new] = [heard.transfers for heard in found]
        return found

    def measured_w(self, now_s: float) -> NDArray[np.float64]:
        """Watts of each node; nan where any of its workers does not measure, or not any more."""
        return self._by_node(np.add, np.where(self._until_s < now_s, np.nan, self._watts))

    def loads(self, now_s: float) -> NDArray[np.float64]:
        """Share of CPU time of each node, 0 to 1; nan where a worker does not say it, or not any more."""
        told = np.where(self._shared | (self._until_s < now_s), np.nan, self._loads)
        return self._by_node(np.maximum, told)

    def executing(self) -> NDArray[np.int64]:
        """Threads of each node that execute something."""
        tasks = np.fromiter(map(len, map(_processing, self._places)), np.int64, len(self._places))
        return self._by_node(np.add, np.minimum(tasks, self._threads))

    def transfers(self) -> NDArray[np.bool_]:
        """Whether data came to or went from each node as its workers said so last."""
        return self._by_node(np.logical_or, self._transfers)

    def _by_node(self, together: np.ufunc, column: NDArray[Any]) -> NDArray[Any]:
        return column if self._single else together.reduceat(column, self._first)


def _column_w(heard: Heard) -> float:
    return np.nan if heard.watts is None else heard.watts


def _column_load(heard: Heard) -> float:
    return np.nan if heard.load is None else heard.load


def _fresh_s(said: Any) -> float:
    """For how long what a worker says holds."""
    fresh_s = FRESH_S if said is None else _number(said) or FRESH_S
    return min(fresh_s, _MOST_FRESH_S)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value if isfinite(value) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer that no float holds
        return None
    return found if isfinite(found) else None
