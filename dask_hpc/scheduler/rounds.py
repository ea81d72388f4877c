"""Rounds: carry a decision out, reductions first.

The actions of one decision form a round. Its reductions run together: each takes nodes out of a job's
allotment and drains them, until a deadline; then it is taken back as a whole. Expansions and starts
begin when every reduction of the round has ended, and hand out whole nodes. For task graphs a task
boundary is the safe point, so an expansion needs no window.

Nothing that executes is ever interrupted or sent elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from dask_hpc.scheduler.choosing import easiest
from dask_hpc.scheduler.drain import Drain, Reduction
from dask_hpc.scheduler.jobs import JobRecord
from dask_hpc.scheduler.nodes import Node
from dask_hpc.scheduler.refusals import refusal
from dask_hpc.scheduler.state import State
from dask_hpc.scheduler.windows import Windows
from dask_hpc_policies.decision import (
    Action,
    Expand,
    Outcome,
    Reason,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    Shrink,
    Start,
    Steal,
)
from dask_hpc_policies.model import Trigger
from dask_hpc_policies.wording import counted

#: Outcomes remembered for those who ask after the end.
_KEPT = 100
#: Called with the nodes that were drained for it and, when there are none, why.
Taker = Callable[[list[Node], Reason], None]


class Round:
    """The actions of one decision that change allotments."""

    def __init__(self, began_s: float, trigger: Trigger) -> None:
        self.began_s = began_s
        self.trigger: Trigger = trigger
        self.reductions: list[Reduction] = []
        #: Expansions and starts with their reconfiguration ids.
        self.grows: list[tuple[Start | Expand, int]] = []
        #: Nodes set aside for them.
        self.ready: list[Node] = []
        #: Gets the nodes when they are drained, in place of jobs; none when they could not be.
        self.taker: Taker | None = None
        #: How long its nodes may take to fall quiet; None: ``hpc.shrink-deadline``.
        self.limit_s: float | None = None
        self.why = Reason(ReasonCode.DONE, "carried out")


class Rounds:
    """All rounds under way on one scheduler."""

    def __init__(
        self,
        state: State,
        *,
        report: Callable[[Outcome, Trigger], None],
        changed: Callable[..., None],
        ended: Callable[[], None],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.state = state
        self.drain = Drain(state)
        self.windows = Windows(state, self._new_id, tell)
        #: Has the pool follow an action, or refuses it.
        self.pool: Callable[[RequestNodes | ReleaseNodes], Outcome]
        self._report = report
        self._changed = changed
        self._ended = ended
        self._rounds: list[Round] = []
        self._next_id = 1
        self._waiters: dict[int, asyncio.Future[Outcome]] = {}
        self._outcomes: dict[int, Outcome] = {}

    @property
    def active(self) -> bool:
        """Whether any round or window is under way."""
        return bool(self._rounds) or self.windows.active

    @property
    def watching(self) -> bool:
        """Whether `poll` has anything to look at. Runs in every pass of admission."""
        return bool(self._rounds or self.windows.producers)

    # ---------------------------------------------------------------- begin

    def begin(
        self, actions: Sequence[Action], trigger: Trigger, on_accept: Callable[[Action], None]
    ) -> tuple[list[tuple[Action, int]], list[Outcome]]:
        """Start carrying out `actions`.

        Everything that cannot be done is refused with a reason, at once and without effect.
        `on_accept` is called for each accepted action before any of them has ended.

        Returns
        -------
        accepted
            Actions with their reconfiguration ids (`outcome` waits for one).
        ended
            Outcomes of the others: refused, or about the pool, which follows in its own time.
        """
        state = self.state
        round = Round(state.now_s(), trigger)
        accepted: list[tuple[Action, int]] = []
        ended: list[Outcome] = []
        supply = self._supply()
        for action in actions:
            if not isinstance(action, (Shrink, Steal)):
                continue
            why = self._refusal(action)
            if why is not None:
                ended.append(Outcome(action=action, result="refused", reason=why))
                continue
            job = state.jobs.active[action.job]
            left = action.nodes if isinstance(action, Shrink) else 0
            leaving = self.choose(state.nodes_of(job), state.nodes_up(job) - left)
            supply += len(leaving)
            accepted.append((action, self._reduce(round, job, action, leaving).id))
        for action in actions:
            if isinstance(action, (Start, Expand)):
                why = self._refusal(action) or self._short(action, supply)
            elif isinstance(action, (RequestNodes, ReleaseNodes)):
                ended.append(self.pool(action))
                continue
            else:
                continue
            if why is not None:
                ended.append(Outcome(action=action, result="refused", reason=why))
                continue
            supply -= self._need(action)
            accepted.append((action, self._promise(round, action)))
        for action, _ in accepted:
            on_accept(action)
        for outcome in ended:
            self._report(outcome, trigger)
        if accepted:
            self._reserve_plain(round)
            self._rounds.append(round)
            self.poll()
        return accepted, ended

    def withdraw(
        self, nodes: list[Node], reason: Reason, taker: Taker, limit_s: float | None = None
    ) -> Reason | None:
        """Drain nodes that are to leave the pool, all of one job or all of plain work.

        `taker` gets them, reserved, when nothing is left on them but data; or none, and why. Returns why
        the job cannot give them up, when it cannot; then nothing has been done. With `limit_s` the nodes
        leave in any case, at the latest after so many seconds: then no job is asked.
        """
        state = self.state
        round = Round(state.now_s(), "request")
        round.limit_s = limit_s
        holder = nodes[0].job
        job = state.jobs.active.get(holder) if holder is not None and limit_s is None else None
        if job is not None:
            action = Shrink(job=job.id, nodes=state.nodes_up(job) - len(nodes), reason=reason)
            why = self._refusal(action)
            if why is not None:
                return why
        else:
            left = len(state.nodes.free()) - len(nodes)
            action = Shrink(job=state.plain[0].id, nodes=left, reason=reason)
        round.taker = taker
        self._reduce(round, job, action, nodes).for_good = True
        self._rounds.append(round)
        self.poll()
        return None

    def take_back(self, nodes: list[Node], why: Reason) -> bool:
        """Stop draining nodes that were to leave the pool; False when they are not, or no longer, drained."""
        for round in self._rounds:
            for reduction in round.reductions if round.taker is not None else ():
                if reduction.leaving == nodes and reduction.active and reduction.window is None:
                    self._abort(round, reduction, why)
                    self.poll()
                    return True
        return False

    def target(self, job: JobRecord) -> int | None:
        """Nodes that the job will have when what is under way is done; None when nothing is."""
        for round in self._rounds:
            for action in (*(one.action for one in round.reductions), *(grow for grow, _ in round.grows)):
                if action.job == job.id:
                    return 0 if isinstance(action, Steal) else action.nodes
        return None

    def ended(self, id: int) -> bool:
        """Whether the outcome of a reconfiguration is known."""
        return id in self._outcomes

    async def outcome(self, id: int) -> Outcome:
        """The outcome of a reconfiguration, when it is known."""
        if id in self._outcomes:
            return self._outcomes[id]
        future = self._waiters.get(id)
        if future is None:
            future = self._waiters[id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)

    def _new_id(self) -> int:
        id, self._next_id = self._next_id, self._next_id + 1
        return id

    def _refusal(self, action: Start | Expand | Shrink | Steal) -> Reason | None:
        job = self.state.jobs.active.get(action.job)
        veto = None if job is None else self.windows.veto(job, interrupt=isinstance(action, Steal))
        return veto or refusal(self.state, action, self.active)

    def _need(self, action: Start | Expand) -> int:
        job = self.state.jobs.active[action.job]
        return 0 if job.is_default else max(0, action.nodes - self.state.nodes_up(job))

    def _supply(self) -> int:
        """Nodes that can be handed out; only quiet ones for a while after plain work was not drained."""
        state = self.state
        if state.now_s() >= state.no_plain_shrink_before_s:
            return state.idle_nodes()
        workers = state.scheduler.workers
        quiet = sum(not any(workers[a].processing for a in node.workers) for node in state.nodes.free())
        return min(quiet, state.idle_nodes())

    def _short(self, action: Start | Expand, supply: int) -> Reason | None:
        need = self._need(action)
        if need <= supply:
            return None
        return Reason(ReasonCode.NOT_ENOUGH_NODES, f"it needs {counted(need)} more, free are {supply}")

    def _promise(self, round: Round, action: Start | Expand) -> int:
        id = self._new_id()
        round.grows.append((action, id))
        job = self.state.jobs.active[action.job]
        job.reconfig_id = id
        if isinstance(action, Expand):
            job.step("adapt")
        return id

    def choose(self, nodes: list[Node], count: int) -> list[Node]:
        """The nodes that are given up most easily: no state, no shuffle, no actor, little work and data."""
        return easiest(self.state.scheduler, nodes, count, self.windows.is_member)

    def _reduce(
        self, round: Round, job: JobRecord | None, action: Shrink | Steal, leaving: list[Node]
    ) -> Reduction:
        reduction = Reduction(self._new_id(), job, action, leaving, round.began_s)
        round.reductions.append(reduction)
        if job is not None:
            job.reconfig_id = reduction.id
            job.step("adapt")
        if job is not None and self.windows.cooperates(job):

            def done(committed: bool, why: Reason) -> None:
                self._asked(round, reduction, committed, why)

            names = [node.id for node in leaving]
            reduction.window = self.windows.open(job, reduction.id, leaving=names, done=done)
            return reduction
        self.state.reserve(leaving, reduction.id)
        return reduction

    def _asked(self, round: Round, reduction: Reduction, committed: bool, why: Reason) -> None:
        """The job has laid its state out without the leaving nodes, or has not: go on, or back."""
        if not reduction.active:
            return
        reduction.window = None
        if not committed:
            self._abort(round, reduction, why)
        else:
            reduction.began_s = self.state.now_s()
            self.state.reserve(reduction.leaving, reduction.id)
        self.poll()

    def _reserve_plain(self, round: Round) -> None:
        """Set aside what the round needs beyond its reductions: nodes that serve plain work."""
        state = self.state
        need = sum(self._need(action) for action, _ in round.grows)
        need -= sum(len(reduction.leaving) for reduction in round.reductions)
        if need <= 0:
            return
        free = state.nodes.free()
        leaving = self.choose(free, need)
        silent = not state.plain_busy()
        if silent and not round.reductions:
            # nobody uses them and nothing is waited for: they change hands in this very call
            round.ready.extend(leaving)
            return
        takers = ", ".join(action.job for action, _ in round.grows)
        text = f"{len(leaving)} of the {counted(len(free))} of plain work for {takers}"
        action = Shrink(
            job=state.plain[0].id,
            nodes=len(free) - len(leaving),
            reason=Reason(ReasonCode.POOL_SHARED, text, {"nodes": len(leaving)}),
        )
        self._reduce(round, None, action, leaving).silent = silent

    # ----------------------------------------------------------------- work

    def poll(self) -> None:
        """Look at every reduction: are its nodes quiet, or its time up? Then at every round."""
        self.windows.poll()
        now_s = self.state.now_s()
        for round in list(self._rounds):
            deadline_s = self.state.settings.shrink_deadline_s if round.limit_s is None else round.limit_s
            for reduction in round.reductions:
                if not reduction.active or reduction.window is not None:
                    continue
                busy = [what for node in reduction.leaving for what in self.drain.busy(reduction, node)]
                if not busy:
                    self._commit(round, reduction)
                elif now_s - reduction.began_s >= deadline_s:
                    text = (
                        f"{len(busy)} tasks or shuffles (first: {busy[0]!r}) had not ended after "
                        f"{deadline_s:g} s (hpc.shrink-deadline); intake has resumed"
                    )
                    self._abort(round, reduction, Reason(ReasonCode.DEADLINE, text, {"busy": len(busy)}))
            if round in self._rounds and not any(r.active for r in round.reductions):
                self._rounds.remove(round)
                self._grow(round)

    def lost(self, address: str) -> None:
        """A worker has gone."""
        self.drain.lost(address)
        self.poll()

    def _commit(self, round: Round, reduction: Reduction) -> None:
        reduction.step("drained", "moved", "commit")
        state = self.state
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
            self._end(round, reduction.action, reduction.id, "done", Reason(ReasonCode.DONE, "carried out"))

    def _abort(self, round: Round, reduction: Reduction, why: Reason) -> None:
        reduction.step("timeout", "restored")
        round.why = why
        state = self.state
        # what was taken back because the nodes are wanted may be tried again as soon as they are not
        wanted = why.code is ReasonCode.USER_REQUEST
        again_s = state.now_s() + (0.0 if wanted else state.settings.shrink_deadline_s)
        job = reduction.job if reduction.job is None or reduction.job.active else None
        state.give(reduction.leaving, job)
        if job is not None:
            job.reconfig_id = 0
            job.step("adapted")
            job.no_shrink_before_s = again_s
            state.note_job(job)
            self._changed(job)
        else:
            state.no_plain_shrink_before_s = again_s
            self._changed(*state.plain)
        self._end(round, reduction.action, reduction.id, "aborted", why)

    def _grow(self, round: Round) -> None:
        """Begin the expansions and starts of a round whose reductions have ended."""
        state = self.state
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
                self._end(round, action, id, "refused", why)
                continue
            need = self._need(action)
            if need > len(ready):
                self._release(job, action)
                text = f"it needs {counted(need)} more, {len(ready)} could be freed"
                self._end(round, action, id, "refused", Reason(ReasonCode.NODES_GONE, text))
                continue
            given, ready = ready[:need], ready[need:]
            done = True
            if self.windows.cooperates(job) and not self.windows.all_lost(job):
                self._invite(round, action, job, id, given)
                continue
            self._release(job, action)
            state.give(given, job)
            self._grown(job, action, now_s)
            self._end(round, action, id, "done", Reason(ReasonCode.DONE, "carried out"))
        state.give(ready, None)
        self._changed(*state.plain)
        if done and any(job.state == "pending" for job in state.jobs.active.values()):
            # what could not be decided for those that were reconfiguring can be now
            self._ended()

    def _invite(
        self, round: Round, action: Start | Expand, job: JobRecord, id: int, given: list[Node]
    ) -> None:
        """Let nodes join a job that keeps state: they are its own when its window is committed."""
        state = self.state
        state.give(given, job, id)

        def done(committed: bool, why: Reason) -> None:
            committed = committed and job.active
            state.give([node for node in given if committed and node.up], job)
            state.give([node for node in given if not (committed and node.up)], None)
            if job.active:
                self._release(job, action)
            if committed:
                self._grown(job, action, state.now_s())
            else:
                job.no_grow_before_s = state.now_s() + state.settings.shrink_deadline_s
                state.note_job(job)
                self._changed(job, *state.plain)
            self._end(round, action, id, "done" if committed else "aborted", why)
            self._ended()

        self.windows.open(job, id, joining=[node.id for node in given], done=done)

    def _release(self, job: JobRecord, action: Start | Expand) -> None:
        job.reconfig_id = 0
        if isinstance(action, Expand):
            job.step("adapted")

    def _grown(self, job: JobRecord, action: Start | Expand, now_s: float) -> None:
        state = self.state
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
        self._changed(job)

    # ------------------------------------------------------------- endings

    def leave(self, job: JobRecord) -> None:
        """A job has ended: its reduction or window, if any, has nothing to wait for any more."""
        self.windows.forget(job)
        job.reconfig_id = 0
        self.poll()

    def abandon(self, text: str) -> None:
        """Take every round back at once (the runtime is leaving)."""
        why = Reason(ReasonCode.ABORTED, text)
        self.windows.abandon(text)
        rounds, self._rounds = self._rounds, []
        for round in rounds:
            for reduction in round.reductions:
                if reduction.active:
                    self._abort(round, reduction, why)
            self.state.give(round.ready, None)
            if round.taker is not None:
                round.taker([], why)
            for action, id in round.grows:
                job = self.state.jobs.active.get(action.job)
                if job is not None and job.reconfig_id == id:
                    self._release(job, action)
                self._end(round, action, id, "aborted", why)

    def _end(self, round: Round, action: Action, id: int, result: str, why: Reason) -> None:
        latency_s = self.state.now_s() - round.began_s
        outcome = Outcome(action=action, result=result, reason=why, reconfig_id=id, latency_s=latency_s)
        self._report(outcome, round.trigger)
        self._outcomes[id] = outcome
        if len(self._outcomes) > _KEPT:
            del self._outcomes[next(iter(self._outcomes))]
        future: Any = self._waiters.pop(id, None)
        if future is not None and not future.done():
            future.set_result(outcome)
