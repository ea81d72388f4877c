"""The policy `fair`, whatever the picture: bounds, no idle node, no change without cause, nobody starves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from fair_pictures import carried_out, decide, rigid, running, sizes, view, waiting
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.decision import Expand, ReasonCode, Shrink, Start
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.fair.terms import level, overdue, repays
from dask_hpc_policies.rules.sizing import growth_target, resizable

POLICY: Any = create("fair")
#: The defaults.
QUANTUM_NODE_S, PATIENCE_S, COST_S = 10.0, 60.0, 0.1


# --------------------------------------------------------------- pictures at random


@st.composite
def pictures(draw: st.DrawFn) -> ClusterSnapshot:
    jobs = []
    for i in range(draw(st.integers(1, 8))):
        constraint = draw(st.sampled_from(["any", "any", *CONSTRAINTS]))
        low = smallest_at_least(constraint, draw(st.integers(1, 4)), 100) or 1
        high = low + draw(st.integers(0, 30))
        state: Any = draw(st.sampled_from(["pending", "running", "running", "adapting"]))
        nodes = 0 if state == "pending" else draw(st.integers(low, high))
        jobs.append(
            JobView(
                id=f"j{i}", state=state, nodes=nodes, min_nodes=low, max_nodes=high, constraint=constraint,
                kind=draw(st.sampled_from(["malleable", "malleable", "malleable", "moldable"])),
                user=draw(st.sampled_from(["", "ada", "bob"])), weight=draw(st.sampled_from([1.0, 2.0])),
                attained_node_s=draw(st.sampled_from([0.0, 5.0, 12.0, 50.0, 1e3, 1e6])) if nodes else 0.0,
                remaining_s=draw(st.sampled_from([None, None, 0.0, 0.05, 1.0, 500.0])) if nodes else None,
                walltime_s=draw(st.sampled_from([None, 30.0])), submit_s=float(draw(st.integers(-90, 50))),
            )
        )  # fmt: skip
    jobs.sort(key=lambda job: job.submit_s)
    return view(draw(st.integers(0, 20)), *jobs)


costs = st.sampled_from([0.0, 0.1, 2.0])


@examples(300)
@given(pictures(), costs)
def test_no_job_is_ever_below_its_minimum_or_above_its_maximum(picture: ClusterSnapshot, cost: float) -> None:
    decision = decide(picture, resize_cost_s=cost)
    after = sizes(picture, decision)
    for job in picture.jobs:
        if after[job.id] != job.nodes:
            assert job.min_nodes <= after[job.id] <= job.max_nodes
    assert sum(after.values()) <= sum(job.nodes for job in picture.jobs) + picture.idle_nodes


@examples(300)
@given(pictures(), costs)
def test_no_node_is_ever_idle_that_somebody_could_use(picture: ClusterSnapshot, cost: float) -> None:
    after = carried_out(picture, decide(picture, resize_cost_s=cost))
    params = {**POLICY.params, "resize_cost_s": cost}
    before = {job.id: job for job in picture.jobs}
    for job in after.jobs:
        was = before[job.id]
        if job.state == "adapting" or not resizable(job) or not job.nodes:
            continue
        if was.remaining_s is not None and 0 < was.remaining_s <= cost:
            continue  # almost over
        target = growth_target(job, after.idle_nodes, "max")
        free = was.state == "pending" or (target is not None and target <= was.nodes)
        assert target is None or not (free or repays(was, target, params))


@examples(300)
@given(pictures(), costs, st.sampled_from([0.0, 100.0]))
def test_nothing_is_resized_when_nothing_has_changed(
    picture: ClusterSnapshot, cost: float, later_s: float
) -> None:
    # who has waited longer than the patience starts although nothing else has changed
    policy = create("fair", resize_cost_s=cost, patience_s=86400.0)
    state = policy.initial_state()
    # ends that draw near change what repays
    picture = replace(picture, jobs=tuple(replace(job, remaining_s=None) for job in picture.jobs))
    simple = all(job.constraint == "any" for job in picture.jobs)
    for i in range(6):
        decision, state = policy.decide(picture, state)
        # where few sizes are legal, what is left over may move once more
        if i >= (1 if simple else 5):
            assert not [a for a in decision.actions if isinstance(a, (Start, Expand, Shrink))]
        picture = carried_out(picture, decision, later_s)


# ---------------------------------------------------------------------- starvation


def test_where_ends_are_known_nobody_delays_the_head() -> None:
    busy = replace(rigid("busy", 8, remaining_s=100.0), state="running", nodes=8)
    head = rigid("head", 10, submit_s=1.0, walltime_s=10.0)
    short = rigid("short", 2, submit_s=2.0, walltime_s=90.0)
    long = rigid("long", 2, submit_s=3.0, walltime_s=200.0)
    decision = decide(view(2, busy, head, long, short))
    assert {a.job: a.reason.code for a in decision.actions} == {
        "head": ReasonCode.NOT_ENOUGH_NODES, "short": ReasonCode.FITS, "long": ReasonCode.WOULD_DELAY,
    }  # fmt: skip
    beside = decide(view(4, busy, head, long))
    assert {a.job: type(a) for a in beside.actions}["long"] is Start, "two nodes are left beside the head"
    picture = view(4, busy, head, long, replace(long, id="next"))
    assert sizes(picture, decide(picture))["next"] == 0, "the two are taken"
    picture = view(4, busy, head, replace(short, submit_s=1.5), long)
    assert sizes(picture, decide(picture))["long"] == 2, "one that has ended by then takes none"


def test_what_cannot_be_shrunk_takes_no_node_that_the_head_is_to_have() -> None:
    busy = replace(rigid("busy", 6, remaining_s=100.0), state="running", nodes=6)
    head = rigid("head", 7, submit_s=1.0, walltime_s=50.0)
    # when it starts three nodes are left over
    beside = waiting("beside", 1, 4, submit_s=2.0, kind="moldable", walltime_s=1000.0)
    other = replace(beside, id="other", submit_s=3.0)
    for jobs in ((beside,), (beside, other)):
        picture = view(4, busy, head, *jobs)
        found = sizes(picture, decide(picture))
        assert all(found[job.id] for job in jobs)
        assert sum(found[job.id] for job in jobs) == 3
    for free in (replace(beside, walltime_s=90.0), replace(beside, kind="malleable")):
        picture = view(4, busy, head, free)
        assert sizes(picture, decide(picture))["beside"] == 4


def test_nobody_delays_a_head_that_waits_for_nodes_which_come_back() -> None:
    head, long = rigid("head", 4), rigid("long", 2, submit_s=1.0, walltime_s=50.0)
    short = rigid("short", 2, submit_s=2.0, walltime_s=5.0)
    picture = view(2, head, long, short, returns_s=(60.0, 60.0))
    assert sizes(picture, decide(picture)) == {"head": 0, "long": 0, "short": 2}


def test_what_a_running_job_could_give_up_is_not_there_once_more_when_it_ends() -> None:
    # it has three nodes and could give up one: in 10 s there are three, and nothing tells when there are more
    runs = running("runs", 3, min_nodes=2, max_nodes=5, remaining_s=10.0)
    later = rigid("later", 1, user="ada", submit_s=2.0, walltime_s=5.0)
    nodes = tuple(NodeView(id=f"n{i}") for i in range(4))
    for need, starts in ((3, 1), (4, 0)):
        picture = view(0, runs, rigid("head", need, submit_s=1.0), later, now_s=61.5, nodes=nodes)
        assert sizes(picture, decide(picture))["later"] == starts


def test_the_head_starts_when_who_starts_now_has_ended() -> None:
    first = rigid("first", 4, priority=1, walltime_s=30.0)
    head, later = rigid("head", 5, submit_s=1.0), rigid("later", 1, submit_s=2.0)
    for walltime_s, starts in ((20.0, 1), (35.0, 0)):
        picture = view(5, first, head, replace(later, walltime_s=walltime_s))
        assert sizes(picture, decide(picture)) == {"first": 4, "head": 0, "later": starts}


def test_who_has_waited_too_long_comes_before_one_that_came_earlier_and_has_not() -> None:
    back = rigid("back", 1, submit_s=-20.0, interrupted_s=40.0)
    late = rigid("late", 1, submit_s=-19.0, user="ada")
    picture = view(1, back, late)
    assert sizes(picture, decide(picture)) == {"back": 0, "late": 1}


def test_what_a_user_may_start_is_measured_by_what_others_can_come_to_use() -> None:
    # ada has had much: bob's job, which runs on four of ten nodes, may have nine of them, or five
    ada = [rigid(f"a{i}", 1, user="ada", submit_s=float(i)) for i in range(2)]
    runs = replace(rigid("runs", 1, user="ada", attained_node_s=1e4), state="running", nodes=1)
    for most, started in ((9, 0), (8, 1), (7, 2)):
        bob = running("bob", 4, user="bob", max_nodes=most)
        picture = view(5, runs, bob, *ada)
        after = sizes(picture, decide(picture))
        assert after["a0"] + after["a1"] == started
    # so it is while bob's job waits, whatever it asked to start with
    asked = waiting("bob", 1, 9, user="bob", start_nodes=1, submit_s=9.0)
    picture = view(9, runs, *ada, asked)
    assert sizes(picture, decide(picture)) == {"runs": 1, "a0": 0, "a1": 0, "bob": 1}


def test_what_rounding_takes_off_keeps_nobody_at_a_lower_level() -> None:
    attained_node_s = sum([QUANTUM_NODE_S * 0.4] * 5, -1e-12)
    assert [level(each, POLICY.params) for each in (attained_node_s, 19.9)] == [2, 1]


def test_a_job_that_has_outlived_its_time_may_run_for_ever_and_grows() -> None:
    late = running("late", 2, max_nodes=8, remaining_s=0.0)
    picture = view(6, late)
    assert sizes(picture, decide(picture)) == {"late": 8}


def test_an_interrupted_job_has_its_whole_patience_again() -> None:
    job = rigid("a", 1, submit_s=0.0, interrupted_s=90.0)
    assert [overdue(job, now_s, POLICY.params) for now_s in (150.0, 151.0)] == [False, True]


@pytest.mark.parametrize(("now_s", "started"), [(60.0, True), (61.5, False)])
def test_after_its_patience_nobody_overtakes_a_job_of_unknown_outlook(now_s: float, started: bool) -> None:
    busy = replace(rigid("busy", 8), state="running", nodes=8)
    picture = view(2, busy, rigid("wide", 10, submit_s=0.5), rigid("later", 2, submit_s=1.0), now_s=now_s)
    decision = decide(picture)
    assert (sizes(picture, decision)["later"] == 2) == started
    codes = {a.job: a.reason.code for a in decision.actions}
    assert codes["later"] is (ReasonCode.FITS if started else ReasonCode.WOULD_DELAY)


def test_who_asks_for_more_nodes_than_there_are_keeps_nobody_waiting_until_they_have_come() -> None:
    busy = replace(rigid("busy", 8), state="running", nodes=8)
    jobs = busy, rigid("wide", 11, submit_s=0.5), rigid("later", 2, submit_s=1.0)
    picture = view(2, *jobs, now_s=100.0)
    assert sizes(picture, decide(picture)) == {"busy": 8, "wide": 0, "later": 2}
    # one has come, and is idle, or changes hands
    picture = view(3, *jobs, now_s=100.0)
    assert sizes(picture, decide(picture))["later"] == 0
    nodes = tuple(NodeView(id=f"n{i}", state="draining" if i == 10 else "up") for i in range(11))
    picture = view(2, *jobs, now_s=100.0, nodes=nodes)
    assert sizes(picture, decide(picture))["later"] == 0
    # one that is lost is not there
    lost = (*nodes[:10], replace(nodes[10], state="lost"))
    picture = view(2, *jobs, now_s=100.0, nodes=lost)
    assert sizes(picture, decide(picture))["later"] == 2


def test_behind_one_that_asks_for_too_much_another_is_not_overtaken() -> None:
    busy = replace(rigid("busy", 8), state="running", nodes=8)
    never, wide, later = rigid("never", 99), rigid("wide", 9, submit_s=0.5), rigid("later", 1, submit_s=1.0)
    picture = view(1, busy, never, wide, later, now_s=100.0)
    assert sizes(picture, decide(picture)) == {"busy": 8, "never": 0, "wide": 0, "later": 0}


def test_a_job_of_higher_priority_that_waits_opens_no_way_past_one_out_of_patience() -> None:
    busy = replace(rigid("busy", 8), state="running", nodes=8)
    urgent = rigid("urgent", 10, submit_s=99.0, priority=1)
    wide, later = rigid("wide", 9, submit_s=0.0), rigid("later", 1, submit_s=98.0)
    picture = view(2, urgent, busy, wide, later, now_s=100.0)
    assert sizes(picture, decide(picture))["later"] == 0
    picture = replace(picture, now_s=50.0)
    assert sizes(picture, decide(picture))["later"] == 1


@examples(60)
@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([0.0, 5.0, 20.0]),
)
def test_a_waiting_job_always_starts_within_the_bound(
    need: int, kinds: list[tuple[int, int, bool]], patience_s: float
) -> None:
    """A stream of others without end, of other users, all of unknown length; one decision a second.

    A job of at most 16 nodes times 40 s that has shrunk to one node takes 640 s; whoever runs at the end of
    the patience has ended by then, and nobody else has started.
    """
    policy = create("fair", patience_s=patience_s)
    state = policy.initial_state()
    victim = rigid("victim", need, user="eve")
    jobs: dict[str, JobView] = {}
    work: dict[str, float] = {}
    overtaken = []
    for second in range(int(patience_s) + 700):
        now_s = float(second)
        nodes, seconds, malleable = kinds[second % len(kinds)]
        other = rigid(f"o{second}", nodes, user=f"u{second}", submit_s=now_s)
        if malleable:
            other = replace(other, kind="malleable", start_nodes=None, min_nodes=1)
        jobs[other.id], work[other.id] = other, float(nodes * seconds)
        if second == 1:
            jobs["victim"], work["victim"] = replace(victim, submit_s=now_s), 1.0
        idle = 16 - sum(job.nodes for job in jobs.values())
        picture = view(idle, *jobs.values(), now_s=now_s)
        decision, state = policy.decide(picture, state)
        for action in decision.actions:
            if isinstance(action, (Start, Expand, Shrink)):
                jobs[action.job] = replace(jobs[action.job], state="running", nodes=action.nodes)
                if isinstance(action, Start) and second > 1 + patience_s:
                    overtaken.append(action.job)
        overtaken = [id for id in overtaken if id not in ("o0", "o1")]
        if "victim" in jobs and jobs["victim"].nodes:
            break
        assert not overtaken, "nobody who came later starts once the victim is out of patience"
        for job in [job for job in jobs.values() if job.nodes]:
            work[job.id] -= job.nodes
            jobs[job.id] = replace(job, attained_node_s=job.attained_node_s + job.nodes)
            if work[job.id] <= 0:
                del jobs[job.id]
    assert jobs["victim"].nodes == need
