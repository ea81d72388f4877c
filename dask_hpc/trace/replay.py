"""Recorded passes through a policy, once more.

Rules of the file: no cluster, no clock. Two questions are answered. *Verify*: does the policy that
decided then decide the same now, given the snapshot and the state that it was given? *Compare*: what
would another policy have decided on the same snapshots, starting from its own initial state? (The
snapshots stay those of the recorded policy: what its decisions led to.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Pass
from dask_hpc.trace.steps import step_medians
from dask_hpc_policies import codec, registry
from dask_hpc_policies.decision import Action, Decision, Hold
from dask_hpc_policies.protocol import Policy, decode_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One pass that came out otherwise."""

    #: Number of the pass, from 1.
    number: int
    #: Time of its snapshot.
    t_s: float
    trigger: str
    recorded: Decision
    #: None when the policy failed; `error` then says how.
    replayed: Decision | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found; JSON by `dask_hpc_policies.codec.encode`."""

    #: ``verify``: the recorded policy was asked again. ``compare``: another one was asked.
    mode: Literal["verify", "compare"]
    #: Name of the policy that was asked (of the last one, when it was changed on the way).
    policy: str = ""
    passes: int = 0
    same: int = 0
    differing: int = 0
    #: Actions by kind, holds apart, in the recorded and the replayed decisions.
    recorded_actions: Mapping[str, int] = field(default_factory=dict)
    replayed_actions: Mapping[str, int] = field(default_factory=dict)
    #: The first pass that differs.
    first: Difference | None = None
    #: What the recorded steps of each flow have taken (`trace.steps.step_medians`).
    flows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when every pass came out as recorded."""
        return self.differing == 0


def replay(trace: Trace, policy: Any = None) -> ReplayReport:
    """Ask for every decision of `trace` again.

    Parameters
    ----------
    trace
        What `dask_hpc.trace.files.read_trace` or `parse_trace` gave.
    policy
        None for the recorded policies, each with its recorded parameters. Otherwise anything that
        `dask_hpc_policies.registry.create` takes: when it equals the recorded policy, parameters
        included, the recorded states are used and the answers must be equal (*verify*, where reasons
        count as well); any other runs from its initial state (*compare*, where only what is done
        counts: all that actions say but their reasons, and no holds).

    Raises
    ------
    TraceError
        When a recorded policy cannot be made again: a custom one, one that is not installed, or a
        state that does not fit it. Give `policy` then.
    ValueError
        When `policy` is not a policy or has wrong parameters.
    """
    return replace(_replayed(trace, policy), flows=step_medians(trace.records))


def _replayed(trace: Trace, policy: Any) -> ReplayReport:
    passes = trace.passes
    if policy is None:
        makers = _Makers(trace.source)
        return _verify(
            trace, [makers.make(number, item.policy) for number, item in enumerate(passes, start=1)]
        )
    given = registry.create(policy)
    spec = _canonical(registry.spec_of(given))
    if all(_canonical(item.policy) == spec for item in passes):
        return _verify(trace, [given] * len(passes))
    return _compare(trace, given)


class _Makers:
    """Makes each recorded policy once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.made: dict[str, Policy] = {}

    def make(self, number: int, spec: Mapping[str, Any]) -> Policy:
        key = _canonical(spec)
        if key not in self.made:
            name = spec.get("policy")
            if spec.get("custom"):
                raise TraceError(
                    f"{self.source}, pass {number}: decided by the custom policy {name!r}, which a trace "
                    "does not hold; give the policy object to replay()"
                )
            try:
                self.made[key] = registry.create(spec)
            except (ValueError, TypeError) as error:
                raise TraceError(
                    f"{self.source}, pass {number}: cannot make its policy {name!r} ({error}); "
                    "name another policy to compare with"
                ) from None
        return self.made[key]


def _verify(trace: Trace, policies: list[Policy]) -> ReplayReport:
    tally = _Tally("verify", policies[-1].name if policies else "")
    for number, (item, policy) in enumerate(zip(trace.passes, policies, strict=True), start=1):
        try:
            state = decode_state(policy, item.state)
        except ValueError as error:
            raise TraceError(
                f"{trace.source}, pass {number}: the recorded state does not fit {policy.name}: {error}"
            ) from None
        decision, _, error_text = _ask(policy, item, state)
        same = codec.encode(decision) == codec.encode(item.decision)
        tally.add(number, item, decision, error_text, same)
    return tally.report()


def _compare(trace: Trace, policy: Policy) -> ReplayReport:
    tally = _Tally("compare", policy.name)
    state = policy.initial_state()
    for number, item in enumerate(trace.passes, start=1):
        decision, state, error_text = _ask(policy, item, state)
        same = decision is not None and _effect(decision) == _effect(item.decision)
        tally.add(number, item, decision, error_text, same)
    return tally.report()


class _Tally:
    """Counts passes into a `ReplayReport`."""

    def __init__(self, mode: Literal["verify", "compare"], policy: str) -> None:
        self.mode = mode
        self.policy = policy
        self.passes = self.same = 0
        self.recorded: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.first: Difference | None = None

    def add(self, number: int, item: Pass, decision: Decision | None, error: str, same: bool) -> None:
        self.passes += 1
        self.same += same
        self.recorded.update(action.TAG for action in _done(item.decision))
        if decision is not None:
            self.replayed.update(action.TAG for action in _done(decision))
        if not same and self.first is None:
            self.first = Difference(
                number=number,
                t_s=item.snapshot.now_s,
                trigger=item.snapshot.trigger,
                recorded=item.decision,
                replayed=decision,
                error=error,
            )

    def report(self) -> ReplayReport:
        return ReplayReport(
            mode=self.mode,
            policy=self.policy,
            passes=self.passes,
            same=self.same,
            differing=self.passes - self.same,
            recorded_actions=dict(sorted(self.recorded.items())),
            replayed_actions=dict(sorted(self.replayed.items())),
            first=self.first,
        )


def _ask(policy: Policy, item: Pass, state: Any) -> tuple[Decision | None, Any, str]:
    """The decision and the new state, or the old state and what went wrong."""
    try:
        decision, after = policy.decide(item.snapshot, state)
    except Exception as error:  # a policy is foreign code: whatever it raises is a finding, and told
        return None, state, f"{type(error).__name__}: {error}"
    return decision, after, ""


def _done(decision: Decision) -> list[Action]:
    """The actions of a decision without holds, which do nothing."""
    return [action for action in decision.actions if not isinstance(action, Hold)]


def _effect(decision: Decision) -> list[str]:
    """What a decision does, in an order of its own, whatever the reasons."""
    told = [codec.encode(action) for action in _done(decision)]
    said = [{name: value for name, value in one.items() if name != "reason"} for one in told]
    return sorted(map(_canonical, said))


def _canonical(spec: Mapping[str, Any]) -> str:
    return json.dumps(codec.encode(dict(spec)), sort_keys=True)
