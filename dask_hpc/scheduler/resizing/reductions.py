"""Reductions: nodes are taken out of an allotment, drained until a deadline, and freed or taken back."""

from __future__ import annotations

from collections.abc import Callable

from dask_hpc.scheduler.internals import crowds
from dask_hpc.scheduler.resizing.drain import Drain
from dask_hpc.scheduler.resizing.outcomes import Outcomes
from dask_hpc.scheduler.resizing.round import Reduction, Round
from dask_hpc.scheduler.resizing.rules import easiest
from dask_hpc.scheduler.resizing.windows import Windows
from dask_hpc.scheduler.tables.events import AllotmentsChanged, Event
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Reason, ReasonCode, Shrink, Steal
from dask_hpc_policies.wording import counted


class Reductions:
    """Begins, watches and ends the reductions of rounds.

    Parameters
    ----------
    poll
        Looks at all rounds again.
    """

    def __init__(
        self,
        state: State,
        parts: Parts,
        drain: Drain,
        windows: Windows,
        outcomes: Outcomes,
        handle: Callable[[Event], None],
        poll: Callable[[], None],
    ) -> None:
        self._state = state
        self._parts = parts
        self._drain = drain
        self._windows = windows
        self._outcomes = outcomes
        self._handle = handle
        self._poll = poll

    def choose(self, nodes: list[Node], count: int) -> list[Node]:
        """The nodes whose giving up costs least."""
        return easiest(nodes, count, self._parts.cost)

    def begin(
        self,
        round: Round,
        job: JobRecord | None,
        action: Shrink | Steal,
        leaving: list[Node],
        id: int | None = None,
    ) -> Reduction:
        """Take nodes out of a job's allotment (None: plain work's), after its window if it has one.

        `id` is that of the reconfiguration; None: a new one.
        """
        id = self._outcomes.new_id() if id is None else id
        reduction = Reduction(id, job, action, leaving, self._state.now_s())
        round.reductions.append(reduction)
        if job is not None and job.reach is self._state.common:
            reduction.others = job.reach
        if job is not None:
            job.reconfig_id = reduction.id
            job.step("adapt")
        if job is not None and self._windows.cooperates(job):

            def done(committed: bool, why: Reason) -> None:
                self._window_ended(round, reduction, committed, why)

            names = [node.id for node in leaving]
            reduction.window = self._windows.open(job, reduction.id, leaving=names, done=done)
            return reduction
        self._state.reserve(leaving, reduction.id)
        return reduction

    def hand_over(self, round: Round, need: int) -> None:
        """Spare the drain of nodes that all go to jobs which use them together with their holders.

        `need` is the number of nodes that the round's growths take.
        """
        common, jobs = self._state.common, self._state.jobs.active
        round.together = all(jobs[action.job].reach is common for action, _ in round.grows)
        if need < sum(len(reduction.leaving) for reduction in round.reductions):
            return
        for reduction in round.reductions:
            reduction.together = round.together and reduction.others is common

    def _window_ended(self, round: Round, reduction: Reduction, committed: bool, why: Reason) -> None:
        """The job has laid its state out without the leaving nodes, or has not: go on, or back."""
        if not reduction.active:
            return
        reduction.window = None
        if not committed:
            self.abort(round, reduction, why)
        else:
            reduction.began_s = self._state.now_s()
            self._state.reserve(reduction.leaving, reduction.id)
        self._poll()

    def from_plain(self, round: Round, need: int) -> None:
        """Set aside what the round needs beyond its reductions: nodes that serve plain work.

        `need` is the number of nodes that its growths take.
        """
        state = self._state
        need -= sum(len(reduction.leaving) for reduction in round.reductions)
        if need <= 0:
            return
        free, jobs = state.nodes.free(), state.jobs.active.values()
        leaving = easiest(free, need, self._cost_for_job)
        others = None if round.together else state.common
        silent = not state.plain_busy() and not any(job.unfinished for job in jobs if job.reach is others)
        # plain work has the use of them as before, until their new holders have something to do
        now_s, patience_s = state.now_s(), state.settings.lend_s
        growing = [state.jobs.active[action.job] for action, _ in round.grows]
        rests = round.together and all(job.quiet_for(patience_s, now_s) for job in growing)
        if (silent or rests) and not round.reductions:
            # nobody has to leave them and nothing is waited for: they change hands in this very call
            round.ready.extend(leaving)
            return
        takers = ", ".join(action.job for action, _ in round.grows)
        text = f"{len(leaving)} of the {counted(len(free))} of plain work for {takers}"
        action = Shrink(
            job=state.plain[0].id,
            nodes=len(free) - len(leaving),
            reason=Reason(ReasonCode.POOL_SHARED, text, {"nodes": len(leaving)}),
        )
        reduction = self.begin(round, None, action, leaving)
        reduction.silent, reduction.others = silent, others

    def _cost_for_job(self, node: Node) -> tuple[float, ...]:
        """Paused ones come last: they have no tasks to wait for, and execute none for whoever gets them."""
        return (not crowds.any_running(self._state.scheduler, node.workers), *self._parts.cost(node))

    def promise(self, round: Round) -> None:
        """Have threads that are idle on nodes that are drained for jobs be of use to whom need not leave."""
        state = self._state
        takers = {action.job for action, _ in round.grows}
        if any(job.id in takers for job in state.plain):
            takers.update(job.id for job in state.plain)
        for reduction in round.reductions if takers else ():
            reduction.takers = takers
            for node in reduction.leaving:
                node.leaves = reduction.concerns

    def _commit(self, round: Round, reduction: Reduction) -> None:
        reduction.step("drained", "moved", "commit")
        state = self._state
        state.give([node for node in reduction.leaving if node.up], None, reduction.id)
        state.give([node for node in reduction.leaving if not node.up], None)
        round.ready += reduction.leaving
        job = reduction.job
        if job is not None and job.active:
            job.reconfig_id = 0
            if isinstance(reduction.action, Steal):
                # those that were lost are not its own any more either
                state.give(state.nodes_of(job), None)
                job.interrupted(state.now_s())
            else:
                job.step("adapted")
                job.shrinks += 1
            job.meter.resized(state.now_s())
            job.reason = reduction.action.reason.text
            state.note_job(job)
        if not reduction.silent:
            self._outcomes.end(round, reduction.action, reduction.id, "done", reduction.why)

    def look(self, round: Round) -> None:
        """Commit the reductions whose nodes are quiet, take back those whose time is up."""
        now_s = self._state.now_s()
        deadline_s = self._state.settings.shrink_deadline_s if round.limit_s is None else round.limit_s
        for reduction in round.reductions:
            if not reduction.active or reduction.window is not None:
                continue
            nodes = [] if reduction.together else reduction.leaving
            busy = [what for node in nodes for what in self._drain.busy(reduction, node)]
            # between two steps it only looks idle, and what belongs on it is still to come
            busy += [f"state of {node.job}" for node in nodes if self._windows.will_leave(node)]
            if not busy:
                self._commit(round, reduction)
                continue
            text = f"{len(busy)} tasks or shuffles (first: {busy[0]!r})"
            if now_s - reduction.began_s < deadline_s:
                self._tell(reduction, text)
                continue
            after = "it has to go" if round.limit_s is not None else "intake has resumed"
            text += f" had not ended after {deadline_s:g} s (hpc.shrink-deadline); {after}"
            self.abort(round, reduction, Reason(ReasonCode.DEADLINE, text, {"busy": len(busy)}))

    def _tell(self, reduction: Reduction, busy: str) -> None:
        """Say what jobs wait for that get the nodes and have none yet."""
        for id in reduction.takers:
            job = self._state.jobs.active.get(id)
            if job is not None and job.state == "pending":
                job.reason = f"waits until {busy} have ended on nodes that it gets"

    def abort(self, round: Round, reduction: Reduction, why: Reason) -> None:
        """Take a reduction back: intake of its nodes resumes, unless they leave in any case."""
        reduction.step("timeout", "restored")
        round.why = why
        state = self._state
        # a task that was sent there now would be cut short and run again
        leaves = round.limit_s is not None and why.code is ReasonCode.DEADLINE
        # what was taken back because the nodes are wanted may be tried again as soon as they are not; where
        # one was lost meanwhile, nothing is known to stand in the way
        at_once = why.code in (ReasonCode.USER_REQUEST, ReasonCode.NODES_GONE)
        again_s = state.now_s() + (0.0 if at_once else state.settings.shrink_deadline_s)
        job = reduction.job if reduction.job is None or reduction.job.active else None
        state.give(reduction.leaving, job, reduction.id if leaves else 0)
        if job is not None:
            job.reconfig_id = 0
            job.step("adapted")
            job.no_shrink_before_s = again_s
            state.note_job(job)
            self._handle(AllotmentsChanged((job,)))
        else:
            if not leaves:  # else it says nothing of those that stay
                state.no_plain_shrink_before_s = again_s
            self._handle(AllotmentsChanged(tuple(state.plain)))
        self._outcomes.end(round, reduction.action, reduction.id, "aborted", why)
