"""What a run drew against what was asked of it, and what that cost: from its trace.

Rules of the file: pure. A trace, live or simulated, has records ``draw`` with what the account had come to;
simulations of before they did have the draw in their passes. What a trace does not know is left out, never 0.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import CORRIDOR, DRAW, POWER_KINDS, Other, Pass, Record
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.bill import J_PER_KWH, Uses, bill
from dask_hpc_policies.power.checks import is_number
from dask_hpc_policies.power.tariff import SIGNALS, Points, Series
from dask_hpc_policies.power.view import PowerView, seen
from dask_hpc_policies.power.watts import mean_w

#: Less than this share of the upper bound outside is inside.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which energy was spent; of it time and watts outside."""

    begin_s: float
    end_s: float
    energy_j: float
    outside_s: float
    outside_ws: float


def power_report(trace: Trace, series: Series | None = None) -> dict[str, Any]:
    """The sums of a run.

    Parameters
    ----------
    series
        With a price or with carbon; times that are no dates count from the first record of power.

    Returns
    -------
    dict
        ``accounted_s``, ``energy_j``, ``mean_w``, ``least_w`` and ``most_w`` (means of single spans),
        ``outside_s``, ``outside_ws``, ``energy_delay_js``, ``bills`` (`power_bills`); with a price ``bill``,
        ``currency`` and ``unpriced_j`` (before the first price); with carbon ``carbon_g`` and
        ``uncounted_j``.

    Raises
    ------
    TraceError
        When the trace says nothing of power, or has no date while the series has some.
    """
    spans = power_spans(trace)
    if not spans:
        needed = "a corridor has to be set (mode monitor looks at the draw alone)"
        if trace.header.source == "simulated":
            needed = "the machine of the workload needs power; simulate it again with that"
        raise TraceError(f"{trace.source} says nothing of what was drawn over time; {needed}")
    energy_j, known_s = sum(one.energy_j for one in spans), sum(one.end_s - one.begin_s for one in spans)
    watts = [one.energy_j / (one.end_s - one.begin_s) for one in spans]
    row: dict[str, Any] = {
        "accounted_s": known_s,
        "energy_j": energy_j,
        "mean_w": energy_j / known_s,
        "least_w": min(watts),
        "most_w": max(watts),
        "outside_s": sum(one.outside_s for one in spans),
        "outside_ws": sum(one.outside_ws for one in spans),
        "energy_delay_js": energy_j * known_s,
        "bills": power_bills(trace),
    }
    if series is None:
        return row
    if not any(name in series.columns for name in SIGNALS):
        raise TraceError(f"the series has no column of {', '.join(SIGNALS)}: nothing to weigh energy by")
    zero_s = _epoch_s(trace) if series.absolute else -spans[0].begin_s
    for name, sum_name, left_name, per_j in (
        ("price", "bill", "unpriced_j", 1 / (1000 * J_PER_KWH)),
        ("carbon", "carbon_g", "uncounted_j", 1 / J_PER_KWH),
    ):
        if name in series.columns:
            total, left_j = _weighed(spans, series.columns[name], zero_s)
            row |= {sum_name: total * per_j, left_name: left_j}
    return row | ({"currency": series.currency} if series.currency else {})


def power_spans(trace: Trace) -> list[Span]:
    """What was drawn from time to time, in order; nothing of times at which it was not known."""
    if _in_passes(trace):
        return [_span(view, power, end_s) for view, power, end_s in _drawn(trace)]
    found: list[Span] = []
    last: Any = None
    for record in trace.records:
        if not isinstance(record, Other) or record.kind not in POWER_KINDS:
            continue
        data = record.data
        if record.kind == CORRIDOR:
            # a new account is opened by the next corridor
            last = None if data.get("mode") == "none" else last
            continue
        told = [data.get(name) for name in ("t_s", "known_s", "energy_j", "outside_s", "outside_ws")]
        now = [float(one) for one in told if is_number(one)]
        if len(now) < len(told):
            raise TraceError(f"{trace.source}: a record of the draw lacks numbers: {data!s:.200}")
        if last is not None and now[1] > last[1]:
            # while the draw was not known nothing was added up: the span is what is known of it
            known_s, *more = (now[number] - last[number] for number in range(1, 5))
            found.append(Span(now[0] - known_s, now[0], *more))
        last = now
    return found


def power_rows(records: Iterable[Record]) -> list[tuple[float | None, ...]]:
    """What was drawn, allowed and expected from when on, for pictures (`spans.power_spans`).

    Returns
    -------
    list
        Rows of (t_s, watts, lower_w, upper_w, min_w, max_w), in order of time, one whenever any of them is
        told; None: not known, or no bound.
    """
    told: dict[float, dict[str, float | None]] = {}
    for record in records:
        if isinstance(record, Pass):
            try:
                power = seen(record.snapshot)
            except ValueError:  # of another layout: the rest of the run is shown
                continue
            if power is not None:
                told.setdefault(record.snapshot.now_s, {}).update(
                    watts=power.draw_w, lower_w=power.lower_w, upper_w=power.upper_w,
                    min_w=power.min_w, max_w=power.max_w,
                )  # fmt: skip
        elif isinstance(record, Other) and (row := power_row(record)) is not None:
            told.setdefault(row[0], {}).update(row[1])
            if record.data.get("mode") == "none":
                told[row[0]] |= {"min_w": None, "max_w": None}
    now: dict[str, float | None] = dict.fromkeys(("watts", "lower_w", "upper_w", "min_w", "max_w"))
    rows: list[tuple[float | None, ...]] = []
    begun_s = 0.0
    for t_s in sorted(told):
        now |= told[t_s]
        if rows and t_s - begun_s < _ONE_MOMENT_S:
            rows[-1] = (rows[-1][0], *now.values())
        else:
            rows.append((t_s, *now.values()))
            begun_s = t_s
    return rows


def power_row(record: Other) -> tuple[float, dict[str, float | None]] | None:
    """What a record of a live cluster says: when, and ``watts`` or ``lower_w`` and ``upper_w``.

    Where the corridor was cleared all of them are None. None: it is about something else, or lacks numbers.
    """
    news = {name: record.data.get(key) for key, name in _SHOWN.get(record.kind, ())}
    t_s = record.data.get("t_s")
    if not news or not is_number(t_s) or not all(one is None or is_number(one) for one in news.values()):
        return None
    if record.data.get("mode") == "none":
        news["watts"] = None
    return float(t_s), news


#: Records of one moment may be so far apart.
_ONE_MOMENT_S = 0.01
#: What records of a live trace say that pictures show, and what it is called there.
_SHOWN = {DRAW: (("draw_w", "watts"),), CORRIDOR: (("lower_w", "lower_w"), ("upper_w", "upper_w"))}


def power_bills(trace: Trace) -> list[dict[str, Any]]:
    """Who drew what (`bill`): of each corridor, or of the run that was simulated.

    Of a corridor whose scheduler was killed before it was cleared it is the last one that the trace was told.
    """
    if _in_passes(trace):
        return _bills(trace)
    found: list[dict[str, Any] | None] = [None]
    for one in trace.records:
        if isinstance(one, Other) and one.kind == CORRIDOR and one.data.get("mode") == "none":
            found.append(None)
        elif isinstance(one, Other) and one.kind == DRAW and isinstance(one.data.get("bill"), dict):
            found[-1] = one.data["bill"]
    return [row for row in found if row is not None]


def _in_passes(trace: Trace) -> bool:
    """Whether only the passes of a trace tell of the draw: it is of an earlier simulation."""
    return trace.header.source == "simulated" and not any(
        isinstance(one, Other) and one.kind == DRAW for one in trace.records
    )


def _drawn(trace: Trace) -> Iterator[tuple[ClusterSnapshot, PowerView, float]]:
    """Pictures in which the draw is known, each with its end."""
    passes = [one.snapshot for one in trace.passes]
    ends = [one.now_s for one in passes[1:]]
    ends.append(max((record.t_s for record in trace.records if hasattr(record, "t_s")), default=0.0))
    for view, end_s in zip(passes, ends, strict=False):
        power = seen(view)
        if power is not None and power.draw_w is not None and end_s > view.now_s:
            yield view, power, end_s


def _span(view: ClusterSnapshot, power: PowerView, end_s: float) -> Span:
    assert power.draw_w is not None
    length_s, out_w = end_s - view.now_s, 0.0
    if power.lower_w is not None and power.upper_w is not None:
        out_w = max(0.0, power.lower_w - power.draw_w, power.draw_w - power.upper_w)
        out_w = out_w if out_w > _TOLERANCE * max(1.0, power.upper_w) else 0.0
    outside_s = length_s if out_w else 0.0
    return Span(view.now_s, end_s, power.draw_w * length_s, outside_s, out_w * length_s)


def _bills(trace: Trace) -> list[dict[str, Any]]:
    uses = Uses()
    for view, power, end_s in _drawn(trace):
        assert power.draw_w is not None
        jobs = [job for job in view.jobs if job.nodes and not job.is_default]
        jobs_w = {job.id: job.nodes * mean_w(job, job.nodes, power.busy_w) for job in jobs}
        idle_w = power.base_w + view.idle_nodes * power.idle_w
        uses.add(end_s - view.now_s, power.draw_w, jobs_w, 0.0, idle_w, measured=False)
    return [bill(uses)] if uses.total.known_s else []


def _epoch_s(trace: Trace) -> float:
    """Seconds since 1970 at the trace's 0."""
    try:
        started = datetime.datetime.fromisoformat(trace.header.started)
    except ValueError:
        raise TraceError(
            f"{trace.source} has no date, the series has dates; give one with t_s (seconds from the start)"
        ) from None
    return started.timestamp()


def _weighed(spans: list[Span], points: Points, zero_s: float) -> tuple[float, float]:
    """Energy times the value that holds, and the energy from before the first value."""
    total = left_j = 0.0
    for one in spans:
        begin_s, end_s = one.begin_s + zero_s, one.end_s + zero_s
        first = bisect_right(points, begin_s, key=lambda point: point[0])
        last = bisect_left(points, end_s, key=lambda point: point[0])
        inside = [time for time, _ in points[first:last]]
        for number, (low_s, high_s) in enumerate(pairwise([begin_s, *inside, end_s]), start=first):
            part_j = one.energy_j * (high_s - low_s) / (end_s - begin_s)
            if number:
                total += part_j * points[number - 1][1]
            else:
                left_j += part_j
    return total, left_j
