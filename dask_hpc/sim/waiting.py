"""Why does a job wait? Who holds the nodes, when it is expected to start, and what would start it earlier.

Rules of the file: pure. Every time comes from a run of the simulator that goes on from the snapshot
(`dask_hpc.sim.what_if`), one for each thing that could be changed: what the job asks for, the policy, and the
nodes of one other job. What would not start it earlier is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc.report.looks import ahead
from dask_hpc.sim.learned import Knowledge, guess, learn
from dask_hpc.sim.what_if import simulate_from
from dask_hpc_policies import registry
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.wording import counted

#: Seconds that a job of which nothing is known is taken to need.
ASSUMED_S = 60.0
#: What is earlier by less than this part of the wait, or than so many seconds, is no help.
_LEAST_PART, _LEAST_S = 0.05, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds nodes."""

    job: str
    name: str
    nodes: int
    #: Seconds that it is expected to need yet, at its present size.
    remaining_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that would start the job earlier."""

    #: What to change, as a phrase.
    text: str
    #: Seconds from now to its start then; 0: at once.
    start_in_s: float
    #: What to change, as data: ``{"declare": {...}}``, ``{"policy": {...}}`` or ``{"resize": {...}}``.
    change: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why one job waits. Made by `why_waiting`; ``print`` shows it in sentences."""

    job: str
    name: str
    #: What was last decided about it.
    reason: str
    #: Nodes that it needs to start, and those that are idle.
    needs_nodes: int
    idle_nodes: int
    holders: tuple[Holder, ...]
    #: Seconds from now to its start as things are; None: not within the run of what is there, or not known.
    start_in_s: float | None
    #: The earliest first; of equal ones that of the job itself, then of another job, then of the policy.
    remedies: tuple[Remedy, ...] = ()
    #: What the times of jobs come from.
    knowledge: tuple[Knowledge, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        held = ", ".join(f"{one.name} {one.nodes}" for one in self.holders) or "no job holds any"
        lines = [
            f"{self.name} needs {counted(self.needs_nodes)}; {self.idle_nodes} idle; {held}.",
            *([f"Last decision: {self.reason}."] if self.reason else ()),
            f"As things are it {starts(self.start_in_s)}.",
            *(f"It {when} {' or '.join(texts)}." for when, texts in self.helps().items()),
        ]
        return "\n".join(filter(None, (*lines, guess(self.knowledge))))

    def helps(self) -> dict[str, list[str]]:
        """Phrases of what would start it earlier, by when it starts then, the earliest first."""
        told: dict[str, list[str]] = {}
        policies: dict[str, list[str]] = {}
        for one in self.remedies:
            when = starts(one.start_in_s)
            told.setdefault(when, [])
            if "policy" in one.change:
                policies.setdefault(when, []).append(one.change["policy"]["policy"])
            else:
                told[when].append(one.text)
        for when, names in policies.items():
            told[when].append(f"under {', '.join(names)}")
        return told


def why_waiting(
    view: ClusterSnapshot,
    rows: Sequence[Mapping[str, Any]],
    present: Mapping[str, Any],
    job: str,
    assumed_s: float = ASSUMED_S,
    going_on: Callable[[], object] = lambda: None,
) -> Waiting | None:
    """Why `job` waits in the state `view`; None: it does not wait there.

    Parameters
    ----------
    view, rows
        What ``Runtime.snapshot()`` and ``Runtime.jobs()`` give at one moment.
    present
        The policy that decides (`registry.spec_of`). One that is known to the cluster alone is not simulated:
        then there is no start as things are, and other policies alone are tried.
    job
        Its id.
    assumed_s
        How long a job takes of which nothing is known, in seconds.
    going_on
        Called before each run; what it raises ends it.

    Raises
    ------
    WorkloadError
        When there is no node to go on from.
    ValueError
        When `assumed_s` is not above 0 and finite.
    """
    learned, knowledge = learn(view, rows, assumed_s)
    waiting = next((one for one in learned.jobs if one.id == job), None)
    if waiting is None or waiting.nodes or waiting.is_default:
        return None
    known = {one.job: one for one in knowledge}
    policy = _policy(present)
    start_s = None if policy is None else _start_in_s(learned, policy, job)
    found = []
    for text, change, changed in _changes(learned, waiting, present):
        going_on()
        other = changed if isinstance(changed, ClusterSnapshot) else learned
        by = policy if isinstance(changed, ClusterSnapshot) else changed
        then_s = None if by is None else _start_in_s(other, by, job)
        if then_s is not None and _earlier(then_s, start_s):
            found.append(Remedy(text=text, start_in_s=then_s, change=change))
    return Waiting(
        job=job,
        name=waiting.name or job,
        reason=str(next((row.get("reason") or "" for row in rows if row["id"] == job), "")),
        needs_nodes=_needs(waiting),
        idle_nodes=max(0, learned.idle_nodes),
        holders=tuple(
            Holder(
                job=one.id, name=one.name or one.id, nodes=one.nodes, remaining_s=known[one.id].remaining_s
            )
            for one in learned.jobs
            if one.nodes and one.id in known
        ),
        start_in_s=start_s,
        remedies=tuple(sorted(found, key=lambda one: one.start_in_s)),
        knowledge=knowledge,
    )


def _changes(
    view: ClusterSnapshot, job: JobView, present: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Phrase, change as data, and the state or the policy to run from then."""
    needs, idle = _needs(job), max(0, view.idle_nodes)
    # none idle: the policy may have others give some
    nodes = largest_at_most(job.constraint, min(needs - 1, idle), 1)
    nodes = nodes or smallest_at_least(job.constraint, 1, needs - 1)
    if nodes:
        # what a job asks for cannot be changed: it is cancelled, and comes again behind all others
        smaller = replace(job, kind="malleable", min_nodes=nodes, start_nodes=None, submit_s=view.now_s)
        others = tuple(one for one in view.jobs if one.id != job.id)
        declared = {"min_nodes": nodes, "max_nodes": job.max_nodes}
        text = f"declared anew with min_nodes={nodes}"
        yield text, {"declare": declared}, replace(view, jobs=(*others, smaller))
    missing = needs - idle
    for other in view.jobs:
        left = largest_at_most(other.constraint, other.nodes - missing, max(1, other.min_nodes))
        may = other.kind == "malleable" and other.at_scheduling_point and not other.is_default
        if may and missing > 0 and left:
            given = other.nodes - left
            text = f"if {other.name or other.id} gives {counted(given)}"
            yield text, {"resize": {"job": other.id, "nodes": left}}, _given(view, other, given)
    for name in registry.names():
        if name != present.get("policy") and (policy := _policy({"policy": name})) is not None:
            yield f"under {name}", {"policy": {"policy": name}}, policy


def _with(view: ClusterSnapshot, job: JobView) -> ClusterSnapshot:
    return replace(view, jobs=tuple(job if one.id == job.id else one for one in view.jobs))


def _given(view: ClusterSnapshot, job: JobView, count: int) -> ClusterSnapshot:
    """The state once `job` has let go of `count` of its nodes."""
    left = job.nodes - count
    held = [node for node in view.nodes if node.job == job.id]
    freed = {node.id for node in held[left:]}
    nodes = tuple(replace(node, job=None) if node.id in freed else node for node in view.nodes)
    # its work is as much as before, on fewer nodes
    remaining_s = None if job.remaining_s is None else job.remaining_s * job.nodes / left
    smaller = replace(job, nodes=left, remaining_s=remaining_s)
    return replace(_with(view, smaller), nodes=nodes, idle_nodes=max(0, view.idle_nodes) + count)


def _start_in_s(view: ClusterSnapshot, policy: Any, job: str) -> float | None:
    """Seconds until `job` starts; None: it does not, or the policy cannot be run from there."""
    try:
        result = simulate_from(view, policy, name="this cluster")
    except WorkloadError:
        raise
    except Exception:
        # a policy may be anybody's code; one that cannot decide from there is no help
        return None
    start_s = next(run.start_s for run in result.runs if run.id == job)
    return None if start_s is None else max(0.0, start_s - view.now_s)


def _policy(spec: Mapping[str, Any]) -> Any:
    try:
        return registry.create(spec)
    except Exception:
        # it is known to the cluster alone; or it is anybody's code, and no help when it cannot be made
        return None


def _needs(job: JobView) -> int:
    # without a size that it may have it never starts
    return needed_nodes(job) or job.min_nodes


def _earlier(then_s: float, start_s: float | None) -> bool:
    return start_s is None or then_s < start_s - max(_LEAST_S, _LEAST_PART * start_s)


def starts(in_s: float | None) -> str:
    """When a job starts, as a verb and what follows; None: it cannot be seen."""
    if in_s is None:
        return "does not start, as far as can be seen"
    return f"starts {ahead(in_s)}"
