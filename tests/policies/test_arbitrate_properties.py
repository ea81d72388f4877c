"""What the arbiter never does, whatever the guards and the decision: safety properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from examples import examples
from hypothesis import event, given
from hypothesis import strategies as st

from dask_hpc_policies.codec import encode
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.limits import (
    RANKS,
    AnyGuard,
    BoundGuard,
    Limit,
    SumGuard,
    VetoGuard,
    cause,
)
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    RequestNodes,
    Shrink,
    Start,
    Steal,
    beneficiary,
)
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, is_legal, legal_sizes, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, JobView

CODES = (ReasonCode.IDLE_NODES, ReasonCode.IDLE_NODES, ReasonCode.USER_REQUEST, ReasonCode.DEADLINE)
BECAUSE = Reason(ReasonCode.KEPT, "the test says so")


@st.composite
def jobs(draw: st.DrawFn, index: int) -> JobView:
    constraint = draw(st.sampled_from(CONSTRAINTS))
    low = smallest_at_least(constraint, draw(st.integers(1, 4)), 10**6) or 1
    high = low + draw(st.integers(0, 16))
    state: Any = draw(st.sampled_from(["pending", "running", "running"]))
    return JobView(
        id=f"j{index}",
        state=state,
        nodes=0 if state == "pending" else draw(st.integers(1, high)),
        start_nodes=draw(st.none() | st.just(low)),
        min_nodes=low,
        max_nodes=high,
        constraint=constraint,
        is_default=index == 0 and state == "running" and draw(st.booleans()),
    )


@st.composite
def actions(draw: st.DrawFn, job: JobView, heads: Sequence[str]) -> Action | None:
    """A resize of the job to a legal size, or to its minimum, or none."""
    reason = Reason(draw(st.sampled_from(CODES)), "because")
    if job.is_default or not draw(st.integers(0, 3)):
        return None
    sizes = [n for n in legal_sizes(job.constraint, job.min_nodes, job.max_nodes) if n != job.nodes]
    if job.state == "pending":
        sizes = sizes if job.start_nodes is None else [job.start_nodes]
        return Start(job=job.id, nodes=draw(st.sampled_from(sizes)), reason=reason)
    others = [head for head in heads if head != job.id]
    if others and not draw(st.integers(0, 5)):
        timing: Any = draw(st.sampled_from(["now", "next-checkpoint"]))
        thief = draw(st.sampled_from(others))
        return Steal(job=job.id, thief=thief, stolen_nodes=1, timing=timing, reason=reason)
    if not sizes:
        return None
    nodes = draw(st.sampled_from(sizes))
    if nodes > job.nodes:
        return Expand(job=job.id, nodes=nodes, reason=reason)
    if others and draw(st.booleans()):
        reason = Reason(reason.code, "because", {"head": draw(st.sampled_from(others))})
    return Shrink(job=job.id, nodes=nodes, reason=reason)


@st.composite
def guards(draw: st.DrawFn, index: int, listed: Sequence[JobView]) -> AnyGuard:
    rank: Any = draw(st.sampled_from(RANKS))
    name, kind = f"g{index}", draw(st.sampled_from(["sum", "sum", "sum", "veto", "bound"]))
    chosen = frozenset(draw(st.lists(st.sampled_from([job.id for job in listed]), max_size=2)))
    least, most = sorted([draw(st.integers(0, 12)), draw(st.integers(0, 12))])
    if kind == "veto":
        depends = draw(st.booleans())

        def refuses(_: ClusterSnapshot, action: Action, after: Mapping[str, int]) -> Reason | None:
            # also one that depends on where the decision leads others
            there = not depends or sum(after.values()) > 2 * most
            return BECAUSE if there and getattr(action, "job", None) in chosen else None

        return VetoGuard(name=name, rank=rank, refuses=refuses)
    if kind == "bound":
        limit = Limit(lo=least, hi=most, reason=BECAUSE)
        return BoundGuard(name=name, rank=rank, limit=lambda _, job: limit if job.id in chosen else None)
    weights = {job.id: draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for job in listed}
    power = draw(st.sampled_from([1, 2]))
    # around the present amount: what is decided matters
    now = sum(weights[job.id] * job.nodes**power for job in listed)
    below, above = draw(st.integers(-2, 12)), draw(st.integers(-2, 12))
    lower, upper = now - below, max(now + above, now - below)
    bounds: Any = draw(st.sampled_from([(lower, None), (None, upper), (lower, upper)]))
    return SumGuard(
        name=name,
        rank=rank,
        unit="W",
        cost=lambda job, nodes: weights[job.id] * nodes**power,
        base=draw(st.sampled_from([0.0, 0.5])),
        lower=bounds[0],
        upper=bounds[1],
        action_cost=draw(st.sampled_from([None, lambda action: 1.5])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[ClusterSnapshot, Decision, list[AnyGuard]]:
    listed = tuple(draw(jobs(i)) for i in range(draw(st.integers(1, 6))))
    heads = [job.id for job in listed if not job.is_default]
    wanted = [action for job in listed if (action := draw(actions(job, heads))) is not None]
    if draw(st.booleans()):
        wanted.insert(0, RequestNodes(nodes=9, reason=Reason(ReasonCode.DEMAND, "more work")))
    view = ClusterSnapshot(now_s=0.0, jobs=listed, idle_nodes=draw(st.integers(0, 20)))
    found = [draw(guards(i, listed)) for i in range(draw(st.integers(1, 4)))]
    order = draw(st.permutations(wanted))
    return view, Decision(actions=tuple(order), whole=not draw(st.integers(0, 4))), found


# ---------------------------------------------------------------- what a decision leads to, in plain words


def freed(view: ClusterSnapshot, done: Sequence[Action]) -> int:
    """Nodes that are freed less those that are given out."""
    held = {job.id: job.nodes for job in view.jobs}
    total = 0
    for action in done:
        if isinstance(action, Steal):
            total += held[action.job] if action.timing == "now" else 0
        elif isinstance(action, RESIZES):
            total += held[action.job] - action.nodes  # type: ignore[attr-defined]
    return total


def states(view: ClusterSnapshot, done: Sequence[Action]) -> list[dict[str, int]]:
    """Sizes of all jobs in the trough of the round and in the end."""
    by_job = {action.job: action for action in done if isinstance(action, RESIZES)}
    more = freed(view, done)
    found: list[dict[str, int]] = [{}, {}]
    for job in view.jobs:
        action = by_job.get(job.id)
        trough = end = job.nodes
        if isinstance(action, Shrink):
            trough = end = action.nodes
        elif isinstance(action, (Start, Expand)):
            end = action.nodes
        elif isinstance(action, Steal):
            trough, end = 0, 0 if action.timing == "now" else job.nodes
        elif job.is_default:
            trough, end = max(0, job.nodes + min(0, more)), max(0, job.nodes + more)
        found[0][job.id], found[1][job.id] = trough, end
    return found


def distances(view: ClusterSnapshot, done: Sequence[Action], guard: SumGuard) -> list[float]:
    """How far outside the sum is in both states."""
    extra = [guard.action_cost(a) for a in done if guard.action_cost and not isinstance(a, (*RESIZES, Hold))]
    found = []
    for sizes in states(view, done):
        parts = [guard.cost(job, sizes[job.id]) for job in view.jobs if sizes[job.id]]
        amount = fsum([guard.base, *parts, *extra])
        low = amount if guard.lower is None else guard.lower
        high = amount if guard.upper is None else guard.upper
        found.append(max(low - amount, amount - high, 0.0))
    return found


def rank(item: AnyGuard | Action) -> int:
    return RANKS.index(item.rank if isinstance(item, AnyGuard) else cause(item))


def holds(view: ClusterSnapshot, done: Sequence[Action], guard: SumGuard) -> bool:
    """Whether the sum is no further outside than it is before, or through what outranks the guard."""
    given = [action for action in done if rank(action) < rank(guard)]
    before = distances(view, given, guard)
    return all(now <= past + 1e-6 for now, past in zip(distances(view, done, guard), before, strict=True))


def acting(decision: Decision) -> list[Action]:
    return [action for action in decision.actions if not isinstance(action, Hold)]


# ---------------------------------------------------------------- the claims


@examples(1000)
@given(cases(), st.randoms(use_true_random=False))
def test_a_decision_that_was_arbitrated(case: tuple[Any, Any, Any], random: Any) -> None:
    view, decision, found = case
    verdict = arbitrate(view, decision, found)
    event("let through" if verdict is decision else "cut" if acting(verdict) else "refused")
    stays_within_every_sum(view, verdict, found)
    keeps_to_vetoes_and_bounds(view, verdict, found)
    is_never_half_applied(view, decision, verdict)
    invents_nothing_and_tells_everything(view, decision, verdict)
    assert arbitrate(view, verdict, found) == verdict, "arbitrating twice changes nothing"
    shuffled = list(found)
    random.shuffle(shuffled)
    assert encode(arbitrate(view, decision, shuffled)) == encode(verdict), "no order of guards matters"
    others = list(decision.actions)
    random.shuffle(others)
    again = arbitrate(view, Decision(actions=tuple(others), whole=decision.whole), found)
    assert through(again) == through(verdict), "no order of resizes matters"


def through(decision: Decision) -> set[tuple[str, str, int]]:
    return {(a.TAG, getattr(a, "job", ""), getattr(a, "nodes", 0)) for a in acting(decision)}


def stays_within_every_sum(view: ClusterSnapshot, verdict: Decision, found: list[AnyGuard]) -> None:
    for guard in found:
        if isinstance(guard, SumGuard):
            assert holds(view, acting(verdict), guard), f"{guard.name} is further outside than before"


def keeps_to_vetoes_and_bounds(view: ClusterSnapshot, verdict: Decision, found: list[AnyGuard]) -> None:
    held = {job.id: job.nodes for job in view.jobs}
    for guard in found:
        for action in acting(verdict):
            if rank(action) < rank(guard):
                continue
            level = [other for other in acting(verdict) if rank(other) <= rank(action)]
            if isinstance(guard, VetoGuard):
                assert guard.refuses(view, action, states(view, level)[1]) is None, "a veto holds"
            job = next((job for job in view.jobs if job.id == getattr(action, "job", "")), None)
            limit = guard.limit(view, job) if isinstance(guard, BoundGuard) and job is not None else None
            if limit is not None and isinstance(action, RESIZES):
                size = 0 if isinstance(action, Steal) else action.nodes  # type: ignore[attr-defined]
                starts, nodes = isinstance(action, Start), held[action.job]
                nearer = not starts and (limit.hi < size < nodes or nodes < size < limit.lo)
                assert limit.lo <= size <= limit.hi or nearer, "a bound holds"


def is_never_half_applied(view: ClusterSnapshot, decision: Decision, verdict: Decision) -> None:
    asked, done = decision.actions, acting(verdict)
    lacked = max(0, -freed(view, asked) - view.idle_nodes)
    assert -freed(view, done) - view.idle_nodes <= lacked, "no grant without its nodes"
    given = {a.job: a for a in asked if isinstance(a, (Start, Expand))}
    kept = {a.job for a in done if isinstance(a, (Start, Expand))}
    for action in asked:
        served = beneficiary(action)
        if served not in given:
            continue
        if served in kept:
            assert action in done, "no grant without all that makes room for it"
        elif action in done:
            assert rank(action) < rank(given[served]), "nothing makes room for what does not come"
    if decision.whole:
        assert not done or tuple(done) == asked, "all of it or nothing"


def invents_nothing_and_tells_everything(
    view: ClusterSnapshot, decision: Decision, verdict: Decision
) -> None:
    by_id = {job.id: job for job in view.jobs}
    asked = {(a.TAG, getattr(a, "job", "")): a for a in decision.actions}
    told = [item.action for item in verdict.suppressed]
    for action in acting(verdict):
        first: Any = asked[action.TAG, getattr(action, "job", "")]
        assert (action == first) != (first in told), "what is cut is told"
        if action != first:
            job, size = by_id[first.job], action.nodes  # type: ignore[attr-defined]
            assert job.nodes < size < first.nodes or first.nodes < size < job.nodes, "cut, not enlarged"
            restored = job.nodes < job.min_nodes and isinstance(action, Expand)
            assert restored or is_legal(job.constraint, size), "cut to a legal size"
            assert restored or job.min_nodes <= size <= job.max_nodes
            assert first.reason.code is not ReasonCode.USER_REQUEST, "what a user asked for is not cut"
    done = {(a.TAG, getattr(a, "job", "")) for a in acting(verdict)}
    assert {key for key, a in asked.items() if a not in told} <= done, "nothing goes without a word"
    assert all(item.reason.text and item.reason.data["guard"] for item in verdict.suppressed)
    lost = {a.job for a in told if isinstance(a, Start) and (a.TAG, a.job) not in done}
    assert lost == {a.job for a in verdict.actions if isinstance(a, Hold)}, "who does not start is told why"


@examples(300)
@given(cases())
def test_what_breaks_nothing_is_not_touched(case: tuple[Any, Any, Any]) -> None:
    view, decision, found = case
    sums = [guard for guard in found if isinstance(guard, SumGuard)]
    plain = Decision(actions=tuple(a for a in decision.actions if cause(a) == "jobs"))
    if all(holds(view, plain.actions, guard) for guard in sums):
        assert arbitrate(view, plain, sums) is plain
