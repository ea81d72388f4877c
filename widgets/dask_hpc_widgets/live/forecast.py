"""What the timeline shows of the future: nodes over time as policies are predicted to give them out.

Rules of the file: pure. Runs of the simulator and who holds which node now in, plain values out; the model of
spans (`dask_hpc.report.spans`) gives jobs their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dask_hpc.report.looks import printable
from dask_hpc.report.spans import Spans, packed
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.metrics import ended_in_all, makespan_s, mean_turnaround_s, unended
from dask_hpc_policies.model import NodeView
from dask_hpc_policies.wording import counted
from dask_hpc_widgets import comparison
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.views import Picture

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result

#: Changes below this part of a time are none.
_SAME = 0.005
#: Letters of a name.
_NAME = 40
#: Nothing is told later than so many seconds; the clock of another runtime begins at 0.
_LATE_S = 2.0


#: Job, from, to, and the nodes that it has just so long.
Row = tuple[str, float, float, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is predicted of one moment on, on the clock of the cluster. Made by `forecast`.

    Either run may be missing: a policy that only the cluster knows cannot be run.
    """

    runs: Result | None
    chosen: Result | None
    #: Who is to have which nodes, of either run.
    rows: tuple[tuple[Row, ...], tuple[Row, ...]] = ((), ())
    #: Nodes that there were.
    nodes: int = 0
    #: When the last job ends, in either.
    end_s: float = 0.0
    #: Why it is not of now any more; empty while it is.
    stale: str = ""

    @property
    def lanes(self) -> tuple[tuple[str, Result | None], ...]:
        """The rows of the picture, from above: what each is called, and its run."""
        return (("as it runs", self.runs), ("as chosen", self.chosen))

    def next_start(self, waiting: Iterable[str]) -> tuple[str, float] | None:
        """Which of the jobs that wait starts first as things are, and when; None: none, or not known."""
        run = self.runs
        if run is None:
            return None
        ids = set(waiting)
        starts = [(one.start_s, one.id) for one in run.runs if one.id in ids and one.start_s is not None]
        if not starts:
            return None
        start_s, id = min(starts)
        return id, start_s

    def gain(self) -> str:
        """What applying the chosen policy would change, in words; empty: not known."""
        if self.runs is None or self.chosen is None:
            return ""
        both = (self.runs.runs, self.chosen.runs)
        if more := unended(both[0]) - unended(both[1]):
            # the times of those that end are of other jobs then
            return more_end(more)
        common = ended_in_all(both)
        part = "" if len(common[0]) == len(both[0]) else f", {comparison.in_both(len(common[0]))}"
        if not common[0]:
            return "none that can be told: no job ends in both"
        told = []
        for of, what, words in (
            (mean_turnaround_s, "mean turnaround", ("shorter", "longer")),
            (makespan_s, "the last end", ("earlier", "later")),
        ):
            first, then = (of(runs) or 0.0 for runs in common)
            if abs(then - first) <= _SAME * max(first, then):
                continue
            told.append(f"{what} {markup.seconds(abs(then - first))} {words[then > first]}")
        return (", ".join(told) or "none: both end alike") + part


def more_end(count: int) -> str:
    """So many jobs end that else do not; below 0: the other way round."""
    word = "more" if count > 0 else "fewer"
    return f"{counted(abs(count), 'job')} {word} end{'s' * (abs(count) == 1)}"


def there(nodes: Iterable[NodeView]) -> int:
    """How many nodes of a state are not lost."""
    return sum(node.state != "lost" for node in nodes)


def outdated(runs: Sequence[Result], nodes: int, picture: Picture) -> str:
    """What no run could know of and has happened since, in words; empty: nothing.

    Parameters
    ----------
    runs
        From one state on.
    nodes
        How many nodes were `there` in it.
    picture
        What the cluster is now; one of a moment before that state tells nothing.
    """
    known = {one.id for run in runs for one in run.runs}
    from_s = max((run.from_s or 0.0 for run in runs), default=0.0)
    now_s = picture.status.get("now_s", 0.0)
    if now_s < from_s - _LATE_S:
        return "The cluster has begun anew since"
    if now_s < from_s:
        return ""
    for job in picture.jobs:
        called = f"Job {printable(job['name'] or job['id'])[:_NAME]}"
        if job["id"] not in known:
            if job["end_s"] is None and not job.get("is_default"):
                return f"{called} has come since"
        elif job["state"] in ("cancelled", "failed"):
            return f"{called} has {'failed' if job['state'] == 'failed' else 'been cancelled'} since"
    now = sum(node["state"] != "lost" for node in picture.status.get("nodes", ()))
    if now != nodes:
        return f"{counted(abs(now - nodes), 'node')} {'fewer' if now < nodes else 'more'} since"
    for one in picture.decisions:
        if (
            one["reason_code"] == ReasonCode.USER_REQUEST.value
            and one["result"] == "done"
            and one["t_s"] > from_s
            # roles of nodes and nodes that leave are told in the same words
            and one["job"] in known
        ):
            return f"Somebody has resized {printable(one['job'])[:_NAME]} since"
    return ""


def forecast(runs: Result | None, chosen: Result | None, nodes: Sequence[NodeView]) -> Forecast:
    """What two runs from one state predict; `nodes` are those of the state: jobs go on where they are."""
    both = (runs, chosen)
    spans = [None if run is None else run.spans() for run in both]
    as_it_runs, as_chosen = (() if one is None else _rows(one, nodes) for one in spans)
    return Forecast(
        runs=runs,
        chosen=chosen,
        rows=(as_it_runs, as_chosen),
        nodes=there(nodes),
        end_s=max((one.end_s for one in spans if one is not None), default=0.0),
    )


def _rows(spans: Spans, nodes: Sequence[NodeView]) -> tuple[Row, ...]:
    """In order of time."""
    there = [node for node in nodes if node.state != "lost"]
    holders = {node.id: node.job for node in there if node.job}
    found: dict[tuple[str, float, float], list[str]] = {}
    for span in packed(spans.job_spans, [node.id for node in there], holders).node_spans:
        if span.job is not None:
            key = (span.job, round(span.start_s, 2), round(span.end_s, 2))
            found.setdefault(key, []).append(span.node)
    return tuple((*key, held) for key, held in sorted(found.items(), key=lambda item: item[0][1]))


def followed(past: Spans, origin_s: float, run: Result | None, end_s: float) -> Spans:
    """What has happened, and what `run` predicts; up to `end_s`.

    Parameters
    ----------
    past
        Counts its times from `origin_s` on the clock of the cluster; so does what comes back.
    """
    if run is None or run.from_s is None:
        return past
    whole = past.followed_by(run.spans().shifted(-origin_s), run.from_s - origin_s)
    return replace(whole, end_s=max(whole.end_s, end_s - origin_s))
