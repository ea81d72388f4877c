"""Tasks that are computed by others than those they belong to, which have no node.

Plain tasks that a named job computes: what it needs itself, and results that plain work has lost.

Plain work may have no node. What a named job needs of it would keep the job waiting for ever, and a result
that somebody waits for was there already, or was being made: neither waits for a node. Such tasks are the
job's guests: placed before its own, not waited for when it ends, and none of its failures.

So are tasks that a job was first to submit which waits for nodes, and that somebody submits, too, who has
some: two who compute the same do not wait for each other. What depends on such a task of which its client has
the future waits for the job that it was meant to run in; but not when all that its own job can do is to wait,
on nodes that the other may wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.internals.allotment import Lane, LaneKind
from dask_hpc.scheduler.placing.past import Pace
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: States of a task that is asked for and on no worker.
_NOT_SENT = ("waiting", "queued", "no-worker")
_HELD = ("queued", "no-worker")


class Guests:
    """Finds who computes plain tasks that have no node of their own."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Keys of tasks that were on workers before and are to be executed again (some may be done).
        self._lost: dict[Any, None] = {}
        #: Who has submitted the same task, in order, by key (some may be done); of plain work its client, not
        #: known of who was first.
        self._asked: dict[Any, tuple[JobRecord | str, ...]] = {}
        #: Whether plain work had no node when this looked last.
        self._unserved = False
        #: How often all of these are looked at: at a sweep, which comes again.
        self._pace = Pace(lambda in_s: None)

    def clear(self) -> None:
        """Forget who has submitted what: it is all handed back."""
        self._lost.clear()
        self._asked.clear()

    def invite(self, needed: list[TaskState], job: JobRecord) -> None:
        """Let a job make what is needed of others that have no node, and what that depends on."""
        owner = self.state.owner
        queued, unplaced = [], []
        while needed:
            dts = needed.pop()
            lane = owner.get(dts.key)
            if lane is None or lane.kind == "free" or lane.job is job:
                continue
            first, at_rest = lane.job, dts.state == "released"
            if dts.state not in _NOT_SENT and (first.is_default or not at_rest):
                continue
            if lane.guest:
                if len(first.allotment):
                    continue
            elif not first.is_default and (len(first.reach) or not len(job.reach)):
                continue
            if not (first.is_default or lane.guest):
                self._asked.setdefault(dts.key, (first,))
            guest = owner[dts.key] = self._lane(job, lane.kind)
            held = dts.state in _HELD
            if not at_rest:
                first.unfinished -= 1
                job.unfinished += 1
                first.guests -= lane.guest
                job.guests += guest.guest
                first.held -= held
                job.held += held
            writes.restrict(dts, guest)
            if dts.state == "queued":
                queued.append(dts)
            elif held and guest.kind == "root":
                job.park(dts, first=guest.guest)
            elif held:
                job.stranded[dts.key] = None
                unplaced.append(dts.key)
            needed.extend(dts.dependencies)
        stimulus_id = f"hpc-invite-{self.state.now_s()}"
        # a named job holds what stock has queued
        writes.hold_queued(self.state.scheduler, queued, stimulus_id)
        if len(job.reach):  # no node of its own that comes would have them looked at
            writes.retry_unplaced(self.state.scheduler, unplaced, stimulus_id)

    def ask(
        self, asked: Mapping[Any, list[TaskState]], client: str, wanted: Collection[Any]
    ) -> set[JobRecord]:
        """Somebody submits what another was first to submit; the jobs that make some of it from now on.

        Parameters
        ----------
        asked
            The tasks, by the job of the graph that they are in; what is the id of none is plain work.
        client, wanted
            Who has sent the graph, and the keys that it wants of it. What is in a graph besides is there to
            be computed, unless the client has its future.
        """
        found: set[JobRecord] = set()
        for id, tasks in asked.items():
            job = self.state.jobs.active.get(id) if isinstance(id, str) else None
            has = reads.wanted_by(self.state.scheduler, [ts.key for ts in tasks]).get(client, ())
            futures = set(has).difference(wanted)
            ours = [ts for ts in tasks if ts.key not in futures]
            for ts in ours:
                askers = self._asked.get(ts.key, ())
                lane = self.state.owner[ts.key]
                first = "" if lane.job.is_default or lane.guest else lane.job
                asks = client if job is None or job.is_default else job
                self._asked[ts.key] = tuple(dict.fromkeys((*askers, first, asks)))
            found |= self._hand_on(ours)
        return found

    def asked_elsewhere(self, key: Any, job: JobRecord, client: str) -> bool:
        """Whether a client of the job has submitted a task of it in another one, too, or in none."""
        others = [one for one in self._asked.get(key, ()) if one is not job]
        return any(
            one == client if isinstance(one, str) else one.active and client in one.clients
            for one in others
        )

    def of_others(self, job: JobRecord, states: Collection[str]) -> Any | None:
        """Key of a task in one of these states that the job has submitted and another makes; None: none."""
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        for key, askers in self._asked.items():
            if job in askers and (ts := tasks.get(key)) is not None and ts.state in states:
                lane = owner.get(key)
                if lane is None or lane.job is not job or lane.guest:
                    return key
        return None

    def _hand_on(self, tasks: Iterable[TaskState]) -> set[JobRecord]:
        """Let the first that has submitted them, too, and has a node make tasks of a job that has none."""
        takers: dict[JobRecord, list[TaskState]] = {}
        for ts in tasks:
            if not len(self.state.owner[ts.key].job.reach):
                askers = self._asked[ts.key]
                either = [self.state.plain if isinstance(one, str) else (one,) for one in askers]
                jobs = (job for some in either for job in some if job.active and len(job.reach))
                taker = next(jobs, None)
                if taker is not None:
                    takers.setdefault(taker, []).append(ts)
        for job, its in takers.items():
            self.invite(its, job)
        return set(takers)

    def recomputed(self, ts: TaskState, lane: Lane) -> Lane:
        """The lane of a plain task that comes (back) into play.

        What a named job needs again, after a worker was lost, is that job's work from now on: plain
        work may have no node, and the job would wait for ever. What others wait for never waits for a
        node: without one for plain work, a job that has some makes it, before its own tasks.
        """
        lost = reads.was_sent(ts) and lane.kind != "free"
        if lost and (lane.job.is_default or lane.guest):
            self._lost[ts.key] = None
        if lane.job.is_default and lane.kind != "free":
            host = self._needing(ts)
            if lost and (host is None or not len(host.reach)):
                host = self._host(lane.job) or host
            if host is not None and host is not lane.job:
                lane = self.state.owner[ts.key] = self._lane(host, lane.kind)
        writes.restrict(ts, lane)
        return lane

    def place_lost(self) -> None:
        """Find a place for results that are to be computed again by a job that has no node now.

        And for what named jobs wait for of plain work, once that has lost its last node, and for what others
        than such a job have submitted, too.
        """
        self._invite_needed()
        if self._pace.due():
            self._place_asked()
            self._place_lost()
            self._place_awaited()
            self._pace.done()

    def _place_lost(self) -> None:
        if not self._lost:
            return
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        stuck = {job for job in self.state.jobs.active.values() if job.held and not len(job.reach)}
        for key in list(self._lost):
            ts, lane = tasks.get(key), owner.get(key)
            if ts is None or lane is None or ts.state not in _NOT_SENT:
                del self._lost[key]
            elif lane.job in stuck:
                host = self._host(lane.job) or self.state.plain[0]
                if host is lane.job:
                    continue
                self.invite([ts], host)

    def _place_asked(self) -> None:
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        jobs = self.state.jobs.active.values() if self._asked else ()
        stuck = {job for job in jobs if job.unfinished and not len(job.reach)}
        waiting = []
        for key in list(self._asked):
            ts, lane = tasks.get(key), owner.get(key)
            if ts is None or lane is None or ts.state not in (*reads.IN_PLAY, "erred"):
                del self._asked[key]
            elif lane.job in stuck:
                waiting.append(ts)
        self._hand_on(waiting)

    def _invite_needed(self) -> None:
        """Let named jobs make what they wait for of plain work, when that has lost its last node.

        What graphs need that come later is invited as they come.
        """
        before, self._unserved = self._unserved, any(map(self.state.unserved, self.state.plain))
        if self._unserved and not before:
            self._invite_for({job for job in self.state.jobs.active.values() if not job.is_default})

    def _place_awaited(self) -> None:
        """Let jobs that stand still make what they wait for of others, which may wait for their nodes."""
        named = self.state.jobs.named
        still = [job for job in named if job.unfinished and not (job.processing or job.held)]
        if any(job.unfinished and not len(job.reach) for job in named):
            self._invite_for({job for job in still if len(job.reach)})

    def _invite_for(self, jobs: Collection[JobRecord]) -> None:
        """Let these jobs make what their tasks wait for."""
        tasks = self.state.scheduler.tasks
        for key, lane in list(self.state.owner.items()) if jobs else ():
            ts = tasks.get(key)
            if ts is not None and ts.waiting_on and lane.job in jobs and not lane.guest:
                self.invite(list(ts.waiting_on), lane.job)

    def _needing(self, ts: TaskState) -> JobRecord | None:
        """The named job that waits for a task of plain work; None when none does."""
        for dependent in ts.dependents:
            lane = self.state.owner.get(dependent.key)
            if lane is not None and not lane.job.is_default and dependent.state in reads.IN_PLAY:
                job: JobRecord = lane.job
                if job.active:
                    return job
        return None

    def _host(self, job: JobRecord) -> JobRecord | None:
        """Who computes again what plain work has lost: the job itself, other plain work, the least loaded."""
        for plain in (job, *self.state.plain):
            if len(plain.allotment):
                return plain
        hosts = [named for named in self.state.jobs.named if len(named.allotment)]
        return min(hosts, key=lambda named: named.unfinished / len(named.allotment), default=None)

    def _lane(self, job: JobRecord, kind: LaneKind) -> Lane:
        """The lane of plain tasks that a job computes."""
        if job.is_default:
            return job.lanes[kind]
        return job.guest_lane("root" if kind == "queue" else kind)
