"""Plain tasks that a named job computes: what it needs itself, and results that plain work has lost.

Plain work may have no node. What a named job needs of it would keep the job waiting for ever, and a result
that somebody waits for was there already, or was being made: neither waits for a node. Such tasks are the
job's guests: placed before its own, not waited for when it ends, and none of its failures.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.internals.allotment import Lane, LaneKind
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: Lost results that are looked at to see whether they are there again.
_LOOKED_AT = 500
#: States of a task that is asked for and on no worker.
_NOT_SENT = ("waiting", "queued", "no-worker")


class Guests:
    """Finds who computes plain tasks that have no node of their own."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Keys of tasks that were on workers before and are to be executed again (some may be done).
        self._lost: dict[Any, None] = {}
        #: Whether plain work had no node when this looked last.
        self._unserved = False

    def invite(self, needed: list[TaskState], job: JobRecord) -> None:
        """Let a job make what is needed of plain work that has no node, and what that depends on."""
        owner = self.state.owner
        queued, unplaced = [], []
        while needed:
            dts = needed.pop()
            lane = owner.get(dts.key)
            if lane is None or lane.kind == "free" or dts.state not in _NOT_SENT:
                continue
            plain = lane.job
            if not plain.is_default and (not lane.guest or len(plain.allotment)):
                continue
            guest = owner[dts.key] = self._lane(job, lane.kind)
            held = dts.state != "waiting"
            plain.unfinished -= 1
            job.unfinished += 1
            plain.guests -= lane.guest
            job.guests += guest.guest
            plain.held -= held
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

        And for what named jobs wait for of plain work, once that has lost its last node.
        """
        self._invite_needed()
        if not self._lost:
            return
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        stuck = {job for job in self.state.jobs.active.values() if job.held and not len(job.reach)}
        for key in list(self._lost if stuck else islice(self._lost, _LOOKED_AT)):
            ts, lane = tasks.get(key), owner.get(key)
            if ts is None or lane is None or ts.state not in _NOT_SENT:
                del self._lost[key]
            elif lane.job in stuck:
                host = self._host(lane.job) or self.state.plain[0]
                if host is lane.job:
                    continue
                self.invite([ts], host)

    def _invite_needed(self) -> None:
        """Let named jobs make what they wait for of plain work, when that has lost its last node.

        What graphs need that come later is invited as they come.
        """
        before, self._unserved = self._unserved, any(map(self.state.unserved, self.state.plain))
        if before or not self._unserved:
            return
        tasks = self.state.scheduler.tasks
        for key, lane in list(self.state.owner.items()):
            ts = tasks.get(key)
            if ts is not None and ts.waiting_on and not (lane.job.is_default or lane.guest):
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
