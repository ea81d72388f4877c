"""What the heartbeats of workers say of power, read as each comes, and kept as columns: workers are many.

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
from itertools import chain, compress
from math import inf, isfinite, nan
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.power.counted import Counted, counted
from dask_hpc_policies.power.view import SECTION
from dask_hpc_policies.ranges import MOST_NODE_W

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: A measured figure holds for so long without a newer one where its worker says nothing of it; and at most.
FRESH_S, _MOST_FRESH_S = 30.0, 300.0
#: Of a worker watts, load, until when both hold, whether data came or went, and from when on and until when
#: it drew these watts.
Columns = tuple[float, float, float, bool, float, float]
#: So many are these.
_WIDTH = 6
#: Of more workers, where they are heard as they speak, one in so many is looked at, too, in turn.
_FEW, _TURNS = 100, 10


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
    #: When what it measured before was heard of: no watts of now are of an earlier time.
    began_s: float = -inf
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

    def hear(self, now_s: float) -> Columns:
        """Read what it says anew, and tell it as `columns`."""
        # most say what they should, in floats: it is read from each worker at each of its heartbeats, and
        # there calls are what it costs
        ws = self.ws
        self.metrics, self.transfers = ws.metrics, remote.transfers(ws)
        before, self.counted = self.counted, None
        section = remote.sections_of(ws).get(SECTION)
        self.silent = section is None
        self.watts = self.load = self.governed_w = None
        if not isinstance(section, dict):
            return self.columns()
        said = section.get
        fresh_s = said("fresh_s")
        if fresh_s is None:
            fresh_s = FRESH_S
        elif type(fresh_s) is not float or not 0 < fresh_s <= _MOST_FRESH_S:
            fresh_s = min(_number(fresh_s) or FRESH_S, _MOST_FRESH_S)
        if said("label") != "measured":
            load = _number(said("load"))
            if load is not None and 0 <= load <= 1:
                self.load, self.until_s = load, now_s + fresh_s
            return self.columns()
        watts, at_s, governed_w, host = said("watts"), said("at_s"), said("governed_w"), said("host")
        if type(watts) is not float:
            watts = _number(watts)
        if type(at_s) is not float or not isfinite(at_s):
            at_s = _number(at_s)
        if watts is None or at_s is None or not 0 < watts <= MOST_NODE_W:
            return self.columns()
        if at_s != self.at_s:
            self.began_s = -inf if self.at_s is None else self.heard_s
            self.at_s, self.heard_s = at_s, now_s
        counted_s, energy_j = said("counted_s"), said("energy_j")
        if type(counted_s) is float and type(energy_j) is float:
            self.counted = counted(before, counted_s, energy_j, watts)
            watts = self.counted[2]
        self.watts, self.host = watts, host if isinstance(host, str) else ""
        if governed_w is not None:
            self.governed_w = _number(governed_w)
        self.until_s = until_s = self.heard_s + fresh_s
        return watts, nan, until_s, self.transfers, self.began_s, self.heard_s

    def columns(self) -> Columns:
        """Watts, load (nan: not known), and the others of `Columns`."""
        watts, load = nan if self.watts is None else self.watts, nan if self.load is None else self.load
        return watts, load, self.until_s, self.transfers, self.began_s, self.heard_s


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
        self._at = {id(heard): at for at, heard in enumerate(self.heard)}
        #: Whose turn it is to be looked at; None: nobody was yet.
        self._turn: int | None = None
        #: Where the workers of each node begin.
        self._first = np.cumsum([0, *(len(its) for its in of_nodes)])[:-1]
        self._single = len(self.heard) == len(of_nodes)
        self._threads = np.array([ws.nthreads for ws in self._places], dtype=np.int64)
        # a worker that has just come may not know yet of the others on its host
        count = Counter(ws.host for ws in self._places)
        self._shared = np.array([count[ws.host] > 1 for ws in self._places], dtype=bool)
        #: Threads of each node.
        self.threads = self._by_node(np.add, self._threads)
        #: A row for each of `Heard.columns`.
        self._told = np.array([heard.columns() for heard in self.heard], dtype=np.float64)
        self._told = self._told.reshape(-1, _WIDTH).T

    def hear(self, heard: Heard, now_s: float) -> None:
        """Read what one of them has just said."""
        at = self._at.get(id(heard))
        if at is not None:
            self._told[:, at] = heard.hear(now_s)
            self._metrics[at] = heard.metrics

    def listen(self, now_s: float, told: bool = False) -> list[Heard]:
        """Read what is new, of these workers.

        Parameters
        ----------
        told
            `hear` is told of heartbeats: of many workers some are looked at all the same, in turn.
        """
        # to look at a worker is to wait for memory: of a thousand it takes as long as all else
        first, count = 0, len(self._places)
        if told and count > _FEW and self._turn is not None:
            first, count = self._turn * -(-count // _TURNS), -(-count // _TURNS)
            self._turn = (self._turn + 1) % _TURNS
        else:
            self._turn = 0
        here = slice(first, first + count)
        metrics = list(map(_metrics, self._places[here]))
        new = list(compress(range(first, first + len(metrics)), map(is_not, metrics, self._metrics[here])))
        self._metrics[here] = metrics
        found = [self.heard[i] for i in new]
        if found:
            said = chain.from_iterable([heard.hear(now_s) for heard in found])
            self._told[:, new] = np.fromiter(said, np.float64, _WIDTH * len(found)).reshape(-1, _WIDTH).T
        return found

    def measured_w(self, now_s: float) -> NDArray[np.float64]:
        """Watts of each node; nan where any of its workers does not measure, or not any more."""
        watts, _, until_s, *_ = self._told
        return self._by_node(np.add, np.where(until_s < now_s, np.nan, watts))

    def loads(self, now_s: float) -> NDArray[np.float64]:
        """Share of CPU time of each node, 0 to 1; nan where a worker does not say it, or not any more."""
        _, loads, until_s, *_ = self._told
        return self._by_node(np.maximum, np.where(self._shared | (until_s < now_s), np.nan, loads))

    def executing(self) -> NDArray[np.int64]:
        """Threads of each node that execute something."""
        tasks = np.fromiter(map(len, map(_processing, self._places)), np.int64, len(self._places))
        return self._by_node(np.add, np.minimum(tasks, self._threads))

    def transfers(self) -> NDArray[np.bool_]:
        """Whether data came to or went from each node as its workers said so last."""
        return self._by_node(np.logical_or, self._told[3] > 0)

    def drawn_s(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """From when on each node drew what it measured, and when the last of it was heard of."""
        return self._by_node(np.minimum, self._told[4]), self._by_node(np.maximum, self._told[5])

    def _by_node(self, together: np.ufunc, column: NDArray[Any]) -> NDArray[Any]:
        return column if self._single else together.reduceat(column, self._first)


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
