"""Starts and expansions: whole nodes are handed out, at once or through the job's window."""

from __future__ import annotations

from collections.abc import Callable

from dask_hpc.scheduler.resizing.outcomes import Outcomes
from dask_hpc.scheduler.resizing.round import Round
from dask_hpc.scheduler.resizing.windows import Windows
from dask_hpc.scheduler.tables.events import AllotmentsChanged, Event, RoundEnded
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Start
from dask_hpc_policies.wording import counted


class Growths:
    """Promises nodes to starts and expansions, and hands them out when the round's reductions have ended."""

    def __init__(
        self,
        state: State,
        parts: Parts,
        windows: Windows,
        outcomes: Outcomes,
        handle: Callable[[Event], None],
    ) -> None:
        self._state = state
        self._parts = parts
        self._windows = windows
        self._outcomes = outcomes
        self._handle = handle

    def need(self, action: Start | Expand) -> int:
        """Nodes that the action adds to what its job has."""
        job = self._state.jobs.active[action.job]
        return 0 if job.is_default else max(0, action.nodes - self._state.nodes_up(job))

    def promise(self, round: Round, action: Start | Expand) -> int:
        """Take an action into a round; returns its reconfiguration id."""
        id = self._outcomes.new_id()
        round.grows.append((action, id))
        job = self._state.jobs.active[action.job]
        job.reconfig_id = id
        if isinstance(action, Expand):
            job.step("adapt")
        return id

    def begin(self, round: Round) -> None:
        """Begin the expansions and starts of a round whose reductions have ended."""
        state = self._state
        if round.taker is not None:
            round.taker(round.ready, round.why)
            return
        # what begins together begins at one moment: a policy must not tell it apart by microseconds
        now_s = state.now_s()
        ready = [node for node in round.ready if node.up]
        state.give([node for node in round.ready if not node.up], None)
        done = not round.grows
        for action, id in round.grows:
            job = state.jobs.active.get(action.job)
            if job is None or job.reconfig_id != id:
                why = Reason(ReasonCode.UNKNOWN_JOB, f"{action.job} has ended")
                self._outcomes.end(round, action, id, "refused", why)
                continue
            need = self.need(action)
            if need > len(ready):
                self.release(job, action)
                text = f"it needs {counted(need)} more, {len(ready)} could be freed"
                self._outcomes.end(round, action, id, "refused", Reason(ReasonCode.NODES_GONE, text))
                continue
            ranked, suited = self._parts.rank(job, ready)
            given, ready = list(ranked[:need]), list(ranked[need:])
            done = True
            if self._windows.cooperates(job) and not self._windows.all_lost(job):
                self._invite(round, action, job, id, given)
                continue
            self.release(job, action)
            state.give(given, job)
            self._grown(job, action, now_s)
            self._outcomes.end(round, action, id, "done", suited or Reason(ReasonCode.DONE, "carried out"))
        state.give(ready, None)
        self._handle(AllotmentsChanged(tuple(state.plain)))
        if done and any(job.state == "pending" for job in state.jobs.active.values()):
            # what could not be decided for those that were reconfiguring can be now
            self._handle(RoundEnded())

    def _invite(
        self, round: Round, action: Start | Expand, job: JobRecord, id: int, given: list[Node]
    ) -> None:
        """Let nodes join a job that keeps state: they are its own when its window is committed."""
        state = self._state
        state.give(given, job, id)

        def done(committed: bool, why: Reason) -> None:
            committed = committed and job.active
            state.give([node for node in given if committed and node.up], job)
            state.give([node for node in given if not (committed and node.up)], None)
            if job.active:
                self.release(job, action)
            if committed:
                self._grown(job, action, state.now_s())
            else:
                if why.code is not ReasonCode.NODES_GONE:
                    job.no_grow_before_s = state.now_s() + state.settings.shrink_deadline_s
                state.note_job(job)
                self._handle(AllotmentsChanged((job, *state.plain)))
            self._outcomes.end(round, action, id, "done" if committed else "aborted", why)
            self._handle(RoundEnded())

        self._windows.open(job, id, joining=[node.id for node in given], done=done)

    def release(self, job: JobRecord, action: Start | Expand) -> None:
        """Let the job be decided about again."""
        job.reconfig_id = 0
        if isinstance(action, Expand):
            job.step("adapted")

    def _grown(self, job: JobRecord, action: Start | Expand, now_s: float) -> None:
        state = self._state
        job.reason = action.reason.text
        if job in state.plain:
            pass  # it has run all the time, without a node
        elif isinstance(action, Start):
            job.started(now_s)
            if job.is_default:
                state.start_plain(job)
        else:
            job.expansions += 1
            job.meter.resized(now_s)
        state.note_job(job)
        self._handle(AllotmentsChanged((job,)))
