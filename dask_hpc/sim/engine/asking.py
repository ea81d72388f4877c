"""Asks the policy: with snapshots, as on a live cluster, or through its incremental form.

Rules of the file: both give the same actions (a test holds them together); only their cost differs. A
snapshot holds every job that waits or runs. Jobs that a round is about to start are left out of it, as their
nodes are out of the idle ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from dask_hpc.clock import stopwatch_s
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.checkpoints import history
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.views import lent_views, present_view
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import FREE, Machine
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Action, Expand, Hold, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.jobs.queue_orders import place
from dask_hpc_policies.model import COMPUTE, ClusterSnapshot, NodeView, Trigger
from dask_hpc_policies.protocol import Policy, Session
from dask_hpc_policies.rules.commits import SECTION

#: Rank, place in the queue order and key of a job, and the job: keys differ, so that jobs are not compared.
_Place = tuple[int, Any, int, ActiveJob]
_NO_REASON = Reason(ReasonCode.FITS, "decided by the incremental form of the policy")


class Answer(NamedTuple):
    """What a policy wants; holds are left out."""

    #: Jobs that start at once, by key, with their sizes: they fit, by the contract of `Session`.
    starts: Sequence[tuple[int, int]] = ()
    #: What is a round of its own, and may be refused.
    actions: Sequence[Action] = ()
    #: Seconds from the question to the answer.
    latency_s: float = 0.0


#: Nothing is to be done.
NOTHING = Answer()


class Asker(Protocol):
    """How a policy is asked: it is told what happens to jobs, and answers."""

    def submitted(self, active: ActiveJob) -> None:
        """A job waits."""

    def finished(self, active: ActiveJob) -> None:
        """A job's nodes are idle."""

    def resized(self, active: ActiveJob) -> None:
        """A job has another size."""

    def at_point(self, active: ActiveJob) -> None:
        """A job has come to a scheduling point (`ActiveJob.at_point`), or goes on from it."""

    def ask(self, trigger: Trigger, about: int | None) -> Answer:
        """What to do now."""
        ...


def make_asker(policy: Policy, world: World, nodes: NodePool) -> Asker:
    """The incremental form when there is one and it may be used, else snapshots."""
    make = getattr(policy, "session", None)
    machine, options, jobs = world.machine, world.options, world.workload.jobs
    # An incremental form knows the jobs from their submission on, and of nodes how many there are, which must
    # not change; of resizes that take time it knows nothing. What it was told then of the time of a job
    # stays: a recorded time must not be outlasted.
    plain = not (
        options.snapshots
        or options.extra
        or world.twins
        or options.decision_s
        or options.tick_s
        or world.active
        or machine.failures.occur
        or machine.pool is not None
        or machine.roles is not None
        or any(job.recorded_s is not None and _corrected(job) for job in jobs)
        or any(job.kind in ("malleable", "evolving") and _takes_time(job, machine) for job in jobs)
    )
    if make is not None and plain:
        session = make(machine.nodes, frozenset(job.kind for job in jobs))
        if session is not None and (not getattr(session, "anytime", False) or all(map(_anytime, jobs))):
            return BySession(session, world)
    return BySnapshots(policy, world, nodes)


def _corrected(job: Job) -> bool:
    """Whether what is expected of the job may change while it runs at one size; see `views.running_view`."""
    return job.program is not None or job.runtime_s > (job.recorded_s or 0.0)


def _takes_time(job: Job, machine: Machine) -> bool:
    """Whether a resize of the job may end later than in the moment in which it is decided."""
    moves = job.data_bytes and machine.link_bytes_s
    return bool(moves) or (job.adaptation or machine.adaptation) != FREE or job.checkpoints is not None


def _anytime(job: Job) -> bool:
    return job.program is None or job.program.resize == "anytime"


class BySession:
    """Asks the incremental form."""

    def __init__(self, session: Session, world: World) -> None:
        self.session = session
        self._world = world

    def submitted(self, active: ActiveJob) -> None:
        """See `Asker`."""
        job = active.job
        self.session.submit(active.key, job, _anytime(job))

    def finished(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.finish(active.key)

    def resized(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.resized(active.key, active.nodes)

    def at_point(self, active: ActiveJob) -> None:
        """See `Asker`."""
        self.session.at_point(active.key, active.at_point)

    def ask(self, trigger: Trigger, about: int | None) -> Answer:
        """See `Asker`."""
        world, session = self._world, self.session
        counts, active = world.counts, world.active
        counts.policy_calls += 1
        scans = session.scans
        answer = session.decide(world.now_s, trigger, about)
        counts.queue_scans += session.scans - scans
        if not answer:
            return NOTHING
        for key, _ in answer:
            if active[key].state != "pending":
                break
        else:
            return Answer(answer)
        return Answer(actions=[_action(active[key], nodes) for key, nodes in answer])


def _action(active: ActiveJob, nodes: int) -> Action:
    kind: type[Start] | type[Expand] | type[Shrink] = Start
    if active.state != "pending":
        kind = Expand if nodes > active.nodes else Shrink
    return kind(job=active.job.id, nodes=nodes, reason=_NO_REASON)


class BySnapshots:
    """Asks `decide` about a snapshot, and keeps the policy's state."""

    def __init__(self, policy: Policy, world: World, nodes: NodePool) -> None:
        self._policy = policy
        self._world = world
        self._pool = nodes
        self._state = policy.initial_state()
        #: Jobs in order of service.
        self._order: list[_Place] = []
        #: Whether nobody reads why the policy decides as it does: then views are lent (`lent_views`).
        options = world.options
        told = options.snapshots or options.decision_s or world.twins
        self._brief = bool(getattr(policy, "brief", False) and not told)
        self._nodes: tuple[NodeView, ...] = ()
        self._moves = -1
        self._commit = any(job.checkpoints is not None for job in world.workload.jobs)
        for active in world.active.values():
            insort(self._order, (*_place(active), active))

    def submitted(self, active: ActiveJob) -> None:
        """See `Asker`."""
        insort(self._order, (*_place(active), active))

    def finished(self, active: ActiveJob) -> None:
        """See `Asker`."""
        del self._order[bisect_left(self._order, _place(active))]

    def resized(self, active: ActiveJob) -> None:
        """See `Asker`."""

    def at_point(self, active: ActiveJob) -> None:
        """See `Asker`."""

    def ask(self, trigger: Trigger, about: int | None) -> Answer:
        """See `Asker`."""
        world = self._world
        view = self.snapshot(trigger)
        if world.twins:
            view = world.twins.completed(view, self._policy)
        before, given_s = self._state, world.options.decision_s
        began_s = stopwatch_s() if given_s == "measured" else 0.0
        decision, self._state = self._policy.decide(view, before)
        latency_s = stopwatch_s() - began_s if given_s == "measured" else given_s
        world.counts.policy_calls += 1
        world.counts.queue_scans += bool(view.jobs)
        allowed = world.twins.arbitrated(view, decision) if world.twins else decision
        world.listener.passed(view, before, decision, allowed, latency_s)
        actions = [action for action in allowed.actions if not isinstance(action, Hold)]
        return Answer(actions=actions, latency_s=latency_s)

    def snapshot(self, trigger: Trigger) -> ClusterSnapshot:
        """What the policy sees now."""
        world, pool = self._world, self._pool
        now_s = world.now_s
        if self._brief:
            jobs = lent_views(self._order, now_s)
        else:
            jobs = [
                present_view(active, now_s)
                for _, _, _, active in self._order
                if active.round is None or active.state != "pending"
            ]
        return ClusterSnapshot(
            now_s=now_s,
            trigger=trigger,
            nodes=self._node_views(),
            jobs=tuple(jobs),
            idle_nodes=pool.idle,
            returns_s=pool.returns_s(),
            lock=world.options.lock,
            sections=self._sections(),
            brief=self._brief,
        )

    def _sections(self) -> dict[str, Any]:
        world = self._world
        found = world.twins.sections() if world.twins else {}
        if self._commit:
            ends_s = self._pool.ends_s
            known = {active.job.id: history(active, world, ends_s) for *_, active in self._order}
            found[SECTION] = {id: encode(one) for id, one in known.items() if one is not None}
        return found

    def _node_views(self) -> tuple[NodeView, ...]:
        pool = self._pool
        domains, hosts = pool.domains, pool.hosts
        if not pool.identities:
            if not self._nodes:
                self._nodes = tuple(
                    NodeView(
                        id=f"n{i}",
                        domain=None if domains is None else domains[i],
                        host=None if hosts is None else hosts[i],
                    )
                    for i in range(pool.total)
                )
        elif self._moves != pool.moves or pool.ends_s:
            # walltimes run down while nothing else changes
            self._moves = pool.moves
            now_s, ends_s, roles = self._world.now_s, pool.ends_s, pool.roles
            self._nodes = tuple(
                NodeView(
                    id=f"n{i}",
                    job=None if holder is None else holder.job.id,
                    state="lost" if i in pool.down_ids else "up",
                    domain=None if domains is None else domains[i],
                    host=None if hosts is None else hosts[i],
                    role=roles.get(i, COMPUTE),
                    walltime_left_s=ends_s[i] - now_s if i in ends_s else None,
                )
                for i, holder in enumerate(pool.holder)
                if i not in pool.absent
            )
        return self._nodes


def _place(active: ActiveJob) -> tuple[int, Any, int]:
    return active.rank, place(active.job), active.key
