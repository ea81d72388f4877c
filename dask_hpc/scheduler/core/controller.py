"""The policy pass: picture, decision, round, records.

A pass runs on a tick, when a job is submitted, when one ends, when nodes come or go, and when the
user asks. Requests made in one turn of the event loop are one pass.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.resizing.rounds import Rounds
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.records import Pass, Result
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Decision,
    Hold,
    Outcome,
    Reason,
    ReasonCode,
    Start,
    Steal,
    Suppressed,
)
from dask_hpc_policies.model import ClusterSnapshot, Trigger
from dask_hpc_policies.protocol import InvalidPolicy, Policy, encode_state, required

logger = logging.getLogger(__name__)

#: Policies that are remembered, should the present one fail.
_EARLIER_KEPT = 10
#: What decides when none of them can.
_LAST_RESORT = "fair"


class Controller:
    """Calls the policy and has its decisions carried out."""

    def __init__(self, state: State, parts: Parts, rounds: Rounds, policy: Policy) -> None:
        self.state = state
        self.rounds = rounds
        self._parts = parts
        self.decisions: deque[dict[str, Any]] = deque(maxlen=state.settings.decisions_keep)
        #: Passes run while this is true.
        self.enabled = False
        #: Why the policy could not answer the last time; None when it did.
        self.failure: str | None = None
        #: Why the policy that was set last is not the one that decides; None when it is.
        self.dropped: str | None = None
        #: What decided before, the latest last.
        self._earlier: deque[Policy] = deque(maxlen=_EARLIER_KEPT)
        #: Seconds of the last passes on the loop, snapshot and records included.
        self.pass_s: deque[float] = deque(maxlen=1000)
        self._trigger: Trigger | None = None
        self._said: dict[tuple[str, str], str] = {}
        #: Rows of actions under way, by job, thefts apart, which may wait: the outcome completes them.
        self._open: dict[tuple[str, bool], dict[str, Any]] = {}
        self._decide_by(policy)

    def use(self, policy: Policy) -> None:
        """Decide by `policy` from now on; should it fail, by the present one again."""
        if self.failure is None:
            self._earlier.append(self.policy)
        self.dropped = None
        self._decide_by(policy)

    def require_able(self, policy: Policy) -> None:
        """Have `policy` decide on the state of now, without consequences.

        Raises
        ------
        InvalidPolicy
            When it cannot, or its parameters are nothing that a trace can hold; the message has its error.
        """
        try:
            json.dumps(encode(registry.spec_of(policy)), allow_nan=False)
        except Exception as error:
            raise InvalidPolicy(
                f"the params of policy {policy.name} are no JSON data: {error}; allowed: None, finite "
                f"numbers, texts, lists and mappings of them; {self.policy.name} stays"
            ) from error
        try:
            decision, after = policy.decide(self.state.snapshot("settings"), policy.initial_state())
            required(decision)
            encode_state(after)
        except Exception as error:
            raise InvalidPolicy(
                f"policy {policy.name} cannot decide on the present state: {type(error).__name__}: {error}; "
                f"{self.policy.name} stays"
            ) from error

    def _decide_by(self, policy: Policy) -> None:
        self.policy = policy
        self._memory = policy.initial_state()
        self._last: Decision | None = None
        self._spec = registry.spec_of(policy)
        self.state.in_turn = bool(getattr(policy, "in_turn", False))
        self.failure = None

    def request(self, trigger: Trigger) -> None:
        """Have a pass run in this turn of the loop."""
        if self._trigger is None:
            self._trigger = trigger
            self.state.scheduler.loop.asyncio_loop.call_soon(self._run)  # type: ignore[attr-defined]
        elif self._trigger == "tick":
            self._trigger = trigger

    def _run(self) -> None:
        trigger, self._trigger = self._trigger, None
        if not self.enabled or trigger is None or not self.state.jobs.active:
            return
        began_s = stopwatch_s()
        self.decide(trigger)
        self.pass_s.append(stopwatch_s() - began_s)

    def decide(self, trigger: Trigger) -> None:
        """One pass: call the policy on the state of now and begin the round it asks for."""
        state = self.state
        view = self.picture(trigger)
        before = self._memory
        began_s = stopwatch_s()
        try:
            decision, after = self.policy.decide(view, before)
            if decision != self._last:
                required(decision)
            memory = encode_state(before)
            encode_state(after)
            self._memory = after
        except Exception as error:
            # A policy is the user's code; the allotments stay as they are until another one decides
            if self.failure is None:
                logger.exception("Policy %s failed; allotments stay as they are", self.policy.name)
            self.failure = f"{type(error).__name__}: {error}"
            self._say(
                view.now_s, trigger, "policy", "", None, ReasonCode.POLICY_FAILED, self.failure, "failed"
            )
            self._back()
            return
        self.failure = None
        decide_s = stopwatch_s() - began_s
        allowed = self._arbitrated(view, decision)
        acts = any(not isinstance(action, Hold) for action in (*decision.actions, *allowed.actions))
        if not acts and decision == self._last and self._memory == before:
            return  # nothing new: a quiet cluster writes no trace
        self._last = decision
        state.record(
            Pass(
                policy=self._spec,
                state=memory,
                snapshot=view,
                decision=decision,
                decide_s=decide_s,
                arbitrated=None if allowed == decision else allowed,
            )
        )
        decision = allowed
        for suppressed in decision.suppressed:
            self._log(view.now_s, trigger, suppressed.action, suppressed.reason, "suppressed")
        for action in decision.actions:
            if isinstance(action, Hold):
                job = state.jobs.active.get(action.job)
                if job is not None:
                    job.reason = action.reason.text
                self._log(view.now_s, trigger, action, action.reason, "held")
        self.act([a for a in decision.actions if not isinstance(a, Hold)], trigger)

    def picture(self, trigger: Trigger) -> ClusterSnapshot:
        """The state of now as the policy sees it."""
        view = self.state.snapshot(trigger)
        try:
            return self._parts.completed(view, self.policy)
        except Exception:
            logger.exception("A part cannot complete the picture; the policy goes without")
            return view

    def _arbitrated(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What the guards of the parts let through, or what is done instead; nothing when one fails."""
        try:
            return self._parts.amended(view, arbitrate(view, decision, self._parts.guards()))
        except Exception as error:
            logger.exception("A guard failed; allotments stay as they are")
            why = Reason(ReasonCode.GUARD_FAILED, f"a guard failed: {type(error).__name__}: {error}")
            acts = [action for action in decision.actions if not isinstance(action, Hold)]
            lost = [Suppressed(action=action, reason=why) for action in acts]
            holds = [Hold(job=action.job, reason=why) for action in acts if isinstance(action, Start)]
            kept = [action for action in decision.actions if isinstance(action, Hold)]
            return Decision(actions=(*kept, *holds), suppressed=(*decision.suppressed, *lost))

    def _back(self) -> None:
        """Decide by the policy before, so that nobody waits for one that fails; at last by the default."""
        if not self._earlier and self.policy.name == _LAST_RESORT:
            return
        failed = self.policy
        good = self._earlier.pop() if self._earlier else registry.create(_LAST_RESORT)
        self.dropped = f"{failed.name} failed, {good.name} decides: {self.failure}"
        logger.warning("Policy %s", self.dropped)
        self._decide_by(good)
        self.request("settings")

    def act(
        self, actions: Iterable[Action], trigger: Trigger
    ) -> tuple[list[tuple[Action, int]], list[Outcome]]:
        """Carry actions out; decisions and outcomes are logged with their reasons.

        What changes no allotment is a part's, and comes first; the rest is a round.

        Returns
        -------
        accepted, ended
            Those of `Rounds.begin`, outcomes of what changes no allotment among the latter.
        """
        actions = list(actions)
        others = [self._enact_other(action) for action in actions if not isinstance(action, RESIZES)]
        for outcome in others:
            self.report(outcome, trigger)
        accepted, ended = self.rounds.begin(
            [action for action in actions if isinstance(action, RESIZES)],
            trigger,
            lambda action: self._accepted(action, trigger),
        )
        return accepted, [*others, *ended]

    def _enact_other(self, action: Action) -> Outcome:
        enactor = self._parts.enactors().get(type(action))
        if enactor is not None:
            return enactor(action)
        why = Reason(ReasonCode.UNSUPPORTED, f"nobody here carries out {action.TAG!r}")
        return Outcome(action=action, result="refused", reason=why)

    async def enact(self, action: Action, wait: bool = True) -> dict[str, Any]:
        """Carry out one action that was asked for.

        Returns the outcome when it is known; without `wait` at once, and then ``result`` may be
        ``under way``. What a guard does not let through is refused as a whole.
        """
        accepted, refused = self._requested(action)
        if accepted and (wait or self.rounds.outcomes.known(accepted[0][1])):
            outcome = await self.rounds.outcomes.wait(accepted[0][1])
        elif accepted:
            id = accepted[0][1]
            outcome = Outcome(action=action, result="under way", reason=action.reason, reconfig_id=id)
        else:
            outcome = refused[0]
        return {"result": outcome.result, "reason": outcome.reason.text, **_flat(outcome)}

    def _requested(self, action: Action) -> tuple[list[tuple[Action, int]], list[Outcome]]:
        view = self.picture("request")
        allowed = self._arbitrated(view, Decision(actions=(action,), whole=True))
        if action in allowed.actions:
            return self.act([action], "request")
        outcome = Outcome(action=action, result="refused", reason=allowed.suppressed[-1].reason)
        self.report(outcome, "request")
        return [], [outcome]

    def _accepted(self, action: Action, trigger: Trigger) -> None:
        self._log(self.state.now_s(), trigger, action, action.reason, "under way")
        self._open[_place(action)] = self.decisions[-1] if self.decisions else {}

    def report(self, outcome: Outcome, trigger: Trigger) -> None:
        """Note what became of an action."""
        now_s = self.state.now_s()
        self.state.record(Result(t_s=now_s, outcome=outcome))
        row = self._open.pop(_place(outcome.action), None) if outcome.reconfig_id else None
        if row:
            row["result"] = outcome.result
            row["latency_s"] = round(outcome.latency_s, 6)
            if outcome.result != "done":
                row["reason_code"], row["reason"] = outcome.reason.code.value, outcome.reason.text
            return
        reason = outcome.reason if outcome.result != "done" else outcome.action.reason
        self._log(now_s, trigger, outcome.action, reason, outcome.result)

    def version_ended(self) -> None:
        """A version of a job is there, or is not to come: who has waited for it goes on."""
        self.rounds.thefts.look()

    def note(self, job: str, code: ReasonCode, text: str) -> None:
        """Log something that happened to a job without a decision of the policy."""
        self._say(self.state.now_s(), "request", "note", job, None, code, text, "done")

    def forget(self, job: str) -> None:
        """What was last said of a job is over, or the job is: it may be said again."""
        for key in [key for key in self._said if key[0] == job]:
            del self._said[key]

    def _log(self, now_s: float, trigger: str, action: Action, reason: Reason, result: str) -> None:
        job = getattr(action, "job", "")
        nodes = getattr(action, "nodes", None)
        self._say(now_s, trigger, action.TAG, job, nodes, reason.code, reason.text, result)

    def _say(
        self,
        now_s: float,
        trigger: str,
        action: str,
        job: str,
        nodes: int | None,
        code: ReasonCode,
        text: str,
        result: str,
    ) -> None:
        """Add a row to the feed, unless it repeats what was last said of that job in that respect."""
        key = (job, f"{action} {result}")
        if result in ("held", "suppressed", "refused", "failed"):
            if self._said.get(key) == text:
                return
            if not job or job in self.state.jobs.active:
                self._said[key] = text
        else:
            self.forget(job)
        self.decisions.append(
            {
                "t_s": round(now_s, 6),
                "trigger": trigger,
                "action": action,
                "job": job,
                "nodes": nodes,
                "reason_code": code.value,
                "reason": text,
                "result": result,
                "latency_s": None,
            }
        )


def _place(action: Action) -> tuple[str, bool]:
    return getattr(action, "job", ""), isinstance(action, Steal)


def _flat(outcome: Outcome) -> dict[str, Any]:
    action = outcome.action
    return {
        "action": action.TAG,
        "job": getattr(action, "job", ""),
        "nodes": getattr(action, "nodes", None),
        "reason_code": outcome.reason.code.value,
        "reconfig_id": outcome.reconfig_id,
        "latency_s": outcome.latency_s,
    }
