"""Who had which nodes from when to when: the one model that every picture of a run is drawn from.

Rules of the file: pure; plain values in, frozen dataclasses out; no clock, no files, no markup. A trace
(`dask_hpc.report.timeline`), a result of the simulator (`dask_hpc.report.simulated`) and rows of jobs on a
live cluster all become these, so that a job looks the same in the report, in figures, on the dashboard and in
notebooks.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from dask_hpc.report.looks import Look, looks

#: What a stretch of a node is called that nobody holds, and that one holds who is about to lose it.
UP, DRAINING, LOST = "up", "draining", "lost"

_Span = TypeVar("_Span", "NodeSpan", "JobSpan", "PowerSpan")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpan:
    """A stretch of time in which one node had one holder and one state."""

    node: str
    start_s: float
    end_s: float
    #: Id of the job that holds it; None when no named job does.
    job: str | None
    #: ``up``, ``draining`` or ``lost``.
    state: str = UP
    #: It has not happened: the simulator says so.
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpan:
    """A stretch of time in which one job had one size; with no node it waits."""

    job: str
    start_s: float
    end_s: float
    nodes: int
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSpan:
    """A stretch of time in which all nodes together drew so many watts; None: not known, or no bound."""

    start_s: float
    end_s: float
    watts: float | None
    lower_w: float | None = None
    upper_w: float | None = None
    #: Least and most that was expected then.
    min_w: float | None = None
    max_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A decision, and why it was made."""

    t_s: float
    job: str
    #: Such as ``start`` or ``shrink``, and the size that it leads to where it has one.
    action: str
    nodes: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """When a job that runs is predicted to end, and the interval that is stated with it."""

    job: str
    low_s: float
    expected_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Nodes and jobs over time. All times are in seconds on one clock."""

    start_s: float = 0.0
    end_s: float = 0.0
    #: Where what has happened ends and what is predicted begins; None: nothing is predicted.
    now_s: float | None = None
    #: Names of nodes in the order of their rows.
    nodes: tuple[str, ...] = ()
    #: Node by node, each in order of time.
    node_spans: tuple[NodeSpan, ...] = ()
    #: What people call each job, by id, in order of submission.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Job by job, each in order of time.
    job_spans: tuple[JobSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
    #: Of jobs that run, where something is predicted.
    ends: tuple[End, ...] = ()
    #: What was drawn, allowed and expected, in order of time; empty: there was no power corridor.
    power: tuple[PowerSpan, ...] = ()

    def looks(self) -> dict[str, Look]:
        """Letter and colour of every job by id."""
        return looks(self.labels)

    def of_job(self, id: str) -> Spans:
        """What concerns one job: its time, the nodes that it had, and who else had these meanwhile.

        Raises
        ------
        ValueError
            When nothing is known of it.
        """
        own = [span for span in self.job_spans if span.job == id]
        if not own:
            raise ValueError(f"job is {id!r}; known here: {', '.join(self.labels) or 'none'}")
        start_s, end_s = own[0].start_s, max(span.end_s for span in own)
        held = {span.node for span in self.node_spans if span.job == id}
        spans = _within([span for span in self.node_spans if span.node in held], start_s, end_s)
        there = {id, *(span.job for span in spans)}
        jobs = _within([span for span in self.job_spans if span.job in there], start_s, end_s)
        return replace(
            self,
            start_s=start_s,
            end_s=end_s,
            now_s=self.now_s if self.now_s is not None and start_s < self.now_s < end_s else None,
            nodes=tuple(node for node in self.nodes if node in held),
            node_spans=spans,
            labels={job: label for job, label in self.labels.items() if job in there},
            job_spans=jobs,
            marks=tuple(mark for mark in self.marks if mark.job == id),
            ends=tuple(end for end in self.ends if end.job in there),
            power=tuple(_within(self.power, start_s, end_s)),
        )

    def shifted(self, by_s: float) -> Spans:
        """The same on a clock that is ahead by so many seconds."""

        def moved(spans: Iterable[_Span]) -> tuple[_Span, ...]:
            return tuple(replace(s, start_s=s.start_s + by_s, end_s=s.end_s + by_s) for s in spans)

        return replace(
            self,
            start_s=self.start_s + by_s,
            end_s=self.end_s + by_s,
            now_s=None if self.now_s is None else self.now_s + by_s,
            node_spans=moved(self.node_spans),
            job_spans=moved(self.job_spans),
            marks=tuple(replace(mark, t_s=mark.t_s + by_s) for mark in self.marks),
            ends=tuple(_end(o.job, (o.low_s, o.expected_s, o.high_s), by_s) for o in self.ends),
            power=moved(self.power),
        )

    def with_ends(self, ends: Iterable[End]) -> Spans:
        """The same with these ends, where something is predicted; as much longer as they need, to a bound."""
        own = tuple(end for end in ends if end.job in self.labels)
        if self.now_s is None or not own:
            return self
        # one that is hardly known would leave no room for all the others
        most_s = self.end_s + (self.end_s - self.now_s) / 2
        end_s = max(self.end_s, min(most_s, max(end.high_s for end in own)))
        return replace(self, ends=own, end_s=end_s)

    def followed_by(self, later: Spans, now_s: float) -> Spans:
        """What has happened up to `now_s`, and from then on what `later` predicts, on the same clock.

        Nodes that `later` counts without knowing their names go on with their present holders.
        """
        past = [_cut(span, end_s=now_s) for span in self.node_spans if span.start_s < now_s]
        held = {span.node: span.job for span in past if span.end_s == now_s and span.state != LOST}
        jobs = [
            replace(_cut(span, start_s=now_s), predicted=True)
            for span in later.job_spans
            if span.end_s > now_s
        ]
        names = list(held) or list(self.nodes)
        coming = packed(jobs, names, {node: job for node, job in held.items() if job is not None})
        nodes = (*self.nodes, *(name for name in coming.nodes if name not in self.nodes))
        end_s = max([now_s, *(span.end_s for span in jobs)])
        return replace(
            self,
            end_s=end_s,
            now_s=now_s,
            nodes=nodes,
            node_spans=_by_node(nodes, [*past, *coming.node_spans]),
            labels={
                **self.labels,
                **{job: label for job, label in later.labels.items() if job not in self.labels},
            },
            job_spans=(*(_cut(span, end_s=now_s) for span in self.job_spans if span.start_s < now_s), *jobs),
        )


def ends_of(rows: Iterable[Mapping[str, Any]], origin_s: float = 0.0) -> tuple[End, ...]:
    """Predicted ends of the jobs that run, of rows of `Runtime.jobs`; they count from `origin_s`."""
    told = ((row["id"], (row.get("forecast") or {}).get("ends_s")) for row in rows if row.get("nodes"))
    return tuple(_end(job, ends, -origin_s) for job, ends in told if ends)


def _end(job: str, ends: Iterable[float], by_s: float) -> End:
    low_s, expected_s, high_s = (t_s + by_s for t_s in ends)
    return End(job=job, low_s=low_s, expected_s=expected_s, high_s=high_s)


def power_spans(
    rows: Iterable[Sequence[float | None]], until_s: float, origin_s: float = 0.0
) -> tuple[PowerSpan, ...]:
    """Stretches up to `until_s` of rows of (t_s, watts, lower_w, upper_w), or with min_w and max_w too.

    Times of the stretches count from `origin_s`, before which there are none.
    """
    known = [(max(0.0, t_s - origin_s), rest) for t_s, *rest in rows if t_s is not None and t_s < until_s]
    ends = [*(t_s for t_s, _ in known[1:]), until_s - origin_s]
    return tuple(
        PowerSpan(
            start_s=t_s, end_s=end_s,
            **dict(zip(("watts", "lower_w", "upper_w", "min_w", "max_w"), rest, strict=False)),
        )
        for (t_s, rest), end_s in zip(known, ends, strict=False)
        if end_s > t_s
    )  # fmt: skip


def job_spans(
    job: str,
    submit_s: float,
    start_s: float | None,
    end_s: float | None,
    sizes: Iterable[tuple[float, int]],
    until_s: float,
    predicted: bool = False,
) -> list[JobSpan]:
    """Stretches of one job from its submission on.

    Parameters
    ----------
    start_s, end_s
        None: it has not started, or not ended.
    sizes
        Since when it has had how many nodes, in order of time. Where the first are not known any more,
        nothing is said of the time between its start and what is known.
    until_s
        Where what has not ended is cut.
    """
    gone_s = until_s if end_s is None else end_s
    steps = [*sizes, (gone_s, 0)]
    waited_s = steps[0][0] if start_s is None else min(start_s, steps[0][0])
    found = [(submit_s, waited_s, 0), *((t_s, to_s, n) for (t_s, n), (to_s, _) in pairwise(steps))]
    cut = ((from_s, min(to_s, gone_s), n) for from_s, to_s, n in found)
    return [
        JobSpan(job=job, start_s=from_s, end_s=to_s, nodes=nodes, predicted=predicted)
        for from_s, to_s, nodes in cut
        if to_s > from_s
    ]


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows for jobs of which only the sizes are known."""

    nodes: tuple[str, ...]
    node_spans: tuple[NodeSpan, ...]


def packed(
    spans: Iterable[JobSpan], names: Sequence[str] = (), holders: Mapping[str, str] | None = None
) -> Packed:
    """A place on nodes for every node of every span: a job keeps its rows while it has them.

    It gives up its last rows first, and takes the first ones that are free: nodes are alike here. Where there
    are not enough of them, further ones are made.

    Parameters
    ----------
    names
        Nodes that there are, in order.
    holders
        Who has some of them when the first span begins.
    """
    rows = list(names)
    place = {name: index for index, name in enumerate(rows)}
    held: dict[str, list[int]] = {}
    for node, job in (holders or {}).items():
        held.setdefault(job, []).append(place[node])
    taken = {index for own in held.values() for index in own}
    free = [index for index in range(len(rows)) if index not in taken]
    since: dict[tuple[str, int], float] = {}
    found: list[NodeSpan] = []

    def give(job: str, index: int, t_s: float) -> None:
        start_s = since.pop((job, index), None)
        heapq.heappush(free, index)
        if start_s is not None and t_s > start_s:
            found.append(
                NodeSpan(node=rows[index], start_s=start_s, end_s=t_s, job=job, predicted=ghost[job])
            )

    changes: list[tuple[float, bool, str, int]] = []
    ghost: dict[str, bool] = {}
    ordered = sorted(spans, key=lambda span: span.start_s)
    last: dict[str, float] = {}
    for span in ordered:
        ghost[span.job] = span.predicted
        if span.job in last and last[span.job] < span.start_s:
            changes.append((last[span.job], False, span.job, 0))
        changes.append((span.start_s, True, span.job, span.nodes))
        last[span.job] = span.end_s
    changes += [(end_s, False, job, 0) for job, end_s in last.items()]
    if changes:
        first_s = min(change[0] for change in changes)
        since.update(((job, index), first_s) for job, own in held.items() for index in own)
        for job in held:
            ghost.setdefault(job, True)
        changes += [(first_s, False, job, 0) for job in held if job not in last]
    for t_s, group in _at_once(changes):
        sizes = {job: nodes for _, _, job, nodes in group}
        for job, nodes in sizes.items():
            own = held.setdefault(job, [])
            while len(own) > nodes:
                give(job, own.pop(), t_s)
        for job, nodes in sizes.items():
            own = held[job]
            while len(own) < nodes:
                if not free:
                    rows.append(_unnamed(rows))
                    heapq.heappush(free, len(rows) - 1)
                index = heapq.heappop(free)
                own.append(index)
                since[job, index] = t_s
    return Packed(tuple(rows), _by_node(rows, found))


def _at_once(
    changes: Iterable[tuple[float, bool, str, int]],
) -> list[tuple[float, list[tuple[float, bool, str, int]]]]:
    """Changes by their times, what ends before what begins."""
    groups: dict[float, list[tuple[float, bool, str, int]]] = {}
    for change in sorted(changes, key=lambda change: change[:2]):
        groups.setdefault(change[0], []).append(change)
    return sorted(groups.items())


def _unnamed(rows: Sequence[str]) -> str:
    """A name that no row has."""
    number, there = len(rows), set(rows)
    while f"node-{number}" in there:
        number += 1
    return f"node-{number}"


def _by_node(nodes: Iterable[str], spans: Iterable[NodeSpan]) -> tuple[NodeSpan, ...]:
    place = {node: index for index, node in enumerate(nodes)}
    return tuple(sorted(spans, key=lambda span: (place[span.node], span.start_s)))


def _within(spans: Iterable[_Span], start_s: float, end_s: float) -> tuple[_Span, ...]:
    return tuple(
        _cut(span, start_s, end_s) for span in spans if span.start_s < end_s and span.end_s > start_s
    )


def _cut(span: _Span, start_s: float | None = None, end_s: float | None = None) -> _Span:
    first_s = span.start_s if start_s is None else max(span.start_s, start_s)
    last_s = span.end_s if end_s is None else min(span.end_s, end_s)
    return replace(span, start_s=first_s, end_s=last_s)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts node2 before node10; every run of ASCII digits counts as a number."""
    parts = re.split("([0-9]+)", name)
    return [(int(part[:18]), part) if i % 2 else (0, part) for i, part in enumerate(parts)]
