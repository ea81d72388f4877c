"""Rounds: carry a decision out, reductions first.

The actions of one decision form a round. Its reductions run together: each takes nodes out of a job's
allotment and drains them, until a deadline; then it is taken back as a whole. Expansions and starts
begin when every reduction of the round has ended, and hand out whole nodes. For task graphs a task
boundary is the safe point, so an expansion needs no window.

Nothing that executes is ever interrupted or sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from dask_hpc.scheduler.internals import crowds
from dask_hpc.scheduler.resizing.drain import Drain
from dask_hpc.scheduler.resizing.growths import Growths
from dask_hpc.scheduler.resizing.outcomes import Outcomes
from dask_hpc.scheduler.resizing.reductions import Reductions
from dask_hpc.scheduler.resizing.round import Round, Taker
from dask_hpc.scheduler.resizing.rules import refusal
from dask_hpc.scheduler.resizing.thefts import Theft, Thefts
from dask_hpc.scheduler.resizing.windows import Windows
from dask_hpc.scheduler.tables.events import ActionEnded, Event
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import (
    Action,
    Expand,
    Outcome,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Steal,
)
from dask_hpc_policies.model import Trigger
from dask_hpc_policies.wording import counted


class Rounds:
    """All rounds under way on one scheduler."""

    def __init__(self, state: State, parts: Parts, handle: Callable[[Event], None]) -> None:
        self.state = state
        self._parts = parts
        self.drain = Drain(state)
        self.outcomes = Outcomes(state, handle)
        self.windows = Windows(state, self.outcomes.new_id, handle)
        self.growths = Growths(state, parts, self.windows, self.outcomes, handle)
        self.reductions = Reductions(state, parts, self.drain, self.windows, self.outcomes, handle, self.poll)
        self.thefts = Thefts(state, parts, self.outcomes, handle, self._refusal, self._rob)
        self._handle = handle
        self._rounds: list[Round] = []

    @property
    def active(self) -> bool:
        """Whether any round or window is under way."""
        return bool(self._rounds) or self.windows.active

    @property
    def watching(self) -> bool:
        """Whether `poll` has anything to look at. Runs in every pass of admission."""
        return any(self.watched)

    @property
    def watched(self) -> tuple[Collection[Any], ...]:
        """What `poll` looks at: always these very objects."""
        return self._rounds, self.windows.producers

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
            Actions with their reconfiguration ids (`Outcomes.wait` waits for one).
        ended
            Outcomes of those that are refused.
        """
        state = self.state
        round = Round(state.now_s(), trigger)
        accepted: list[tuple[Action, int]] = []
        ended: list[Outcome] = []
        supply = self._supply()
        for action in actions:
            if not isinstance(action, (Shrink, Steal)):
                continue
            why = self._refusal(action) or self.thefts.refusal(action)
            if why is not None:
                ended.append(Outcome(action=action, result="refused", reason=why))
                continue
            if isinstance(action, Steal) and action.timing != "now":
                accepted.append((action, self.thefts.wait(action, trigger)))
                continue
            job = state.jobs.active[action.job]
            left = action.nodes if isinstance(action, Shrink) else 0
            leaving = self.reductions.choose(state.nodes_of(job), state.nodes_up(job) - left)
            supply += len(leaving)
            accepted.append((action, self.reductions.begin(round, job, action, leaving).id))
        for action in actions:
            if isinstance(action, (Start, Expand)):
                why = self._refusal(action) or self._short(action, supply)
            else:
                continue
            if why is not None:
                ended.append(Outcome(action=action, result="refused", reason=why))
                continue
            supply -= self.growths.need(action)
            accepted.append((action, self.growths.promise(round, action)))
        for action, _ in accepted:
            on_accept(action)
        for outcome in ended:
            self._handle(ActionEnded(outcome, trigger))
        if round.reductions or round.grows:
            need = sum(self.growths.need(action) for action, _ in round.grows)
            self.reductions.hand_over(round, need)
            self.reductions.from_plain(round, need)
            self.reductions.promise(round)
            self._rounds.append(round)
            self.poll()
        self.thefts.look()
        return accepted, ended

    def _rob(self, theft: Theft, why: str) -> None:
        """Interrupt the victim of a theft that has waited."""
        action, round = theft.action, theft.round
        job = self.state.jobs.active[action.job]
        leaving = [node for node in self.state.nodes_of(job) if node.up]
        self.reductions.begin(round, job, action, leaving, theft.id).why = Reason(ReasonCode.DONE, why)
        self._rounds.append(round)
        self.poll()

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
            left = max(0, len(state.nodes.free()) - len(nodes))
            action = Shrink(job=state.plain[0].id, nodes=left, reason=reason)
        round.taker = taker
        self.reductions.begin(round, job, action, nodes).for_good = True
        self._rounds.append(round)
        self.poll()
        return None

    def take_back(self, nodes: list[Node], why: Reason) -> bool:
        """Stop draining nodes that were to leave the pool; False when they are not, or no longer, drained."""
        for round in self._rounds:
            for reduction in round.reductions if round.taker is not None else ():
                if reduction.leaving == nodes and reduction.active and reduction.window is None:
                    self.reductions.abort(round, reduction, why)
                    self.poll()
                    return True
        return False

    def hurry(self, nodes: list[Node], within_s: float) -> None:
        """Have nodes that leave in any case (`withdraw`) drained for at most `within_s` seconds from now."""
        for round in self._rounds:
            if round.limit_s is None:
                continue
            for reduction in round.reductions:
                if reduction.leaving == nodes:
                    round.limit_s = self.state.now_s() - reduction.began_s + within_s
        self.poll()

    def target(self, job: JobRecord) -> int | None:
        """Nodes that the job will have when what is under way is done; None when nothing is."""
        for round in self._rounds:
            for action in (*(one.action for one in round.reductions), *(grow for grow, _ in round.grows)):
                if action.job == job.id:
                    return 0 if isinstance(action, Steal) else action.nodes
        return None

    def _refusal(self, action: Start | Expand | Shrink | Steal) -> Reason | None:
        job = self.state.jobs.active.get(action.job)
        veto = None if job is None else self._parts.veto(job, action)
        return veto or refusal(self.state, action, self.active)

    def _supply(self) -> int:
        """Nodes that can be handed out; only quiet ones for a while after plain work was not drained."""
        state = self.state
        if state.now_s() >= state.no_plain_shrink_before_s:
            return state.idle_nodes()
        workers = state.scheduler.workers
        # those that are paused are handed out last: others would be drained for them
        quiet = [
            node
            for node in state.nodes.free()
            if not any(workers[address].processing for address in node.workers)
            and crowds.any_running(state.scheduler, node.workers)
        ]
        return min(len(quiet), state.idle_nodes())

    def _short(self, action: Start | Expand, supply: int) -> Reason | None:
        need = self.growths.need(action)
        if need <= supply:
            return None
        return Reason(ReasonCode.NOT_ENOUGH_NODES, f"it needs {counted(need)} more, free are {supply}")

    # ----------------------------------------------------------------- work

    def poll(self) -> None:
        """Look at every window, every reduction, and then at every round: is it time for its growths?"""
        self.windows.poll()
        for round in list(self._rounds):
            self.reductions.look(round)
            if round in self._rounds and not any(r.active for r in round.reductions):
                self._rounds.remove(round)
                self.growths.begin(round)

    def lost(self, address: str) -> None:
        """A worker has gone."""
        self.drain.lost(address)
        self.poll()

    # ------------------------------------------------------------- endings

    def leave(self, job: JobRecord) -> None:
        """A job has ended: its reduction or window, if any, has nothing to wait for any more."""
        self.windows.forget(job)
        job.reconfig_id = 0
        self.thefts.look()
        self.poll()

    def abandon(self, text: str) -> None:
        """Take every round back at once (the runtime is leaving)."""
        why = Reason(ReasonCode.ABORTED, text)
        self.windows.abandon(text)
        self.thefts.abandon(text)
        rounds = self._rounds.copy()
        self._rounds.clear()
        for round in rounds:
            for reduction in round.reductions:
                if reduction.active:
                    self.reductions.abort(round, reduction, why)
            self.state.give(round.ready, None)
            if round.taker is not None:
                round.taker([], why)
            for action, id in round.grows:
                job = self.state.jobs.active.get(action.job)
                if job is not None and job.reconfig_id == id:
                    self.growths.release(job, action)
                self.outcomes.end(round, action, id, "aborted", why)
