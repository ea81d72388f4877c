"""What has happened as plain lists with numbers for names: what a browser is told, and in which order.

Rules of the file: pure; what is said once is not said again, and nothing grows without bound.

``["job", id, name, letter, colour, pattern]`` and ``["node", name]`` give out the numbers, in order; nodes
that changed hands are ``[t_s, job, state, *nodes]`` (job -1: nobody), a job ``[t_s, job, "state", nodes]``,
and a decision ``["mark", t_s, job, action, nodes, reason]``. ``["watts", t_s, watts, lower_w, upper_w]`` is
what all nodes draw from then on, and may (null: not known, or no bound). Each time is told as what has passed
since the one told before, in hundredths of a second: most of what a page begins with would be times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask_hpc.report.looks import look, printable
from dask_hpc.report.power import power_row
from dask_hpc.trace.records import JobEvent, NodeEvent, Other, Record
from dask_hpc_policies.power.checks import MOST_TOTAL_W

_STATES = {"up": 0, "draining": 1, "lost": 2, "removed": 3}
#: Decisions that are kept, the latest, and letters of their reasons.
_MARKS, _REASON = 100, 160


class Events:
    """All that a page needs to draw, in order; `all` only ever grows."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._jobs: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        #: The time told last, in hundredths of a second.
        self._last = 0
        #: Watts and both bounds that were told last.
        self._power: dict[str, int | None] = dict.fromkeys(("watts", "lower_w", "upper_w"))
        #: The latest decisions, and which are known.
        self._marks: deque[Mapping[str, Any]] = deque(maxlen=_MARKS)
        self._decided: dict[tuple[Any, ...], None] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Note what nodes and jobs have done, and what was drawn."""
        for record in records:
            if isinstance(record, NodeEvent):
                job = -1 if record.job is None else self.job(record.job, record.job)
                nodes = [self._node(node) for node in record.nodes]
                self.all.append([self._passed(record.t_s), job, _STATES.get(record.state, 0), *nodes])
            elif isinstance(record, JobEvent):
                job = self.job(record.job, record.name or record.job)
                self.all.append([self._passed(record.t_s), job, record.state, record.nodes])
            elif isinstance(record, Other):
                self._drawn(record)

    def _drawn(self, record: Other) -> None:
        row = power_row(record)
        if row is not None:
            before, (t_s, news) = list(self._power.values()), row
            # what can never be drawn is no bound
            self._power |= {
                name: None if watts is None or watts >= MOST_TOTAL_W else round(watts)
                for name, watts in news.items()
            }
            if list(self._power.values()) != before:
                self.all.append(["watts", self._passed(t_s), *self._power.values()])

    def decided(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Note rows of `Runtime.decisions`; what is known is left out."""
        for row in rows:
            key = (row["t_s"], row["job"], row["action"], row["nodes"])
            # a job that is not known yet is told with the next answer, with its name
            if row["job"] not in self._jobs or row["result"] != "done" or key in self._decided:
                continue
            self._decided[key] = None
            if len(self._decided) > _MARKS:
                del self._decided[next(iter(self._decided))]
            self._marks.append(row)
            self._mark(row)

    @property
    def marks(self) -> list[Mapping[str, Any]]:
        """Rows of the latest decisions that were told."""
        return list(self._marks)

    def anew(self, records: Iterable[Record]) -> Events:
        """The same from the latest records alone."""
        other = Events()
        other.take(records)
        other.decided(list(self._marks))
        other._decided = self._decided
        return other

    def job(self, id: str, name: str) -> int:
        """The number of a job, which is told when it is new."""
        if id not in self._jobs:
            self._jobs[id] = len(self._jobs)
            found = look(id)
            shown = [found.letter, found.color, found.pattern_index]
            self.all.append(["job", printable(id), printable(name), *shown])
        return self._jobs[id]

    def number(self, id: str) -> int | None:
        """The number of a job that was told; None: it was not."""
        return self._jobs.get(id)

    def ranges(self, nodes: Sequence[str]) -> list[int]:
        """Numbers of nodes, as first and count of each stretch."""
        found: list[int] = []
        for number in sorted(self._node(node) for node in nodes):
            if found and found[-2] + found[-1] == number:
                found[-1] += 1
            else:
                found += [number, 1]
        return found

    def _passed(self, t_s: float) -> int:
        """Hundredths of a second since the time before."""
        before, self._last = self._last, round(100 * t_s)
        return self._last - before

    def _node(self, name: str) -> int:
        if name not in self._nodes:
            self._nodes[name] = len(self._nodes)
            self.all.append(["node", printable(name)])
        return self._nodes[name]

    def _mark(self, row: Mapping[str, Any]) -> None:
        job = self._jobs[row["job"]]
        reason = printable(row["reason"])
        reason = reason if len(reason) <= _REASON else reason[: _REASON - 1] + "…"
        self.all.append(["mark", self._passed(row["t_s"]), job, row["action"], row["nodes"], reason])
