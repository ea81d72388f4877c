"""What no policy ever does, whatever the picture: safety properties on random clusters."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.combine.guards import Clamp, Cooldown, Hysteresis, MtctFilter
from dask_hpc_policies.combine.merge import Arbiter, Chain
from dask_hpc_policies.decision import Decision, Expand, Hold, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, is_legal, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView
from dask_hpc_policies.protocol import Policy, decode_state, encode_state
from dask_hpc_policies.registry import BUILTIN, create, library_names, spec_of

_fpsma, _egs = create("pwma-fpsma"), create("prma-egs", max_expansions=None)
POLICIES: tuple[Policy, ...] = (
    *(create(name) for name in BUILTIN),
    create("fixed", target_nodes=5),
    create("pwma-fpsma", step="next", min_remaining_s=60),
    create("pwma-egs", step="next"),
    create("sfsj", malleable_victims=False, tie="shortest-execution"),
    create("sfsj", malleable_victims=False, timing="next-checkpoint"),
    Cooldown(create("sfsj"), cooldown_s=20),
    Hysteresis(create("mebf", gamma=1.5, sharing_factor=0.5), passes=2),
    Chain(create("sfsj"), create("mebf")),
    Arbiter(create("equipartition"), create("sfsj")),
    *(create(name) for name in library_names()),
    Clamp(_fpsma, min_nodes=2, max_nodes=6),
    Cooldown(create("equipartition"), cooldown_s=20),
    Hysteresis(create("equipartition"), passes=2),
    MtctFilter(create("pwma-egs")),
    Hysteresis(Cooldown(MtctFilter(_fpsma)), passes=2),
    Chain(create("fcfs"), MtctFilter(_fpsma), _egs),
    Arbiter(create("equipartition"), _fpsma, create("dask-default"), create("fixed", target_nodes=3)),
)


@st.composite
def jobs(draw: st.DrawFn, index: int) -> JobView:
    constraint = draw(st.sampled_from(CONSTRAINTS))
    lo = smallest_at_least(constraint, draw(st.integers(1, 6)), 10**6) or 1
    is_default = index == 0 and draw(st.booleans())
    if is_default and draw(st.booleans()):
        lo = 0  # plain work asks for nothing before there is any
    state: Any = draw(st.sampled_from(["pending", "running", "running", "adapting"]))
    kind: Any = draw(
        st.sampled_from(["malleable", "malleable", "malleable", "evolving", "moldable", "rigid"])
    )
    hi = lo if kind == "rigid" else lo + draw(st.integers(0, 20))
    start = draw(st.one_of(st.none(), st.just(lo))) if kind != "rigid" else lo
    interruption: Any = draw(st.sampled_from(["none", "none", "failure", "theft"]))
    return JobView(
        id=f"j{index}",
        state=state,
        kind=kind,
        # Any size may be seen, also an illegal one or one below the minimum: workers are lost.
        nodes=0 if state == "pending" else draw(st.integers(0, hi)),
        start_nodes=start,
        min_nodes=lo,
        max_nodes=hi,
        constraint=constraint,
        submit_s=float(index),
        start_s=None if state == "pending" else float(draw(st.integers(0, 50))),
        remaining_s=draw(st.one_of(st.none(), st.floats(0, 200))),
        expansions=draw(st.integers(0, 3)),
        mtct=draw(st.one_of(st.none(), st.floats(0, 3))),
        mtct_previous=draw(st.one_of(st.none(), st.floats(0, 3))),
        is_default=is_default,
        preferred_nodes=draw(st.one_of(st.none(), st.integers(lo, hi))),
        priority=draw(st.integers(0, 2)),
        requested_nodes=draw(st.one_of(st.none(), st.integers(1, 25))) if kind == "evolving" else None,
        walltime_s=draw(st.one_of(st.none(), st.floats(1, 500))),
        recorded_s=draw(st.one_of(st.none(), st.floats(1, 500))),
        io_intensity=draw(st.one_of(st.none(), st.floats(0, 1))),
        at_scheduling_point=draw(st.booleans()),
        user=draw(st.sampled_from(["", "ada", "bob"])),
        weight=draw(st.sampled_from([1.0, 1.0, 0.5, 3.0])),
        attained_node_s=0.0 if state == "pending" else draw(st.floats(0, 1e4)),
        interruption=interruption,
        interrupted_s=None if interruption == "none" else draw(st.one_of(st.none(), st.just(55.0))),
    )


@st.composite
def views(draw: st.DrawFn) -> ClusterSnapshot:
    listed = tuple(draw(jobs(i)) for i in range(draw(st.integers(0, 8))))
    idle = draw(st.integers(0, 20))
    held = sum(job.nodes for job in listed)
    return ClusterSnapshot(
        now_s=float(draw(st.integers(60, 100))),
        nodes=tuple(NodeView(id=f"n{i}", nthreads=1 + i % 2) for i in range(held + idle)),
        jobs=listed,
        idle_nodes=idle,
        lock=draw(st.sampled_from(["job", "system"])),
        demand=draw(
            st.one_of(
                st.none(),
                st.builds(Demand, occupancy_s=st.floats(0, 500), ready_tasks=st.integers(0, 300)),
            )
        ),
    )


policies = st.sampled_from(POLICIES)
histories = st.lists(views(), min_size=1, max_size=3)


def play(policy: Policy, history: list[ClusterSnapshot]) -> list[tuple[ClusterSnapshot, Any, Decision, Any]]:
    """Each pass as (view, state before, decision, state after)."""
    state = policy.initial_state()
    passes = []
    for view in history:
        decision, after = policy.decide(view, state)
        passes.append((view, state, decision, after))
        state = after
    return passes


@examples(400)
@given(policies, histories)
def test_decisions_are_always_safe(policy: Policy, history: list[ClusterSnapshot]) -> None:
    for view, _, decision, _ in play(policy, history):
        check(view, decision)


def check(view: ClusterSnapshot, decision: Decision) -> None:
    by_id = {job.id: job for job in view.jobs}
    seen = [a.job for a in decision.actions if isinstance(a, (Start, Expand, Shrink, Steal, Hold))]
    assert len(seen) == len(set(seen)), "a job is in at most one action"
    granted = freed = 0
    for action in decision.actions:
        assert action.reason.text, "no action without reason"
        if isinstance(action, (Start, Hold)):
            assert by_id[action.job].state == "pending"
        if isinstance(action, Steal):
            victim, thief = by_id[action.job], by_id[action.thief]
            assert victim.state == "running"
            assert not victim.is_default
            assert thief.id != victim.id
            assert 1 <= action.stolen_nodes <= victim.nodes
            freed += victim.nodes if action.timing == "now" else 0
        if not isinstance(action, (Start, Expand, Shrink)):
            continue
        job = by_id[action.job]
        assert job.state != "adapting"
        if isinstance(action, Start):
            granted += action.nodes
        else:
            assert job.state == "running"
            assert not job.is_default
            resized = view.lock == "system" and bool(view.adapting)
            assert not resized, "no resize under the system lock"
            assert (action.nodes > job.nodes) == isinstance(action, Expand)
            granted += max(0, action.nodes - job.nodes)
            freed += max(0, job.nodes - action.nodes)
        restored = isinstance(action, Expand) and action.reason.code is ReasonCode.BELOW_MINIMUM
        if restored:
            assert job.nodes < job.min_nodes
            assert action.nodes <= job.min_nodes
        elif not job.is_default:
            asked = job.kind == "evolving" and job.requested_nodes is not None
            resizable = job.kind == "malleable" or asked
            assert resizable or isinstance(action, Start), "only malleable jobs are resized"
            assert job.min_nodes <= action.nodes <= job.max_nodes
            assert is_legal(job.constraint, action.nodes)
        if isinstance(action, Start) and job.start_nodes is not None and not job.is_default:
            assert action.nodes == job.start_nodes
    assert granted <= view.idle_nodes + freed, "never more nodes than idle or freed"
    assert all(item.reason.text for item in decision.suppressed), "no refusal without reason"
    assert {job.id for job in view.pending} <= set(seen), "every pending job starts or is told why not"
    for head in {a.reason.data.get("head") for a in decision.actions if isinstance(a, Shrink)} - {None}:
        starts = [a for a in decision.actions if isinstance(a, Start) and a.job == head]
        assert starts, "all or nothing: whoever shrinks for a job lets it start"


@given(policies, histories)
def test_deciding_twice_gives_the_same_answer(policy: Policy, history: list[ClusterSnapshot]) -> None:
    for view, before, decision, after in play(policy, history):
        assert policy.decide(view, before) == (decision, after)


@given(policies, views(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(policy: Policy, view: ClusterSnapshot, random: Any) -> None:
    shuffled = list(view.nodes)
    random.shuffle(shuffled)
    state = policy.initial_state()
    assert policy.decide(replace(view, nodes=tuple(shuffled)), state) == policy.decide(view, state)


@given(policies, histories)
def test_views_states_and_decisions_survive_json(policy: Policy, history: list[ClusterSnapshot]) -> None:
    again = create(json.loads(json.dumps(spec_of(policy))))
    for view, before, decision, after in play(policy, history):
        assert decode(ClusterSnapshot, json.loads(json.dumps(encode(view)))) == view
        assert decode(Decision, json.loads(json.dumps(encode(decision)))) == decision
        state = decode_state(again, json.loads(json.dumps(encode_state(before))))
        assert state == before
        assert again.decide(view, state) == (decision, after)


@given(views(), st.sampled_from(["fcfs", "prma-fpsma", "prma-egs"]))
def test_policies_that_never_shrink_never_do(view: ClusterSnapshot, name: str) -> None:
    policy = create(name)
    decision, _ = policy.decide(view, policy.initial_state())
    shrinks = [a for a in decision.actions if isinstance(a, Shrink)]
    assert all(a.reason.code is ReasonCode.JOB_REQUEST for a in shrinks), "but what a job asks for"


@given(views())
def test_no_shrink_for_the_head_could_be_smaller(view: ClusterSnapshot) -> None:
    for name in ("pwma-fpsma", "pwma-egs", "performance-aware"):
        decision, _ = create(name).decide(view, None)
        by_id = {job.id: job for job in view.jobs}
        shrinks = [a for a in decision.actions if isinstance(a, Shrink) and "head" in a.reason.data]
        freed = sum(by_id[a.job].nodes - a.nodes for a in shrinks)
        for a in shrinks:
            job = by_id[a.job]
            need = a.reason.data["needed_nodes"]
            higher = smallest_at_least(job.constraint, a.nodes + 1, job.nodes) or job.nodes
            assert freed - (higher - a.nodes) < need, "one legal size more would still have done"
