"""Asks the policy: with snapshots, as on a live cluster, or through its incremental form.

Rules of the file: both give the same actions (a test holds them together); only their cost differs. A
snapshot holds every job that waits or runs. Jobs that a round is about to start are left out of it, as their
nodes are out of the idle ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dask_hpc.clock import stopwatch_s
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.progress import saved_share
from dask_hpc.sim.model.job import Compute, Job, Stage
from dask_hpc_policies.decision import Action, Expand, Hold, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.jobs.queue_orders import place
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView, Trigger
from dask_hpc_policies.protocol import Session
from dask_hpc_policies.views import job_view

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine

_NO_REASON = Reason(ReasonCode.FITS, "decided by the incremental form of the policy")


class Asker(Protocol):
    """How an engine asks its policy."""

    def submitted(self, active: ActiveJob) -> None:
        """A job waits."""

    def finished(self, active: ActiveJob) -> None:
        """A job's nodes are idle."""

    def resized(self, active: ActiveJob) -> None:
        """A job has another size."""

    def at_point(self, active: ActiveJob) -> None:
        """A job has come to a scheduling point (`ActiveJob.at_point`), or goes on from it."""

    def ask(self, trigger: Trigger, about: int | None) -> Sequence[Action]:
        """What to do now, holds left out."""
        ...


def make_asker(engine: Engine) -> Asker:
    """The incremental form when there is one and it may be used, else snapshots."""
    make = getattr(engine.policy, "session", None)
    machine, options = engine.machine, engine.options
    # An incremental form knows the jobs from their submission on, and no node but by its number. What it was
    # told then of the time of a job stays: a recorded time must not be outlasted, nor beyond the walltime.
    plain = not (
        options.snapshots
        or options.decision_s
        or options.tick_s
        or engine.active
        or machine.failures.listed
        or machine.failures.node_mtbf_s is not None
        or any(job.recorded_s is not None and _corrected(job) for job in engine.workload.jobs)
    )
    if make is not None and plain:
        session = make(machine.nodes, frozenset(job.kind for job in engine.workload.jobs))
        if session is not None:
            return BySession(engine, session)
    return BySnapshots(engine)


def _corrected(job: Job) -> bool:
    """Whether what is expected of the job may change while it runs at one size; see `running_view`."""
    recorded_s, limit_s = job.recorded_s or 0.0, job.walltime_s
    return (
        job.program is not None
        or job.runtime_s > recorded_s
        or (limit_s is not None and recorded_s > limit_s)
    )


class BySession:
    """Asks the incremental form."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.engine = engine
        self.session = session

    def submitted(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.submit(active.key, pending_view(active))

    def finished(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.finish(active.key)

    def resized(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.resized(active.key, active.nodes)

    def at_point(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.at_point(active.key, active.at_point)

    def ask(self, trigger: Trigger, about: int | None) -> Sequence[Action]:
        """See `Asker`."""
        engine = self.engine
        engine.counts.policy_calls += 1
        scans = self.session.scans
        answer = self.session.decide(engine.now_s, trigger, about)
        engine.counts.queue_scans += self.session.scans - scans
        if not answer:
            return ()
        active = engine.active
        if all(active[key].state == "pending" for key, _ in answer):
            for key, nodes in answer:
                engine.start(active[key], nodes)
            return ()
        return [_action(active[key], nodes) for key, nodes in answer]


def _action(active: ActiveJob, nodes: int) -> Action:
    kind: type[Start] | type[Expand] | type[Shrink] = Start
    if active.state != "pending":
        kind = Expand if nodes > active.nodes else Shrink
    return kind(job=active.job.id, nodes=nodes, reason=_NO_REASON)


class BySnapshots:
    """Asks `decide` about a snapshot, and keeps the policy's state."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.state = engine.policy.initial_state()
        #: Jobs in order of service.
        self._order: list[tuple[int, Any, int]] = []
        self._nodes: tuple[NodeView, ...] = ()
        self._moves = -1
        for active in engine.active.values():
            insort(self._order, _place(active))

    def submitted(self, active: ActiveJob) -> None:
        """See `Asker`."""
        insort(self._order, _place(active))

    def finished(self, active: ActiveJob) -> None:
        """See `Asker`."""
        del self._order[bisect_left(self._order, _place(active))]

    def resized(self, active: ActiveJob) -> None:
        """See `Asker`."""

    def at_point(self, active: ActiveJob) -> None:
        """See `Asker`."""

    def ask(self, trigger: Trigger, about: int | None) -> Sequence[Action]:
        """See `Asker`."""
        engine = self.engine
        view = self.snapshot(trigger)
        before, given_s = self.state, engine.options.decision_s
        began_s = stopwatch_s() if given_s == "measured" else 0.0
        decision, self.state = engine.policy.decide(view, before)
        engine.passes.latency_s = stopwatch_s() - began_s if given_s == "measured" else given_s
        engine.counts.policy_calls += 1
        engine.counts.queue_scans += bool(view.jobs)
        engine.decided(view, before, decision)
        return [action for action in decision.actions if not isinstance(action, Hold)]

    def snapshot(self, trigger: Trigger) -> ClusterSnapshot:
        """What the policy sees now."""
        engine = self.engine
        jobs = []
        for _, _, key in self._order:
            active = engine.active[key]
            if active.state != "pending":
                jobs.append(running_view(active, engine.now_s))
            elif active.round is None:
                if active.view is None:
                    active.view = pending_view(active)
                jobs.append(active.view)
        return ClusterSnapshot(
            now_s=engine.now_s,
            trigger=trigger,
            nodes=self._node_views(),
            jobs=tuple(jobs),
            idle_nodes=engine.rounds.idle_nodes,
            returns_s=engine.failures.returns_s(),
            lock=engine.options.lock,
        )

    def _node_views(self) -> tuple[NodeView, ...]:
        pool = self.engine.nodes
        if not pool.identities:
            if not self._nodes:
                self._nodes = tuple(NodeView(id=f"n{i}") for i in range(self.engine.machine.nodes))
        elif self._moves != pool.moves:
            self._moves = pool.moves
            self._nodes = tuple(
                NodeView(
                    id=f"n{i}",
                    job=None if holder is None else holder.job.id,
                    state="lost" if i in pool.down_ids else "up",
                )
                for i, holder in enumerate(pool.holder)
            )
        return self._nodes


def _place(active: ActiveJob) -> tuple[int, Any, int]:
    return active.rank, place(active.job), active.key


def pending_view(active: ActiveJob) -> JobView:
    """What a policy sees of a job that waits."""
    job = active.job
    again = active.restarts > 0 and job.walltime_s is not None
    return job_view(
        job,
        id=job.id,
        # What it did before it was interrupted, and has kept, need not be done again.
        remaining_s=expected_s(active) if again else None,
        at_scheduling_point=job.program is None or job.program.resize == "anytime",
        interruption=active.interruption,
        interrupted_s=active.interrupted_s,
    )


def running_view(active: ActiveJob, now_s: float) -> JobView:
    """What a policy sees of a job that holds nodes."""
    job, start_s = active.job, active.start_s
    assert start_s is not None
    share = mtct(job, active.nodes)
    end_s = _expected_end_s(active, start_s, now_s)
    program = job.program
    return job_view(
        job,
        id=job.id,
        state=active.state,
        nodes=active.nodes,
        start_s=start_s,
        remaining_s=None if end_s is None else max(0.0, end_s - now_s),
        restart_s=_restart_s(active, now_s),
        requested_nodes=active.requested_nodes,
        at_scheduling_point=program is None or program.resize == "anytime" or active.at_point,
        interrupted_s=active.interrupted_s,
        expansions=active.expansions,
        mtct=share,
        mtct_previous=share if active.mtct_previous is None else active.mtct_previous,
    )


def expected_s(active: ActiveJob) -> float | None:
    """Walltime, less what need not be done again after an interruption; None without a walltime."""
    job = active.job
    if job.walltime_s is None or not isinstance(active.kept, float):
        return job.walltime_s
    return max(0.0, job.walltime_s - active.kept * job.runtime_s)


def _expected_end_s(active: ActiveJob, start_s: float, now_s: float) -> float | None:
    """When a running job is expected to end, by the rule of `dask_hpc_policies.jobs.estimates.remaining_s`.

    That is what a live scheduler says, and policies must see the same: to the end of the recorded time while
    the job has neither outlasted it nor been resized (what is recorded is about one size), else of the
    walltime. The walltime is a limit of wall-clock time at any size: after a resize it stays, although the
    job will be faster or slower, because a live scheduler does not know the speed-up either.
    """
    job, limit_s = active.job, expected_s(active)
    recorded_s = None if active.expansions or active.shrinks else job.recorded_s
    if recorded_s is not None and isinstance(active.kept, float):
        recorded_s = max(0.0, recorded_s - active.kept * job.runtime_s)
    if recorded_s is not None and (limit_s is None or now_s - start_s < recorded_s):
        return start_s + (recorded_s if limit_s is None else min(recorded_s, limit_s))
    return None if limit_s is None else start_s + limit_s


def _restart_s(active: ActiveJob, now_s: float) -> float | None:
    job = active.job
    if job.walltime_s is None or job.program is not None:
        return job.walltime_s
    return max(0.0, job.walltime_s - saved_share(active, now_s) * job.runtime_s)


def mtct(job: Job, nodes: int) -> float | None:
    """Time lost in communication over time in computation that the speed-up model implies.

    A job that computed without loss on n nodes would be n times as fast as on one; what it takes longer is
    taken for communication: n * speed(1) / speed(n) - 1. None when nothing of the job computes.
    """
    speed = job.speed
    if job.program is not None:
        stage = _first_compute(job.program.stages)
        if stage is None:
            return None
        speed = stage.speed
    return max(0.0, nodes * speed(1) / speed(nodes) - 1.0)


def _first_compute(stages: tuple[Stage, ...]) -> Compute | None:
    for stage in stages:
        if isinstance(stage, Compute):
            return stage
        found = _first_compute(getattr(stage, "stages", ()))
        if found is not None:
            return found
    return None
