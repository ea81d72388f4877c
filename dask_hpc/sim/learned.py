"""How long the jobs of a running cluster will still take, as far as it has shown, and how sure that is.

Rules of the file: pure; plain data of the runtime in, a snapshot for the simulator out. A live cluster tells
more than walltimes: how many tasks of a job are left, and how long its tasks have taken on average. Tasks
are taken for independent and as long as those before.

===========  ==================================================================================  ==========
source       remaining time                                                                      confidence
===========  ==================================================================================  ==========
``tasks``    its tasks that are left, each as long as those that ended, on its threads; the        good, fair
             job is closed, so that none come
``so-far``   as ``tasks``, of what was submitted so far: more may come                            fair
``alike``    no task of it has ended: those held are as long as earlier tasks of their names, as     fair
             Dask has learned it or was told in its configuration
``recorded``  the mean of earlier jobs of its name, less what it has run; while the job is open      fair
             also before ``alike``, and before ``so-far`` when it says more
``others``   no task of it has ended, nor has to yet: its tasks are taken to be as long as those    poor
             of other jobs
``walltime``  what its user asked for, less what it has run: seldom less than it takes            poor
``assumed``  nothing is known of it: what the caller says                                         poor
===========  ==================================================================================  ==========

An average over fewer than `FEW_TASKS` tasks is no better than fair; of it and of what Dask has learned of
tasks like those left the shorter is taken: what disturbs a task makes it longer, never shorter. When those
left take more than `DISTURBED` times as long, they are of another kind, and their own time is taken. A task
that has run for longer than that, and than all that is left was to take, is taken to be half done. What is
under way is taken as done: a job that is shrinking has left its nodes, one that is about to start has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from dask_hpc.report.looks import format_seconds
from dask_hpc_policies.model import COMPUTE, ClusterSnapshot, JobState, JobView
from dask_hpc_policies.rules.reservation import expected_s
from dask_hpc_policies.wording import counted

#: Tasks below which an average says little.
FEW_TASKS = 20
#: The first tasks of a job take up to about twice as long as later ones of their kind.
DISTURBED = 2.0
#: Seconds in which the first tasks of a job get to their workers.
_BEGINNING_S = 1.0

Source = Literal["tasks", "recorded", "so-far", "alike", "others", "walltime", "assumed"]
Confidence = Literal["good", "fair", "poor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of the time that one job still takes."""

    job: str
    name: str
    #: Seconds from now (running) or from its start (waiting), at the size `nodes`.
    remaining_s: float
    nodes: int
    source: Source
    confidence: Confidence
    #: A sentence.
    text: str


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks of one job: those that ended, with the seconds that they computed together; those left."""

    ended: int
    compute_s: float
    #: One on a worker counts half: it is somewhere between its start and its end.
    left: float

    @property
    def mean_s(self) -> float | None:
        return self.compute_s / self.ended if self.ended else None


def learn(
    view: ClusterSnapshot, rows: Sequence[Mapping[str, Any]], assumed_s: float
) -> tuple[ClusterSnapshot, tuple[Knowledge, ...]]:
    """`view` with changes under way done and the time of every named job, and what each time comes from.

    Parameters
    ----------
    view
        What ``Runtime.snapshot()`` gives.
    rows
        What ``Runtime.jobs()`` gives, of the same moment.
    assumed_s
        How long a job takes of which nothing is known.

    Raises
    ------
    ValueError
        When `assumed_s` is not above 0 and finite.
    """
    if not 0 < assumed_s < inf:
        raise ValueError(f"assumed_s is {assumed_s!r}; needed: a number of seconds above 0")
    known = {row["id"]: row for row in rows}
    view = _settled(view, {id: row.get("target_nodes") for id, row in known.items()})
    tasks = {job.id: _tasks(job, known.get(job.id, {})) for job in view.jobs}
    ended = sum(one.ended for one in tasks.values())
    common_s = sum(one.compute_s for one in tasks.values()) / ended if ended else None
    threads = _threads(view)
    found = {}
    for job in view.jobs:
        if not job.is_default:
            closed = bool(known.get(job.id, {}).get("closed"))
            alike_s = known.get(job.id, {}).get("held_task_s")
            # tasks of others would have ended in that time: its own are longer
            most_s = DISTURBED * (common_s or 0.0) + _BEGINNING_S
            longer = job.processing_tasks and job.start_s is not None and view.now_s - job.start_s > most_s
            others_s = None if longer else common_s
            one = _known(job, tasks[job.id], closed, alike_s, others_s, threads, assumed_s)
            usual_s = tasks[job.id].mean_s or alike_s or common_s
            found[job.id] = _outlasted(one, known.get(job.id, {}).get("executing_s") or 0.0, usual_s)
    jobs = tuple(
        replace(job, remaining_s=found[job.id].remaining_s) if job.id in found else job for job in view.jobs
    )
    return replace(view, jobs=jobs), tuple(found.values())


def guess(knowledge: Iterable[Knowledge]) -> str:
    """A sentence for what rests on times of jobs of which little is known; empty: there is none of these."""
    poor = sum(one.confidence == "poor" for one in knowledge)
    return f"Of {counted(poor, 'job')} little is known: take times for a guess." if poor else ""


def _settled(view: ClusterSnapshot, targets: Mapping[str, int | None]) -> ClusterSnapshot:
    """The cluster when every job has the nodes that it is getting."""
    jobs = []
    for job in view.jobs:
        nodes = targets.get(job.id)
        if nodes is not None and not job.is_default:
            state: JobState = "running" if nodes else "pending"
            start_s = view.now_s if job.start_s is None and nodes else job.start_s
            job = replace(job, nodes=nodes, state=state, start_s=start_s)
        jobs.append(job)
    if tuple(jobs) == view.jobs:
        return view
    # jobs get no other nodes: those of staging and services are not idle for them
    there = view.pool_nodes
    taken = sum(job.min_nodes if job.is_default else job.nodes for job in jobs)
    return replace(view, jobs=tuple(jobs), idle_nodes=max(0, there - taken))


def _known(
    job: JobView,
    tasks: _Tasks,
    closed: bool,
    alike_s: float | None,
    common_s: float | None,
    threads: float,
    assumed_s: float,
) -> Knowledge:
    nodes = job.nodes or job.start_nodes or job.max_nodes

    def knowledge(seconds: float, source: Source, confidence: Confidence, text: str) -> Knowledge:
        return Knowledge(
            job=job.id,
            name=job.name,
            remaining_s=max(0.0, seconds),
            nodes=nodes,
            source=source,
            confidence=confidence,
            text=text,
        )

    own_s, left = tasks.mean_s, f"{counted(job.unfinished_tasks, 'task')} left"
    # fewer tasks than slots take as long as on so many
    slots = min(nodes * threads, max(1.0, float(job.unfinished_tasks)))
    more = "" if closed else "; more may be submitted"
    # more may come into an open job: what earlier ones took counts where it is longer
    if own_s is not None and (closed or (tasks.left and not _longer(job, tasks.left * own_s / slots))):
        sure: Confidence = "good" if closed and tasks.ended >= FEW_TASKS else "fair"
        text = f"{left}; {tasks.ended} took {format_seconds(own_s)} each{more}"
        if tasks.ended < FEW_TASKS and alike_s is not None:
            # the first ones of a job are often slow: it has just been sent
            alike = f"those like what is left {format_seconds(alike_s)}"
            text = f"{left}; {tasks.ended} took {format_seconds(own_s)} each, {alike}"
            own_s = own_s if own_s <= alike_s <= DISTURBED * own_s else alike_s
            text += f", {format_seconds(own_s)} is taken{more}"
        return knowledge(tasks.left * own_s / slots, "tasks" if closed else "so-far", sure, text)
    if job.recorded_s is not None and not (alike_s is not None and tasks.left and closed):
        return knowledge(expected_s(job), "recorded", "fair", "mean of earlier jobs of its name")
    if alike_s is not None and tasks.left:
        text = f"{left}; earlier tasks of their names took {format_seconds(alike_s)} each{more}"
        return knowledge(tasks.left * alike_s / slots, "alike", "fair", text)
    if common_s is not None and tasks.left:
        text = f"{left}, as long as tasks of other jobs ({format_seconds(common_s)})"
        return knowledge(tasks.left * common_s / slots, "others", "poor", text)
    if expected_s(job) < inf:
        return knowledge(expected_s(job), "walltime", "poor", "to its walltime: seldom less than it takes")
    return knowledge(assumed_s, "assumed", "poor", "nothing is known of it: assumed")


def _outlasted(found: Knowledge, executing_s: float, usual_s: float | None) -> Knowledge:
    """What is known, unless one of its tasks has executed for longer than it says of all."""
    most_s = max(found.remaining_s, DISTURBED * (usual_s or inf))
    if found.source not in ("tasks", "so-far", "alike", "others") or executing_s <= most_s:
        return found
    text = f"{found.text}; one has run {format_seconds(executing_s)} and is taken to be half done"
    return replace(found, remaining_s=executing_s, confidence="poor", text=text)


def _longer(job: JobView, seconds: float) -> bool:
    """Whether earlier jobs of its name say that more than these seconds are left."""
    return job.recorded_s is not None and expected_s(job) > seconds


def _tasks(job: JobView, row: Mapping[str, Any]) -> _Tasks:
    phases = row.get("phases", ())
    return _Tasks(
        ended=sum(phase["tasks"] for phase in phases),
        compute_s=sum(phase["compute_s"] for phase in phases),
        left=max(0.0, job.unfinished_tasks - job.processing_tasks / 2),
    )


def _threads(view: ClusterSnapshot) -> float:
    """Threads of a node that jobs get, on average."""
    up = [node.nthreads for node in view.nodes if node.state != "lost" and node.role == COMPUTE]
    return max(1.0, sum(up) / len(up)) if up else 1.0
