"""What a trace says, put in order for reading: who held which node when, job by job, why.

Rules of the file: records in, frozen dataclasses out; no clock, no files, no markup. All times are
seconds since the first record of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask_hpc.report.power import power_rows
from dask_hpc.report.spans import JobSpan, Mark, NodeSpan, Spans, job_spans, natural_order, power_spans
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Other, Pass, Record, Result
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc.trace.steps import step_medians
from dask_hpc_policies.decision import Action, ReasonCode
from dask_hpc_policies.metrics import JobRun, summarize
from dask_hpc_policies.model import JobView

#: What undeclared Dask code is called.
PLAIN_WORK = "plain work"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """One job from its submission to its end, or to the end of the trace."""

    run: JobRun
    #: How its size may change and within which bounds; empty and None when no snapshot shows it.
    kind: str = ""
    min_nodes: int | None = None
    max_nodes: int | None = None
    #: Why it is in its last state.
    reason: str = ""

    @property
    def label(self) -> str:
        """The user's name for it, else its id."""
        return self.run.name or self.run.id


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """One action that was decided, or proposed and turned down, and what became of it."""

    t_s: float
    trigger: str
    action: str
    job: str
    #: Target size; None for actions without one.
    nodes: int | None
    code: str
    text: str
    #: ``done``, ``refused``, ``aborted``, ``suppressed``, or empty when nothing was to be done or known.
    result: str = ""
    result_text: str = ""
    latency_s: float | None = None
    #: How many passes in a row said the same (holds only).
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUse:
    """A policy with its parameters, from a moment on."""

    t_s: float
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole trace."""

    header: Header
    #: Time of the first record on the clock of the trace; all other times count from there.
    origin_s: float = 0.0
    #: Length of the trace.
    end_s: float = 0.0
    #: Who had which nodes when; nodes in natural order.
    spans: Spans = field(default_factory=Spans)
    #: Jobs in order of submission.
    jobs: tuple[JobHistory, ...] = ()
    feed: tuple[FeedEntry, ...] = ()
    policies: tuple[PolicyUse, ...] = ()
    #: Number of policy calls and the longest and the summed time they took.
    passes: int = 0
    longest_decide_s: float = 0.0
    total_decide_s: float = 0.0
    lock: str = ""
    #: What the steps of each flow have taken (`trace.steps.step_medians`).
    flows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    #: What people call each job, by id; plain work has no events of its own but appears in decisions.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: What `dask_hpc_policies.metrics.summarize` says about it.
    summary: Mapping[str, Any] = field(default_factory=dict)

    def levels(self) -> list[tuple[float, int, int]]:
        """Nodes up and nodes held by named jobs from each moment on: ``[(t_s, up, held), ...]``."""
        changes: dict[float, list[int]] = {0.0: [0, 0]}
        for span in self.spans.node_spans:
            up, held = int(span.state != "lost"), int(span.state != "lost" and span.job is not None)
            for t_s, sign in ((span.start_s, 1), (span.end_s, -1)):
                change = changes.setdefault(t_s, [0, 0])
                change[0] += sign * up
                change[1] += sign * held
        levels: list[tuple[float, int, int]] = []
        up = held = 0
        for t_s in sorted(changes):
            up, held = up + changes[t_s][0], held + changes[t_s][1]
            if not levels or (t_s < self.end_s and (up, held) != levels[-1][1:]):
                levels.append((t_s, up, held))
        return levels


def build_timeline(records: Iterable[Record], until_s: float | None = None) -> Timeline:
    """Put `records` (of one trace, in any order of kinds, each kind in order of time) in order.

    An empty trace gives an empty timeline. What goes on at its end is cut there, or at `until_s` on its
    clock.
    """
    items = list(records)
    times = [t_s for record in items if (t_s := _time(record)) is not None]
    if times and until_s is not None:
        times.append(max(until_s, *times))
    if not times:
        header = next((r for r in items if isinstance(r, Header)), Header())
        return Timeline(header=header, summary=summarize((), 0))
    origin_s, end_s = min(times), max(times) - min(times)
    passes = [record for record in items if isinstance(record, Pass)]
    names, spans = _node_spans(items, origin_s, end_s)
    jobs, feed, labels = _jobs(items, origin_s), _feed(items, origin_s), _labels(items)
    return Timeline(
        header=next((r for r in items if isinstance(r, Header)), Header()),
        origin_s=origin_s,
        end_s=end_s,
        spans=Spans(
            end_s=end_s,
            nodes=names,
            node_spans=spans,
            labels={job.run.id: job.label for job in jobs},
            job_spans=tuple(span for job in jobs for span in run_spans(job.run, end_s)),
            marks=_marks(feed),
            power=power_spans(power_rows(items), origin_s + end_s, origin_s),
        ),
        jobs=jobs,
        labels=labels,
        summary=summarize(job_runs(items), pool_steps(items)),
        feed=feed,
        policies=_policies(passes, origin_s),
        passes=len(passes),
        longest_decide_s=max((record.decide_s for record in passes), default=0.0),
        total_decide_s=sum(record.decide_s for record in passes),
        flows=step_medians(items),
        lock=passes[-1].snapshot.lock if passes else "",
    )


def _time(record: Record) -> float | None:
    if isinstance(record, Header | Other):
        return None
    return record.snapshot.now_s if isinstance(record, Pass) else record.t_s


@dataclass(slots=True)
class _OpenSpan:
    start_s: float
    job: str | None
    state: str


def _node_spans(
    items: Sequence[Record], origin_s: float, end_s: float
) -> tuple[tuple[str, ...], tuple[NodeSpan, ...]]:
    """Names in natural order, and spans: node by node, each in order of time."""
    current: dict[str, _OpenSpan | None] = {}
    spans: dict[str, list[NodeSpan]] = {}

    def change(node: str, t_s: float, job: str | None, state: str) -> None:
        before = current.get(node)
        if before is not None and (before.job, before.state) == (job, state):
            return
        if before is not None and t_s > before.start_s:
            spans.setdefault(node, []).append(
                NodeSpan(node=node, start_s=before.start_s, end_s=t_s, job=before.job, state=before.state)
            )
        current[node] = None if state == "removed" else _OpenSpan(t_s, job, state)

    for record in items:
        if isinstance(record, NodeEvent):
            for node in record.nodes:
                change(node, record.t_s - origin_s, record.job, record.state)
        elif isinstance(record, Pass):
            # A trace may begin, or have been cut, after its nodes arrived: then the snapshot tells.
            for view in record.snapshot.nodes:
                if view.id not in current:
                    change(view.id, record.snapshot.now_s - origin_s, view.job, view.state)
    for node, last in current.items():
        if last is not None:
            change(node, end_s, None, "removed")
    names = sorted(current, key=natural_order)
    return tuple(names), tuple(span for node in names for span in spans.get(node, ()))


def run_spans(run: JobRun, until_s: float, predicted: bool = False) -> list[JobSpan]:
    """Stretches of time of one run; what has not ended is cut at `until_s`."""
    return job_spans(run.id, run.submit_s, run.start_s, run.end_s, run.nodes, until_s, predicted)


def _marks(feed: Iterable[FeedEntry]) -> tuple[Mark, ...]:
    """Decisions that changed something."""
    return tuple(
        Mark(t_s=entry.t_s, job=entry.job, action=entry.action, nodes=entry.nodes, text=entry.text)
        for entry in feed
        if entry.result == "done"
    )


def _jobs(items: Sequence[Record], origin_s: float) -> tuple[JobHistory, ...]:
    views: dict[str, JobView] = {}
    reasons: dict[str, str] = {}
    for record in items:
        if isinstance(record, Pass):
            views.update((view.id, view) for view in record.snapshot.jobs)
        elif isinstance(record, JobEvent):
            reasons[record.job] = record.reason
    return tuple(
        JobHistory(
            run=_shifted(run, origin_s),
            kind=_kind(view),
            min_nodes=view.min_nodes if view else None,
            max_nodes=view.max_nodes if view else None,
            reason=reasons.get(run.id, ""),
        )
        for run in job_runs(items)
        for view in (views.get(run.id),)
    )


def _labels(items: Iterable[Record]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for record in items:
        if isinstance(record, JobEvent):
            labels[record.job] = record.name or record.job
        elif isinstance(record, Pass):
            for view in record.snapshot.jobs:
                labels[view.id] = PLAIN_WORK if view.is_default else view.name or view.id
    return labels


def _kind(view: JobView | None) -> str:
    if view is None:
        return ""
    return PLAIN_WORK if view.is_default else view.kind


def _shifted(run: JobRun, origin_s: float) -> JobRun:
    return replace(
        run,
        submit_s=run.submit_s - origin_s,
        start_s=None if run.start_s is None else run.start_s - origin_s,
        end_s=None if run.end_s is None else run.end_s - origin_s,
        nodes=tuple((t_s - origin_s, n) for t_s, n in run.nodes),
    )


def _policies(passes: Sequence[Pass], origin_s: float) -> tuple[PolicyUse, ...]:
    uses: list[PolicyUse] = []
    for record in passes:
        if not uses or uses[-1].spec != record.policy:
            uses.append(PolicyUse(t_s=record.snapshot.now_s - origin_s, spec=record.policy))
    return tuple(uses)


@dataclass(slots=True)
class _Feed:
    """Entries so far; which of them still wait for an outcome; the last entry of every job."""

    entries: list[FeedEntry] = field(default_factory=list)
    waiting: dict[tuple[str, str, int | None], list[int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    def add(self, entry: FeedEntry) -> int:
        """Append an entry, or count it with the one before that says the same; gives its place."""
        before = self.last.get(entry.job)
        if entry.action == "hold" and before is not None:
            old = self.entries[before]
            if (old.action, old.code, old.result) == ("hold", entry.code, entry.result):
                self.entries[before] = replace(old, times=old.times + 1)
                return before
        self.entries.append(entry)
        self.last[entry.job] = len(self.entries) - 1
        return len(self.entries) - 1


def _feed(items: Sequence[Record], origin_s: float) -> tuple[FeedEntry, ...]:
    feed = _Feed()
    for record in items:
        if isinstance(record, Pass):
            # what guards did not let through is not waited for
            decision = record.arbitrated or record.decision
            for action in decision.actions:
                entry = _entry(action, record.snapshot.now_s - origin_s, record.snapshot.trigger)
                index = feed.add(entry)
                if entry.action != "hold":
                    feed.waiting.setdefault(_key(action), []).append(index)
            for suppressed in decision.suppressed:
                entry = _entry(suppressed.action, record.snapshot.now_s - origin_s, record.snapshot.trigger)
                feed.add(
                    replace(
                        entry,
                        code=suppressed.reason.code.value,
                        text=suppressed.reason.text,
                        result="suppressed",
                    )
                )
        elif isinstance(record, Result):
            outcome = record.outcome
            waiting = feed.waiting.get(_key(outcome.action))
            if waiting:
                index = waiting.pop(0)
            else:
                # Nothing decided it in a pass: a user asked for it, or it follows from another action.
                asked = outcome.action.reason.code is ReasonCode.USER_REQUEST
                entry = _entry(outcome.action, record.t_s - origin_s, "request" if asked else "")
                index = feed.add(entry)
            feed.entries[index] = replace(
                feed.entries[index],
                result=outcome.result,
                result_text=outcome.reason.text,
                latency_s=outcome.latency_s,
            )
    return tuple(sorted(feed.entries, key=lambda entry: entry.t_s))


def _key(action: Action) -> tuple[str, str, int | None]:
    return action.TAG, getattr(action, "job", ""), getattr(action, "nodes", None)


def _entry(action: Action, t_s: float, trigger: str) -> FeedEntry:
    tag, job, nodes = _key(action)
    return FeedEntry(
        t_s=t_s,
        trigger=trigger,
        action=tag,
        job=job,
        nodes=nodes,
        code=action.reason.code.value,
        text=action.reason.text,
    )
