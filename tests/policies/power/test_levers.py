"""The levers ``pool`` and ``steal``: what they do to a picture; neither acts unasked or for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.combine.corridor import amended
from dask_hpc_policies.decision import Decision, Hold, Reason, ReasonCode, ReleaseNodes, RequestNodes, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.pool import PoolState, PoolView, decide, within
from dask_hpc_policies.power.problem import Problem
from dask_hpc_policies.power.program import Plan, solve
from dask_hpc_policies.power.question import MOST_TRIED, Terms, drawn_w, off_question, planned
from dask_hpc_policies.power.view import Mode, PowerView, seen
from dask_hpc_policies.ranges import DEFAULT_LEVERS
from dask_hpc_policies.rules.pool_range import pool_range, pool_step
from dask_hpc_policies.rules.power_theft import theft

IDLE_W = 50.0
BOTH = (*DEFAULT_LEVERS, "pool", "steal")


def job(id: str, watts: float, nodes: int, low: int, high: int) -> JobView:
    """A malleable job; it runs when it has nodes."""
    more: dict[str, Any] = {"min_power_w": watts, "max_power_w": watts, "kind": "malleable"}
    state: Any = "running" if nodes else "pending"
    return JobView(id=id, name=id, nodes=nodes, state=state, min_nodes=low, max_nodes=high, **more)


def shown(
    lower_w: float,
    upper_w: float,
    *jobs: JobView,
    nodes: int = 4,
    mode: Mode = "policy",
    levers: Any = BOTH,
    solve: Callable[[Problem], Plan | None] = solve,
    **more: Any,
) -> tuple[ClusterSnapshot, PowerView]:
    """A picture with the plan, and what it says of power; `more` of that is given."""
    view = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=jobs,
        idle_nodes=nodes - sum(one.nodes for one in jobs),
    )
    power = PowerView(mode=mode, lower_w=lower_w, upper_w=upper_w, idle_w=IDLE_W, busy_w=200.0, levers=levers)
    power = replace(power, **more)
    low_w, high_w = drawn_w(view, power)
    power = replace(power, draw_w=low_w if power.draw_w is None else power.draw_w, min_w=low_w, max_w=high_w)
    view = planned(view, power, Terms(), solve)
    found = seen(view)
    assert found is not None
    return view, found


def pulled(view: ClusterSnapshot, decision: Decision | None = None) -> list[Any]:
    return list(amended(view, decision or Decision()).actions)


def test_a_theft_leads_inside_or_is_left() -> None:
    jobs = job("hungry", 250.0, 3, 3, 4), job("modest", 100.0, 0, 2, 2)
    hold = Hold(job="modest", reason=Reason(ReasonCode.CORRIDOR, "its watts"))
    view, _ = shown(0.0, 600.0, *jobs)
    [stolen] = pulled(view)
    assert (stolen.job, stolen.thief, stolen.stolen_nodes) == ("hungry", "modest", 1)
    assert stolen.timing == "proactive-checkpoint"
    assert "the draw is 300 to 300 W" in stolen.reason.text
    # where the policy might let nobody overtake the waiting job starts with it
    view, _ = shown(0.0, 600.0, *jobs, mode="enforce")
    first, second = pulled(view, Decision(actions=(hold,)))
    assert (first.timing, type(second), second.job, second.nodes) == ("now", Start, "modest", 2)
    # 300 W are outside, too
    assert not pulled(shown(0.0, 250.0, *jobs)[0])
    assert not pulled(shown(500.0, 600.0, *jobs)[0])
    # the draw is inside, sizes mend it, or nobody has asked
    assert not pulled(shown(0.0, 900.0, *jobs)[0])
    assert not pulled(shown(0.0, 600.0, job("hungry", 250.0, 3, 1, 4), jobs[1])[0])
    assert not pulled(shown(0.0, 600.0, *jobs, levers=DEFAULT_LEVERS)[0])
    assert not pulled(shown(0.0, 600.0, *jobs, mode="advise")[0])


def test_of_jobs_that_wait_for_a_theft_as_many_are_tried_as_a_question_holds() -> None:
    jobs = job("hungry", 250.0, 3, 3, 4), job("modest", 100.0, 0, 2, 2)
    view, power = shown(0.0, 600.0, *jobs)
    for count in (MOST_TRIED - 1, MOST_TRIED):
        # with none of them it is inside; those that are alike are one
        others = [job(f"w{n}", 400.0 + n // 2, 0, 2, 2) for n in range(2 * count)]
        found, _ = theft(replace(view, jobs=(jobs[0], *others, jobs[1])), power)
        assert [one.job for one in found] == ["hungry"] * (count < MOST_TRIED)
    # those that need no theft, or more than any victim has, are none of them
    others = [job(f"w{n}", 400.0 + n, 0, 9 if n % 2 else 1, 9) for n in range(2 * MOST_TRIED)]
    found, _ = theft(replace(view, jobs=(jobs[0], *others, jobs[1])), power)
    assert [(one.job, one.thief) for one in found] == [("hungry", "modest")]
    # what the time was not enough for is no sign that no sizes are inside
    assert power.plan is not None
    late = replace(power, plan=replace(power.plan, status="time-limit"))
    assert theft(view, late) == ((), ())


@pytest.mark.parametrize("mode", ["policy", "enforce"])
def test_a_theft_starts_nobody_above_the_upper_bound_also_where_the_draw_is_more_than_jobs_say(mode) -> None:
    # by the jobs it leads from 800 to 300 W; the draw has 250 or 350 W more than that
    jobs = job("hungry", 250.0, 3, 3, 4), job("modest", 100.0, 0, 2, 2)
    assert pulled(shown(0.0, 600.0, *jobs, mode=mode, draw_w=1050.0)[0])
    above = amended(shown(0.0, 600.0, *jobs, mode=mode, draw_w=1150.0)[0], Decision())
    assert not above.actions
    [refused] = above.suppressed
    assert (refused.action.job, refused.action.thief) == ("hungry", "modest")  # type: ignore[attr-defined]
    text = "the draw is 1150 W, and would be 650 W with modest in place of hungry; allowed are 0 to 600 W"
    assert refused.reason.text == text
    # nor does one to more watts that the lower bound asks for: then the program asks for none
    calm = job("hungry", 60.0, 3, 3, 3), job("modest", 200.0, 0, 2, 2)
    assert pulled(shown(300.0, 600.0, *calm, mode=mode)[0])
    assert not pulled(shown(300.0, 600.0, *calm, mode=mode, draw_w=700.0)[0])


def test_what_sizes_mend_is_not_mended_by_the_pool() -> None:
    # it may shrink to one node: 400 W with three idle ones
    view, power = shown(0.0, 500.0, job("a", 250.0, 3, 1, 4))
    allowed = pool_range(view, power)
    assert allowed is not None
    assert allowed.most == 4
    # it may not: 800 W with the idle one, which goes
    view, power = shown(0.0, 760.0, job("a", 250.0, 3, 3, 4))
    allowed = pool_range(view, power)
    assert allowed is not None
    step = pool_step(view, allowed)
    assert isinstance(step, ReleaseNodes)
    assert step.nodes == 3
    assert "allowed are 0 to 760 W" in step.reason.text
    for levers, mode in ((DEFAULT_LEVERS, "policy"), (BOTH, "monitor"), (BOTH, "advise")):
        assert pool_range(*shown(0.0, 760.0, job("a", 250.0, 3, 3, 4), levers=levers, mode=mode)) is None


def test_idle_nodes_are_off_where_jobs_may_then_have_more_of_the_others() -> None:
    # one node of 75 W and three idle ones are 225 W; with one of them off it may have all three others
    hungry, off = job("a", 75.0, 1, 1, 4), {"max_off_nodes": 3}
    view, power = shown(0.0, 225.0, hungry, **off)
    assert power.plan is not None
    assert (power.plan.nodes, power.off_nodes) == ({"a": 1}, 1)
    allowed = pool_range(view, power)
    assert allowed is not None
    step = pool_step(view, allowed)
    assert isinstance(step, ReleaseNodes)
    assert step.nodes == 3
    assert "with 1 node off jobs may have more of the others" in step.reason.text
    # nobody has more before it is off; then the plan for what is left says so
    assert not pulled(view)
    _, after = shown(0.0, 225.0, hungry, nodes=3, **off)
    assert after.plan is not None
    assert (after.plan.nodes, after.off_nodes) == ({"a": 3}, 0)
    # a job that waits may be whom it is for
    waits = job("b", 100.0, 0, 1, 1)
    assert shown(0.0, 250.0, job("a", 75.0, 2, 2, 2), waits, **off)[1].off_nodes == 1
    # none goes below the lower bound, none that may not go, and none unasked or for nothing
    narrow = shown(200.0, 225.0, hungry, **off)
    assert narrow[1].off_nodes == 1
    assert pool_range(*narrow).enough is None  # type: ignore[union-attr]
    for other in ({"max_off_nodes": 0}, {**off, "off_w": IDLE_W}, {**off, "levers": DEFAULT_LEVERS}):
        assert shown(0.0, 225.0, hungry, **other)[1].off_nodes == 0
    assert shown(0.0, 900.0, hungry, **off)[1].off_nodes == 0
    assert shown(0.0, 225.0, hungry, mode="advise", **off)[1].off_nodes == 0
    # who gets more inside the corridor is another policy's, but for whom it starts next
    calm, wide = job("a", 75.0, 2, 2, 2), job("w", 75.0, 0, 4, 4)
    assert shown(0.0, 225.0, hungry, mode="enforce", **off)[1].off_nodes == 0
    assert shown(0.0, 250.0, calm, waits, mode="enforce", **off)[1].off_nodes == 1
    for mode in ("policy", "enforce"):
        # whoever lacks nodes is waited for: nobody behind it starts
        assert shown(0.0, 250.0, calm, wide, waits, mode=mode, **off)[1].off_nodes == 0  # type: ignore[arg-type]


def test_a_node_that_has_just_come_is_held_before_it_goes_for_what_jobs_may_have_of_the_others() -> None:
    allowed = pool_range(*shown(0.0, 225.0, job("a", 75.0, 1, 1, 4), max_off_nodes=3))
    assert allowed is not None
    assert allowed.enough == 3
    # nodes take 600 s to come, and the last one has come a second ago
    came = PoolState(waits_s=(600.0,), came_s={"a": 0.0, "b": 0.0, "c": 0.0, "d": 999.0}, peaks=((999.0, 4),))
    state = came
    for now_s, nodes in ((1000.0, 4), (1598.0, 4), (1600.0, 3)):
        there = PoolView(now_s=now_s, demand_nodes=9, there=frozenset("abcd"))
        asked = within(there, allowed.least, allowed.most, allowed.enough)
        decision, state = decide(asked, state, {"hold_s": None})
        assert decision.nodes == nodes
    # nor is a node that is still on its way called off while it is being asked which would better be off
    asking = pool_range(*shown(0.0, 900.0, job("a", 75.0, 1, 1, 4), max_off_nodes=3, solve=lambda _: None))
    assert asking is not None
    there = PoolView(now_s=1000.0, demand_nodes=9, there=frozenset("abcd"), pending=frozenset("e"))
    asked = within(there, asking.least, asking.most, asking.enough)
    state = PoolState(asked_s={"e": 990.0}, came_s=came.came_s, peaks=((990.0, 5),))
    assert decide(asked, state, {"hold_s": None})[0].nodes == 5
    # bounds that are broken hold at once
    broken = pool_range(*shown(0.0, 200.0, job("a", 75.0, 1, 1, 1), max_off_nodes=3))
    assert broken is not None
    asked = within(there, broken.least, broken.most, broken.enough)
    assert decide(asked, state, {"hold_s": None})[0].nodes == 3


def test_the_pool_stays_as_it_is_while_it_is_being_asked_which_nodes_would_better_be_off() -> None:
    # with many jobs that wait it is one program more, and for that of the first one alone
    waits = [replace(job(f"w{i}", 80.0 + i, 0, 1, 1), kind="rigid") for i in range(5)]
    view, power = shown(0.0, 100.0, job("a", 75.0, 1, 1, 4), *waits, max_off_nodes=3)
    further = off_question(view, power, Terms())
    assert further is not None
    assert [one.id for one in further.waiting] == ["w0"]
    asked: list[Problem] = []

    def later(problem: Problem) -> Plan | None:
        asked.append(problem)
        return solve(problem) if answers >= len(asked) else None

    for answers in (0, 1):
        asked.clear()
        view, power = shown(60.0, 225.0, job("a", 75.0, 1, 1, 4), max_off_nodes=3, solve=later)
        # the second question waits for the answer to the first one
        assert [one.max_off_nodes for one in asked] == [0, 3][: answers + 1]
        assert power.off_nodes is None
        allowed = pool_range(view, power)
        assert allowed is not None
        assert (allowed.least, allowed.most) == (4, 4)


def test_nodes_that_went_for_the_corridor_come_again_for_jobs_that_run() -> None:
    off = {"max_off_nodes": 3}
    before = pool_range(*shown(0.0, 225.0, job("a", 75.0, 1, 1, 4), **off))
    full = job("a", 75.0, 3, 1, 4)
    tight = pool_range(*shown(0.0, 225.0, full, nodes=3, **off), before)
    assert tight is not None
    assert (tight.gone, tight.bounded(3)) == (1, 3)
    view, power = shown(0.0, 900.0, full, nodes=3, **off)
    wide = pool_range(view, power, tight)
    assert wide is not None
    step = pool_step(view, wide)
    assert isinstance(step, RequestNodes)
    assert step.nodes == 4
    # a cluster that follows the load asks for the same, though its tasks ask for less
    there = PoolView(now_s=0.0, demand_nodes=3, there=frozenset("abc"))
    asked = within(there, wide.least, wide.most, wide.enough, wide.again)
    assert decide(asked, PoolState(), {"hold_s": None})[0].nodes == 4
    # nothing is left of it once that node has come; one that has gone by itself is not asked for
    back = pool_range(*shown(0.0, 900.0, job("a", 75.0, 4, 1, 6), **off), wide)
    lost = pool_range(view, power, replace(before, enough=None, least=0, most=9))  # type: ignore[type-var]
    assert [one.gone for one in (back, lost) if one is not None] == [0, 0]


def test_no_node_comes_for_the_watts_of_sizes_that_come_next() -> None:
    # 175 W, and 225 W once it has the other two: a fourth node would be 275 W
    small = job("a", 75.0, 1, 1, 4)
    view, power = shown(0.0, 225.0, small, nodes=3, max_off_nodes=3)
    assert power.plan is not None
    assert power.plan.nodes == {"a": 3}
    allowed = pool_range(view, power)
    assert allowed is not None
    assert allowed.most == 3
    # while it gets them the same holds, but for what jobs hold
    grows = replace(view, jobs=(replace(small, state="adapting", nodes=3),), idle_nodes=0)
    assert pool_range(grows, power, allowed) == allowed
    few = replace(allowed, least=1, most=2, enough=1)
    assert pool_range(grows, power, few) == replace(few, most=3, enough=3)
    assert pool_range(grows, power) is None
    assert pool_range(grows, replace(power, levers=DEFAULT_LEVERS), allowed) is None


@given(st.floats(0, 700), st.integers(1, 3), st.integers(2, 5), st.sampled_from([0.0, 20.0]), st.booleans())
@examples(40)
def test_nodes_that_are_off_do_not_come_back_to_go_again(upper_w, held, most, off_w, pool_first) -> None:
    nodes, went = 5, False
    for _ in range(10):
        # those that have gone draw what one does that is off
        off = {"max_off_nodes": 4, "off_w": off_w, "base_w": (5 - nodes) * off_w}
        view, power = shown(0.0, upper_w, job("a", 75.0, held, 1, most), nodes=nodes, **off)
        allowed = pool_range(view, power)
        assert allowed is not None
        # its tasks ask for as many as there can be
        target = min(5, allowed.bounded(5))
        assert not (went and target > nodes), f"at {upper_w:g} W one comes back"
        size = held if power.plan is None else power.plan.nodes["a"]
        if size != held and not (pool_first and target < nodes):
            held = size
        elif target != nodes:
            nodes, went = target, True
        else:
            return
    raise AssertionError(f"at {upper_w:g} W it never rests")


@given(st.integers(1, 12), st.integers(0, 12), st.floats(0, 1500), st.floats(0, 1500))
def test_the_range_keeps_nodes_of_jobs_and_idle_ones_within_the_bounds(held, idle, lower_w, more_w) -> None:
    upper_w = lower_w + more_w
    rigid = replace(job("r", 100.0, held, held, held), kind="rigid")
    view, power = shown(lower_w, upper_w, rigid, nodes=held + idle)
    allowed = pool_range(view, power)
    assert allowed is not None
    assert allowed.least <= allowed.most
    assert allowed.most >= held

    def at(nodes: int) -> float:
        return 100.0 * held + IDLE_W * (nodes - held)

    # as many as there are watts for, and not one less
    assert at(allowed.most) <= upper_w + 1e-6 or allowed.most == held
    assert at(allowed.most + 1) > upper_w - 1e-6
    if allowed.least > held:
        assert at(allowed.least) >= lower_w - 1e-6 or allowed.least == allowed.most
        assert at(allowed.least - 1) < lower_w + 1e-6


@given(st.integers(0, 6), st.integers(0, 3), st.floats(0, 1500))
def test_nodes_that_start_are_asked_for_again_and_take_their_watts(idle, starting, upper_w) -> None:
    rigid = replace(job("r", 100.0, 2, 2, 2), kind="rigid")
    view, power = shown(0.0, upper_w, rigid, nodes=2 + idle)
    extra_w = starting * (IDLE_W + 40.0 - 5.0)
    begun = replace(power, off_w=5.0, boot_w=IDLE_W + 40.0, boot_nodes=starting, base_w=extra_w)
    none = replace(power, off_w=5.0, boot_w=IDLE_W + 40.0)
    # whoever has begun to start is among those that there are watts for, not beside them
    assert pool_range(view, begun) == pool_range(view, none)
    allowed = pool_range(view, begun)
    assert allowed is not None
    came = allowed.most - (2 + idle)
    if came > 0:
        assert 200.0 + idle * IDLE_W + came * (IDLE_W + 35.0) <= upper_w + 1e-6
