"""Runs of the simulator side by side, the first one the measure of the others.

Rules of the file: pure; results in, markup out. A difference is a number and a word, never a colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from dask_hpc.report.looks import looks
from dask_hpc_policies.metrics import (
    JobRun,
    ended_in_all,
    makespan_s,
    mean_bounded_slowdown,
    mean_turnaround_s,
    mean_wait_s,
    unended,
)
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result

#: Changes below this share of the first run's value are none.
_SAME = 0.005
#: From so many times the first run's value on, a factor says more than percents.
_FACTOR = 3.0
#: Jobs beyond these are counted and not shown; those that are shown because runs differ in them.
_MAX_JOBS, _MOST_DIFFERENT = 50, 12


@dataclass(frozen=True, slots=True)
class _Metric:
    key: str
    label: str
    text: Callable[[float], str]
    #: Whether less of it is better; None: neither is.
    less_is_better: bool | None = True
    #: Whether it is a share, whose difference is a number of percentage points.
    is_share: bool = False
    #: What is said of a value that is many times the first: so many times as long.
    times: str = "times as long"
    #: Of one that is about jobs that end: the same over some of the jobs, to compare where others end.
    over: Callable[[Iterable[JobRun]], float | None] | None = None


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


#: What is told of where some do not end, beside the metrics of a run.
_UNENDED = "unended"
_METRICS = (
    _Metric(_UNENDED, "Jobs that never end", _number),
    _Metric("makespan_s", "Makespan", markup.seconds, over=makespan_s),
    _Metric("mean_turnaround_s", "Mean turnaround", markup.seconds, over=mean_turnaround_s),
    _Metric("mean_wait_s", "Mean wait", markup.seconds, over=mean_wait_s),
    _Metric(
        "mean_bounded_slowdown",
        "Mean bounded slowdown",
        _number,
        times="times as much",
        over=mean_bounded_slowdown,
    ),
    _Metric("utilization", "Utilization", _share, less_is_better=False, is_share=True),
    _Metric("expansions", "Expansions", _number, less_is_better=None),
    _Metric("shrinks", "Shrinks", _number, less_is_better=None),
)


def metrics(runs: Mapping[str, Result]) -> Markup:
    """A table with a row a metric and a column a run, by title.

    Each column but the first says how it differs from the first: where other jobs end, over those that end in
    both.
    """
    titles, results = list(runs), list(runs.values())
    left = [unended(result.runs) for result in results]
    found = [
        {**result.metrics(jobs=False), **({_UNENDED: count} if any(left) else {})}
        for result, count in zip(results, left, strict=True)
    ]
    columns: list[Column] = [("Metric", False), *((title, True) for title in titles)]
    rows = [
        [
            one.label,
            *(_cell(one, found, results, place) for place in range(len(results))),
        ]
        for one in _METRICS
        if any(column.get(one.key) is not None for column in found)
    ]
    return markup.table(columns, rows, f"Metrics of {', '.join(titles)}")


def _cell(one: _Metric, found: Sequence[Mapping[str, Any]], results: Sequence[Result], place: int) -> str:
    first, value = found[0].get(one.key), found[place].get(one.key)
    if value is None:
        return "n/a"
    text = one.text(value)
    if not place or first is None:
        return text
    told = _difference(one, first, value)
    if one.over is not None:
        both = [results[at].runs for at in (0, place)]
        common = ended_in_all(both)
        if len(common[0]) < len(both[0]):
            before, then = (one.over(runs) for runs in common)
            told = "of other jobs"
            if before is not None and then is not None:
                told = f"{_difference(one, before, then)} {in_both(len(common[0]))}"
    return Markup("{} {}").format(text, markup.element("span", f"({told})"))


def in_both(jobs: int) -> str:
    """What two runs are compared over where some jobs do not end in either."""
    return f"over the {counted(jobs, 'job')} that end{'s' * (jobs == 1)} in both"


def _difference(one: _Metric, first: float, value: float) -> str:
    if abs(value - first) <= _SAME * abs(first):
        return "same"
    if one.less_is_better is None:
        return f"{one.text(abs(value - first))} {'more' if value > first else 'fewer'}"
    word = "better" if (value < first) == one.less_is_better else "worse"
    if one.is_share:
        return f"{100 * (value - first):+.1f} points, {word}"
    if first and value >= _FACTOR * first:
        return f"{_number(value / first)} {one.times}, {word}"
    return f"{100 * (value - first) / first:+.1f} %, {word}" if first else word


def jobs(runs: Mapping[str, Result], about: Mapping[str, str]) -> Markup:
    """A table with a row a job: when it ends in each run.

    That is counted from the moment the run went on from, or else from the first submission.

    Parameters
    ----------
    about
        What else is said of a job, by id: text.
    """
    ids = [run.id for run in next(iter(runs.values())).runs]
    hidden = len(ids[_MAX_JOBS:])
    more = markup.soft(f"{counted(hidden, 'more job')} not shown.") if hidden else ""
    return _jobs(runs, ids[:_MAX_JOBS], about, "When jobs end") + more


def differing(runs: Mapping[str, Result]) -> Markup:
    """A table of the jobs whose ends differ most between the runs, the largest difference first."""
    ends = [_ends(result) for result in runs.values()]
    spread_s = {}
    for id in ends[0]:
        found = [one[id] for one in ends if id in one]
        left_s = [inf if run.end_s is None else run.end_s - began_s for run, began_s in found]
        if max(left_s) - min(left_s) > _SAME * min(max(left_s), 1e300):
            spread_s[id] = max(left_s) - min(left_s)
    most = sorted(spread_s, key=lambda id: -spread_s[id])[:_MOST_DIFFERENT]
    told = f"{counted(len(spread_s), 'job')} of {len(ends[0])} end at different times."
    if not most:
        return markup.soft(f"All {counted(len(ends[0]), 'job')} end alike.")
    return markup.soft(told) + _jobs(runs, most, {}, "Jobs that differ most: when they end")


def _jobs(runs: Mapping[str, Result], ids: Sequence[str], about: Mapping[str, str], title: str) -> Markup:
    titles = list(runs)
    columns: list[Column] = [
        ("Job", False),
        *((f"Ends, {title}", True) for title in titles),
        *([("Known from", False)] if about else []),
    ]
    ends = [_ends(result) for result in runs.values()]
    styles = looks(list(ends[0]))
    rows = []
    for id in ids:
        first = ends[0][id]
        cells = [_end(first, one.get(id), one is ends[0]) for one in ends]
        rows.append(
            [markup.named(first[0].name, id, styles[id]), *cells, *([about.get(id, "")] if about else [])]
        )
    return markup.table(columns, rows, f"{title} with {', '.join(titles)}")


def _ends(result: Result) -> dict[str, tuple[JobRun, float]]:
    began_s = result.from_s
    if began_s is None:
        # clocks of recorded workloads begin anywhere
        began_s = min((run.submit_s for run in result.runs), default=0.0)
    return {run.id: (run, began_s) for run in result.runs}


def _end(first: tuple[JobRun, float], here: tuple[JobRun, float] | None, is_first: bool) -> str:
    if here is None or here[0].end_s is None:
        return "never"
    left_s = here[0].end_s - here[1]
    text = f"in {markup.seconds(left_s)}"
    if is_first or first[0].end_s is None:
        return text
    later_s = left_s - (first[0].end_s - first[1])
    if abs(later_s) <= _SAME * max(left_s, 1e-9):
        return f"{text} (same)"
    return f"{text} ({markup.seconds(abs(later_s))} {'later' if later_s > 0 else 'sooner'})"


def any_note(results: Sequence[Result]) -> list[str]:
    """What readers should know of the runs, each once."""
    notes: dict[str, Any] = {}
    for result in results:
        notes.update(dict.fromkeys(result.workload.notes))
    return list(notes)
