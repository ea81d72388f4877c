"""Whether a live run and a simulated one did the same: the comparison, on its own.

Rules of the file: pure; two sequences in, their differences out.

A run is a sequence of `Change`: arrivals and finishes of jobs (the *events*), and what was done to the sizes
of jobs (the *actions*). A live run is never as exact as a simulated one: a job that is made of tasks ends
with its last task and is resized when a task ends, so that each event comes up to a task or two later than
it would in theory, and a policy that is asked about two events in the other order may rightly do things in
the other order. So the order of two changes counts only when the events that they follow are at least
`GAP_TASKS` task lengths apart, in the simulated run, whose times are exact; and an action must not be done
before its event, unless it follows one that is closer to that. Whatever their order, both sequences hold the
same changes, with the same sizes, equally often.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dask_hpc.trace.records import JobEvent, Record

#: Events so many task lengths apart, or more, have an order.
GAP_TASKS = 5.0
#: Makespans may differ by this share.
MAKESPAN_TOLERANCE = 0.1
#: Changes that are events; all others are actions.
EVENTS = ("submit", "finish")
_ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Change:
    """A job has arrived, has another size, or is done."""

    t_s: float
    #: ``submit``, ``start``, ``expand``, ``shrink``, ``interrupt`` or ``finish``.
    action: str
    job: str
    #: Size before and after, in nodes.
    nodes_from: int
    nodes_to: int

    @property
    def what(self) -> tuple[str, str, int, int]:
        """All but the time: two changes are the same when this is."""
        return self.action, self.job, self.nodes_from, self.nodes_to

    def __str__(self) -> str:
        sizes = "" if self.action == "submit" else f" {self.nodes_from} -> {self.nodes_to}"
        return f"{self.action} {self.job}{sizes}"


@dataclass(frozen=True, slots=True)
class Swap:
    """Two changes whose order counts, and is another one live."""

    #: In the order of the simulated run, with its times.
    simulated: tuple[Change, Change]
    #: The same two changes live.
    live: tuple[Change, Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two runs differ."""

    #: Only in the simulated run; only in the live one.
    missing: tuple[Change, ...]
    extra: tuple[Change, ...]
    #: For each change that comes too early live, the latest one, or the event, that should have come before.
    swaps: tuple[Swap, ...]
    #: Pairs of changes that both runs have, and those of them whose order counts.
    pairs: int
    ordered_pairs: int
    #: By how much a change came later (or, negative, earlier) live, at most; 0 without common changes.
    latest_s: float
    earliest_s: float

    @property
    def same(self) -> bool:
        """Whether both runs did the same."""
        return not (self.missing or self.extra or self.swaps)


def compare(simulated: Sequence[Change], live: Sequence[Change], gap_s: float) -> Comparison:
    """The differences of two runs.

    Parameters
    ----------
    simulated, live
        In the order in which things happened; times on the same clock.
    gap_s
        The order of two changes counts when the events that they follow are at least this far apart.

    Raises
    ------
    ValueError
        When the times of `simulated` are not in order.
    """
    if any(before.t_s > after.t_s for before, after in pairwise(simulated)):
        raise ValueError("the simulated run is not in order of time")
    places: defaultdict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for place, change in enumerate(live):
        places[change.what].append(place)
    both: list[_Pair] = []
    missing: list[Change] = []
    event = simulated[0] if simulated else None
    for change in simulated:
        if change.action in EVENTS:
            event = change
        found = places[change.what]
        if found and event is not None:
            both.append(_Pair(change, event, found.pop(0)))
        else:
            missing.append(change)
    extra = [live[place] for place in sorted(place for found in places.values() for place in found)]
    swaps, ordered = _swaps(both, live, gap_s)
    late = [live[pair.place].t_s - pair.change.t_s for pair in both]
    return Comparison(
        missing=tuple(missing),
        extra=tuple(extra),
        swaps=(*swaps, *_too_early(both, live, gap_s)),
        pairs=len(both) * (len(both) - 1) // 2,
        ordered_pairs=ordered,
        latest_s=max(late, default=0.0),
        earliest_s=min(late, default=0.0),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A change that both runs have."""

    change: Change
    #: The event that it follows, or is.
    event: Change
    #: Its place live.
    place: int


def _far(earlier: Change, later: Change, gap_s: float) -> bool:
    # times of events are sums of the same numbers: allow for rounding
    return earlier.t_s + gap_s <= later.t_s + 1e-9


def _swaps(both: Sequence[_Pair], live: Sequence[Change], gap_s: float) -> tuple[list[Swap], int]:
    """One swap for each change that overtook another one, and the number of pairs with an order."""
    swaps, ordered = [], 0
    #: How many of `both` lie far enough before, and the one of them that came last live.
    before, last = 0, 0
    for number, pair in enumerate(both):
        while before < number and _far(both[before].event, pair.event, gap_s):
            if both[before].place > both[last].place:
                last = before
            before += 1
        ordered += before
        if before and both[last].place > pair.place:
            earlier = both[last]
            swaps.append(Swap((earlier.change, pair.change), (live[earlier.place], live[pair.place])))
    return swaps, ordered


def _too_early(both: Sequence[_Pair], live: Sequence[Change], gap_s: float) -> list[Swap]:
    """One swap for each action that is done live before its event, and before all that are close to that."""
    events = {(pair.change.action, pair.change.job): pair for pair in both if pair.change.action in EVENTS}
    #: The event that is latest in the simulated run, among those before each place live.
    reached: list[Change | None] = []
    latest: Change | None = None
    for change in live:
        reached.append(latest)
        pair = events.get((change.action, change.job))
        if pair is not None and (latest is None or pair.change.t_s > latest.t_s):
            latest = pair.change
    swaps = []
    for pair in both:
        mark, event = reached[pair.place], events.get((pair.event.action, pair.event.job))
        if pair.change.action in EVENTS or event is None or event.place < pair.place:
            continue
        if mark is None or _far(mark, pair.event, gap_s):
            swaps.append(Swap((pair.event, pair.change), (live[event.place], live[pair.place])))
    return swaps


def close_events(
    simulated: Sequence[Change], found: Comparison, gap_s: float
) -> tuple[Change, Change] | None:
    """The last two events closer than `gap_s` before the first difference, which may be its reason.

    Their order is open, but what a policy does after the one is not what it does after the other. None when
    there are none, or no difference that the simulated run has a time for.
    """
    times = [change.t_s for change in found.missing] + [swap.simulated[1].t_s for swap in found.swaps]
    until_s = min(times, default=float("-inf"))
    events = [change for change in simulated if change.action in EVENTS and change.t_s <= until_s]
    pairs = [(one, two) for one, two in pairwise(events) if two.t_s - one.t_s < gap_s]
    return pairs[-1] if pairs else None


def from_trace(records: Iterable[Record], jobs: Mapping[str, str]) -> list[Change]:
    """What a trace tells about some jobs, which live have other ids than in the workload.

    Parameters
    ----------
    jobs
        Id in the workload by id in the trace; other jobs are left out.
    """
    changes: list[Change] = []
    nodes: dict[str, int] = {}
    for record in records:
        if not isinstance(record, JobEvent) or record.job not in jobs:
            continue
        job = jobs[record.job]
        if record.job not in nodes:
            changes.append(Change(record.t_s, "submit", job, 0, 0))
        now, then = 0 if record.state in _ENDED else record.nodes, nodes.get(record.job, 0)
        nodes[record.job] = now
        if record.state in _ENDED:
            changes.append(Change(record.t_s, "finish", job, then, 0))
        elif now != then:
            changes.append(Change(record.t_s, action_of(then, now), job, then, now))
    return changes


def action_of(nodes_from: int, nodes_to: int) -> str:
    """Name of the action that makes an unfinished job of one size one of another size."""
    if not nodes_from:
        return "start"
    if not nodes_to:
        return "interrupt"
    return "expand" if nodes_to > nodes_from else "shrink"


def shifted(changes: Iterable[Change], by_s: float) -> list[Change]:
    """`changes` on a clock that is `by_s` ahead."""
    return [Change(c.t_s + by_s, c.action, c.job, c.nodes_from, c.nodes_to) for c in changes]


def makespan_s(changes: Sequence[Change]) -> float | None:
    """Last finish less first arrival; None when nothing has arrived and finished."""
    arrivals = [change.t_s for change in changes if change.action == "submit"]
    finishes = [change.t_s for change in changes if change.action == "finish"]
    return max(finishes) - min(arrivals) if arrivals and finishes else None
