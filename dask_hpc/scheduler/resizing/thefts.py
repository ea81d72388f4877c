"""Thefts that wait for a version of their victim: the list, and when each has waited long enough.

What is known of the versions of jobs is the section of the picture that policies get, and one is asked for by
the action that they would use; who writes versions is not known here. It is looked at when a version has
ended, when a job has ended, and at ticks, so that nothing waits for a signal that does not come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from dask_hpc.scheduler.resizing.outcomes import Outcomes
from dask_hpc.scheduler.resizing.round import Round
from dask_hpc.scheduler.tables.events import ActionEnded, Event
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.codec import decode
from dask_hpc_policies.decision import Action, Checkpoint, Reason, ReasonCode, Steal
from dask_hpc_policies.model import Trigger
from dask_hpc_policies.resilience.commit_times import History
from dask_hpc_policies.rules.commits import SECTION
from dask_hpc_policies.rules.thefts import Saves, when


@dataclass(slots=True, eq=False)
class Theft:
    """One that was accepted and is not yet carried out."""

    id: int
    action: Steal
    #: Round of its own, from when it was accepted.
    round: Round
    #: When the last commit before it had ended; `inf` until it is known what is waited for.
    since_s: float = inf
    #: Whether a commit was under way, or was asked for, since it was accepted.
    seen: bool = False


class Thefts:
    """All thefts of one scheduler that wait.

    Parameters
    ----------
    refusal
        Why an action cannot be carried out now.
    take
        Carries a theft out, and says why now.
    """

    def __init__(
        self,
        state: State,
        parts: Parts,
        outcomes: Outcomes,
        handle: Callable[[Event], None],
        refusal: Callable[[Steal], Reason | None],
        take: Callable[[Theft, str], None],
    ) -> None:
        self._state = state
        self._parts = parts
        self._outcomes = outcomes
        self._handle = handle
        self._infeasible = refusal
        self._take = take
        self._waiting: list[Theft] = []

    def tick(self, now_s: float) -> None:
        """See the module."""
        self.look()

    def _history(self, job: str) -> History | None:
        """What is known of the versions of a job; None: it writes none."""
        found = (self._parts.sections().get(SECTION) or {}).get(job)
        return None if found is None else decode(History, found)

    def refusal(self, action: Action) -> Reason | None:
        """Why a theft is not accepted: its victim is to be interrupted already."""
        if not isinstance(action, Steal):
            return None
        first = next((one.action for one in self._waiting if one.action.job == action.job), None)
        if first is None:
            return None
        text = f"{action.job} is to be interrupted for {first.thief} already ({first.timing})"
        return Reason(ReasonCode.STALE, text)

    def wait(self, action: Steal, trigger: Trigger) -> int:
        """Take a theft that is feasible now into the list; returns its id. Nothing is done before `look`."""
        theft = Theft(self._outcomes.new_id(), action, Round(self._state.now_s(), trigger))
        self._waiting.append(theft)
        return theft.id

    def look(self) -> None:
        """Carry out those whose time has come; drop those that are not feasible any more."""
        for theft in list(self._waiting):
            why = self._infeasible(theft.action)
            text = None if why is not None else self._due(theft)
            if why is None and text is None:
                continue
            self._waiting.remove(theft)
            if why is not None:
                self._outcomes.end(theft.round, theft.action, theft.id, "refused", why)
            else:
                self._take(theft, text or "")

    def abandon(self, text: str) -> None:
        """Drop all of them (the runtime is leaving)."""
        waiting, self._waiting = self._waiting, []
        for theft in waiting:
            why = Reason(ReasonCode.ABORTED, text)
            self._outcomes.end(theft.round, theft.action, theft.id, "aborted", why)

    def _due(self, theft: Theft) -> str | None:
        """Why it is time; None: it is not."""
        action = theft.action
        history = self._history(action.job)
        if history is not None:
            since_s = -inf if history.since_s is None else history.since_s
            if not history.under_way and (theft.seen or since_s > theft.since_s):
                return f"carried out: a version of {action.job} had been waited for ({action.timing})"
            theft.seen |= history.under_way
            theft.since_s = min(theft.since_s, since_s)
        scheduled = self._state.settings.checkpoint_every_s is not None
        saves = None if history is None else Saves(history.under_way, scheduled)
        what, text = when(action.timing, action.job, saves)
        if what != "commit":
            return text if what == "now" else None
        return self._commit(theft, text)

    def _commit(self, theft: Theft, text: str) -> str | None:
        """Have the victim write a version; why it is time although it does not, if so."""
        action, id = theft.action, theft.action.job
        ask = Checkpoint(job=id, reason=Reason(ReasonCode.NODE_STOLEN, text, {"thief": action.thief}))
        enactor = self._parts.enactors().get(Checkpoint)
        outcome = None if enactor is None else enactor(ask)
        if outcome is not None:
            self._handle(ActionEnded(outcome, theft.round.trigger))
        if outcome is None or outcome.result != "done":
            return f"carried out at once: {id} could not be asked for a version"
        theft.seen = True
        history = self._history(id)
        if history is None or not history.under_way:
            return f"carried out at once: {id} has nothing new to write ({action.timing})"
        return None
